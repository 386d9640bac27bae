"""Stand-in for kube-scheduler, as far as it matters for pods with our kind of devices.

What it does, as the real one does it:
* leaves a pod alone until all its claims exist and are its own;
* obeys the node selector of allocated claims, and does not look at classes or taints of their devices again;
* honours spec.unschedulable, node taints, nodeSelector and required node affinity;
* compares what pods request with what nodes have (cpu, memory, any other resource, number of pods);
* says PodScheduled=False, Unschedulable while a claim is not allocated ("cannot allocate all claims");
* before it binds, adds the pod to status.reservedFor where it is missing. That fails for an allocation without
  allocationTimestamp, because the real one then compares an immutable field with a different value.

What it does not do: it never allocates a claim (all devices here carry our taint, which stops the real one), not even
one without requests, which the real one allocates with an empty result: its pod waits and says why. It has no host
ports, no scores (fewest pods, then name), no preemption, no pod affinity (the API server refuses such a pod), no
profiles. It never clears an allocation that fits nowhere (PostFilter).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dracaena.api.objects import ENDED, Node, Pod
from dracaena.api.podclaims import pod_claims
from dracaena.api.resource_objects import ResourceClaim
from dracaena.demo.node_fit import misfit, selects
from dracaena.demo.node_room import shortages
from dracaena.demo.objects import PodDocument, owned_by
from dracaena.demo.pod_claims import consumer_of, is_reserved_for
from dracaena.demo.reconcile import RETRY_S, CachedStandIn, settle
from dracaena.kube.client import KubeClient
from dracaena.process.clock import Clock, rfc3339

SCHEDULER_NAME = "default-scheduler"


@dataclass(frozen=True, slots=True)
class Unschedulable:
    """The pod has to wait; `message` says why, in kube-scheduler's words."""

    message: str


class KubeScheduler(CachedStandIn):
    """Runs between start() and stop(), on caches of its own."""

    def __init__(self, client: KubeClient, clock: Clock) -> None:
        super().__init__("kube-scheduler", client, clock, events_as=SCHEDULER_NAME)
        self._pods = self._cache(Pod)
        self._claims = self._cache(ResourceClaim)
        self._nodes = self._cache(Node)
        self._assumed: dict[str, tuple[str, Pod]] = {}  # pod UID → node and pod: bound by us, not yet in the cache

    def _reconcile(self) -> float | None:
        pods = self._pods.values()
        seen = {pod.metadata.uid for pod in pods if not pod.spec.node_name}
        self._assumed = {uid: bound for uid, bound in self._assumed.items() if uid in seen}
        return None if settle([pod for pod in pods if self._is_queued(pod)], self._schedule, "pod") else RETRY_S

    def _is_queued(self, pod: Pod) -> bool:
        """PreEnqueue: pods with a node, gates or another scheduler, or whose claims are not all there, stay out."""
        if (
            pod.spec.node_name
            or pod.metadata.uid in self._assumed
            or pod.metadata.deletion_timestamp is not None
            or pod.spec.scheduling_gates
            or pod.spec.scheduler_name != SCHEDULER_NAME
        ):
            return False
        claims = self._claims_of(pod)
        if claims is None:
            return False
        generated = {one.key for one in pod_claims(pod) if one.generated}
        return all(owned_by(claim, pod) for claim in claims if claim.key in generated)

    def _claims_of(self, pod: Pod) -> list[ResourceClaim] | None:
        found = [self._claims.get(one.key) if one.key else None for one in pod_claims(pod)]
        claims = [claim for claim in found if claim is not None]
        return claims if len(claims) == len(found) else None

    def _schedule(self, pod: Pod) -> None:
        claims = self._claims_of(pod)
        if claims is None:
            return
        choice = choose_node(pod, claims, self._nodes.values(), self._pods_on_nodes())
        if isinstance(choice, Unschedulable):
            self._report(pod, "Unschedulable", choice.message)
            return
        for claim in claims:
            if is_reserved_for(claim, pod):
                continue
            if claim.status.allocation is not None and claim.status.allocation.allocation_timestamp is None:
                why = f"reserve {claim.key}: ResourceClaim is invalid: status.allocation: field is immutable"
                self._report(pod, "SchedulerError", f"{why} (allocationTimestamp is missing)")
                return
            self._patch_status(claim, {"reservedFor": [*claim.status.reserved_for, consumer_of(pod)]})
        self._bind(pod, choice)

    def _pods_on_nodes(self) -> dict[str, list[Pod]]:
        bound: dict[str, list[Pod]] = {}
        for pod in self._pods.values():
            if pod.spec.node_name and pod.status.phase not in ENDED:
                bound.setdefault(pod.spec.node_name, []).append(pod)
        for node, pod in self._assumed.values():
            bound.setdefault(node, []).append(pod)
        return bound

    def _bind(self, pod: Pod, node: str) -> None:
        meta = pod.metadata
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        self._client.create_subresource(Pod, meta.name, "binding", binding, namespace=meta.namespace)
        self._assumed[meta.uid] = node, pod
        self._events.record(pod, "Normal", "Scheduled", f"Successfully assigned {pod.key} to {node}")

    def _report(self, pod: Pod, reason: str, message: str) -> None:
        """Write the condition and the Event, once for each new message, and again if somebody probed the condition."""
        wanted = ("False", reason, message, None)
        for condition in pod.status.conditions:
            said = (condition.status, condition.reason, condition.message, condition.last_probe_time)
            if condition.type == "PodScheduled" and said == wanted:
                return
        self._events.record(pod, "Warning", "FailedScheduling", message)
        meta = pod.metadata
        document = self._client.get(PodDocument, meta.name, namespace=meta.namespace)
        others = [one for one in document.status.get("conditions", ()) if one["type"] != "PodScheduled"]
        condition_document = {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": rfc3339(self._clock.now()),
        }
        if document.metadata.uid == meta.uid:
            self._patch_status(document, {"conditions": [*others, condition_document]})


def choose_node(
    pod: Pod, claims: Sequence[ResourceClaim], nodes: Sequence[Node], pods_on_nodes: Mapping[str, Sequence[Pod]]
) -> str | Unschedulable:
    """Return the node to bind to, or why there is none. Pure: same input, same answer."""
    deleting = next((claim for claim in claims if claim.metadata.deletion_timestamp is not None), None)
    if deleting is not None:
        return Unschedulable(f'resourceclaim "{deleting.metadata.name}" is being deleted')
    unserved = _unserved_claim(claims)
    if unserved is not None:
        return Unschedulable(f"the embedded scheduler does not implement {unserved}")
    reasons = {node.metadata.name: _reasons(pod, claims, node, pods_on_nodes) for node in nodes}
    fitting = [name for name in sorted(reasons) if not reasons[name]]
    if fitting:
        return min(fitting, key=lambda name: (len(pods_on_nodes.get(name, ())), name))
    counted = Counter(reason for found in reasons.values() for reason in found)
    listed = ", ".join(f"{counted[reason]} {reason}" for reason in sorted(counted))
    return Unschedulable(f"0/{len(nodes)} nodes are available: {listed or 'no nodes'}.")


def _reasons(
    pod: Pod, claims: Sequence[ResourceClaim], node: Node, pods_on_nodes: Mapping[str, Sequence[Pod]]
) -> tuple[str, ...]:
    """Return why the pod cannot run on the node, as kube-scheduler says it: if only resources lack, all of them."""
    first = misfit(pod, node)
    if first is not None:
        return (first,)
    short = shortages(pod, node, pods_on_nodes.get(node.metadata.name, ()))
    last = None if short else _claims_misfit(claims, node)
    return short if last is None else (last,)


def _unserved_claim(claims: Sequence[ResourceClaim]) -> str | None:
    """Return what is not implemented for a claim that only kube-scheduler allocates, if there is one."""
    for claim in claims:
        if claim.status.allocation is None and not (claim.spec.get("devices") or {}).get("requests"):
            return f'the allocation of a claim without requests (resourceclaim "{claim.metadata.name}")'
    return None


def _claims_misfit(claims: Sequence[ResourceClaim], node: Node) -> str | None:
    allocations = [claim.status.allocation for claim in claims]
    for allocation in allocations:
        if allocation is not None and allocation.node_selector and not selects(allocation.node_selector, node):
            return "resourceclaim not available on the node"
    return "cannot allocate all claims" if None in allocations else None
