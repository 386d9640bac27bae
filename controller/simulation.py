"""What the controller would do with the pods and claims of a recorded cluster, one after another."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import msgspec

from dracaena.api.decision import Decision, describe
from dracaena.api.gates import gates_of_others
from dracaena.api.gpu_templates import read_gpu_template
from dracaena.api.names import quota_annotation
from dracaena.api.objects import ENDED, Namespace, Node, ObjectMeta, OwnerReference, Pod, PodResourceClaimStatus
from dracaena.api.podclaims import is_made_for, made_for_another, pod_claims
from dracaena.api.reasons import no_claim, no_template
from dracaena.api.resource_objects import (
    DeviceClass,
    DeviceResult,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from dracaena.api.topology_levels import DEFAULT_LEVELS, NO_LEVELS, TopologyLevels
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.effort import never
from dracaena.controller.allocation.explanation import Reasons, Unsatisfied, ended
from dracaena.controller.allocation.nodes.node_resources import pod_name
from dracaena.controller.allocation.request import Refused
from dracaena.controller.allocation.result import Allocation, allocated_claim, commit, decision_of
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import claim_holder, held_devices, other_holdings
from dracaena.controller.allocation.state.size_demand import SizeDemand
from dracaena.controller.allocation.walk.pod_demand import turn
from dracaena.controller.state.quotas import Quotas
from dracaena.controller.state.remedy_trials import RemedyTrials

_TIMESTAMP: Final = "1970-01-01T00:00:00Z"
"""Of allocations that are never written."""

_POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a generated claim: the entry of its pod."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of one claim."""

    claim: str
    """`namespace/name`; of a claim that its template has not made yet, the name `<pod>-<entry>`."""
    pod: str | None
    """`namespace/name`; None for a claim that no pod names."""
    reason: str
    """Why these devices, or why none, as Events say it."""
    remedies: tuple[str, ...] = ()
    """What would help a claim that gets none."""
    devices: tuple[DeviceResult, ...] = ()
    """status.allocation.devices.results; empty when nothing is allocated."""
    decision: Decision | None = None
    ignored: tuple[str, ...] = ()
    """What has no effect in the pod and its claims, in the words of the Event; only on the pod's first claim."""

    @property
    def node(self) -> str | None:
        """The node of the devices, None when nothing is allocated."""
        return None if self.decision is None else self.decision.node


class Simulation:
    """A cluster and the books of what was decided so far. For one thread."""

    def __init__(
        self,
        driver: str,
        *,
        nodes: Iterable[Node],
        slices: Iterable[ResourceSlice],
        classes: Iterable[DeviceClass],
        taint_rules: Iterable[DeviceTaintRule] = (),
        claims: Iterable[ResourceClaim] = (),
        templates: Iterable[ResourceClaimTemplate] = (),
        namespaces: Iterable[Namespace] = (),
    ) -> None:
        """Claims that are already allocated hold their devices; namespaces are read for their quotas."""
        self.limit: Callable[[], Callable[[int], bool]] = lambda: never
        """Called for each decision; returns the function that says whether to stop it (effort.Effort.begin)."""
        self._naming: Counter[str | None] = Counter()  # claim → pods that name it
        self._claims = {claim.key: claim for claim in claims}
        self._templates = {template.key: template for template in templates}
        self._allocator = Allocator()
        self.inventory: Inventory = make_inventory(
            driver,
            nodes=nodes,
            slices=slices,
            claims=self._claims.values(),
            classes=classes,
            taint_rules=taint_rules,
            levels=DEFAULT_LEVELS,
        )
        self._quotas = Quotas(self.inventory)
        self._pods_with: defaultdict[str | None, set[str]] = defaultdict(set)  # claim → the placed pods that name it
        self._trials = RemedyTrials(self._allocator, self.inventory, self._quotas, self._pods_with.__getitem__)
        for namespace in namespaces:
            self._quotas.change(namespace.key, namespace.metadata.annotations.get(quota_annotation(driver)))
        self._allocator.reprice(self.inventory, SizeDemand().shares(self.inventory.holdings.by_size, now_s=0.0))

    def outcomes(self, pods: Iterable[Pod]) -> Iterator[Outcome]:
        """Decide for all pods in the order of the controller's queue: by priority, then by age with those never created
        last, then in the given order. Then decide for the claims that no pod names, as if a pod without other needs
        used each.

        Pods that run, have ended or are being deleted are skipped, and so are allocated claims; but pods that have a
        node count there with what they request.
        """
        every = tuple(pods)
        self.place_bound(every)
        self._naming.update(key for pod in every for key in {claim.key for claim in pod_claims(pod)})
        owners = {pod.metadata.uid for pod in every} - {""}
        alone = [key for key, claim in self._claims.items() if key not in self._naming and not _owned(claim, owners)]
        for pod in sorted(filter(is_pending, every), key=_turn):
            yield from self.decide(pod)
        for key in alone:
            yield from self._of_nobody(self._claims[key])

    def place_bound(self, pods: Iterable[Pod]) -> None:
        """Count the pods that have a node and have not ended there, with what they request."""
        for pod in pods:
            if pod.spec.node_name and pod.status.phase not in ENDED:
                self._place(pod, pod.spec.node_name)

    def _place(self, pod: Pod, node: str) -> None:
        self.inventory.place(pod, node)
        for claim in pod_claims(pod):
            self._pods_with[claim.key].add(pod_name(pod))

    def _of_nobody(self, claim: ResourceClaim) -> Iterator[Outcome]:
        if claim.status.allocation is not None:
            return
        if claim.metadata.deletion_timestamp is not None:
            yield Outcome(claim.key, None, _being_deleted(claim.key))
            return
        no_pod = Pod(metadata=ObjectMeta(name="", namespace=claim.metadata.namespace))
        yield from self._decide(no_pod, None, (claim.key,))

    def decide(self, pod: Pod) -> Iterator[Outcome]:
        """Decide for one pod, knowing all decisions before; yield what becomes of each claim without devices."""
        pod = self._with_generated_claims(pod)
        # Two entries may name one claim: it is still one claim.
        keys = tuple(dict.fromkeys(claim.key or f"{pod.key}-{claim.alias}" for claim in pod_claims(pod)))
        waiting = tuple(key for key in keys if key not in self._claims or not self._claims[key].status.allocation)
        obstacle = self._obstacle(pod, keys)
        if obstacle is not None:
            yield from (Outcome(key, pod.key, obstacle) for key in waiting)
        elif waiting:
            yield from self._decide(pod, pod.key, keys)

    def _decide(self, pod: Pod, pod_key: str | None, keys: Sequence[str]) -> Iterator[Outcome]:
        claims = tuple(self._claims[key] for key in keys)
        others = {key for key in keys if self._naming[key] > 1}
        ignored = self._allocator.ignored(self.inventory, pod, claims, others=others, is_over=self.limit())
        for place, outcome in enumerate(self._outcomes(pod, pod_key, claims)):
            yield replace(outcome, ignored=ignored) if place == 0 else outcome

    def _outcomes(self, pod: Pod, pod_key: str | None, claims: Sequence[ResourceClaim]) -> Iterator[Outcome]:
        ask = partial(self._allocator.allocate, self.inventory, pod, claims, is_over=self.limit())
        decision = self._quotas.ask(pod.metadata.namespace, lambda barred: ask(barred=barred))
        if isinstance(decision, Allocation):
            commit(self.inventory, decision)
            if pod_key is not None:
                self._place(pod, decision.node)
            served = {entry.claim.key for entry in decision.claims}
            for entry in decision.claims:
                claim = self._claims[entry.claim.key] = allocated_claim(decision, entry, _TIMESTAMP)
                said = decision_of(decision, entry)
                assert claim.status.allocation is not None
                results = tuple(claim.status.allocation.devices.results)
                yield Outcome(claim.key, pod_key, describe(said), devices=results, decision=said)
            left = [claim.key for claim in claims if claim.key not in served and not claim.status.allocation]
            yield from (Outcome(key, pod_key, self._left_to_others()) for key in left)
            return
        why = Reasons(decision.text) if isinstance(decision, Refused) else self._why(pod, claims)
        waiting = (claim.key for claim in claims if not claim.status.allocation)
        yield from (Outcome(key, pod_key, why.text, why.remedies) for key in waiting)

    def _why(self, pod: Pod, claims: Sequence[ResourceClaim]) -> Reasons:
        why = self._allocator.explain(self.inventory, pod, claims, is_over=self.limit())
        if isinstance(why, Unsatisfied):
            return Reasons(why, ended(self._trials.remedies(pod, claims, why, {}, self.limit)))
        return Reasons(why.text if isinstance(why, Refused) else self._left_to_others())

    def _left_to_others(self) -> str:
        return f"left to kube-scheduler: asks for no device of {self.inventory.driver}"

    def _obstacle(self, pod: Pod, keys: Sequence[str]) -> str | None:
        """Return why the controller does not look at a pod's claims yet."""
        if gates := gates_of_others(pod, self.inventory.driver):
            return f"the pod waits at its scheduling gate {gates[0]}"
        templates = {entry.name: entry.resource_claim_template_name for entry in pod.spec.resource_claims}
        for claim in pod_claims(pod):
            if claim.key is None and templates[claim.alias] is None:
                return f"the pod's entry {claim.alias} names neither a claim nor a template"
            if claim.key is None:
                there = (one.metadata for one in self._templates.values())
                names = [one.name for one in there if one.namespace == claim.namespace]
                return no_template(f"{claim.namespace}/{templates[claim.alias]}", names)
            known = self._claims.get(claim.key)
            if known is not None and claim.generated and pod.metadata.uid and not is_made_for(known, pod):
                return made_for_another(known)
        for key in keys:
            if key not in self._claims:
                return no_claim(key)
            if self._claims[key].metadata.deletion_timestamp is not None:
                return _being_deleted(key)
        return None

    def _with_generated_claims(self, pod: Pod) -> Pod:
        """Make the claims of a pod that its templates have not made yet, as kube-controller-manager would."""
        statuses = {status.name: status for status in pod.status.resource_claim_statuses}
        for entry in pod.spec.resource_claims:
            if entry.resource_claim_template_name is None or entry.name in statuses:
                continue
            key = f"{pod.metadata.namespace}/{entry.resource_claim_template_name}"
            template = self._templates.get(key) or _made_on_demand(entry.resource_claim_template_name)
            claim = self._generated(pod, entry.name) or self._generate(pod, entry.name, template)
            if claim is not None:
                name = claim.metadata.name
                statuses[entry.name] = PodResourceClaimStatus(name=entry.name, resource_claim_name=name)
        status = msgspec.structs.replace(pod.status, resource_claim_statuses=list(statuses.values()))
        return msgspec.structs.replace(pod, status=status)

    def _generated(self, pod: Pod, entry: str) -> ResourceClaim | None:
        """Return the claim in the input that was generated for an entry of a pod."""
        for claim in self._claims.values():
            if claim.metadata.annotations.get(_POD_CLAIM_NAME) == entry and _owned(claim, {pod.metadata.uid} - {""}):
                return claim
        return None

    def _generate(self, pod: Pod, entry: str, template: ResourceClaimTemplate | None) -> ResourceClaim | None:
        if template is None:
            return None
        name = f"{pod.metadata.name}-{entry}"
        while f"{pod.metadata.namespace}/{name}" in self._claims:
            name += "-generated"  # the server draws names until one is free; ours must be the same at each run
        owner = OwnerReference(uid=pod.metadata.uid, kind=Pod.KIND, name=pod.metadata.name, controller=True)
        meta = ObjectMeta(
            name=name, namespace=pod.metadata.namespace, uid=f"{pod.key}/{entry}", owner_references=[owner]
        )
        claim = ResourceClaim(metadata=meta, spec=template.spec.spec)
        self._claims[claim.key] = claim
        return claim


def _owned(claim: ResourceClaim, uids: Collection[str]) -> bool:
    return any(owner.controller and owner.uid in uids for owner in claim.metadata.owner_references)


def is_pending(pod: Pod) -> bool:
    """Whether a decision about a pod is due: it does not run, has not ended and is not being deleted."""
    return pod.status.phase in ("", "Pending") and pod.metadata.deletion_timestamp is None


def _made_on_demand(name: str) -> ResourceClaimTemplate | None:
    """Return the template that the controller makes when a pod names it."""
    template = read_gpu_template(name)
    return None if template is None else msgspec.convert(template.document(), ResourceClaimTemplate)


def _being_deleted(key: str) -> str:
    return f"claim {key} is being deleted"


def _turn(pod: Pod) -> tuple[int, bool, str]:
    """Sort as the controller's queue; sorted() keeps the given order of equals, as if they were created in it."""
    priority, never_created, created, _ = turn(pod)
    return priority, never_created, created


def make_inventory(
    driver: str,
    *,
    nodes: Iterable[Node],
    slices: Iterable[ResourceSlice],
    claims: Iterable[ResourceClaim] = (),
    classes: Iterable[DeviceClass] = (),
    taint_rules: Iterable[DeviceTaintRule] = (),
    levels: TopologyLevels = NO_LEVELS,
) -> Inventory:
    """Build an inventory of one moment; allocated `claims` hold their devices."""
    inventory = Inventory(driver, levels=levels)
    for rule in taint_rules:
        inventory.set_taint_rule(rule)
    for node in nodes:
        inventory.set_node(node)
    for item in slices:
        inventory.change_slice(None, item)
    for device_class in classes:
        inventory.set_class(device_class)
    for claim in claims:
        inventory.hold(claim_holder(claim), held_devices(claim, driver), other_holdings(claim, driver))
    return inventory
