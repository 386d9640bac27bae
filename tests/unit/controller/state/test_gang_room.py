"""A gang that is larger than the cluster holds nothing, and nobody waits for it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from dracaena.api.machine import Machine
from dracaena.api.objects import Pod
from dracaena.controller.allocation.reach import BOUNDLESS, Reach
from dracaena.controller.allocation.state.gangs import Family
from dracaena.controller.state import gang_room
from dracaena.controller.state.gang_room import GangRoom
from dracaena.controller.state.group_turns import GIVE_UP_S
from support.allocation import claim, node, pool_slice, request
from support.group_world import EIGHT, FOUR, Group, GroupWorld, member, pod_group
from support.reconciling import Bench

GANG = Family("default", "PodGroup", "a")


def waiting_gang(bench: Bench, *sizes: int, name: str = "a", more: dict[str, Any] | None = None) -> None:
    """Let a gang come with so many GPUs for each pod; 0: the pod has no claim."""
    bench.cluster.intake.workload_changed(None, pod_group(name, "default", len(sizes)))
    for number, gpus in enumerate(sizes):
        document = msgspec.to_builtins(member(f"{name}-{number}", name, 1))
        document["spec"] |= more or {}
        if gpus:
            bench.add(claim(f"{name}-{number}", request(count=gpus)))
        else:
            document["spec"]["resourceClaims"] = []
        bench.add(msgspec.convert(document, Pod))
    review(bench)


def review(bench: Bench, times: int = 1) -> None:
    for _ in range(times):
        bench.cluster.review_groups(bench.clock.monotonic())
        bench.run()
        bench.advance(1)


def lack(bench: Bench) -> tuple[int, int] | None:
    return bench.cluster._state.groups._room.lack(GANG)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((2,) * 6, None),
        ((2,) * 7, (6, 7)),
        ((4,) * 4, (3, 4)),
        ((3,) * 4, (3, 4)),
        ((5,) * 2, (1, 2)),
        ((8, 8), (1, 2)),
        ((9,), (0, 1)),
        ((2,) * 6 + (0,), None),
        ((2,) * 7 + (0,), (6, 7)),
        ((4, 4, 4, 1), None),
    ],
)
def test_room_is_what_all_nodes_have_together(sizes: tuple[int, ...], expected: tuple[int, int] | None) -> None:
    bench = Bench(n4=FOUR, n8=EIGHT)
    waiting_gang(bench, *sizes)
    assert lack(bench) == expected


def drawn(seed: int) -> tuple[dict[str, Machine], list[int]]:
    """Up to four nodes, and the GPUs of each pod of a gang."""
    rng = random.Random(seed)
    machines = {f"n{number}": rng.choice([FOUR, EIGHT]) for number in range(rng.randint(1, 4))}
    return machines, [rng.choice([1, 2, 3, 4, 8]) for _ in range(rng.randint(1, 12))]


def served(machines: Mapping[str, Machine], sizes: Sequence[int]) -> int:
    """Fill the nodes one by one, the smallest pods first."""
    free, count = sorted(len(made.gpus) for made in machines.values()), 0
    for gpus in sorted(sizes):
        place = next((at for at, left in enumerate(free) if left >= gpus), None)
        if place is not None:
            free[place] -= gpus
            count += 1
    return count


def is_called_less(seed: int) -> bool:
    """Whether room is called less than a fill of the nodes finds, or a gang of equal pods is not found too large."""
    machines, sizes = drawn(seed)
    bench = Bench(**machines)
    waiting_gang(bench, *sizes)
    found = lack(bench)
    if found is not None and found[0] < served(machines, sizes):
        return True
    equal = [sizes[0]] * 40
    bench = Bench(**machines)
    waiting_gang(bench, *equal)
    return lack(bench) != (served(machines, equal), 40)


@pytest.mark.parametrize("seed", range(30))
def test_room_is_never_called_less_than_it_is_and_is_exact_for_equal_pods(seed: int) -> None:
    assert not is_called_less(seed)


most, reaches, needed = Reach.most, GangRoom._reaches, GangRoom._needed

FAULTS: Mapping[str, tuple[type, str, Callable[..., Any]]] = {
    "one-pod-a-node": (Reach, "most", lambda self, node, known: 1),
    "nothing-can-be-counted": (Reach, "most", lambda self, node, known: BOUNDLESS),
    "one-more-a-node": (Reach, "most", lambda self, node, known: most(self, node, known) + 1),
    "the-first-pod-stands-for-all": (GangRoom, "_reaches", lambda self, gang: (reaches(self, gang) or ())[:1] or None),
    "one-is-needed-less": (GangRoom, "_needed", lambda self, gang: needed(self, gang) - 1),
    "all-are-forgotten": (GangRoom, "look", lambda self, gangs: ()),
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FAULTS[fault])
    assert any(map(is_called_less, range(30)))


def test_it_is_said_and_holds_nothing_and_starts_once_there_is_a_node_more() -> None:
    bench = Bench(n=FOUR)
    waiting_gang(bench, 2, 2, 2)
    review(bench, 3)
    text = "all nodes together have room for 2 of the 3 pods of its gang (minCount of PodGroup a)"
    assert text in bench.told()
    assert bench.metric("waiting_pods", reason="gang-too-large")
    bench.cluster.intake.node_changed(None, node("m"))
    bench.cluster.intake.slice_changed(None, pool_slice("m", FOUR))
    review(bench, 3)
    assert sum(bench.on_node(f"a-{number}") is not None for number in range(3)) == 3


def test_a_look_ends_at_the_node_with_which_there_is_room_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def counted(self: Reach, node: str, known: dict[tuple[bytes, str], bool]) -> int:
        asked.append(node)
        return most(self, node, known)

    bench = Bench(**{f"n{number}": FOUR for number in range(9)})
    monkeypatch.setattr(Reach, "most", counted)
    bench.cluster.intake.workload_changed(None, pod_group("a", "default", 2))
    for number in range(2):
        bench.add(claim(f"a-{number}", request(count=4)), member(f"a-{number}", "a", 1))
    bench.cluster._state.groups.look_for_room()
    assert (len(asked), lack(bench)) == (2, None)


def test_a_smaller_size_is_looked_at_again() -> None:
    bench = Bench(n=FOUR)
    waiting_gang(bench, 2, 2, 2)
    assert lack(bench) == (2, 3)
    bench.cluster.intake.workload_changed(pod_group("a", "default", 3), pod_group("a", "default", 2))
    assert lack(bench) is None
    review(bench)
    assert lack(bench) is None


@pytest.mark.parametrize(
    "more",
    [{"nodeSelector": {"kind": "none"}}, {"affinity": {}, "nodeSelector": {"no": "such"}}],
)
def test_nodes_that_the_pods_may_not_use_are_no_room(more: dict[str, Any]) -> None:
    bench = Bench(n=FOUR)
    waiting_gang(bench, 2, 2, more=more)
    assert lack(bench) == (0, 2)


def test_pods_that_share_a_claim_are_not_counted() -> None:
    bench = Bench(n=FOUR)
    bench.cluster.intake.workload_changed(None, pod_group("a", "default", 3))
    bench.add(claim("a-0", request(count=4)))
    for number in range(3):
        document = msgspec.to_builtins(member(f"a-{number}", "a", 1))
        document["spec"]["resourceClaims"][0]["resourceClaimName"] = "a-0"
        bench.add(msgspec.convert(document, Pod))
    review(bench)
    assert lack(bench) is None


def test_very_large_gangs_and_those_of_many_kinds_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_room, "MOST_PODS", 4)
    bench = Bench(n=FOUR)
    waiting_gang(bench, *(1,) * 5)
    room = bench.cluster._state.groups._room
    assert room._looks[GANG].room == BOUNDLESS
    monkeypatch.undo()
    bench = Bench(n=FOUR)
    waiting_gang(bench, *range(1, gang_room.MOST_KINDS + 4))
    assert bench.cluster._state.groups._room._looks[GANG].room == BOUNDLESS


def test_each_second_one_more_of_many_gangs_is_looked_at_and_those_that_are_gone_are_forgotten() -> None:
    bench = Bench(n=FOUR)
    names = [f"g{number}" for number in range(5)]
    for name in names:
        bench.cluster.intake.workload_changed(None, pod_group(name, "default", 2))
        for number in range(2):
            bench.add(claim(f"{name}-{number}", request(count=3)), member(f"{name}-{number}", name, 1))
    room = bench.cluster._state.groups._room
    for seen in range(1, 6):
        review(bench)
        assert len(room._looks) == seen
    for name in names:
        for number in range(2):
            bench.remove_pod(f"default/{name}-{number}")
    review(bench)
    assert room._looks == {}


def test_a_gang_waits_for_none_that_is_larger_than_the_cluster() -> None:
    """Before its size was known each of these came first for five minutes."""
    never = [Group((2,) * 5, at_s, 60, fits=False, min_count=5, namespace=f"team-{at_s}") for at_s in range(1, 5)]
    world = GroupWorld({"n0": FOUR, "n1": FOUR}, [*never, Group((1, 1), 10, 60, min_count=2)])
    while not world.bound_s and world.now_s < GIVE_UP_S:
        world.step()
    assert world.bound_s[4] < 90
    assert not any(world.holders()[number] for number in range(4))
