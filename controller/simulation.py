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
from dracaena.api.workload_objects import PodGroup
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.effort import never
from dracaena.controller.allocation.explanation import Reasons, Unsatisfied, ended
from dracaena.controller.allocation.gang.domains import Domains
from dracaena.controller.allocation.gang.gang_allocator import (
    HOSTNAME,
    GangAllocation,
    GangAllocator,
    GangRules,
    domains_of,
)
from dracaena.controller.allocation.gang.question import NODE, GangRefusal, Rails
from dracaena.controller.allocation.gang.words import members_in_words, place_in_words
from dracaena.controller.allocation.nodes.node_resources import pod_name
from dracaena.controller.allocation.request import Refused
from dracaena.controller.allocation.result import Allocation, allocated_claim, commit, decision_of
from dracaena.controller.allocation.state.gangs import Family, controller_of, family_of, group_of
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import claim_holder, held_devices, other_holdings
from dracaena.controller.allocation.state.rails import rails_of_kind
from dracaena.controller.allocation.state.size_demand import SizeDemand
from dracaena.controller.allocation.walk.pod_demand import turn
from dracaena.controller.state.pod_groups import PodGroups
from dracaena.controller.state.quotas import Quotas
from dracaena.controller.state.remedy_trials import RemedyTrials

_TIMESTAMP: Final = "1970-01-01T00:00:00Z"
"""Of allocations that are never written."""

_REQUIRED_LEVEL: Final = "kueue.x-k8s.io/podset-required-topology"
_PREFERRED_LEVEL: Final = "kueue.x-k8s.io/podset-preferred-topology"
"""Annotations of pod templates whose value is the label of a level: apis/kueue/v1beta1/topology_types.go of
kubernetes-sigs/kueue."""

_POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a generated claim: the entry of its pod."""


@dataclass(frozen=True, slots=True)
class GangOutcome:
    """What becomes of the pods of a gang as a whole."""

    name: str
    """Kind and `namespace/name` of what makes them one."""
    members: str
    """How many pods of how many GPUs each, in words."""
    is_placed: bool
    """Whether all were placed at once; if not, each pod was decided by itself."""
    text: str
    """Where, or why not."""

    def __str__(self) -> str:
        """As one line."""
        return f"{self.name}: {self.members} → {self.text}" if self.is_placed else self._not_placed()

    def _not_placed(self) -> str:
        return f"{self.name}: {self.members} are decided one by one: {self.text}"


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
    gang: GangOutcome | None = None
    """The gang that the pod belongs to."""

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
        levels: TopologyLevels = DEFAULT_LEVELS,
    ) -> None:
        """Claims that are already allocated hold their devices; namespaces are read for their quotas. `levels`: what
        nodes are in above NVLink cliques."""
        self.limit: Callable[[], Callable[[int], bool]] = lambda: never
        """Called for each decision; returns the function that says whether to stop it (effort.Effort.begin)."""
        self._naming: Counter[str | None] = Counter()  # claim → pods that name it
        self._claims = {claim.key: claim for claim in claims}
        self._templates = {template.key: template for template in templates}
        self._allocator = Allocator()
        self._gangs = GangAllocator(self._allocator)
        self.inventory: Inventory = make_inventory(
            driver,
            nodes=nodes,
            slices=slices,
            claims=self._claims.values(),
            classes=classes,
            taint_rules=taint_rules,
            levels=levels,
        )
        self._members = PodGroups(lambda pod: True)
        self._quotas = Quotas(self.inventory)
        self._pods_with: defaultdict[str | None, set[str]] = defaultdict(set)  # claim → the placed pods that name it
        self._trials = RemedyTrials(self._allocator, self.inventory, self._quotas, self._pods_with.__getitem__)
        for namespace in namespaces:
            self._quotas.change(namespace.key, namespace.metadata.annotations.get(quota_annotation(driver)))
        self._allocator.reprice(self.inventory, SizeDemand().shares(self.inventory.holdings.by_size, now_s=0.0))

    def outcomes(self, pods: Iterable[Pod], pod_groups: Iterable[PodGroup] = ()) -> Iterator[Outcome]:
        """Decide for all pods in the order of the controller's queue: by priority, then by age with those never created
        last, then in the given order. The pods of a gang are placed at once, at the turn of the first, if they fit;
        else each by itself. Then decide for the claims that no pod names, as if a pod without other needs
        used each.

        Pods that run, have ended or are being deleted are skipped, and so are allocated claims; but pods that have a
        node count there with what they request.
        """
        every = tuple(pods)
        for group in pod_groups:
            self.inventory.families.sizes.put(group)
        self.place_bound(every)
        for pod in every:
            self._members.change(pod.key, pod)
        self._naming.update(key for pod in every for key in {claim.key for claim in pod_claims(pod)})
        owners = {pod.metadata.uid for pod in every} - {""}
        alone = [key for key, claim in self._claims.items() if key not in self._naming and not _owned(claim, owners)]
        gangs: dict[Family, list[Pod]] = {}
        waiting = sorted(filter(is_pending, every), key=_turn)
        for pod in waiting:
            family = _gang_of(pod)
            if family is not None:
                gangs.setdefault(family, []).append(pod)
        for pod in waiting:
            family = _gang_of(pod)
            if family is None or len(gangs.get(family, ())) == 1 or self._gang_lack(pod) is not None:
                yield from self.decide(pod)
            else:
                yield from self._decide_gang(gangs.pop(family, ()))
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
        obstacle = self._obstacle(pod, keys) or self._gang_lack(pod)
        if obstacle is not None:
            yield from (Outcome(key, pod.key, obstacle) for key in waiting)
        elif waiting:
            yield from self._decide(pod, pod.key, keys)

    def _gang_lack(self, pod: Pod) -> str | None:
        """Say which pods are missing in the input before those of a gang get anything; None: none are."""
        group = group_of(pod)
        if group is None or self._members.has_bound(group):
            return None
        gang = self.inventory.families.sizes.hard(group, self._members.labelled_size(group))
        return None if gang is None else gang.lack(self._members.count(group))

    def _decide_gang(self, pods: Sequence[Pod]) -> Iterator[Outcome]:
        """Decide for the pods of a gang at once; where that is not possible, for one after another. Without pods for
        none: their turn was that of the first."""
        if not pods:
            return
        members = [self._with_generated_claims(pod) for pod in pods]
        keys = [tuple(dict.fromkeys(claim.key or "" for claim in pod_claims(pod))) for pod in members]
        obstacles = (self._obstacle(pod, mine) for pod, mine in zip(members, keys, strict=True))
        obstacle = next((why for why in obstacles if why is not None), None)
        found: GangAllocation | GangRefusal | str
        found = obstacle or self._gang_decision(members, keys)
        gpus = [] if obstacle else [number for mine in keys if (number := self._gpus(mine)) is not None]
        words = members_in_words(gpus) if len(gpus) == len(pods) else f"{len(pods)} pods"
        placed = isinstance(found, GangAllocation)
        text = place_in_words(found, domains_of(self.inventory)) if isinstance(found, GangAllocation) else str(found)
        gang = GangOutcome(_gang_name(pods[0]), words, placed, text)
        if not isinstance(found, GangAllocation):
            yield from (replace(outcome, gang=gang) for pod in members for outcome in self.decide(pod))
            return
        for pod, allocation in zip(members, found.allocations, strict=True):
            others = {entry.claim.key for entry in allocation.claims if self._naming[entry.claim.key] > 1}
            claims = [self._claims[entry.claim.key] for entry in allocation.claims]
            ignored = self._allocator.ignored(self.inventory, pod, claims, others=others, is_over=self.limit())
            self._place(pod, allocation.node)
            for place, outcome in enumerate(self._given(allocation, pod.key)):
                yield replace(outcome, gang=gang, ignored=ignored if place == 0 else ())

    def _gang_decision(
        self, members: Sequence[Pod], keys: Sequence[Sequence[str]]
    ) -> GangAllocation | GangRefusal | str:
        """Return the decision for all members, whose claims then hold their devices; or why there is none."""
        asked = [(pod, [self._claims[key] for key in mine]) for pod, mine in zip(members, keys, strict=True)]
        waiting = [(pod, claims) for pod, claims in asked if any(not claim.status.allocation for claim in claims)]
        if len(waiting) < len(asked):
            return "some of its pods have their devices already"
        if len({key for mine in keys for key in mine}) < sum(map(len, keys)):
            return "several of its pods name one claim"
        kin = self.inventory.kin(members[0])
        fixed = () if kin is None else tuple(sorted(name for name in kin.siblings if self.inventory.offers(name)))
        domains = domains_of(self.inventory)
        rules = self._gang_rules(members[0], domains)
        if isinstance(rules, str):
            return rules
        found = self._gangs.allocate(self.inventory, waiting, domains, rules, fixed=fixed, is_over=self.limit())
        if not isinstance(found, GangAllocation):
            return found.text if isinstance(found, Refused) else found
        for number, allocation in enumerate(found.allocations):
            given = allocation

            def given_again(_barred: object, given: Allocation = given) -> Allocation:
                return given

            answer = self._quotas.ask(members[number].metadata.namespace, given_again)
            if isinstance(answer, Refused):
                for earlier in found.allocations[:number]:
                    for entry in earlier.claims:
                        self.inventory.release(claim_holder(entry.claim))
                return answer.text
            commit(self.inventory, allocation)
        return found

    def _gang_rules(self, pod: Pod, domains: Domains) -> GangRules | str:
        """Return what holds for a gang, as the annotations of a pod say; or why it cannot hold."""
        labels, names = self.inventory.levels.labels, self.inventory.levels.names
        known = {HOSTNAME: NODE, **dict(zip(labels, names, strict=True))}
        required, preferred = (pod.metadata.annotations.get(key) for key in (_REQUIRED_LEVEL, _PREFERRED_LEVEL))
        heights = [
            None if label is None else domains.height_of(known.get(label, "")) for label in (required, preferred)
        ]
        if required is not None and heights[0] is None:
            return f"its annotation {_REQUIRED_LEVEL} names {required}, which is no level that a node has"
        return GangRules(heights[0], heights[1], Rails.PREFERRED, rails_of_kind)

    def _gpus(self, keys: Sequence[str]) -> int | None:
        """Return how many devices claims ask for, of which the first alternatives count; None: it cannot be read."""
        requests = self.inventory.requests.read([self._claims[key] for key in keys])
        if isinstance(requests, Refused):
            return None
        return sum(entry[0].count for demand in requests for entry in demand.requests)

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
            yield from self._given(decision, pod_key)
            served = {entry.claim.key for entry in decision.claims}
            left = [claim.key for claim in claims if claim.key not in served and not claim.status.allocation]
            yield from (Outcome(key, pod_key, self._left_to_others()) for key in left)
            return
        why = Reasons(decision.text) if isinstance(decision, Refused) else self._why(pod, claims)
        waiting = (claim.key for claim in claims if not claim.status.allocation)
        yield from (Outcome(key, pod_key, why.text, why.remedies) for key in waiting)

    def _given(self, decision: Allocation, pod_key: str | None) -> Iterator[Outcome]:
        """Note the allocations of a decision, and yield what becomes of each claim."""
        for entry in decision.claims:
            claim = self._claims[entry.claim.key] = allocated_claim(decision, entry, _TIMESTAMP)
            said = decision_of(decision, entry)
            assert claim.status.allocation is not None
            results = tuple(claim.status.allocation.devices.results)
            yield Outcome(claim.key, pod_key, describe(said), devices=results, decision=said)

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


def _gang_of(pod: Pod) -> Family | None:
    """Return what makes a pod one of a gang; None: nothing. The pods of a StatefulSet start one by one."""
    family = family_of(pod) if pod.spec.resource_claims else None
    return None if family is None or family.kind == "StatefulSet" else family


def _gang_name(pod: Pod) -> str:
    """Return how people call the gang of a pod."""
    family, labels = family_of(pod), pod.metadata.labels
    assert family is not None
    names = {
        "LeaderWorkerSet": "-".join(
            labels.get(f"leaderworkerset.sigs.k8s.io/{key}", "") for key in ("name", "group-index")
        ),
        "JobSet": labels.get("jobset.sigs.k8s.io/jobset-name", ""),
    }
    owner = controller_of(pod)
    owner_name = owner.name if owner is not None and owner.uid == family.name else ""
    return f"{family.kind} {family.namespace}/{names.get(family.kind, '').strip('-') or owner_name or family.name}"


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
