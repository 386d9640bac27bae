"""Take-backs beside a kube-scheduler that binds the same pod, slowly, in every order that chance finds."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest

from dracaena.api.objects import Pod, PodCondition
from dracaena.api.resource_objects import ConsumerReference, ResourceClaim
from dracaena.controller.lifecycle import proof
from dracaena.controller.lifecycle.proof import Bounds
from dracaena.kube.errors import ConflictError
from support.allocation import claim, node, pod
from support.reconciling import RULES, TWO, Bench
from support.seeds import in_tiers

KEY = "default/p"
USER = ConsumerReference("pods", "p", "uid-p")
STEP_S = 0.2
LATE_S = 0.6
"""How far kube-scheduler's view of claims, and our view of pods, may be behind."""

BINDS_S = (1.2, 3.0, 10.0, 30.0)

RACES = 20
"""In which both faults below are found."""


class Impatient(Bench):
    """Takes a bind for over once kube-scheduler has seen a change."""

    rules = dataclasses.replace(RULES, bounds=Bounds(settle_s=2.0, longest_bind_s=0.0, late_write_s=2.0))


class Scheduler:
    """Tries the pod now and then, one try after the other: looks at claims as they were a moment ago, and either says
    that it found no node, or reserves what is not reserved and binds."""

    def __init__(self, world: Bench, rng: random.Random, bind_s: float) -> None:
        self.world = world
        self._rng = rng
        self._bind_s = bind_s
        self._past: list[dict[str, ResourceClaim]] = []
        self._to_reserve: list[ResourceClaim] = []
        self._bind_in: int | None = None
        self._tries_at = rng.choice((0.02, 0.1, 0.3))
        self._finds_a_node = rng.choice((0.05, 0.3))
        self._late: list[tuple[float, Pod]] = []
        self.found_devices = True
        """Whether all claims were allocated in the moment of the bind. What is missing is mended if it is free yet."""

    @property
    def is_bound(self) -> bool:
        return bool(self.world.api.pods[KEY].spec.node_name)

    def step(self) -> None:
        api = self.world.api
        self._show_what_is_due()
        self._past = [*self._past[-int(LATE_S / STEP_S) :], dict(api.claims)]
        if self.is_bound:
            return
        if self._bind_in is None:
            if self._rng.random() < self._tries_at:
                self._try(self._rng.choice(self._past))
        elif self._to_reserve and self._rng.random() < 0.5:
            self._reserve(self._to_reserve.pop())
        elif self._bind_in <= 0 and not self._to_reserve:
            stored = api.pods[KEY]
            self.found_devices = all(item.status.allocation is not None for item in api.claims.values())
            self._write(msgspec.structs.replace(stored, spec=msgspec.structs.replace(stored.spec, node_name="a")))
        else:
            self._bind_in -= 1

    def _try(self, view: dict[str, ResourceClaim]) -> None:
        claims = [view[key] for key in ("default/c", "default/d")]
        is_allocated = all(item.status.allocation is not None for item in claims)
        if is_allocated and self._rng.random() < self._finds_a_node:
            self._to_reserve = [item for item in claims if not item.status.reserved_for]
            self._bind_in = self._rng.randrange(1 + int(self._bind_s / STEP_S))
        else:
            self._say(self._rng.choice(("no room", "no room", "other words")))

    def _say(self, message: str) -> None:
        """It writes its condition when it differs from what it knows to be there: a probe makes it differ."""
        stored = self.world.api.pods[KEY]
        condition = PodCondition("PodScheduled", "False", "Unschedulable", f"0/1 nodes are available: {message}.")
        if stored.status.conditions == [condition]:
            return
        status = msgspec.structs.replace(stored.status, conditions=[condition])
        self._write(msgspec.structs.replace(stored, status=status))

    def _reserve(self, seen: ResourceClaim) -> None:
        try:
            self.world.api.reserve(seen, [USER])
        except ConflictError:
            self._bind_in, self._to_reserve = None, []  # its try fails, and it tries again

    def _write(self, item: Pod) -> None:
        """Store a pod; our watch shows it later, in order."""
        stored = self.world.api.put_pod(item)
        self._late.append((self.world.clock.monotonic() + self._rng.uniform(0, LATE_S), stored))

    def _show_what_is_due(self) -> None:
        while self._late and self._late[0][0] <= self.world.clock.monotonic():
            _, item = self._late.pop(0)
            self.world.pod_changed(self.shown, item)

    @property
    def shown(self) -> Pod | None:
        return self.world.cluster.pod(KEY)


def race(seed: int, bind_s: float, kind: type[Bench] = Bench) -> str:
    """Let both go at it, with changes of the leader, and say how it ended."""
    rng = random.Random(seed)
    world = kind(a=TWO)
    world.add(claim("c"), claim("d"), pod("p", "c", "d"))
    world.run()
    assert (world.on_node("c"), world.on_node("d")) == ("a", "a")
    close(world)
    scheduler = Scheduler(world, rng, bind_s)
    begin_s, until_s = rng.uniform(0, bind_s + 3), 60 + 3 * bind_s
    began = False
    while world.clock.monotonic() < until_s:
        world.clock.advance(STEP_S)
        scheduler.step()
        if rng.random() < 0.003:
            world = scheduler.world = world.next_leader()
            close(world)
        if world.clock.monotonic() >= begin_s and not began:
            began = True
            for name in ("c", "d"):
                world.take_back(name)
        world.run()
    for _ in range(int((LATE_S + bind_s) / STEP_S) + 5):
        world.clock.advance(STEP_S)
        scheduler.step()
        world.run()
    return how_it_ended(world, scheduler)


def close(world: Bench) -> None:
    """So that nothing is allocated anew."""
    world.cluster.intake.node_changed(node("a"), node("a", unschedulable=True))


def how_it_ended(world: Bench, scheduler: Scheduler) -> str:
    held = [item.status.allocation is not None for item in world.api.claims.values()]
    if not scheduler.is_bound:
        return "taken back" if not any(held) else "unfinished"
    if not scheduler.found_devices or not all(held):
        return "bound without devices"
    return "bound" if all(item.status.reserved_for == [USER] for item in world.api.claims.values()) else "unreserved"


def outcomes(seeds: Sequence[int], bind_s: float, kind: type[Bench] = Bench) -> Counter[str]:
    return Counter(race(seed, bind_s, kind) for seed in seeds)


@pytest.mark.parametrize("seeds", in_tiers(range(8), range(8, 100), range(100, 1_000)))
@pytest.mark.parametrize("bind_s", BINDS_S)
def test_no_pod_is_ever_bound_without_its_devices_however_long_a_bind_takes(bind_s: float, seeds: range) -> None:
    found = outcomes(seeds, bind_s)
    assert set(found) == {"bound", "taken back"}, found
    assert min(found.values()) >= len(seeds) // 5, f"both ends are common here: {found}"


def some_are_bound_without_devices(bind_s: float, kind: type[Bench] = Bench) -> bool:
    return any(race(seed, bind_s, kind) == "bound without devices" for seed in range(RACES))


@pytest.mark.search
@pytest.mark.parametrize("bind_s", [10.0, 30.0])
def test_with_too_short_a_longest_bind_some_are(bind_s: float) -> None:
    assert some_are_bound_without_devices(bind_s, Impatient)


@pytest.mark.search
@pytest.mark.parametrize("bind_s", [3.0, 30.0])
def test_with_words_of_before_for_a_proof_some_are(bind_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "_is_proven", lambda pod, doubt, bounds: pod.said is not None)
    assert some_are_bound_without_devices(bind_s)


@pytest.mark.parametrize("seed", range(3))
def test_a_race_ends_the_same_each_time(seed: int) -> None:
    assert race(seed, 3.0) == race(seed, 3.0)
