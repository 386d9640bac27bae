"""A day of jobs through a cluster: how well are they linked, and how long do they wait?

Jobs come at random (Poisson), ask for 1, 2, 4 or 8 GPUs and hold them for a random time (exponential). Whenever GPUs
come free, the waiting jobs are looked at in the order of their arrival, and each that fits is placed: a small job may
overtake a large one, as under kube-scheduler. Everything is drawn from a seed, so all systems see the same jobs.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import heappop, heappush
from itertools import combinations
from typing import Final

from bench.baselines.answer import Fault
from bench.machines import BenchMachine
from bench.worth import GpuSet, collective_gb_s, has_nvlink_group, ideal_gb_s, is_one_nvlink_group
from dracaena.controller.allocation.state.size_demand import SizeDemand

SIZE_SHARES: Final = ((1, 0.45), (2, 0.30), (4, 0.20), (8, 0.05))
"""GPUs of a job and how often: most jobs of a shared cluster are small, most GPU hours are not."""

DAY_S: Final = 86_400
FEW_FREE: Final = 4
"""With fewer free GPUs a node takes none of the jobs that need good links most."""

MEAN_DURATION_S: Final = 900
"""A quarter of an hour, so that a day brings enough jobs to tell systems apart."""


@dataclass(frozen=True, slots=True)
class Job:
    arrival_s: float
    gpus: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class Node:
    """What a node is and what is free on it: nodes that are equal in both are as good as each other."""

    machine: BenchMachine
    free: GpuSet


class Cluster:
    """The nodes, by what they are and what is free on them, and the GPUs that jobs have and wait for."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = list(nodes)
        self.indices: dict[Node, set[int]] = {}
        for index, node in enumerate(self.nodes):
            self.indices.setdefault(node, set()).add(index)
        self.machines: Counter[BenchMachine] = Counter(node.machine for node in self.nodes)
        self.gpus_asked: Counter[int] = Counter()
        """GPUs that jobs of each size have and wait for now."""
        self.now_s = 0.0
        self._size_demand = SizeDemand()
        self._looked_s = 0.0
        self._shares = self._size_demand.shares({}, 0.0)
        self.stranded_gpus = sum(map(_stranded_gpus, self.nodes))
        """Free GPUs on nodes with fewer than FEW_FREE free ones."""

    def free(self, index: int, gpus: GpuSet) -> None:
        """Let `gpus` be what is free on a node."""
        before = self.nodes[index]
        same = self.indices[before]
        same.remove(index)
        if not same:
            del self.indices[before]
        node = self.nodes[index] = Node(before.machine, gpus)
        self.indices.setdefault(node, set()).add(index)
        self.stranded_gpus += _stranded_gpus(node) - _stranded_gpus(before)

    def shares(self) -> tuple[int, int, int]:
        """Return what the controller says of the sizes that pods ask for: it looks once a second."""
        if self.now_s >= self._looked_s + 1:
            self._looked_s = self.now_s
            self._shares = self._size_demand.shares(self.gpus_asked, self.now_s)
        return self._shares


def _stranded_gpus(node: Node) -> int:
    return len(node.free) if len(node.free) < FEW_FREE else 0


@dataclass(frozen=True, slots=True)
class Placement:
    node: int
    gpus: GpuSet
    """What is marked as taken; more than the job asked for where a system over-allocates."""


Place = Callable[[Cluster, int, Counter[Fault]], Placement | None]
"""(cluster, GPUs wanted, faults to count into) → placement, None: it waits."""


@dataclass(slots=True)
class Outcome:
    """What one system made of the jobs it saw."""

    jobs: int = 0
    never_placed: int = 0
    wait_s: float = 0.0
    """Sum over all jobs; one never placed has waited from its arrival to the end of the day."""
    wait_s_by_size: Counter[int] = field(default_factory=Counter)
    waited_by_size: Counter[int] = field(default_factory=Counter)
    """Jobs that were not placed as they came."""
    jobs_by_size: Counter[int] = field(default_factory=Counter)
    placed_by_size: Counter[int] = field(default_factory=Counter)
    ratio_by_size: Counter[int] = field(default_factory=Counter)
    """Sum of B ÷ the ideal of the node's own class, jobs of two GPUs and more."""
    gb_s_by_size: Counter[int] = field(default_factory=Counter)
    could_be_one_group: int = 0
    """Jobs of two GPUs and more whose node could have given one NVLink group."""
    are_one_group: int = 0
    faults: Counter[Fault] = field(default_factory=Counter)
    stranded_gpu_s: float = 0.0
    """Free GPUs on nodes with fewer than FEW_FREE free ones, summed over the time in which jobs come."""
    time_s: float = 0.0
    """In which jobs come."""

    @property
    def mean_ratio(self) -> float:
        """Return mean B ÷ ideal of placed jobs of two GPUs and more."""
        placed = sum(count for size, count in self.placed_by_size.items() if size > 1)
        return sum(self.ratio_by_size.values()) / placed if placed else 0.0

    @property
    def mean_wait_s(self) -> float:
        return self.wait_s / self.jobs if self.jobs else 0.0

    @property
    def mean_gb_s(self) -> float:
        """Return the mean bandwidth of placed jobs of two GPUs and more, each weighed by its GPUs."""
        gpus = sum(size * count for size, count in self.placed_by_size.items() if size > 1)
        return sum(size * gb_s for size, gb_s in self.gb_s_by_size.items()) / gpus if gpus else 0.0

    @property
    def mean_stranded_gpus(self) -> float:
        return self.stranded_gpu_s / self.time_s if self.time_s else 0.0

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
        self.stranded_gpu_s += other.stranded_gpu_s
        self.time_s += other.time_s
        for name in (
            "wait_s_by_size",
            "waited_by_size",
            "jobs_by_size",
            "placed_by_size",
            "ratio_by_size",
            "gb_s_by_size",
            "faults",
        ):
            getattr(self, name).update(getattr(other, name))


def trace(machines: Sequence[BenchMachine], load: float, seed: int, most_jobs: int | None = None) -> list[Job]:
    """Return the jobs of a day, or the first `most_jobs` of them, that offer this load (GPU time asked for ÷ GPU time
    there is).

    Sizes above the largest machine are left out of the mix.
    """
    chance = random.Random(f"{seed} {load}")
    largest = max(machine.gpu_count for machine in machines)
    sizes = [(size, share) for size, share in SIZE_SHARES if size <= largest]
    mean_gpus = sum(size * share for size, share in sizes) / sum(share for _, share in sizes)
    gpus = sum(machine.gpu_count for machine in machines)
    jobs_per_s = load * gpus / (mean_gpus * MEAN_DURATION_S)
    jobs: list[Job] = []
    now_s = chance.expovariate(jobs_per_s)
    while now_s < DAY_S and (most_jobs is None or len(jobs) < most_jobs):
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
        self._cluster = Cluster(Node(machine, tuple(range(machine.gpu_count))) for machine in machines)
        self._place = place
        self._waiting: list[Job] = []
        self._running: list[tuple[float, int, int, Placement]] = []
        self._started = 0
        self._stranded_gpu_s = 0.0
        self.outcome = Outcome()

    def run(self, jobs: Sequence[Job]) -> Outcome:
        outcome = self.outcome
        for job in jobs:
            self._finish_until(job.arrival_s)
            self._pass_time(job.arrival_s)
            outcome.jobs += 1
            outcome.jobs_by_size[job.gpus] += 1
            self._cluster.gpus_asked[job.gpus] += job.gpus
            if not self._try(job, job.arrival_s):
                outcome.waited_by_size[job.gpus] += 1
                self._waiting.append(job)
        if jobs:
            outcome.time_s = jobs[-1].arrival_s
            outcome.stranded_gpu_s = self._stranded_gpu_s
        self._finish_until(DAY_S)
        for job in self._waiting:
            outcome.never_placed += 1
            self._count_wait(job, DAY_S)
        return outcome

    def _pass_time(self, now_s: float) -> None:
        self._stranded_gpu_s += (now_s - self._cluster.now_s) * self._cluster.stranded_gpus
        self._cluster.now_s = now_s

    def _finish_until(self, now_s: float) -> None:
        while self._running and self._running[0][0] <= now_s:
            end_s, _, size, placement = heappop(self._running)
            self._pass_time(end_s)
            node = self._cluster.nodes[placement.node]
            self._cluster.free(placement.node, tuple(sorted((*node.free, *placement.gpus))))
            self._cluster.gpus_asked[size] -= size
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
        placement = self._place(self._cluster, job.gpus, self.outcome.faults)
        if placement is None:
            return False
        self._count_wait(job, now_s)
        self._count_links(job, placement)
        node = self._cluster.nodes[placement.node]
        self._cluster.free(placement.node, tuple(gpu for gpu in node.free if gpu not in placement.gpus))
        self._started += 1
        heappush(self._running, (now_s + job.duration_s, self._started, job.gpus, placement))
        return True

    def _count_wait(self, job: Job, now_s: float) -> None:
        self.outcome.wait_s += now_s - job.arrival_s
        self.outcome.wait_s_by_size[job.gpus] += now_s - job.arrival_s  # type: ignore[assignment]  # seconds, not a count

    def _count_links(self, job: Job, placement: Placement) -> None:
        outcome, node = self.outcome, self._cluster.nodes[placement.node]
        outcome.placed_by_size[job.gpus] += 1
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
