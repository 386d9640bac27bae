"""A day of jobs through a small cluster: how well are they linked, and how long do they wait?

Jobs come at random (Poisson), ask for 1, 2, 4 or 8 GPUs and hold them for a random time (exponential). Whenever GPUs
come free, the waiting jobs are looked at in the order of their arrival, and each that fits is placed: a small job may
overtake a large one, as under kube-scheduler. Everything is drawn from a seed, so all systems see the same jobs.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import heappop, heappush
from itertools import combinations
from typing import Final

from bench.baselines.answer import Fault
from bench.machines import BenchMachine
from bench.worth import GpuSet, collective_gb_s, has_nvlink_group, ideal_gb_s, is_one_nvlink_group

SIZE_SHARES: Final = ((1, 0.45), (2, 0.30), (4, 0.20), (8, 0.05))
"""GPUs of a job and how often: most jobs of a shared cluster are small, most GPU hours are not."""

DAY_S: Final = 86_400
MEAN_DURATION_S: Final = 900
"""A quarter of an hour, so that a day brings enough jobs to tell systems apart."""


@dataclass(frozen=True, slots=True)
class Job:
    arrival_s: float
    gpus: int
    duration_s: float


@dataclass(slots=True)
class Node:
    """One node and what is free on it."""

    machine: BenchMachine
    free: GpuSet


@dataclass(frozen=True, slots=True)
class Placement:
    node: int
    gpus: GpuSet
    """What is marked as taken; more than the job asked for where a system over-allocates."""


Place = Callable[[Sequence[Node], int, Counter[Fault]], Placement | None]
"""(nodes, GPUs wanted, faults to count into) → placement, None: it waits."""


@dataclass(slots=True)
class Outcome:
    """What one system made of the jobs it saw."""

    jobs: int = 0
    never_placed: int = 0
    wait_s: float = 0.0
    """Sum over all jobs; one never placed has waited from its arrival to the end of the day."""
    wait_s_by_size: Counter[int] = field(default_factory=Counter)
    jobs_by_size: Counter[int] = field(default_factory=Counter)
    placed_by_size: Counter[int] = field(default_factory=Counter)
    ratio_by_size: Counter[int] = field(default_factory=Counter)
    """Sum of B ÷ the ideal of the node's own class, jobs of two GPUs and more."""
    gb_s_by_size: Counter[int] = field(default_factory=Counter)
    could_be_one_group: int = 0
    """Jobs of two GPUs and more whose node could have given one NVLink group."""
    are_one_group: int = 0
    faults: Counter[Fault] = field(default_factory=Counter)
    on_fast_while_slow_idle: Counter[int] = field(default_factory=Counter)
    """By size: jobs on a machine with NVSwitches while a PCIe machine had as many free GPUs."""

    @property
    def mean_ratio(self) -> float:
        """Return mean B ÷ ideal of placed jobs of two GPUs and more."""
        placed = sum(count for size, count in self.placed_by_size.items() if size > 1)
        return sum(self.ratio_by_size.values()) / placed if placed else 0.0

    @property
    def mean_wait_s(self) -> float:
        return self.wait_s / self.jobs if self.jobs else 0.0

    @property
    def group_share(self) -> float | None:
        """Return the share in one NVLink group where the node could have given one."""
        return self.are_one_group / self.could_be_one_group if self.could_be_one_group else None

    def add(self, other: Outcome) -> None:
        self.jobs += other.jobs
        self.never_placed += other.never_placed
        self.wait_s += other.wait_s
        self.could_be_one_group += other.could_be_one_group
        self.are_one_group += other.are_one_group
        for name in (
            "wait_s_by_size",
            "jobs_by_size",
            "placed_by_size",
            "ratio_by_size",
            "gb_s_by_size",
            "faults",
            "on_fast_while_slow_idle",
        ):
            getattr(self, name).update(getattr(other, name))


def trace(machines: Sequence[BenchMachine], load: float, seed: int) -> list[Job]:
    """Return the jobs of a day that offer this load (GPU time asked for ÷ GPU time there is).

    Sizes above the largest machine are left out of the mix.
    """
    chance = random.Random(f"{seed} {load}")
    largest = max(machine.gpu_count for machine in machines)
    sizes = [(size, share) for size, share in SIZE_SHARES if size <= largest]
    mean_gpus = sum(size * share for size, share in sizes) / sum(share for _, share in sizes)
    gpus = sum(machine.gpu_count for machine in machines)
    jobs_per_s = load * gpus / (mean_gpus * MEAN_DURATION_S)
    jobs = []
    now_s = chance.expovariate(jobs_per_s)
    while now_s < DAY_S:
        (size,) = chance.choices([size for size, _ in sizes], [share for _, share in sizes])
        jobs.append(Job(now_s, size, chance.expovariate(1 / MEAN_DURATION_S)))
        now_s += chance.expovariate(jobs_per_s)
    return jobs


def run(machines: Sequence[BenchMachine], jobs: Sequence[Job], place: Place) -> Outcome:
    """Run the jobs through a cluster of these machines and return what came of them."""
    return _Day(machines, place).run(jobs)


class _Day:
    """One run; owns the nodes, the waiting jobs and the running ones."""

    def __init__(self, machines: Sequence[BenchMachine], place: Place) -> None:
        self._nodes = [Node(machine, tuple(range(machine.gpu_count))) for machine in machines]
        self._place = place
        self._waiting: list[Job] = []
        self._running: list[tuple[float, int, Placement]] = []
        self._started = 0
        self.outcome = Outcome()

    def run(self, jobs: Sequence[Job]) -> Outcome:
        for job in jobs:
            self._finish_until(job.arrival_s)
            self.outcome.jobs += 1
            self.outcome.jobs_by_size[job.gpus] += 1
            if not self._try(job, job.arrival_s):
                self._waiting.append(job)
        self._finish_until(DAY_S)
        for job in self._waiting:
            self.outcome.never_placed += 1
            self._count_wait(job, DAY_S)
        return self.outcome

    def _finish_until(self, now_s: float) -> None:
        while self._running and self._running[0][0] <= now_s:
            end_s, _, placement = heappop(self._running)
            node = self._nodes[placement.node]
            node.free = tuple(sorted((*node.free, *placement.gpus)))
            self._retry(end_s)

    def _retry(self, now_s: float) -> None:
        """Place what fits now. A size that did not fit does not fit a moment later: nothing came free meanwhile."""
        failed: set[int] = set()
        still = []
        for job in self._waiting:
            if job.gpus in failed or not self._try(job, now_s):
                failed.add(job.gpus)
                still.append(job)
        self._waiting = still

    def _try(self, job: Job, now_s: float) -> bool:
        placement = self._place(self._nodes, job.gpus, self.outcome.faults)
        if placement is None:
            return False
        self._count_wait(job, now_s)
        self._count_links(job, placement)
        node = self._nodes[placement.node]
        node.free = tuple(gpu for gpu in node.free if gpu not in placement.gpus)
        self._started += 1
        heappush(self._running, (now_s + job.duration_s, self._started, placement))
        return True

    def _count_wait(self, job: Job, now_s: float) -> None:
        self.outcome.wait_s += now_s - job.arrival_s
        self.outcome.wait_s_by_size[job.gpus] += now_s - job.arrival_s  # type: ignore[assignment]  # seconds, not a count

    def _count_links(self, job: Job, placement: Placement) -> None:
        outcome, node = self.outcome, self._nodes[placement.node]
        outcome.placed_by_size[job.gpus] += 1
        if node.machine.links.switched and any(
            len(other.free) >= job.gpus and not _has_nvlinks(other.machine) for other in self._nodes
        ):
            outcome.on_fast_while_slow_idle[job.gpus] += 1
        if job.gpus < 2:
            return
        gb_s = _best_part_gb_s(node.machine, placement.gpus, job.gpus)
        outcome.gb_s_by_size[job.gpus] += gb_s
        outcome.ratio_by_size[job.gpus] += gb_s / ideal_gb_s(node.machine, job.gpus)  # type: ignore[assignment]
        if has_nvlink_group(node.machine, node.free, job.gpus):
            outcome.could_be_one_group += 1
            outcome.are_one_group += is_one_nvlink_group(node.machine, placement.gpus)


@cache
def _best_part_gb_s(machine: BenchMachine, gpus: GpuSet, count: int) -> int:
    """Return the best that a job makes of what it got: more than it asked for where a system over-allocates."""
    return max(collective_gb_s(machine, part) for part in combinations(gpus, count))


def _has_nvlinks(machine: BenchMachine) -> bool:
    return any(any(row) for row in machine.links.nvlinks)
