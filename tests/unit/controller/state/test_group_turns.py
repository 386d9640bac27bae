"""PodGroups that compete: one of them always gets all of its GPUs, and none waits for ever.

`support.group_world` draws the worlds. With each fault below put back, one of the first WORLDS worlds ends with a group
that was never bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dracaena.controller.allocation.state.gangs import Family
from dracaena.controller.allocation.walk.pod_demand import Turn, turn
from dracaena.controller.queue.waiting_lines import NOWHERE
from dracaena.controller.state import group_turns
from dracaena.controller.state.group_turns import GAVE_UP, GIVE_UP_S, KEPT, YIELDED, GroupPlace, GroupTurns
from support.allocation import claim, request
from support.group_world import EIGHT, FOUR, PROOF_S, Group, GroupWorld, any_world, member
from support.quota_world import namespace
from support.reconciling import Bench
from support.seeds import in_tiers

WORLDS = 6

Fault = tuple[str, Callable[..., Any]]


def never_bound(seeds: range) -> tuple[int, object] | None:
    """Return the first world in which a group that fits was never bound, with that group."""
    for seed in seeds:
        left = any_world(seed).run()
        if left:
            return seed, left
    return None


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", in_tiers(range(1), range(1, 40), range(40, 3_000)))
def test_every_group_that_fits_is_bound_in_the_end(seeds: range) -> None:
    assert never_bound(seeds) is None


@pytest.mark.search
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(("review", lambda self, *_: NOWHERE), id="nobody-comes-first"),
        pytest.param(("kept_from", lambda self, pod, claims: {}), id="nothing-is-kept"),
        pytest.param(("_place_of", lambda self, group, its_turn: by_creation(group, its_turn)), id="by-age-alone"),
        pytest.param(("_earliest", lambda self, order: next((one for one in order if one.placed), None)), id="holders"),
        pytest.param(("turn_of", lambda self, pod: turn(pod)), id="pods-keep-their-turn"),
    ],
)
def test_a_fault_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupTurns, *fault)
    assert never_bound(range(WORLDS)) is not None


def by_creation(group: Family, its_turn: Turn) -> GroupPlace:
    """The order of groups before those that gave up were put behind the others."""
    return GroupPlace(its_turn[0], its_turn[2], its_turn[2], group)


@pytest.mark.search
def test_a_group_that_never_gives_up_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_turns, "GIVE_UP_S", float("inf"))
    assert never_bound(range(WORLDS)) is not None


def competing() -> Bench:
    """Each of two gangs has half of one node, and needs the other half too."""
    bench = Bench(n=FOUR)
    for name in ("a-0", "b-0", "a-1", "b-1"):
        bench.add(claim(name, request(count=2)), member(name, name[0], 1))
        bench.run()
    assert (bench.on_node("a-0"), bench.on_node("b-0")) == ("n", "n")
    return bench


def pass_time(bench: Bench, seconds: int, *refused: str) -> None:
    """Let seconds pass in which kube-scheduler refuses these pods over and over."""
    for _ in range(seconds):
        bench.cluster.review_groups(bench.clock.monotonic())
        bench.advance(1)
        for name in refused:
            bench.try_in_vain(name)
        bench.run()


def test_the_later_of_two_gangs_gives_back_what_it_has_and_the_first_is_complete() -> None:
    bench = competing()
    pass_time(bench, 30, "a-0", "a-1", "b-0", "b-1")
    assert [bench.on_node(name) for name in ("a-0", "a-1", "b-0", "b-1")] == ["n", "n", None, None]
    assert bench.metric("take_backs_total", reason=YIELDED, end="cleared") == 1
    told = [message for _, reason, message in bench.events.seen if reason == "GPUsTakenBack"]
    (message,) = told
    assert message.endswith(
        "does not get all of its GPUs now: another gang comes first, there are too few, or pods of it are missing"
    )


def test_the_gang_that_waits_learns_what_it_waits_for() -> None:
    bench = competing()
    pass_time(bench, 12, "a-0", "b-0")
    assert any(KEPT in message for message in bench.told())


def test_the_first_gang_keeps_what_it_has_though_kube_scheduler_refuses_its_pods() -> None:
    bench = Bench(n=FOUR)
    for name in ("a-0", "a-1"):
        bench.add(claim(name, request(count=3)), member(name, "a", 1))
    bench.run()
    for _ in range(100):
        pass_time(bench, 1)
        bench.say("a-0", "0/1 nodes are available: the group does not fit.")
    assert bench.users("a-0") == ["a-0"]


def test_a_gang_that_never_gets_the_rest_gives_up_and_tries_again_later() -> None:
    bench = Bench(n=FOUR)
    for name in ("a-0", "a-1"):
        bench.add(claim(name, request(count=3)), member(name, "a", 1))
    bench.run()
    pass_time(bench, int(GIVE_UP_S) - 20, "a-0")
    assert bench.on_node("a-0") == "n"
    pass_time(bench, 60, "a-0")
    assert bench.on_node("a-0") is None
    assert any(GAVE_UP in message for message in bench.told())
    pass_time(bench, int(GIVE_UP_S), "a-0")
    assert bench.on_node("a-0") == "n"


def never(at_s: int, namespace: str = "default", priority: int = 0) -> Group:
    """A gang that asks for ten GPUs of eight."""
    return Group((2,) * 5, at_s, 60, fits=False, namespace=namespace, priority=priority)


def bound_after_s(*before: Group, then: Group) -> int | None:
    """Let gangs come that can never be complete, and one later; return how long that one was not bound, None: longer
    than it takes each of the others to give up twice."""
    world = GroupWorld({"n0": FOUR, "n1": FOUR}, [*before, then])
    while len(before) not in world.bound_s and world.now_s < 2 * len(before) * (GIVE_UP_S + PROOF_S):
        world.step()
    return world.bound_s.get(len(before))


@pytest.mark.parametrize("gangs", [2, pytest.param(4, marks=pytest.mark.search)])
def test_a_gang_waits_for_each_that_is_never_complete_once(gangs: int) -> None:
    bound_s = bound_after_s(*map(never, range(1, gangs + 1)), then=Group((1, 1), 10, 60))
    assert bound_s is not None
    assert bound_s < gangs * (GIVE_UP_S + PROOF_S)


def test_all_gangs_of_a_namespace_that_are_never_complete_delay_those_of_another_like_one() -> None:
    bound_s = bound_after_s(*(never(at_s, "research") for at_s in range(1, 4)), then=Group((1, 1), 10, 60))
    assert bound_s is not None
    assert bound_s < GIVE_UP_S + PROOF_S


def test_a_gang_of_lower_priority_gets_its_turn_when_those_above_it_gave_up() -> None:
    bound_s = bound_after_s(never(1, priority=9), never(2, priority=9), then=Group((1, 1), 10, 60))
    assert bound_s is not None


def test_a_pod_without_a_group_does_not_wait_for_gangs_that_gave_up() -> None:
    bound_s = bound_after_s(never(1), never(2), then=Group((8 // 2,), 10, 60, is_gang=False))
    assert bound_s is not None


def test_a_gang_beyond_its_quota_delays_no_gang_of_another_namespace() -> None:
    greedy = [Group((1, 1, 1), at_s, 60, fits=False, namespace="research") for at_s in (1, 1)]
    world = GroupWorld({"n0": EIGHT, "n1": EIGHT}, [*greedy, Group((1, 1), 10, 60)], quotas={"research": 2})
    while not world.bound_s and world.now_s < GIVE_UP_S:
        world.step()
    assert world.bound_s == {2: 10}


def test_of_two_gangs_that_each_hold_half_of_a_quota_one_gives_way() -> None:
    bench = Bench(n=EIGHT)
    bench.cluster.intake.namespace_changed(None, namespace("default", '{"gpus": 4}'))
    for name in ("a-0", "b-0", "a-1", "b-1"):
        bench.add(claim(name, request(count=2)), member(name, name[0], 1))
        bench.run()
    assert (bench.on_node("a-1"), bench.on_node("b-1")) == (None, None)
    pass_time(bench, 30, "a-0", "b-0")
    assert [bench.on_node(name) for name in ("a-0", "a-1", "b-0", "b-1")] == ["n", "n", None, None]
    assert any("may have 4 GPUs, holds 4, the pod wants 2" in message for message in bench.told())


def test_a_gang_does_not_come_first_for_longer_by_losing_a_pod_and_getting_it_again() -> None:
    world = GroupWorld({"n0": FOUR, "n1": FOUR}, [never(1), Group((1, 1), 10, 60)])
    api = world.bench.api
    while 1 not in world.bound_s and world.now_s < 3 * GIVE_UP_S:
        world.step()
        if world.now_s % 100 == 0 and world.now_s < 2 * GIVE_UP_S:
            stored = api.pods["default/g0-3"]
            world.bench.remove_pod(stored.key)
            world.step()
            meta = msgspec.structs.replace(stored.metadata, uid=f"{stored.metadata.uid}-{world.now_s}")
            world.bench.add(msgspec.structs.replace(stored, metadata=meta))
    assert world.bound_s[1] < 2 * GIVE_UP_S


def test_a_pod_does_not_wait_behind_itself_when_its_turn_becomes_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a gang of its namespace gives up."""
    bench = Bench(n=FOUR)
    bench.add(claim("x", request(count=4)), member("x", "", 1))
    bench.run()
    bench.add(claim("a-0", request(count=2)), member("a-0", "a", 2))
    bench.run()
    later = (0, False, "2026-01-01T00:05:00Z", "default/a-0")
    monkeypatch.setattr(GroupTurns, "turn_of", lambda self, pod: later)
    bench.remove_pod("default/x")
    bench.api.remove("default/x")
    bench.run()
    assert bench.on_node("a-0") == "n"


def test_a_gang_whose_rest_no_node_could_serve_gives_up_at_once() -> None:
    bench = Bench(n=FOUR)
    for index, count in enumerate((1, 8)):
        bench.add(claim(f"a-{index}", request(count=count)), member(f"a-{index}", "a", 1))
        bench.run()
    bench.add(claim("b-0", request(count=4)), member("b-0", "b", 2))
    pass_time(bench, 30, "a-0")
    assert bench.on_node("b-0") == "n"


def test_a_pod_without_a_group_uses_what_a_gang_waits_for() -> None:
    world = GroupWorld({"n": FOUR}, [Group((3, 3), 1, 10, fits=False), Group((1,), 3, 10, is_gang=False)])
    for _ in range(10):
        world.step()
    assert world.bound_s == {1: 3}


def test_nobody_comes_first_while_every_group_is_complete_or_holds_nothing() -> None:
    bench = Bench(n=FOUR)
    for name in ("a-0", "a-1", "b-0", "b-1"):
        bench.add(claim(name, request(count=2)), member(name, name[0], 1))
    bench.run()
    bench.cluster.review_groups(bench.clock.monotonic())
    assert bench.on_node("a-1") == "n"
    assert bench.cluster._state.groups.first is None
