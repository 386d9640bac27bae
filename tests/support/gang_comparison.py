"""Our plan for a gang beside the best one that trying everything finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from dracaena.controller.allocation.allocator import Allocator, Member
from dracaena.controller.allocation.gang.gang_allocator import GangAllocation, GangAllocator
from dracaena.controller.allocation.gang.question import GangRefusal
from dracaena.controller.allocation.state.node_state import NodeState
from support.random_gangs import GangCase
from support.slow_gangs import SlowGang, SlowGangs


def prices_of(seed: int) -> tuple[int, int, int]:
    return seed % 20, seed // 20 % 20, seed // 400 % 20


def answers_of(case: GangCase, seed: int) -> tuple[Any, Any]:
    """The key of our plan, and the key of the best plan that there is; None: none."""
    allocator = Allocator()
    allocator.reprice(case.inventory, prices_of(seed))
    fast = GangAllocator(allocator).allocate(case.inventory, case.members, case.domains, case.rules, fixed=case.fixed)
    fresh = Allocator()
    fresh.reprice(case.inventory, prices_of(seed))
    slow = SlowGangs(fresh.engine, case.inventory, case.domains)
    read = [fresh.member(case.inventory, pod, claims) for pod, claims in case.members]
    members = [one for one in read if isinstance(one, Member)]
    assert len(members) == len(read), "gangs are drawn readable"
    first = {one.key: number for one, number in reversed(list(zip(members, case.class_of, strict=True)))}
    class_of = [first[one.key] for one in members]  # two that were drawn may ask for the same
    gpus = Counter(class_of)
    numbers = sorted(
        gpus, key=lambda number: (-gpus[number] * _gpus(members, case, number), case.class_of.index(number))
    )
    gang = SlowGang(
        [members[case.class_of.index(number)] for number in numbers],
        tuple(gpus[number] for number in numbers),
        lambda name, pattern: case.may_take(name, _by_class(case, numbers, pattern)),
        case.rules.required,
        case.rules.preferred,
        case.rules.rails,
        case.rules.rails_of,
        case.fixed,
    )
    best = slow.best(gang)
    if not isinstance(fast, GangAllocation):
        assert isinstance(fast, GangRefusal), fast
        return None, best
    assert not fast.plan.cut_off
    check_legal(case, fast)
    return _key_of(case, fast, slow, gang), best


def _by_class(case: GangCase, numbers: Sequence[int], pattern: tuple[int, ...]) -> tuple[int, ...]:
    """A pattern in the order in which classes were drawn."""
    found = dict(zip(numbers, pattern, strict=True))
    return tuple(found.get(number, 0) for number in range(max(case.class_of) + 1))


def _gpus(members: list[Member], case: GangCase, number: int) -> int:
    return members[case.class_of.index(number)].answers.question.count


def _key_of(case: GangCase, found: GangAllocation, slow: SlowGangs, gang: SlowGang) -> tuple[object, ...]:
    """The key of a plan, from what it gives to whom."""
    plan, taken = found.plan, dict[str, Counter[int]]()
    for one, number in zip(found.allocations, case.class_of, strict=True):
        taken.setdefault(one.node, Counter())[number] += 1
    assert {name: sum(counts.values()) for name, counts in taken.items()} == {
        seat.node: sum(map(len, seat.sets)) for seat in plan.seats
    }
    return plan.height, slow.key_of(gang, plan)


def check_legal(case: GangCase, found: GangAllocation) -> None:
    """Each member has what its claims ask for, of GPUs that are free, each given once, on a node with room."""
    given: dict[str, int] = {}
    patterns: dict[str, list[int]] = {}
    for allocation, (_, claims), number in zip(found.allocations, case.members, case.class_of, strict=True):
        assert [entry.claim for entry in allocation.claims] == list(claims)
        name, mask = allocation.node, allocation.choice.mask
        state = case.inventory.state(name)
        assert isinstance(state, NodeState)
        assert not mask & ~state.free, "only free GPUs"
        assert not mask & given.get(name, 0), "each once"
        wanted = sum(request["exactly"]["count"] for request in claims[0].spec["devices"]["requests"])
        assert mask.bit_count() == wanted == sum(len(entry.results) for entry in allocation.claims)
        given[name] = given.get(name, 0) | mask
        patterns.setdefault(name, [0] * (max(case.class_of) + 1))[number] += 1
    for name, pattern in patterns.items():
        assert case.may_take(name, tuple(pattern)), "nodes have room"
