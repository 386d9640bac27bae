"""Update after update of a real plugin with changing settings: a reader never sees what an earlier instance publishes.

Whatever a reader of the slices could allocate from is looked at after each of their states, which holds more than that
nothing was allocated from it. Interleavings that are rare here are searched for in
tests/unit/kubelet_plugin/node/test_publisher_rolling_updates.py.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from dracaena.api.resource_objects import ResourceSlice
from dracaena.kube.reflector import Reflector
from dracaena.process.clock import SystemClock
from support.api_ground import ApiGround
from support.forked_programs import ForkedProgram
from support.kube import wait_for
from support.plugin_world import CALL_S, World, start_process
from support.seeds import in_tiers
from support.sockets import short_folder

ALLOCATORS = ("controller", "kube-scheduler")
"""With the first all devices have our taint, with the second none has."""


@pytest.fixture
def world(server: ApiGround) -> Iterator[World]:
    with short_folder() as folder:
        yield World(server, folder)


class Reader:
    """Follows the slices and notes whom it could allocate from: each change of it once, and never twice the same."""

    def __init__(self, world: World) -> None:
        self.seen: list[str] = []
        self._slices: dict[str, ResourceSlice] = {}
        self._reflector = Reflector(world.client, ResourceSlice, clock=SystemClock(), on_change=self._changed)

    @contextmanager
    def reading(self) -> Iterator[None]:
        self._reflector.start()
        try:
            yield
        finally:
            self._reflector.stop()

    def shows(self, allocator: str) -> bool:
        return self.seen[-1:] == [allocator]

    def _changed(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        if old is not None:
            self._slices.pop(old.metadata.name, None)
        if new is not None:
            self._slices[new.metadata.name] = new
        whose = self._whose()
        if whose and self.seen[-1:] != [whose]:
            self.seen.append(whose)

    def _whose(self) -> str:
        """Return the allocator of a complete pool, nothing where the pool is not complete."""
        newest = max((one.spec.pool.generation for one in self._slices.values()), default=0)
        pool = [one for one in self._slices.values() if one.spec.pool.generation == newest]
        if not pool or any(one.spec.pool.resource_slice_count != len(pool) for one in pool):
            return ""
        tainted = {bool(device.taints) for one in pool for device in one.spec.devices}
        return "/".join(sorted(ALLOCATORS[not taint] for taint in tainted))


def update(world: World, count: int, seed: int) -> list[str]:
    """Update the plugin so often, each time to the other allocator; return what a reader saw, one after the other.

    As a DaemonSet with maxSurge does: the next instance is there before the last one goes, in order or by force, or is
    away for a moment between the two.
    """
    rng, reader = random.Random(seed), Reader(world)
    running: list[ForkedProgram] = []
    with reader.reading():
        try:
            for number in range(count):
                uid = f"uid-{number}"
                if running and rng.random() < 0.2:
                    end(running.pop(), by_force=rng.random() < 0.5)
                allocator = ALLOCATORS[number % 2]
                running.append(start_process(world, pod_uid=uid, more=(f"--allocator={allocator}",)))
                world.register(uid)
                wait_for(partial(reader.shows, allocator), f"{uid} has published")
                while len(running) > 1 and rng.random() < 0.9:
                    end(running.pop(0), by_force=rng.random() < 0.3)
        finally:
            for process in running:
                end(process, by_force=True)
    return reader.seen


def end(process: ForkedProgram, *, by_force: bool) -> None:
    if by_force:
        process.kill()
    else:
        process.terminate()
    process.communicate(timeout=CALL_S)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("pairs", in_tiers(2, 5, 25))
def test_each_update_is_seen_once_and_no_earlier_one_again(world: World, pairs: int) -> None:
    assert update(world, 2 * pairs, seed=pairs) == [*ALLOCATORS] * pairs
