"""How many pods of each template fit into a cluster as it is: `dracaena simulate --what-fits`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Final

import msgspec

from dracaena.api.objects import ObjectMeta, Pod, PodResourceClaim, PodStatus
from dracaena.api.resource_objects import ResourceClaimTemplate, ResourceClaimTemplateSpec
from dracaena.cli.cluster_objects import ClusterObjects
from dracaena.cli.columns import aligned, wrapped
from dracaena.cli.workloads import Workload, controller_uid
from dracaena.controller.allocation.explanation import NAMES_SHOWN
from dracaena.controller.simulation import Outcome, Simulation, is_pending
from dracaena.validation.pod_templates import pod_template_paths

MOST_COPIES: Final = 10_000
"""Pods of one template that are tried: pods that share devices without limit would never be refused."""

Start = Callable[[Iterable[ResourceClaimTemplate]], Simulation]
"""Returns the cluster as it is, with these templates of claims."""


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """What pods are made of."""

    name: str
    """Kind and `namespace/name` of the object that has it; if a workload has several, with what tells them apart."""
    pods: Sequence[Pod]
    """The pods themselves if there cannot be more, as for a DaemonSet; else one that is copied."""
    finite: bool = False


@dataclass(frozen=True, slots=True)
class Fit:
    """What became of the copies of one template."""

    template: str
    pods: tuple[Outcome, ...]
    """The first claim with devices of each pod that fits, in the order of the decisions."""
    reason: str
    """Why the next pod gets nothing; empty if none was refused."""

    @property
    def nodes(self) -> Counter[str]:
        """Node → pods that fit there, in the order in which nodes are taken."""
        return Counter(each.node for each in self.pods if each.node is not None)

    @property
    def best(self) -> Outcome | None:
        """The pod with the highest bandwidth, then the fastest ring, the first of equals."""
        return max(self.pods, key=_bandwidth, default=None)

    @property
    def last(self) -> Outcome | None:
        """The pod of the last decision."""
        return self.pods[-1] if self.pods else None


def pod_templates(objects: ClusterObjects, made: Sequence[Pod]) -> tuple[PodTemplate, ...]:
    """Return the templates of an input that name claims: of its pending pods, one for all of one controller; of its
    workloads; and the templates of claims that none of them names. `made`: what its workloads make.
    """
    workloads = [Workload(manifest) for manifest in objects.workloads]
    found = [
        *_of_pods(objects.pods, {each.meta.uid for each in workloads if each.meta.uid}),
        *(template for each in workloads for template in _of_workload(each, made)),
    ]
    asking = [template for template in found if any(pod.spec.resource_claims for pod in template.pods)]
    named = {
        f"{pod.metadata.namespace}/{entry.resource_claim_template_name}"
        for template in asking
        for pod in template.pods
        for entry in pod.spec.resource_claims
    }
    asking += [_of_claims(each) for each in objects.templates if each.key not in named]
    return tuple(asking)


def fits(templates: Iterable[PodTemplate], objects: ClusterObjects, start: Start) -> Iterator[Fit]:
    """Yield for each template how many of its pods fit, each asked of the cluster as it is.

    A claim that a pod names is taken as if each copy had one like it.
    """
    for template in templates:
        own: dict[str, ResourceClaimTemplate] = {}
        pods = [_with_own_claims(pod, objects, own) for pod in template.pods]
        copies = iter(pods) if template.finite else islice(_copies(pods[0]), MOST_COPIES)
        simulation = start((*objects.templates, *own.values()))
        simulation.place_bound(objects.pods)
        served: list[Outcome] = []
        reason = ""
        for pod in copies:
            outcomes = list(simulation.decide(pod))
            first = next((outcome for outcome in outcomes if outcome.node is not None), None)
            if first is not None:
                served.append(first)
                continue
            reason = outcomes[0].reason if outcomes else ""
            if not template.finite:
                break
        yield Fit(template.name, tuple(served), reason)


def _of_pods(pods: Iterable[Pod], workloads: set[str]) -> Iterator[PodTemplate]:
    met: set[str] = set()
    for pod in filter(is_pending, pods):
        controller = controller_uid(pod.metadata)
        if pod.spec.node_name or (controller and (controller in met or controller in workloads)):
            continue
        met.add(controller)
        yield PodTemplate(f"Pod {pod.key}", (pod,))


def _of_workload(workload: Workload, made: Sequence[Pod]) -> Iterator[PodTemplate]:
    if workload.kind == "DaemonSet":
        own = tuple(pod for pod in made if controller_uid(pod.metadata) == workload.uid)
        yield PodTemplate(str(workload), own, finite=True)
        return
    group = workload.manifest.object["apiVersion"].rpartition("/")[0]
    paths = pod_template_paths(group, workload.kind, workload.manifest.object)
    for path in paths:
        template = workload.template(*path)
        meta = msgspec.structs.replace(template.metadata, namespace=workload.meta.namespace)
        part = workload.value(*path[:3], "name") if workload.kind == "JobSet" else path[-1]
        name = f"{workload} {part}" if len(paths) > 1 else str(workload)
        yield PodTemplate(name, (msgspec.structs.replace(template, metadata=meta),))


def _of_claims(template: ResourceClaimTemplate) -> PodTemplate:
    meta = ObjectMeta(name=template.metadata.name, namespace=template.metadata.namespace)
    entry = PodResourceClaim("claim", resource_claim_template_name=template.metadata.name)
    pod = msgspec.convert({"metadata": {"name": meta.name}}, Pod)
    spec = msgspec.structs.replace(pod.spec, resource_claims=[entry])
    return PodTemplate(f"{template.KIND} {template.key}", (msgspec.structs.replace(pod, metadata=meta, spec=spec),))


def _with_own_claims(pod: Pod, objects: ClusterObjects, own: dict[str, ResourceClaimTemplate]) -> Pod:
    """Return a pod that names a template in place of each claim of the input; `own` takes these templates in."""
    claims = {claim.key: claim for claim in objects.claims}
    entries = []
    for entry in pod.spec.resource_claims:
        claim = claims.get(f"{pod.metadata.namespace}/{entry.resource_claim_name}")
        if claim is not None:
            name = f"claim {claim.metadata.name}"  # no object of the API is called so
            meta = ObjectMeta(name=name, namespace=claim.metadata.namespace)
            own[claim.key] = ResourceClaimTemplate(meta, ResourceClaimTemplateSpec(claim.spec))
            entry = PodResourceClaim(entry.name, resource_claim_template_name=name)  # noqa: PLW2901 - the same entry
        entries.append(entry)
    spec = msgspec.structs.replace(pod.spec, resource_claims=entries)
    return msgspec.structs.replace(pod, spec=spec)


def _copies(pod: Pod) -> Iterator[Pod]:
    """Yield pods like this one without gates and without allocations."""
    spec = msgspec.structs.replace(pod.spec, scheduling_gates=[])
    for number in count():
        name = f"{pod.metadata.name}-{number}"
        meta = msgspec.structs.replace(pod.metadata, name=name, uid=f"copy {number}", creation_timestamp=None)
        yield msgspec.structs.replace(pod, metadata=meta, spec=spec, status=PodStatus())


def _bandwidth(outcome: Outcome) -> tuple[int, int]:
    score = dict(outcome.decision.score) if outcome.decision is not None else {}
    return score.get("bandwidth_gb_s", 0), score.get("ring_gb_s", 0)


def fit_table(found: Sequence[Fit]) -> Iterator[str]:
    """Yield the lines of the table: one per template, and below it why no more fit."""
    if not found:
        yield "nothing to try: the input has no pending pod, workload or template that asks for devices"
        return
    rows = [("TEMPLATE", "PODS", "NODES", "BEST", "LAST")]
    rows += [(fit.template, _pods(fit), _nodes(fit), _links(fit.best), _links(fit.last)) for fit in found]
    lines = aligned(rows)
    yield next(lines)
    for line, fit in zip(lines, found, strict=True):
        yield line
        if fit.reason:
            yield from wrapped(f"the next: {fit.reason}", first=4, rest=4)


def _pods(fit: Fit) -> str:
    return f"{len(fit.pods)}+" if _is_cut(fit) else str(len(fit.pods))


def _is_cut(fit: Fit) -> bool:
    return len(fit.pods) == MOST_COPIES


def _nodes(fit: Fit) -> str:
    shown = [f"{node} ({pods})" for node, pods in islice(fit.nodes.items(), NAMES_SHOWN)]
    return ", ".join(shown) + (", …" if len(fit.nodes) > NAMES_SHOWN else "") or "-"


def _links(outcome: Outcome | None) -> str:
    return outcome.decision.links or "-" if outcome is not None and outcome.decision is not None else "-"


def fit_document(fit: Fit) -> dict[str, Any]:
    """Return the JSON form; docs/check.md promises it."""
    return {
        "template": fit.template,
        "pods": len(fit.pods),
        "more": _is_cut(fit),
        "nodes": dict(fit.nodes),
        "best": _placed(fit.best),
        "last": _placed(fit.last),
        "reason": fit.reason or None,
    }


def _placed(outcome: Outcome | None) -> dict[str, Any] | None:
    if outcome is None or outcome.decision is None:
        return None
    return {"node": outcome.node, "links": outcome.decision.links, "score": dict(outcome.decision.score)}
