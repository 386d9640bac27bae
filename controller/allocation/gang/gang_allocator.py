"""The pods of a gang with their claims → the decision for all of them at once.

Pods that ask for the same of claims and node are one class. The solver says which node gives which GPUs to how many of
each class; then each pod gets its devices as if it were alone with them on that node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import Allocator, Member
from dracaena.controller.allocation.effort import OverdueError, never
from dracaena.controller.allocation.gang.domains import Domains
from dracaena.controller.allocation.gang.question import GangPlan, GangQuestion, GangRefusal, MemberClass, Rails, Seat
from dracaena.controller.allocation.gang.solver import GangSolver
from dracaena.controller.allocation.nodes.node_resources import ResourceDemand
from dracaena.controller.allocation.nodes.placement.placed_pods import pod_facts
from dracaena.controller.allocation.request import RefusalKind, Refused
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodeKind, NodeState
from dracaena.controller.allocation.walk.pod_demand import MAX_COMBINATIONS

MOST_MEMBERS: Final = 4_096
"""Pods of one gang: a larger one is four writes for each pod, which take minutes."""

MOST_CLASSES: Final = 8
"""Different kinds of pods in one gang; most have one or two, a leader and its workers. What nodes can give grows with
the product of their numbers."""

MOST_ROUNDS: Final = 8
"""Plans that are thrown away because the members keep each other off nodes."""

HOSTNAME: Final = "kubernetes.io/hostname"

PodClaims = tuple[Pod, Sequence[ResourceClaim]]


@dataclass(frozen=True, slots=True)
class GangRules:
    """What users and admins say about a gang."""

    required: int | None = None
    preferred: int | None = None
    rails: Rails = Rails.IGNORED
    rails_of: Callable[[NodeKind], Sequence[int | None]] | None = None


NO_RULES = GangRules()


@dataclass(frozen=True, slots=True)
class GangAllocation:
    """What each member gets."""

    plan: GangPlan
    allocations: tuple[Allocation, ...]
    """In the order of the members."""


def domains_of(inventory: Inventory) -> Domains:
    """Return where the nodes are."""
    of_node = {name: location for name, (location, _) in inventory.locations.of_node.items()}
    return Domains(inventory.levels.names, of_node)


@dataclass(slots=True)
class _Class:
    """Members that ask for the same."""

    places: list[int] = field(default_factory=list)
    """Among the members."""
    member: Member | None = None
    is_alone: bool = False
    """Whether no two may be on one node."""
    barred: set[str] = field(default_factory=set)


class GangAllocator:
    """Decides for gangs. Holds only earlier results. One thread at a time."""

    def __init__(self, allocator: Allocator) -> None:
        """Shares what `allocator` remembers, and its effort."""
        self._allocator = allocator
        self._solver = GangSolver(allocator.engine, allocator.effort)

    def allocate(
        self,
        inventory: Inventory,
        members: Sequence[PodClaims],
        domains: Domains,
        rules: GangRules = NO_RULES,
        *,
        fixed: tuple[str, ...] = (),
        is_over: Callable[[int], bool] = never,
    ) -> GangAllocation | GangRefusal | Refused:
        """Decide for all members at once, or for none. Changes nothing. Each has claims that are not allocated yet;
        `fixed` are the nodes of those that have all. Of members with alternatives all take the same. Refused: a person
        has to change something, or such a gang is decided pod by pod. `is_over` as in Allocator.allocate()."""
        if len(members) > MOST_MEMBERS:
            return Refused(RefusalKind.LIMIT, f"{len(members)} pods: at most {MOST_MEMBERS} are one gang", True)
        self._allocator.effort.begin(is_over)
        try:
            refused: GangRefusal | Refused | None = None
            for number in range(MAX_COMBINATIONS):
                read = self._read(inventory, members, number)
                if read is None:
                    break
                if isinstance(read, Refused):
                    refused = refused or read
                    break
                found = self._decide(inventory, read, members, domains, rules, fixed)
                if isinstance(found, GangAllocation):
                    return found
                refused = refused or found
            assert refused is not None, "each pod has a first alternative"
            may_share = not fixed and any(map(inventory.is_mixed, inventory.buckets))
            is_hopeless = isinstance(refused, Refused) and refused.kind is not RefusalKind.UNSUPPORTED
            if may_share and not is_hopeless:
                return self._on_one_node(inventory, members, is_over) or refused
            return refused
        except OverdueError:
            return Refused(RefusalKind.TOO_LONG, "the choice for all pods at once takes too long", True)

    def _read(self, inventory: Inventory, members: Sequence[PodClaims], number: int) -> list[Member] | Refused | None:
        """Read all members with the alternatives of that number, or the last that they have; None: none has so many."""
        read: list[Member] = []
        for pod, claims in members:
            found = self._allocator.member(inventory, pod, claims, number)
            if isinstance(found, Refused):
                return found
            read.append(found)
        return read if number == 0 or any(one.alternative == number for one in read) else None

    def _on_one_node(
        self, inventory: Inventory, members: Sequence[PodClaims], is_over: Callable[[int], bool]
    ) -> GangAllocation | None:
        """Decide for members that ask for more than whole GPUs, if one node can serve all: for the rules they are one
        pod with all claims, so no member gets what another one cannot do without."""
        pod, claims = members[0][0], [claim for _, mine in members for claim in mine]
        demands = [inventory.resource_demand(one) for one, _ in members]
        wanted: Counter[str] = Counter()
        for demand in demands:
            wanted.update(dict(demand.amounts))
        barred = {}
        for name in inventory.nodes.names:
            left = inventory.resources.left(name)
            if left is not None and any(left.get(resource, 0) < amount for resource, amount in wanted.items()):
                barred[name] = "with too little room for all pods of the gang"
        found = self._allocator.allocate(inventory, pod, claims, barred=barred, is_over=is_over)
        if not isinstance(found, Allocation):
            return None
        made, served = [], {entry.claim.key: entry for entry in found.claims}
        for one, mine in members:
            if self._allocator.unfit(inventory, one, mine, found.node) is not None:
                return None
            made.append(replace(found, claims=tuple(served[claim.key] for claim in mine if claim.key in served)))
        return GangAllocation(GangPlan(0, found.node, (Seat(found.node, ()),)), tuple(made))

    def _decide(
        self,
        inventory: Inventory,
        read: Sequence[Member],
        members: Sequence[PodClaims],
        domains: Domains,
        rules: GangRules,
        fixed: tuple[str, ...],
    ) -> GangAllocation | GangRefusal | Refused:
        classes = self._classes(inventory, read)
        if len(classes) > MOST_CLASSES:
            text = f"its pods are of {len(classes)} kinds: at most {MOST_CLASSES} are placed at once"
            return Refused(RefusalKind.LIMIT, text, True)
        states = {name: inventory.state(name) for name in inventory.nodes.names}
        off = ""
        for _ in range(MOST_ROUNDS):
            question = self._question(inventory, classes, rules, fixed)
            plan = self._solver.solve(question, states, domains)
            if isinstance(plan, GangRefusal):
                return Refused(RefusalKind.UNSUPPORTED, off, True) if off else plan
            seats = _seats(plan, classes)
            keeps_off = self._kept_off(inventory, members, read, seats)
            if keeps_off is None:
                return GangAllocation(plan, self._given(inventory, read, states, seats))
            place, reason = keeps_off
            off = f"its pods keep each other off nodes: {reason}"
            next(one for one in classes if place in one.places).barred.add(seats[place][0])
        return Refused(RefusalKind.UNSUPPORTED, off, True)

    def _classes(self, inventory: Inventory, read: Sequence[Member]) -> list[_Class]:
        """Return the members by what they ask for, the class with the most GPUs first."""
        found: dict[Hashable, _Class] = {}
        for place, member in enumerate(read):
            one = found.setdefault(member.key, _Class(member=member, is_alone=_keeps_off_itself(member.pod)))
            one.places.append(place)
        return sorted(found.values(), key=lambda one: (-len(one.places) * _gpus(one), one.places[0]))

    def _question(
        self, inventory: Inventory, classes: Sequence[_Class], rules: GangRules, fixed: tuple[str, ...]
    ) -> GangQuestion:
        made = []
        for one in classes:
            assert one.member is not None
            resources = inventory.resource_demand(one.member.pod)
            needs = dict(resources.amounts)
            made.append(MemberClass(len(one.places), one.member.answers, _most_on(inventory, one, resources), needs))
        return GangQuestion(
            tuple(made),
            rules.required,
            rules.preferred,
            rules.rails,
            rules.rails_of,
            inventory.resources.left,
            fixed,
        )

    def _kept_off(
        self,
        inventory: Inventory,
        members: Sequence[PodClaims],
        read: Sequence[Member],
        seats: Sequence[tuple[str, int]],
    ) -> tuple[int, str] | None:
        """Return the first member that its node does not suit once those before it are there, and why; None: none."""
        if not any(one.has_placement_rules for one in read):
            return None
        placed: list[Pod] = []
        try:
            for place, (pod, claims) in enumerate(members):
                node = seats[place][0]
                reason = self._allocator.unfit(inventory, pod, claims, node)
                if reason is not None:
                    return place, reason
                placed.append(pod)
                inventory.place(pod, node)
        finally:
            for pod in placed:
                inventory.place(pod, None)
        return None

    def _given(
        self,
        inventory: Inventory,
        read: Sequence[Member],
        states: Mapping[str, NodeState | str],
        seats: Sequence[tuple[str, int]],
    ) -> tuple[Allocation, ...]:
        taken: dict[str, int] = {}
        made = []
        for member, (node, mask) in zip(read, seats, strict=True):
            state = states[node]
            assert isinstance(state, NodeState)
            used = taken.get(node, 0)
            made.append(self._allocator.give(inventory, member, node, state.free & ~used, mask))
            taken[node] = used | mask
        return tuple(made)


def _gpus(one: _Class) -> int:
    assert one.member is not None
    return one.member.answers.question.count


def _keeps_off_itself(pod: Pod) -> bool:
    """Whether required anti-affinity keeps two pods like this one off one node."""
    facts = pod_facts(pod)
    return any(
        term.topology_key == HOSTNAME
        and facts.namespace in term.pods.namespaces
        and term.pods.selector is not None
        and term.pods.selector.matches(facts.labels)
        for term in facts.keeps_off
    )


def _most_on(inventory: Inventory, one: _Class, resources: ResourceDemand) -> Callable[[str], int]:
    """Return what says how many of a class a node can take besides their devices."""
    member = one.member
    assert member is not None

    def most_on(node: str) -> int:
        if node in one.barred or member.demand.filter.reason(inventory.nodes.get(node)) is not None:
            return 0
        most = resources.most(node)
        return min(most, 1) if one.is_alone else most

    return most_on


def _seats(plan: GangPlan, classes: Sequence[_Class]) -> list[tuple[str, int]]:
    """Return the node and the GPUs of each member: earlier members get the nodes that come first by name."""
    found: dict[int, tuple[str, int]] = {}
    left = [iter(one.places) for one in classes]
    for seat in plan.seats:
        for places, sets in zip(left, seat.sets, strict=True):
            found.update((next(places), (seat.node, mask)) for mask in sets)
    return [found[place] for place in range(len(found))]
