"""When snapshots are made: only while somebody looks, with rests, and not at all where nothing changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from dracaena.controller.page.gpu_counts import GpuCounts
from dracaena.controller.page.snapshots import (
    BEAT_S,
    EVERY_S,
    FIRST_TIMEOUT_S,
    KEPT_S,
    WANTED_S,
    LatestSnapshot,
    Numbered,
    Snapshots,
)
from dracaena.controller.views.snapshot import Watched
from support.allocation import DRIVER, blocks, machine, node, pool_slice
from support.clock import RestingClock
from support.kube import wait_for

FOUR = machine("four", blocks(2, 2, inside="NV12", outside="SYS"))


class World:
    """What is watched, and what was told."""

    def __init__(self, clock: RestingClock) -> None:
        self.clock = clock
        self.watched = Watched((node("n"),), (pool_slice("n", FOUR),), ())
        self.looks = 0
        self.followed = False
        self.fails = False
        self.costs_s = 0.0
        self.told: list[int] = []
        self.snapshots = Snapshots(
            LatestSnapshot(DRIVER, self.look, clock), clock, followed=lambda: self.followed, tell=self.told.append
        )

    def look(self) -> Watched:
        self.looks += 1
        self.clock.advance(self.costs_s)
        if self.fails:
            raise RuntimeError
        return self.watched

    def change(self) -> None:
        self.watched = Watched((node("n", unschedulable=True),), self.watched.slices, ())


@pytest.fixture
def world() -> Iterator[World]:
    made = World(RestingClock())
    made.snapshots.start()
    yield made
    made.snapshots.stop()


def pass_time_until(world: World, condition: Callable[[], bool]) -> None:
    """Let second after second go by while the thread rests. What goes by while it is at work would count as work, after
    which it rests four times as long; and what it makes then would be old at once."""

    def passed() -> bool:
        rests = world.clock.rests
        if condition():
            return True
        if rests:
            world.clock.advance(EVERY_S)
        return False

    wait_for(passed, "it")


def test_nobody_looks_and_nothing_is_made(world: World) -> None:
    world.clock.advance(10 * KEPT_S)
    threading.Event().wait(0.05)
    assert world.looks == 0


def test_the_first_to_look_waits_for_the_first_snapshot(world: World) -> None:
    found = world.snapshots.newest()
    assert found is not None
    assert [line.name for line in found.snapshot.lines] == ["n"]
    assert found.number == 1


def test_at_most_one_a_second(world: World) -> None:
    world.followed = True
    assert world.snapshots.newest() is not None
    threading.Event().wait(0.1)
    assert world.looks == 1, "however long it takes, no time goes by here"
    began_s = world.clock.monotonic()
    pass_time_until(world, lambda: world.looks >= 4)
    assert world.looks - 1 <= (world.clock.monotonic() - began_s) / EVERY_S


def test_none_is_made_after_everybody_left(world: World) -> None:
    assert world.snapshots.newest() is not None
    world.clock.advance(WANTED_S)
    threading.Event().wait(0.05)
    looks = world.looks
    for _ in range(20):
        world.clock.advance(EVERY_S)
        threading.Event().wait(0.01)
    assert world.looks <= looks + 1


def test_what_did_not_change_is_not_made_again_and_who_follows_learns_the_number_again(world: World) -> None:
    world.followed = True
    first = world.snapshots.newest()
    pass_time_until(world, lambda: world.told == [1, 1])
    assert world.clock.monotonic() >= BEAT_S
    assert world.snapshots.newest() is first
    world.change()
    pass_time_until(world, lambda: world.told[-1] == 2)
    newest = world.snapshots.newest()
    assert newest is not None
    assert newest.number == 2


def test_a_fault_leaves_the_last_snapshot_and_the_next_try_succeeds(world: World) -> None:
    world.followed = True
    assert world.snapshots.newest() is not None
    world.fails = True
    pass_time_until(world, lambda: world.looks >= 2)
    world.change()
    world.fails = False
    pass_time_until(world, lambda: world.told == [1, 2])


def ask(world: World) -> tuple[Numbered | None, float]:
    """Let time pass until there is an answer. Return it, and for how long it was waited for."""
    began_s = world.clock.monotonic()
    found: list[Numbered | None] = []
    asking = threading.Thread(target=lambda: found.append(world.snapshots.newest()))
    asking.start()
    pass_time_until(world, lambda: bool(found))
    asking.join()
    return found[0], world.clock.monotonic() - began_s


def test_answers_wait_for_the_first_snapshot_in_time_and_not_one_after_another(world: World) -> None:
    world.fails = True
    found, waited_s = ask(world)
    assert (found, waited_s >= FIRST_TIMEOUT_S) == (None, True)
    found, waited_s = ask(world)
    assert found is None
    assert waited_s < FIRST_TIMEOUT_S, "the client of the second has waited since the first was asked for"
    world.fails = False
    pass_time_until(world, lambda: world.told == [1])
    assert world.snapshots.newest() is not None


def test_while_the_thread_rests_the_last_snapshot_is_served_however_old(world: World) -> None:
    world.costs_s = WANTED_S / 2
    assert world.snapshots.newest() is not None
    wait_for(lambda: world.clock.rests, "the rest, four times as long")
    world.clock.advance(WANTED_S)
    found, waited_s = ask(world)
    assert found is not None
    assert waited_s < FIRST_TIMEOUT_S, "another one was waited for, which would not come"


def test_nodes_that_a_scrape_has_counted_are_not_read_again_for_the_page() -> None:
    clock = RestingClock()
    latest = LatestSnapshot(DRIVER, lambda: Watched((node("n"),), (pool_slice("n", FOUR),), ()), clock)
    assert GpuCounts(latest, clock).of("free") == 4
    counted = latest.now(threading.Event())
    snapshots = Snapshots(latest, clock)
    snapshots.start()
    try:
        found = snapshots.newest()
    finally:
        snapshots.stop()
    assert found is not None
    assert counted is not None
    assert found.snapshot.lines[0] is counted.lines[0]
