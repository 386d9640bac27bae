"""What changes wakes whoever it can help: when all is quiet, nobody waits whom some node could serve.

The oracle (support.waiting_world) looks at every node for every pod. Faults are planted to see that it finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from random import Random
from typing import Any
from unittest import mock

import pytest

from dracaena.controller.allocation.reach import Prospect, Reach
from dracaena.controller.queue.waiting_lines import WaitingLines
from dracaena.controller.queue.workqueue import WorkQueue
from support.inventories import free_mask
from support.waiting_world import DIVIDED, GPU, MIG, Host, WaitingWorld, Wants, class_of


class LostError(AssertionError):
    """A pod waits that could be served."""


SEEDS = (20, 41, 61, 2, 14, 16, 30, 39, 46, 48, 58, 69)
"""In each of these worlds one of the faults below is found, and each fault in one of the first three. Two of the faults
are found in one world of the first 70."""
MANY_SEEDS = range(600)
EVENTS = 60
ZONES = ("a", "b")


def a_host(rng: Random) -> Host:
    has = {GPU: rng.choice((1, 2, 4)), MIG: rng.choice((0, 0, DIVIDED))}
    return Host(has, rng.choice(ZONES), rng.random() < 0.2, rng.random() < 0.1, rng.choice((4, 8)))


def some_wants(rng: Random) -> Wants:
    either: tuple[dict[str, int], ...] = rng.choice(
        (
            ({GPU: 1},),
            ({GPU: 2},),
            ({GPU: 4},),
            ({MIG: 1},),
            ({MIG: 2},),
            ({GPU: 1, MIG: 1},),
            ({GPU: 2}, {MIG: 1}),
            ({MIG: 2}, {GPU: 1}),
        )
    )
    several = len(either[0]) > 1 and rng.random() < 0.5
    return Wants(either, rng.choice(("", "", *ZONES)), rng.random() < 0.3, rng.choice((0, 1, 3, 6)), several)


def change(world: WaitingWorld, rng: Random, number: int) -> None:
    """Let one thing happen."""
    served = sorted(world.served)
    name = rng.choice(sorted(world.hosts))
    host = world.hosts[name]
    kind = rng.choice(("come", "come", "come", "go", "go", "leave", "cpu", "cpu", "node", "slice", "class"))
    if kind == "come":
        world.come(f"p{number}", some_wants(rng), number // 3, rng.choice((0, 0, 0, 5)))
    elif kind == "go" and served:
        world.go(rng.choice(served))
    elif kind == "leave" and len(served) < len(world.wants):
        world.go(rng.choice(sorted(world.wants.keys() - world.served.keys())))
    elif kind == "cpu":
        world.take_cpu(name, rng.choice((0, 2, 6)))
    elif kind == "node":
        other = a_host(rng)
        world.put_host(name, Host(host.has, other.zone, other.tainted, other.cordoned, other.cpu))
    elif kind == "slice" and not any(where == name for where in world.served.values()):
        world.put_host(name, Host(a_host(rng).has, host.zone, host.tainted, host.cordoned, host.cpu))
    elif kind == "class":
        world.cluster.intake.class_changed(None, class_of(rng.choice((GPU, MIG))))


def live(seed: int) -> WaitingWorld:
    """Let things happen, each after a few decisions. At times let all that is to be decided be decided, and ask the
    oracle."""
    rng = Random(seed)
    world = WaitingWorld()
    for number in range(rng.choice((2, 3, 4))):
        world.put_host(f"n{number}", a_host(rng))
    for number in range(EVENTS):
        change(world, rng, number)
        if rng.random() < 0.3:
            world.settle(20 * EVENTS)
            left = world.could_be_served()
            if left:
                raise LostError(f"seed {seed}, event {number}: {left} could be served and nobody asks for them")
        else:
            for _ in range(rng.choice((0, 0, 1, 2))):
                world.step()
    return world


def test_whoever_can_be_served_is_served_when_all_is_quiet() -> None:
    served = sum(len(live(seed).served) for seed in SEEDS)
    assert served > len(SEEDS), "the worlds are not empty"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_whoever_can_be_served_is_served_in_many_more_worlds() -> None:
    for seed in MANY_SEEDS:
        live(seed)


# Faults


@contextmanager
def counts_too_many() -> Iterator[None]:
    """A node needs a free device more than it does."""
    has = Reach._has_devices

    def one_more(self: Reach, node: str) -> bool:
        with mock.patch.object(self, "_least", self._least + 1):
            return has(self, node)

    with mock.patch.object(Reach, "_has_devices", one_more):
        yield


@contextmanager
def takes_mig_devices_for_none() -> Iterator[None]:
    """Only whole GPUs count."""

    def has(self: Reach, node: str) -> bool:
        return free_mask(self._inventory, node).bit_count() >= max(self._least, 1)

    with mock.patch.object(Reach, "_has_devices", has):
        yield


@contextmanager
def forgets_who_is_short() -> Iterator[None]:
    """A node with devices and too little cpu counts as one that can do nothing for a pod."""
    prospect = Reach.prospect

    def never_short(self: Reach, *args: Any) -> Prospect:
        found = prospect(self, *args)
        return Prospect.NONE if found is Prospect.SHORT else found

    with mock.patch.object(Reach, "prospect", never_short):
        yield


@contextmanager
def forgets_earlier_changes() -> Iterator[None]:
    """Only the last change before a pod is asked counts."""
    changed = WaitingLines.change

    def only_the_last(self: WaitingLines, *args: Any, **rest: Any) -> Any:
        for line in self._lines.values():
            line.changed = frozenset()
        return changed(self, *args, **rest)

    with mock.patch.object(WaitingLines, "change", only_the_last):
        yield


@contextmanager
def forgets_changes_with_the_first() -> Iterator[None]:
    """What changed for a line is forgotten with the pod that was first."""
    leave = WaitingLines.leave

    def forget(self: WaitingLines, key: str) -> Any:
        standing = self.standing.get(key)
        woken = leave(self, key)
        if standing is not None and standing.shape in self._lines:
            self._lines[standing.shape].changed = frozenset()
        return woken

    with mock.patch.object(WaitingLines, "leave", forget):
        yield


@contextmanager
def defers_and_forgets() -> Iterator[None]:
    """A pod that is to be decided for after others is not decided for after them."""
    ask = WorkQueue.add_again

    def not_while_it_is_decided_for(self: WorkQueue, key: str) -> None:
        if key not in self._working:
            ask(self, key)

    with mock.patch.object(WorkQueue, "add_again", not_while_it_is_decided_for):
        yield


Fault = Callable[[], AbstractContextManager[None]]


@pytest.mark.parametrize(
    "fault",
    [
        counts_too_many,
        takes_mig_devices_for_none,
        forgets_who_is_short,
        forgets_earlier_changes,
        forgets_changes_with_the_first,
        defers_and_forgets,
    ],
)
def test_a_wake_up_that_is_lost_is_found(fault: Fault) -> None:
    with fault():
        assert any(map(loses_somebody, SEEDS))


def loses_somebody(seed: int) -> bool:
    try:
        live(seed)
    except LostError:
        return True
    return False
