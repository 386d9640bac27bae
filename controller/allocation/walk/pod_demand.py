"""What one pod asks of the cluster: devices, in each combination of its requests' alternatives, and a node to run on;
what distinguishes it from other waiting pods, and which of them comes first.

Preference counts before score: the first combination that any node can serve wins, and only then the best set of
devices.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import product
from math import prod
from types import MappingProxyType
from typing import Any, Final

import msgspec

from dracaena import cel
from dracaena.api import limits
from dracaena.api.config.v1alpha1 import Requirement
from dracaena.api.objects import Pod, PodSpec, Taint
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.effort import BYTES_A_STEP, Effort, Work
from dracaena.controller.allocation.legal.capacity import AmountDemand
from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from dracaena.controller.allocation.legal.search import RequestKey
from dracaena.controller.allocation.legal.selectors import SelectorFailure
from dracaena.controller.allocation.nodes.node_filter import Names, NodeFilter
from dracaena.controller.allocation.nodes.node_resources import pod_name
from dracaena.controller.allocation.nodes.placement.placement_demand import PlacementDemand, placement_demand
from dracaena.controller.allocation.nodes.placement.pod_terms import UnreadableSelectorError
from dracaena.controller.allocation.nodes.pod_resources import UnreadableQuantityError
from dracaena.controller.allocation.request import (
    ClaimDemand,
    Eligibility,
    Question,
    RefusalKind,
    Refused,
    RequestDemand,
    ValueRule,
)
from dracaena.controller.allocation.state.device_kind import is_identity, reads_identity
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodeKind, held_devices
from dracaena.controller.allocation.walk.matches import MatchedKinds
from dracaena.controller.allocation.walk.mps_containers import unfit_container
from dracaena.controller.allocation.walk.other_claims import OtherClaims

MOST_SELECTOR_CHARACTERS: Final = 64 << 10
"""Characters of all different selectors in one pod's claims: at worst a second to compile, and half of what is kept
compiled, so that there is room for classes too. The API server accepts a megabyte; ordinary claims have 1 KB."""


@dataclass(frozen=True, slots=True)
class PodDemand:
    """A pod with its claims, read."""

    claims: tuple[ClaimDemand, ...]
    """The claims that are not allocated yet, need devices, and are ours to serve."""
    concerns_us: bool
    """Whether the pod's user visibly means our driver."""
    pins: tuple[Mapping[str, Any], ...]
    """Raw node selectors of the claims that are already allocated."""
    held: Mapping[str, int]
    """Node → mask of the GPUs there that these claims hold; only nodes with some."""
    filter: NodeFilter
    placement: PlacementDemand | None
    """What it needs of nodes because of other pods and of its storage."""


def read_pod_demand(
    inventory: Inventory,
    pod: Pod,
    claims: Sequence[ResourceClaim],
    matched: MatchedKinds,
    barred: Mapping[str, str] = MappingProxyType({}),
    effort: Effort | None = None,
    within: Names | None = None,
    *,
    preempting: bool = False,
) -> PodDemand | Refused:
    """Read all claims of a pod, in the order in which the pod names them.

    A claim is ours when the class of some request matches a device of ours, or when it visibly means our driver. Others
    are left to kube-scheduler, which serves them after ours, on the same node. `barred`: nodes that the pod must not
    use, with the reasons; `within`: the only ones to ask, None: all. `preempting`: pods of lower priority count as
    evicted. What is read is charged to `effort`.
    """
    effort = effort or Effort()
    waiting = tuple(claim for claim in claims if claim.status.allocation is None)
    driver = inventory.driver
    demands = inventory.requests.read(waiting, effort)
    if isinstance(demands, Refused):
        return demands
    meant = inventory.requests.concerns_us(waiting)
    broken = next(_broken_selectors(demands, matched.selectors), None)
    if broken is not None:
        return Refused(RefusalKind.SELECTOR, broken, meant)
    ours = _OursOrNot(inventory, matched, effort)
    mine = tuple(demand for demand in demands if ours.is_claim_of_ours(demand))
    for demand in mine:
        stranger = ours.stranger(demand)
        if stranger is not None:
            return Refused(RefusalKind.OTHER_DRIVER, stranger, meant)
    crowded = next((demand for demand in mine if demand.excess_configs > 0), None)
    if crowded is not None:
        text = (
            f"claim {crowded.claim.key}: an allocation has room for {limits.ALLOCATION_CONFIGS} configs, one of which "
            f"says what was decided: leave out {crowded.excess_configs} of the claim or of its DeviceClasses"
        )
        return Refused(RefusalKind.LIMIT, text, meant)
    if not inventory.allowed_drivers and _may_use_mps(mine, claims):
        unfit = unfit_container(pod, mine, claims, driver)
        if unfit is not None:
            return Refused(RefusalKind.UNSUPPORTED, unfit, meant)
    allocations = [claim.status.allocation for claim in claims if claim.status.allocation is not None]
    if demands and not mine and not allocations:
        text = f"claim {demands[0].claim.key}: no DeviceClass of its requests matches a device of {driver}"
        return Refused(RefusalKind.OTHER_DRIVER, text, meant)
    # No selector means everywhere.
    pins = tuple(allocation.node_selector for allocation in allocations if allocation.node_selector is not None)
    try:
        resources = inventory.resource_demand(pod, preempting=preempting)
        placement = placement_of(inventory, pod, effort)
    except (UnreadableQuantityError, UnreadableSelectorError) as error:
        return Refused(RefusalKind.MISTAKE, f"pod {pod.key}: {error}", meant)
    left = () if pod.spec.node_name else tuple(one for one in demands if not any(one is own for own in mine))
    follows = left and inventory.others.are_followed
    others = OtherClaims(inventory.others, left, matched.selectors, effort) if follows else None
    nodes = NodeFilter(pod, pins, barred, resources, placement, effort, within, others)
    return PodDemand(mine, meant, pins, _held_by_node(inventory, claims), nodes, placement)


def _may_use_mps(demands: Sequence[ClaimDemand], claims: Sequence[ResourceClaim]) -> bool:
    """Return whether a claim of a pod may be a share by MPS: most pods have none, and nothing more is asked of them."""
    asked = (one for demand in demands for alternatives in demand.requests for one in alternatives)
    held = (claim.status.allocation for claim in claims if claim.status.allocation is not None)
    return any(one.requires_mps for one in asked) or any(
        result.share_id is not None for allocation in held for result in allocation.devices.results
    )


def placement_of(inventory: Inventory, pod: Pod, effort: Effort) -> PlacementDemand | None:
    """Return what a pod needs of nodes because of other pods and of its storage; None: nothing.

    Raises UnreadableSelectorError. Cost: nothing if neither the pod nor one on a node has such rules.
    """
    spec, placed = pod.spec, inventory.placed
    asks = spec.affinity or spec.topology_spread_constraints or spec.volumes
    if spec.node_name or not (asks or placed.keeps_pods_off):
        return None  # a pod that names its node has bypassed them
    return placement_demand(inventory.placed, inventory.spread_scopes, inventory.storage, pod, pod_name(pod), effort)


class _OursOrNot:
    """Finds out which claims and requests are about devices of our driver."""

    def __init__(self, inventory: Inventory, matched: MatchedKinds, effort: Effort) -> None:
        self._inventory, self._matched, self._effort = inventory, matched, effort
        self._known: dict[str, bool] = {}

    def is_claim_of_ours(self, demand: ClaimDemand) -> bool:
        """Return whether we allocate the claim."""
        requests = (one for entry in demand.requests for one in entry)
        return any(map(self._is_of_ours, requests)) or self._inventory.requests.concerns_us((demand.claim,))

    def stranger(self, demand: ClaimDemand) -> str | None:
        """Say why a claim of ours cannot be served because of a request for devices of a driver that is not allowed."""
        inventory = self._inventory
        if inventory.allowed_drivers:
            return None
        for entry in demand.requests:
            names = [one.device_class.name for one in entry]
            if any(self._is_of_ours(one) for one in entry) or any(map(inventory.requests.class_concerns_us, names)):
                continue
            return (
                f"claim {demand.claim.key}: request {entry[0].request.main}: DeviceClass {', '.join(names)} matches no "
                f"device of {inventory.driver}, and kube-scheduler allocates the devices of other drivers: ask for "
                "them in a claim of their own"
            )
        return None

    def _is_of_ours(self, request: RequestDemand) -> bool:
        """Return whether the request's class can match a device of ours. If evaluating it fails, it counts as ours."""
        name = request.device_class.name
        if name not in self._known:
            expressions = request.device_class.selectors
            self._known[name] = not expressions or any(map(self._matching(expressions), self._inventory.buckets))
        return self._known[name]

    def _matching(self, expressions: tuple[str, ...]) -> Callable[[NodeKind], bool]:
        inventory = self._inventory
        self._effort.charge(len(inventory.buckets), Work.CLAIMS)
        return partial(self._matched.matches, inventory.driver, expressions, inventory.devices_of)


def _broken_selectors(demands: Sequence[ClaimDemand], selectors: CelSelectors) -> Iterator[str]:
    """Yield what a person must fix: expressions that do not compile, and more of them than we compile for one pod."""
    own = {
        selector
        for demand in demands
        for entry in demand.requests
        for one in entry
        for selector in (*one.request.selectors, *(expression for _, expression in one.request.derived))
    }
    characters = sum(map(len, own))
    if characters > MOST_SELECTOR_CHARACTERS:
        yield (
            f"the pod's claims: their different selectors have {characters} characters in all, and the controller "
            f"compiles at most {MOST_SELECTOR_CHARACTERS} for one pod: use fewer or shorter ones, or put what many "
            "claims select by into a DeviceClass"
        )
        return
    for demand in demands:
        for request in (one for entry in demand.requests for one in entry):
            where = f"claim {demand.claim.key}, request {request.name}"
            for subject, expressions in (
                (f"DeviceClass {request.device_class.name}", request.device_class.selectors),
                (where, request.request.selectors),
            ):
                for expression in expressions:
                    found = selectors.footprint(expression)
                    if isinstance(found, SelectorFailure):
                        yield f"{subject}: selector {expression!r}: {found.reason}"
            for name, expression in request.request.derived:
                found = selectors.footprint(expression, derived=True)
                if isinstance(found, SelectorFailure):
                    yield f"{where}: derived attribute {name}: {found.reason}"


def _held_by_node(inventory: Inventory, claims: Sequence[ResourceClaim]) -> Mapping[str, int]:
    held = frozenset(device for claim in claims for device in held_devices(claim, inventory.driver))
    pools = (inventory.pool_named(name) for name in sorted({device.pool for device in held}))
    masks = ((pool.node, pool.mask(held)) for pool in pools if pool is not None)
    return {node: mask for node, mask in masks if mask}


MAX_COMBINATIONS: Final = 64
"""Combinations that are tried: those of two requests with all eight alternatives that the API allows. Beyond that, only
combinations that come first on some node are tried."""

MAX_MATCHES: Final = 2
"""Constraints whose values are combined for a kind of node: 8 × 8 look-ups for the usual 8 GPUs."""


STRICTEST_FIRST: Final = (
    Requirement.NVLINK,
    Requirement.PIX,
    Requirement.PXB,
    Requirement.PHB,
    Requirement.NODE,
    Requirement.BEST_EFFORT,
)


@dataclass(frozen=True, slots=True)
class ChosenRequest:
    """One request with the alternative that is taken."""

    key: RequestKey
    alternative: int
    demand: RequestDemand

    @property
    def is_scored(self) -> bool:
        """Whether devices are chosen by their links: false for allocationMode All and for adminAccess."""
        return not self.demand.request.all_devices and not self.demand.request.admin_access

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True, slots=True)
class Combination:
    """One alternative for each request of all claims of a pod."""

    claims: tuple[ClaimDemand, ...]
    requests: tuple[ChosenRequest, ...]
    """In the order of claims and requests."""

    @property
    def chosen(self) -> Mapping[RequestKey, int]:
        """The alternatives by their places."""
        return {chosen.key: chosen.alternative for chosen in self.requests}

    @property
    def key(self) -> Hashable:
        """What is asked for, without the claims' names: equal for claims with equal specs."""
        return tuple(claim.read for claim in self.claims), tuple(chosen.alternative for chosen in self.requests)

    @property
    def requirement(self) -> Requirement:
        """The strictest requirement of the requests whose devices are chosen by their links."""
        demanded = {chosen.demand.policy.requirement for chosen in self.scored}
        return next(
            (requirement for requirement in STRICTEST_FIRST if requirement in demanded), Requirement.BEST_EFFORT
        )

    def of_claim(self, claim: int) -> tuple[ChosenRequest, ...]:
        """Return the requests of one claim, in order."""
        return tuple(chosen for chosen in self.requests if chosen.key[0] == claim)

    @property
    def scored(self) -> tuple[ChosenRequest, ...]:
        """The requests whose devices are chosen by their links."""
        return tuple(chosen for chosen in self.requests if chosen.is_scored)


@dataclass(frozen=True, slots=True)
class CombinationFacts:
    """What can be said about a combination without looking at any node; the same for all with one key."""

    question: Question
    """About the scored requests. If not `exact`, its answer is at least as good as what a node really gives."""
    exact: bool
    """Whether the answer to the question is all there is to know about a node that has nothing but whole GPUs."""
    identity: bool
    """Whether equal nodes may give different answers."""
    apart: tuple[tuple[str, ...], ...] = ()
    """The selectors of each scored request that read an identity: they can be evaluated only on a node's devices."""

    has_all: bool = False
    """Whether some request takes all devices that it matches."""
    amounts: tuple[AmountDemand, ...] = ()
    """The scored requests that ask for amounts of capacities."""


def combinations(claims: Sequence[ClaimDemand]) -> Iterator[Combination]:
    """Yield the combinations, the most preferred first: earlier claims and requests count before later ones."""
    every = [
        [ChosenRequest((claim, index), place, demand) for place, demand in enumerate(alternatives)]
        for claim, entry in enumerate(claims)
        for index, alternatives in enumerate(entry.requests)
    ]
    for requests in product(*every):
        yield Combination(tuple(claims), requests)


def combination_of(claims: Sequence[ClaimDemand], alternatives: Sequence[int]) -> Combination:
    """Return the combination of these alternatives, by their places, in the order of claims and requests."""
    keys = [(claim, index) for claim, entry in enumerate(claims) for index in range(len(entry.requests))]
    return Combination(
        tuple(claims),
        tuple(
            ChosenRequest(key, place, claims[key[0]].requests[key[1]][place])
            for key, place in zip(keys, alternatives, strict=True)
        ),
    )


def combination_count(claims: Sequence[ClaimDemand]) -> int:
    """Return the number of combinations()."""
    return prod(len(alternatives) for entry in claims for alternatives in entry.requests)


def facts_of(
    driver: str, combination: Combination, selectors: CelSelectors, taints_of_all: tuple[Taint, ...] = ()
) -> CombinationFacts:
    """Work out what can be asked once for all nodes of a kind. `taints_of_all` as in Inventory."""
    scored = combination.scored
    places = {chosen: place for place, chosen in enumerate(scored)}
    matches = []
    identity = False
    exact = len(scored) == len(combination.requests)
    for index, claim in enumerate(combination.claims):
        for constraint in claim.spec.constraints:
            concerned = [
                chosen for chosen in combination.of_claim(index) if constraint.applies_to(chosen.demand.request)
            ]
            if not concerned:
                continue
            if any(chosen.demand.request.derives(constraint.attribute) is not None for chosen in concerned):
                exact = False
                continue
            if is_identity(driver, constraint.attribute):
                identity = True
            elif all(chosen.is_scored for chosen in concerned) and (
                not constraint.distinct or len(concerned) == len(combination.requests)
            ):
                concerns = tuple(places[chosen] for chosen in concerned)
                matches.append(ValueRule(constraint.attribute, concerns, distinct=constraint.distinct))
                continue
            exact = False
    kept, apart = [], []
    for chosen in scored:
        expressions = (*chosen.demand.device_class.selectors, *chosen.demand.request.selectors)
        unreadable = tuple(e for e in expressions if reads_identity(driver, _footprint(selectors, e)))
        identity = identity or bool(unreadable)
        apart.append(unreadable)
        # Wanted amounts are rules about one device, which the general path checks.
        exact = exact and chosen.demand.request.capacity is None
        kept.append(tuple(e for e in expressions if e not in unreadable))
    identity = identity or any(
        reads_identity(driver, _footprint(selectors, expression, derived=True))
        for chosen in combination.requests
        for _, expression in chosen.demand.request.derived
    )
    exact = exact and not identity and len(matches) <= MAX_MATCHES
    question = Question(
        counts=tuple(chosen.demand.count for chosen in scored),
        policies=tuple(chosen.demand.policy for chosen in scored),
        eligibility=Eligibility(
            tuple(chosen.demand.tolerations for chosen in scored), tuple(kept) if any(kept) else (), taints_of_all
        ),
        matches=tuple(matches[:MAX_MATCHES]),
        claims=tuple(chosen.key[0] for chosen in scored),
    )
    requests = (chosen.demand.request for chosen in combination.requests)
    has_all = any(request.all_devices and not request.admin_access for request in requests)
    amounts = tuple(
        AmountDemand(place, chosen.demand.count, chosen.demand.request.capacity, chosen.demand.mode)
        for place, chosen in enumerate(scored)
        if chosen.demand.request.capacity is not None
    )
    return CombinationFacts(question, exact, identity, tuple(apart), has_all, amounts)


def reads_identities(driver: str, claims: Sequence[ClaimDemand], selectors: CelSelectors) -> bool:
    """Return whether equal nodes may give different answers to some alternative of the claims."""
    expressions = {
        expression
        for claim in claims
        for entry in claim.requests
        for demand in entry
        for expression in (*demand.device_class.selectors, *demand.request.selectors)
    }
    derived = {
        expression
        for claim in claims
        for entry in claim.requests
        for demand in entry
        for _, expression in demand.request.derived
    }
    constrained = (constraint.attribute for claim in claims for constraint in claim.spec.constraints)
    return any(is_identity(driver, attribute) for attribute in constrained) or any(
        reads_identity(driver, _footprint(selectors, expression, derived=is_derived))
        for expression, is_derived in (*((one, False) for one in expressions), *((one, True) for one in derived))
    )


def _footprint(selectors: CelSelectors, expression: str, *, derived: bool = False) -> cel.Footprint:
    """Return what an expression that compiles can read."""
    found = selectors.footprint(expression, derived=derived)
    assert isinstance(found, cel.Footprint), "expressions were compiled when the claims were read"
    return found


Turn = tuple[int, bool, str, str]
"""Sorts pods: the smallest is served first. No two pods of a cluster have one."""


def turn(pod: Pod) -> Turn:
    """Return a pod's place among all others: by spec.priority, as in kube-scheduler's queue, then by time of creation
    (times of the API sort as text; whole seconds) with pods that were never created last, then by key.

    None of this changes while the pod lives, so all replicas and all leaders have the same order.
    """
    created = pod.metadata.creation_timestamp
    return -pod.spec.priority, created is None, created or "", pod.key


DIGEST_BYTES: Final = 32
"""Shapes are keys of what waits and of what is remembered, and a pod may have 1.5 MB. With 256 bits no tenant can find
a second spec with the same digest."""

APART: Final = b"pod "
"""Prefix of the shape of a pod that is like no other."""

_ENCODER = msgspec.json.Encoder(order="deterministic")


def shape(
    pod: Pod,
    claims: Iterable[ResourceClaim],
    *,
    labels: Mapping[str, str | None] = MappingProxyType({}),
    apart: bool = False,
    shared: bool = False,
    effort: Effort | None = None,
) -> bytes:
    """Return what a decision reads of a pod and its claims: pods of one shape get one answer at any moment.

    Pods of two namespaces never have the same shape: a pod waits behind an equal older one, and must not wait behind a
    pod of a namespace whose pods come behind all others.

    All of the spec that we decode counts, so a field that is decoded tomorrow counts too, and which claims each
    container uses; but names of containers and claims, priority, gates, the PodGroup and the scheduler's name do not,
    and of each waiting claim only what it asks for counts: a pod's family says which node is better, and never whether
    there is one. Of the pod's labels only the given `labels` count, because only rules about other pods read any.
    `shared`: other pods also name one of the claims; no pod is evicted for such a pod. With an allocated claim, or with
    `apart`, the pod is like no other. Cost: some 10 µs for an ordinary pod, in proportion to the size of pod and
    claims, and charged to `effort`.
    """
    effort = effort or Effort()
    waiting = list(claims)
    if apart or any(claim.status.allocation is not None for claim in waiting):
        return APART + (pod.metadata.uid or pod.key).encode()
    replace = msgspec.structs.replace
    spec = pod.spec
    containers, init_containers = (
        [replace(item, name="", resources=replace(item.resources, claims=[])) for item in items]
        for items in (spec.containers, spec.init_containers)
    )
    without_names: PodSpec = replace(
        spec,
        resource_claims=[],
        containers=containers,
        init_containers=init_containers,
        scheduling_gates=[],
        scheduling_group=None,
        scheduler_name="",
        priority=0,
    )
    parts = [_ENCODER.encode(pod.metadata.namespace), _ENCODER.encode(_uses(spec))]
    if shared:
        parts.append(b"shared")
    if labels:
        parts.append(_ENCODER.encode(labels))
    for part in (without_names, *(claim.spec for claim in waiting)):
        parts.append(_ENCODER.encode(part))
        effort.charge(1 + len(parts[-1]) // BYTES_A_STEP, Work.CLAIMS)
    return blake2b(b",".join(parts), digest_size=DIGEST_BYTES).digest()


def _uses(spec: PodSpec) -> list[list[tuple[int, str]]]:
    """Return what each container uses: the places of its claims among those of the pod, and their requests."""
    places = {entry.name: place for place, entry in enumerate(spec.resource_claims)}
    every = (*spec.init_containers, *spec.containers)
    used = ([(places.get(use.name, -1), use.request) for use in each.resources.claims] for each in every)
    return [each for each in used if each]
