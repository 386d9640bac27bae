"""Our engine as the bench asks it about one machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from bench.machines import BenchMachine
from bench.worth import GpuSet
from dracaena.api.config.v1alpha1 import NO_POLICY, TopologyPolicy
from dracaena.controller.allocation.score.box import mask_of, ordinals_of
from dracaena.controller.allocation.score.choices import Demand, Engine
from dracaena.controller.allocation.score.order import Score

ENGINE: Final = Engine()


@dataclass(frozen=True, slots=True)
class OurChoice:
    gpus: GpuSet
    score: Score

    def rank(self) -> tuple[int, ...]:
        """Return the key by which choices on several nodes compare, best first."""
        return self.score.rank()


@cache
def choose(machine: BenchMachine, free: GpuSet, count: int, policy: TopologyPolicy = NO_POLICY) -> OurChoice | None:
    """Return what the engine takes; None: it does not fit."""
    best = ENGINE.best_two(machine.box, mask_of(free), (Demand(count, policy),)).best
    return None if best is None else OurChoice(ordinals_of(best.mask), best.score)


def bandwidth_gb_s(machine: BenchMachine, gpus: GpuSet) -> int:
    """Return what the engine says that a set is worth."""
    return ENGINE.table(machine.box).gb_s(mask_of(gpus))


def ideal_gb_s(machine: BenchMachine, count: int) -> int:
    """Return what the engine says is the best for this size on the empty machine."""
    return ENGINE.table(machine.box).ideal_gb_s(count)


def damage_gb_s(machine: BenchMachine, free: GpuSet, chosen: GpuSet) -> tuple[int, ...]:
    """Return what the engine says is lost when the chosen GPUs are taken."""
    return ENGINE.score(machine.box, mask_of(free), mask_of(chosen)).damage_gb_s
