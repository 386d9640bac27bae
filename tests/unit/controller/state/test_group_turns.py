"""PodGroups that compete: one of them always gets all of its GPUs, and none waits for ever.

`support.group_world` draws the worlds. With each fault below put back, one of the first WORLDS worlds ends with a group
that was never bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dracaena.controller.queue.waiting_lines import NOWHERE
from dracaena.controller.state import group_turns
from dracaena.controller.state.group_turns import GAVE_UP, GIVE_UP_S, KEPT, YIELDED, GroupTurns
from support.allocation import claim, request
from support.group_world import FOUR, Group, GroupWorld, any_world, member
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
        pytest.param(("review", lambda self, now_s: NOWHERE), id="nobody-comes-first"),
        pytest.param(("yields", lambda self, pod, node, now_s: False), id="nobody-gives-back"),
        pytest.param(("kept_from", lambda self, pod, claims: {}), id="nothing-is-kept"),
    ],
)
def test_a_fault_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupTurns, *fault)
    assert never_bound(range(WORLDS)) is not None


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
    assert message.endswith("does not get all of its GPUs now: another PodGroup comes first, or there are too few")


def test_the_gang_that_waits_is_told_what_it_waits_for() -> None:
    bench = competing()
    pass_time(bench, 12, "a-0", "b-0")
    assert any(KEPT in message for message in bench.told())


def test_the_first_gang_keeps_what_it_has_though_kube_scheduler_refuses_its_pods() -> None:
    bench = competing()
    pass_time(bench, 200, "a-0", "b-0")
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
