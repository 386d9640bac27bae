"""How much is asked when something changes, and that nobody starves: old ones behind new ones, or new behind old.

Counted in decisions, without a clock. Faults are planted to see that starvation is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.queue.lanes import Lanes
from dracaena.controller.queue.workqueue import WorkQueue
from dracaena.controller.state.decisions import Decisions
from support.waiting_world import DIVIDED, GPU, MIG, Host, WaitingWorld, Wants

LINES = 40
STARVED = 4 * LINES
"""Decisions after which a pod that was not served counts as one that starves: it should have been after LINES."""


def full_zones(count: int) -> WaitingWorld:
    """As many nodes as zones, each with two GPUs that are taken, and in each zone a pod that waits for one."""
    world = WaitingWorld()
    for number in range(count):
        world.put_host(f"n{number:03}", Host({GPU: 2, MIG: 0}, f"z{number:03}"))
        world.come(f"old{number:03}", Wants(({GPU: 2},), f"z{number:03}"), 0)
    world.settle(10 * count)
    for number in range(count):
        world.come(f"w{number:03}", Wants(({GPU: 1},), f"z{number:03}"), 1)
    world.settle(10 * count)
    assert len(world.served) == count
    world.decisions.clear()
    return world


@pytest.mark.parametrize("count", [10, LINES])
def test_a_freed_device_asks_the_lines_that_its_node_can_serve_and_no_others(count: int) -> None:
    world = full_zones(count)
    world.go("default/old007")
    world.settle(10)
    assert world.decisions == ["default/w007"]


def test_a_freed_device_asks_nobody_who_needs_more_of_them_or_more_cpu() -> None:
    world = WaitingWorld()
    world.put_host("n", Host({GPU: 4, MIG: 0}, cpu=8))
    for number in range(4):
        world.come(f"old{number}", Wants(({GPU: 1},), cpu=1), 0)
    world.settle(10)
    for cpu in range(LINES):
        world.come(f"large{cpu}", Wants(({GPU: 2},), cpu=cpu), 1)
    for cpu in range(9, LINES):
        world.come(f"heavy{cpu}", Wants(({GPU: 1},), cpu=cpu), 1)
    world.settle(3 * LINES)
    world.decisions.clear()
    world.go("default/old0")
    world.settle(10)
    assert world.decisions == []


def test_who_is_asked_again_is_asked_about_the_nodes_that_changed_alone() -> None:
    world = WaitingWorld()
    for name in ("changing", "other"):
        world.put_host(name, Host({GPU: 1, MIG: DIVIDED}))
    world.come("large", Wants(({GPU: 2},)), 0)
    world.settle(10)
    asked: list[Any] = []
    allocate = Allocator.allocate

    def note(*args: Any, within: Any = None, **rest: Any) -> Any:
        asked.append(within)
        return allocate(*args, within=within, **rest)

    with mock.patch.object(Allocator, "allocate", note):
        world.flap("changing")
        world.settle(10)
        assert asked == [{"changing"}]
        world.queue.add("default/large")  # for no reason that matters to it
        world.settle(10)
        assert asked == [{"changing"}], "on the same state it would fail for the same reason"


# Nobody starves


def stormy() -> WaitingWorld:
    """Lines of old pods of which only a decision can tell that they do not fit, whenever something changes."""
    world = WaitingWorld()
    world.put_host("storm", Host({GPU: 1, MIG: DIVIDED}, cpu=1000))
    for number in range(LINES):
        world.come(f"old{number:03}", Wants(({GPU: 2},), cpu=number), 0)
    world.settle(3 * LINES)
    return world


def decisions_in_a_storm_until(world: WaitingWorld, key: str) -> int | None:
    """Return after how many decisions a pod was served, where a change before each asks all old pods again; None: not
    after STARVED."""
    before = len(world.decisions)
    for _ in range(STARVED):
        if key in world.served:
            return len(world.decisions) - before
        world.flap("storm")
        world.step()
    return None


def rage(world: WaitingWorld) -> None:
    """Let a storm go on until it is what it always is."""
    for _ in range(LINES + LINES // 2):
        world.flap("storm")
        world.step()


def young_elsewhere() -> int | None:
    world = stormy()
    rage(world)
    world.put_host("calm", Host({GPU: 1, MIG: 0}))
    return decisions_in_a_storm_until(world, world.come("young", Wants(({GPU: 1},), cpu=1), 3600))


def young_in_the_storm() -> int | None:
    world = stormy()
    rage(world)
    return decisions_in_a_storm_until(world, world.come("young", Wants(({MIG: 1},), cpu=1), 3600))


def last_of_the_old() -> int | None:
    world = stormy()
    world.put_host("calm", Host({GPU: 2, MIG: 0}, zone="calm", tainted=True))
    key = world.come("last", Wants(({GPU: 2},), zone="calm"), 1)
    world.settle(3 * LINES)
    rage(world)
    world.put_host("calm", Host({GPU: 2, MIG: 0}, zone="calm"))
    return decisions_in_a_storm_until(world, key)


def test_a_new_pod_that_fits_is_served_before_old_ones_that_just_failed_are_asked_again() -> None:
    assert young_elsewhere() in range(1, 4)


def test_a_new_pod_that_fits_where_all_old_ones_are_asked_about_is_served_when_they_were_asked_once() -> None:
    assert young_in_the_storm() in range(1, LINES + 4)


def test_a_pod_that_waits_and_fits_now_is_served_when_those_before_it_were_asked_once() -> None:
    assert last_of_the_old() in range(1, LINES + 4)


def old_and_young() -> str:
    """Return who gets a device that is freed while an old pod waits for it and a young one comes that it fits too."""
    world = WaitingWorld()
    world.put_host("n", Host({GPU: 1, MIG: DIVIDED}, cpu=1000))
    world.come("first", Wants(({GPU: 1},)), 0)
    world.settle(10)
    for number in range(LINES):
        world.come(f"hopeless{number}", Wants(({GPU: 2},), cpu=number), 1)
    world.come("old", Wants(({GPU: 1},), cpu=2), 2)
    world.settle(3 * LINES)
    world.go("default/first")
    world.step()
    world.come("young", Wants(({GPU: 1},), cpu=3), 3600)
    world.settle(10 * LINES)
    (holder,) = world.served
    return holder


def test_an_old_pod_gets_what_is_freed_for_it_whatever_new_ones_come_meanwhile() -> None:
    assert old_and_young() == "default/old"


def test_who_has_a_higher_priority_comes_before_all_that_are_asked_again() -> None:
    world = stormy()
    world.flap("storm")
    key = world.come("important", Wants(({MIG: 1},)), 3600, priority=7)
    world.step()
    assert key in world.served


@contextmanager
def asks_again_by_turn() -> Iterator[None]:
    """Pods that are asked again have no lane of their own."""
    with mock.patch.object(WorkQueue, "add_again", WorkQueue.add):
        yield


@contextmanager
def asks_again_without_waves() -> Iterator[None]:
    """In their lane the first by turn comes first, however often."""
    add = Lanes.add

    def forget(self: Lanes, key: str, turn: Any, *, again: bool = False) -> None:
        self._of_this_wave.clear()
        add(self, key, turn, again=again)

    with mock.patch.object(Lanes, "add", forget):
        yield


@contextmanager
def offers_nothing_first() -> Iterator[None]:
    """Who overtakes may take what others are to be asked about."""
    with mock.patch.object(Decisions, "_offered_first", return_value={}):
        yield


@contextmanager
def defers_for_ever() -> Iterator[None]:
    """A pod is deferred as long as those before it are to be asked about anything."""
    offered = Decisions._offered_first

    def again(self: Decisions, question: Any) -> Any:
        self._deferred.clear()
        return offered(self, question)

    with mock.patch.object(Decisions, "_offered_first", again):
        yield


def test_a_new_pod_that_starves_behind_old_ones_is_found() -> None:
    with asks_again_by_turn():
        assert young_elsewhere() is None
        assert young_in_the_storm() is None
    with defers_for_ever():
        assert young_in_the_storm() is None


def test_an_old_pod_that_starves_behind_older_or_new_ones_is_found() -> None:
    with asks_again_by_turn():
        assert last_of_the_old() is None
    with asks_again_without_waves():
        assert last_of_the_old() is None
    with offers_nothing_first():
        assert old_and_young() == "default/young"
