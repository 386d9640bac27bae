"""No reader is shown what an older instance of the plugin publishes, however instances start, hang and die."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from dracaena.kubelet_plugin.adapters.files.writer_lock import WriterLock
from dracaena.kubelet_plugin.discovery.publish.pool import plan_pool
from dracaena.kubelet_plugin.node import publisher
from support.publishing_world import FATES, PublishingWorld, ViolationError

STEPS = 60
INSTANCES = 4
SEEDS = (87, 103, 106, *range(80, 86))
"""Each fault below is found in one of the first two of these; two of the faults in no other of 80 to 109."""


def run(seed: int, folder: Path) -> None:
    """Update a node's plugin again and again, with all that can go wrong; raise ViolationError where it shows."""
    rng = random.Random(seed)
    world = PublishingWorld(folder, rng)
    try:
        world.start()
        acting = world.instances[0]
        for _ in range(STEPS):
            chance = rng.random()
            living = [one for one in world.instances if one.is_alive]
            if chance < 0.08 and len(world.instances) < INSTANCES:
                world.start()
            elif chance < 0.11 and len(living) > 1:
                world.kill(rng.choice(living))
            elif chance < 0.2 and world.server.late:
                world.land()
            else:
                acting = rng.choice(living) if rng.random() < 0.4 else acting  # the others stand still for a while
                world.step(acting if acting.is_alive else living[-1], rng.choice(FATES))
        world.come_to_rest()
        newest = max(one.number for one in world.instances if one.is_alive)
        if world.shown() != newest:
            raise ViolationError(f"{world.shown()} is shown at the end, and {newest} is the newest")
    finally:
        world.end()


def violation(seeds: Iterable[int], tmp_path: Path) -> str | None:
    """Return the first that is found."""
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            run(seed, folder)
        except ViolationError as error:
            return f"seed {seed}: {error}"
    return None


def test_readers_see_the_newest_instance_that_has_published_whatever_happens(tmp_path: Path) -> None:
    assert violation(SEEDS, tmp_path) is None


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_readers_see_the_newest_instance_in_many_more_updates(tmp_path: Path) -> None:
    assert violation(range(21_000), tmp_path) is None


def never_newer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WriterLock, "_newer_publishes", lambda _: False)


def no_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    known = WriterLock.note
    monkeypatch.setattr(WriterLock, "note", lambda self, generation, **_: known(self, generation, is_in_doubt=False))


def no_generation_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(*arguments: object, may_land: int | None = None, **more: object) -> object:
        return plan_pool(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(publisher, "plan_pool", plan)


def not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WriterLock, "note", lambda *_, **__: None)


@pytest.mark.parametrize("plant", [never_newer, no_doubt, no_generation_is_passed_over, not_looked_at_again])
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert violation(SEEDS, tmp_path) is not None
