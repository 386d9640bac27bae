"""One question, ready to be answered: all claims of a pod, one node, what it can reach, and who holds what.

Cheap rules about one request and one device are answered here and remembered; rules about sets of devices belong to the
search. Selectors are evaluated as late as in Kubernetes, so that a mistake in one shows in the same situations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dracaena.api.device_id import DeviceId
from dracaena.api.quantity import Quantity
from dracaena.api.resource_objects import DeviceAttribute
from dracaena.controller.allocation.legal.books import Books
from dracaena.controller.allocation.legal.capacity import amounts
from dracaena.controller.allocation.legal.compatibility import CommonGroups, groups_in_use
from dracaena.controller.allocation.legal.constraints import find_attribute
from dracaena.controller.allocation.legal.outcome import (
    DeviceRule,
    DoesNotFit,
    Mistake,
    NeedsPerson,
    PoolProblem,
    bad_slice,
)
from dracaena.controller.allocation.legal.read.claims import (
    MAX_DEVICES,
    Claim,
    ClaimRequest,
    ClassRequirements,
    Config,
    Request,
    Unsupported,
)
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.legal.read.slices import (
    CounterId,
    Pool,
    PoolState,
    PublishedDevice,
    ReachableDevice,
)
from dracaena.controller.allocation.legal.selectors import SelectorFailure, Selectors
from dracaena.controller.allocation.nodes.matching import first_untolerated


class MistakeError(Exception):
    """Carries a NeedsPerson out of the middle of an answer."""

    def __init__(self, found: NeedsPerson) -> None:
        super().__init__(str(found))
        self.found = found


@dataclass(frozen=True, slots=True)
class ShareModes:
    """Devices whose shares must all have one mode (api.sharing). The API has no modes: this rule is ours."""

    devices: frozenset[DeviceId] = frozenset()
    of_request: Mapping[tuple[int, int, int], str] = field(default_factory=dict)
    """Mode of each alternative, by the places of its claim, its request and itself."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What all questions at one moment have in common."""

    classes: Mapping[str, ClassRequirements | Unsupported]
    """By name; a class that cannot be read only matters where it is used."""
    books: Books
    selectors: Selectors
    features: Features = field(default_factory=Features)
    modes: ShareModes = field(default_factory=ShareModes)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device that the node can reach, at its place in the order in which devices are tried."""

    place: int
    reachable: ReachableDevice
    pool: int
    """Place of the device's pool among the pools."""

    @property
    def id(self) -> DeviceId:
        """The device's name in the cluster."""
        return self.reachable.device.id


@dataclass(slots=True)
class Alternative:
    """One alternative of one request of one claim, with what is known about each device."""

    claim: int
    index: int
    """Place of the request in the claim."""
    nth: int
    """Its place among the alternatives of the request."""
    request: Request
    device_class: ClassRequirements
    everything: tuple[int, ...] | None = None
    """Mode All: places of the devices that it covers, in order."""
    blocked: str = ""
    """Why mode All cannot be answered now."""
    verdicts: dict[int, DeviceRule | None] = field(default_factory=dict)
    taken: dict[int, Mapping[str, Quantity] | None] = field(default_factory=dict)

    @property
    def key(self) -> tuple[int, int]:
        """The request's place: that of the claim, and that of the request in the claim."""
        return self.claim, self.index

    @property
    def wanted(self) -> int:
        """Devices wanted."""
        return self.request.count if self.everything is None else len(self.everything)


class Problem:
    """A question that can be answered several times: for all devices, or for some of them."""

    __slots__ = (
        "_available",
        "_derived",
        "_groups",
        "_held",
        "candidates",
        "claims",
        "cluster",
        "features",
        "node",
        "pools",
        "requests",
    )

    def __init__(self, cluster: Snapshot, node: str, claims: Sequence[Claim], pools: Sequence[Pool]) -> None:
        self.cluster, self.features = cluster, cluster.features
        self.node, self.claims, self.pools = node, tuple(claims), tuple(pools)
        self.candidates = _candidates(self.pools)
        self.requests: tuple[tuple[tuple[Alternative, ...], ...], ...] = ()
        self._held = tuple(self._holding(candidate) for candidate in self.candidates)
        self._available: dict[int, Mapping[CounterId, int]] = {}
        self._groups: dict[int, CommonGroups | None] = {}
        self._derived: dict[tuple[str, int], DeviceAttribute] = {}

    def held(self, place: int) -> bool:
        """Return whether a claim holds the device so that no other can have it or a share of it."""
        return self._held[place]

    def is_shareable(self, place: int) -> bool:
        """Return whether several claims can have a share of the device."""
        return self.features.consumable_capacity and self.candidates[place].reachable.device.allow_multiple_allocations

    def left_of_counters(self, pool: int) -> Mapping[CounterId, int]:
        """Return what the holders leave of the pool's counters, in billionths; below 0 when they took too much."""
        found = self._available.get(pool)
        if found is None:
            found = self._available[pool] = _left_of_counters(self.pools[pool], self.cluster.books)
        return found

    def common_groups(self, pool: int) -> CommonGroups | None:
        """Return the compatibility groups that the holders' devices leave; None if no device of the pool has any."""
        if pool not in self._groups:
            self._groups[pool] = groups_in_use(self.pools[pool], self.cluster.books)
        return self._groups[pool]

    def amounts(self, alternative: Alternative, place: int) -> Mapping[str, Quantity] | None:
        """Return what the request takes of the device's capacities; None when no amount would do."""
        if place not in alternative.taken:
            alternative.taken[place] = amounts(
                self.candidates[place].reachable.device,
                alternative.request.capacity,
                fractional=self.features.fractional_capacity_range,
            )
        return alternative.taken[place]

    def capacity_is_left(
        self, place: int, wanted: Mapping[str, Quantity], others: Mapping[str, int] | None = None
    ) -> bool:
        """Return whether existing shares, those of `others`, and this one together take no more than there is."""
        device = self.candidates[place].reachable.device
        consumed = self.cluster.books.consumed(device.id)
        for capacity in device.capacities:
            taken = consumed.get(capacity.name, 0) + (others or {}).get(capacity.name, 0)
            if taken + wanted[capacity.name].nano > capacity.value.nano:
                return False
        return True

    def mode(self, alternative: Alternative, place: int) -> str | None:
        """Return the mode in which the request would share the device; None if modes do not count."""
        modes = self.cluster.modes
        if not modes.devices or alternative.request.admin_access or self.candidates[place].id not in modes.devices:
            return None
        return modes.of_request.get((alternative.claim, alternative.index, alternative.nth))

    def is_in_another_mode(self, alternative: Alternative, place: int) -> bool:
        """Return whether existing shares keep the request from the device because they want another mode."""
        mode = self.mode(alternative, place)
        return mode is not None and any(one != mode for one in self.cluster.books.modes(self.candidates[place].id))

    def capacity_is_there(self, place: int, wanted: Mapping[str, Quantity]) -> bool:
        """Return whether the device has that much when nothing of it is taken."""
        device = self.candidates[place].reachable.device
        return all(wanted[capacity.name].nano <= capacity.value.nano for capacity in device.capacities)

    def unselected_by(self, alternative: Alternative, place: int) -> DeviceRule | None:
        """Return the rule by which the request does not select the device; None when it does. Raises MistakeError."""
        if place not in alternative.verdicts:
            alternative.verdicts[place] = self._unselected_by(alternative, place)
        return alternative.verdicts[place]

    def attribute(self, alternative: Alternative, place: int, name: str) -> DeviceAttribute | None:
        """Return the attribute that constraints compare under a fully qualified name: the one that the request derives,
        else the published one. Raises MistakeError."""
        device = self.candidates[place].reachable.device
        expression = alternative.request.derives(name)
        if expression is None:
            return find_attribute(device, name)
        known = self._derived.get((expression, place))
        if known is None:
            answer = self.cluster.selectors.derive(expression, device)
            if isinstance(answer, SelectorFailure):
                subject = f"claim {self.claims[alternative.claim].key}, request {alternative.request.name}"
                problem = f"derived attribute {name} has no value for device {device.id}: {answer.reason}"
                raise MistakeError(NeedsPerson(Mistake.SELECTOR, subject, problem))
            known = self._derived[expression, place] = answer
        return known

    def blocking_taint(self, alternative: Alternative, place: int) -> bool:
        """Return whether a taint keeps the device from the request."""
        taints = self.candidates[place].reachable.device.taints
        return (
            bool(taints)
            and self.features.device_taints
            and first_untolerated(taints, alternative.request.tolerations) is not None
        )

    def eligible(self, alternative: Alternative) -> tuple[DeviceId, ...]:
        """Return the devices that no rule about a single device keeps from the request, in the order in which devices
        are tried. Devices for which a selector has no answer are left out: the search meets the mistake. Never raises.
        Cost: O(devices), with selectors evaluated once for each device.
        """
        devices = []
        for candidate in self.candidates:
            try:
                rule = self.refused_alone(alternative, candidate.place)
            except MistakeError:
                continue
            if rule is None:
                devices.append(candidate.id)
        return tuple(devices)

    def refused_alone(self, alternative: Alternative, place: int) -> DeviceRule | None:
        """Return the first rule that keeps the device from the request, whatever else is chosen."""
        if not alternative.request.admin_access and self.held(place):
            return DeviceRule.IN_USE
        rule = self.unselected_by(alternative, place)
        if rule is not None:
            return rule
        if not self.candidates[place].reachable.is_operable:
            return DeviceRule.NODE_OPERATIONS
        if self.features.consumable_capacity:
            short = self.refused_by_capacity(place, self.amounts(alternative, place))
            if short is not None:
                return short
        rule = self.refused_by_counters(place, {})
        if rule is not None:
            return rule
        return DeviceRule.TAINT if self.blocking_taint(alternative, place) else None

    def refused_by_capacity(
        self, place: int, wanted: Mapping[str, Quantity] | None, others: Mapping[str, int] | None = None
    ) -> DeviceRule | None:
        """Return the rule that keeps the device from giving these amounts() next to what is already taken of it."""
        if wanted is None:
            return DeviceRule.NO_CAPACITY
        if self.capacity_is_left(place, wanted, others):
            return None
        device = self.candidates[place].reachable.device
        is_there = all(wanted[capacity.name].nano <= capacity.value.nano for capacity in device.capacities)
        return DeviceRule.CAPACITY if is_there else DeviceRule.NO_CAPACITY

    def refused_by_counters(
        self, place: int, used: Mapping[CounterId, int], others: Sequence[PublishedDevice] = ()
    ) -> DeviceRule | None:
        """Return the rule that keeps the device from drawing on the pool's counters next to what the devices `others`
        have already `used` of them."""
        candidate = self.candidates[place]
        device = candidate.reachable.device
        if not device.counter_sets:
            return None
        if not self.features.partitionable_devices:
            return DeviceRule.COUNTERS_OFF
        if self.is_shareable(place) and self.cluster.books.is_shared(candidate.id):
            return None
        groups = self.common_groups(candidate.pool)
        if groups is not None and not groups.admit(device, others):
            return DeviceRule.COMPATIBILITY
        left = self.left_of_counters(candidate.pool)
        # A pool that is overdrawn anywhere gives no device that consumes counters, as in Kubernetes.
        if any(amount < 0 for amount in left.values()):
            return DeviceRule.COUNTERS
        wanted: dict[CounterId, int] = {}
        for counter, amount in device.consumes:
            wanted[counter] = wanted.get(counter, 0) + amount
        short = any(used.get(counter, 0) + amount > left[counter] for counter, amount in wanted.items())
        return DeviceRule.COUNTERS if short else None

    def configs_of_class(self, name: str) -> tuple[Config, ...]:
        """Return the configs of a class that a request names."""
        known = self.cluster.classes[name]
        return known.configs if isinstance(known, ClassRequirements) else ()

    def pool_problems(self) -> tuple[PoolProblem, ...]:
        """Return the pools that nothing can be allocated from."""
        return tuple(
            PoolProblem(pool.id, pool.state, pool.problem) for pool in self.pools if pool.state is not PoolState.USABLE
        )

    def _holding(self, candidate: Candidate) -> bool:
        books = self.cluster.books
        if books.is_held(candidate.id):
            return True
        # A device that was shared and is now to be given whole must first be released by all its holders.
        return books.is_shared(candidate.id) and not self.is_shareable(candidate.place)

    def _unselected_by(self, alternative: Alternative, place: int) -> DeviceRule | None:
        reachable = self.candidates[place].reachable
        if not self.features.binding_conditions and reachable.device.binding_conditions:
            return DeviceRule.BINDING_CONDITIONS
        subject = f"DeviceClass {alternative.device_class.name}"
        if not self._all_match(alternative.device_class.selectors, place, subject):
            return DeviceRule.CLASS_SELECTOR
        subject = f"claim {self.claims[alternative.claim].key}"
        if not self._all_match(alternative.request.selectors, place, f"{subject}, request {alternative.request.name}"):
            return DeviceRule.REQUEST_SELECTOR
        if reachable.problem:
            raise MistakeError(bad_slice(reachable.slice.name, reachable.problem))
        return None if reachable.is_for_node else DeviceRule.NODE

    def _all_match(self, selectors: Sequence[str], place: int, subject: str) -> bool:
        device = self.candidates[place].reachable.device
        for index, expression in enumerate(selectors):
            answer = self.cluster.selectors.evaluate(expression, device)
            if isinstance(answer, SelectorFailure):
                problem = f"selector {index} cannot be evaluated for device {device.id}: {answer.reason}"
                raise MistakeError(NeedsPerson(Mistake.SELECTOR, subject, problem))
            if not answer:
                return False
        return True


def pose(
    cluster: Snapshot, node: str, claims: Sequence[Claim], pools: Sequence[Pool]
) -> Problem | DoesNotFit | NeedsPerson:
    """Return the question whether all these claims can be allocated on the node, or its answer if that is obvious.

    `pools` are those that the node can reach, with the taints of DeviceTaintRules on top (pools.gather_pools). What
    another node could serve, or what time will solve, is no error, although it is one in kube-scheduler: mode All over
    a pool that is just being published, or over more devices than a claim can hold.
    """
    problem = Problem(cluster, node, claims, pools)
    try:
        problem.requests = tuple(_requests(problem, index) for index in range(len(problem.claims)))
        crowded = next((key for key in map(_Crowded.of, problem.claims, problem.requests) if key is not None), None)
    except MistakeError as error:
        return error.found
    if crowded is None:
        return problem
    if crowded.hopeless:
        return NeedsPerson(Mistake.LIMIT, f"claim {crowded.claim}", crowded.text)
    return DoesNotFit(pools=problem.pool_problems(), note=f"claim {crowded.claim}: {crowded.text}")


@dataclass(frozen=True, slots=True)
class _Crowded:
    """A claim that would get more devices than a claim can hold."""

    claim: str
    devices: int
    hopeless: bool
    """Whether that is the case on every node."""

    @classmethod
    def of(cls, claim: Claim, requests: Sequence[Sequence[Alternative]]) -> _Crowded | None:
        here = sum(min(one.wanted for one in alternatives) for alternatives in requests)
        if here <= MAX_DEVICES:
            return None
        anywhere = sum(
            min(0 if w.everything is not None else w.wanted for w in alternatives) for alternatives in requests
        )
        return cls(claim.key, here, hopeless=anywhere > MAX_DEVICES)

    @property
    def text(self) -> str:
        return f"{self.devices} devices are requested, a claim can hold {MAX_DEVICES}"


def _candidates(pools: Sequence[Pool]) -> tuple[Candidate, ...]:
    reachable = [(index, device) for index, pool in enumerate(pools) for device in pool.devices]
    return tuple(Candidate(place, device, pool) for place, (pool, device) in enumerate(reachable))


def _left_of_counters(pool: Pool, books: Books) -> Mapping[CounterId, int]:
    left = dict(pool.counters)
    for device in (*(reachable.device for reachable in pool.devices), *pool.elsewhere):
        if device.consumes and (books.is_held(device.id) or books.is_shared(device.id)):
            for counter, amount in device.consumes:
                if counter in left:
                    left[counter] -= amount
    return left


def _requests(problem: Problem, claim: int) -> tuple[tuple[Alternative, ...], ...]:
    """Check the claim against what the cluster can do, and return its requests. Raises MistakeError."""
    checked = tuple(
        _alternatives(problem, claim, index, request) for index, request in enumerate(problem.claims[claim].requests)
    )
    if not problem.features.distinct_attribute and any(entry.distinct for entry in problem.claims[claim].constraints):
        raise _off(problem, claim, "a constraint on distinctAttribute", "DRAConsumableCapacity")
    return checked


def _alternatives(problem: Problem, claim: int, index: int, request: ClaimRequest) -> tuple[Alternative, ...]:
    if request.prioritized and not problem.features.prioritized_list:
        raise _off(problem, claim, f"request {request.name} has alternatives", "DRAPrioritizedList")
    if not problem.features.consumable_capacity:
        for one in request.alternatives:
            if one.capacity is not None:
                raise _off(problem, claim, f"request {one.name} asks for capacity", "DRAConsumableCapacity")
    return tuple(
        _alternative(problem, claim, index, place, request) for place, request in enumerate(request.alternatives)
    )


def _alternative(problem: Problem, claim: int, index: int, nth: int, request: Request) -> Alternative:
    if request.admin_access is not None and not problem.features.admin_access:
        raise _off(problem, claim, f"request {request.name} sets adminAccess", "DRAAdminAccess")
    if request.derived and not problem.features.derived_attributes:
        raise _off(problem, claim, f"request {request.name} derives attributes", "DRADerivedAttributes")
    known = problem.cluster.classes.get(request.class_name)
    subject = f"claim {problem.claims[claim].key}"
    if known is None:
        text = f"request {request.name}: DeviceClass {request.class_name} does not exist"
        raise MistakeError(NeedsPerson(Mistake.CLASS_MISSING, subject, text))
    if isinstance(known, Unsupported):
        raise MistakeError(NeedsPerson(Mistake.UNSUPPORTED, f"DeviceClass {request.class_name}", str(known)))
    alternative = Alternative(claim, index, nth, request, known)
    if request.all_devices:
        _mean_everything(problem, alternative)
    return alternative


def _mean_everything(problem: Problem, alternative: Alternative) -> None:
    """Find the devices that mode All covers: those that match, even if they are in use."""
    for pool in problem.pools:
        if pool.state is not PoolState.USABLE:
            alternative.blocked = f"asks for all devices, but pool {pool.id} is {pool.state.value}: {pool.problem}"
            alternative.everything = ()
            return
    alternative.everything = tuple(
        candidate.place for candidate in problem.candidates if _is_meant(problem, alternative, candidate.place)
    )


def _is_meant(problem: Problem, alternative: Alternative, place: int) -> bool:
    if problem.unselected_by(alternative, place) is not None:
        return False
    if not problem.features.consumable_capacity:
        return True
    wanted = problem.amounts(alternative, place)
    if wanted is None:
        return False
    if problem.features.all_means_used_up:
        return problem.capacity_is_there(place, wanted)
    return problem.capacity_is_left(place, wanted)


def _off(problem: Problem, claim: int, what: str, gate: str) -> MistakeError:
    subject = f"claim {problem.claims[claim].key}"
    return MistakeError(NeedsPerson(Mistake.FEATURE_OFF, subject, f"{what}, but the cluster has {gate} switched off"))
