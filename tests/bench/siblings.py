"""Section: where the pods of one job go (docs/design/choice-of-node.md): rules compared by themselves, and what the
real allocator does (siblings_allocated).

Families of pods come to racks whose nodes share one NVLink fabric (a clique), and to nodes with NVSwitches. A family
had room when, as it came, some domain (a clique, or a node with NVSwitches) could take all of its pods at once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import heappop, heappush
from typing import Final

from bench import ours, siblings_allocated
from bench.machines import BenchMachine, recorded
from bench.report import Progress, Section, Table
from bench.siblings_work import MEAN_DURATION_S, PODS, Racks
from bench.worth import GpuSet

RACK_NODES: Final = 18
"""Nodes of a clique: an NVL72 has 18 trays of 4 GPUs."""
RACKS: Final = 4
SWITCHED_NODES: Final = 24
FAMILIES: Final = 600
LOADS: Final = (0.7, 0.85)
SEEDS: Final = range(1)
LONG_SEEDS: Final = range(3)
"""Of the long form: a few families of 600 more or less are chance."""

NONE: Final = "no preference"
FOLLOW: Final = "follows"
ROOMIEST: Final = "follows, roomiest first"
SEEN: Final = "looks ahead by the pods there are"
AHEAD: Final = "looks ahead by the size"


@dataclass(frozen=True, slots=True)
class FamilyJob:
    """Pods that belong together: all want as many GPUs, and all end together."""

    arrival_s: float
    pods: int
    gpus: int
    """Of each pod."""
    duration_s: float
    """From when the last pod has its GPUs."""


@dataclass(slots=True)
class Tray:
    """One node and what is free on it."""

    machine: BenchMachine
    free: GpuSet


@dataclass(slots=True)
class Shares:
    """What one rule made of the families it saw."""

    families: int = 0
    had_room: int = 0
    together: int = 0
    """Of those that had room, all pods in one domain."""
    wait_s: float = 0.0
    """Sum over families, to the last pod."""

    def add(self, other: Shares) -> None:
        self.families += other.families
        self.had_room += other.had_room
        self.together += other.together
        self.wait_s += other.wait_s

    @property
    def share(self) -> float:
        return self.together / self.had_room if self.had_room else 1.0

    @property
    def share_of_all(self) -> float:
        """Return the share of all families that had room and are together: a rule that leaves domains in pieces finds
        room for fewer."""
        return self.together / self.families if self.families else 1.0


@dataclass(slots=True)
class _Running:
    """A family on its way: what its pods got so far, as (node, GPUs)."""

    job: FamilyJob
    had_room: bool
    placed: list[tuple[int, GpuSet]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a rule may know of a domain when the next pod of a family is placed."""

    siblings: int
    """Pods of the family that are there."""
    room: int
    """Pods like this one that it can take."""
    left: int
    """Pods of the family that are to be placed, this one among them, as far as the rule knows."""


Prefer = Callable[[Outlook], tuple[int, ...]]
"""A key that sorts domains best first. It stands after the bandwidth of the pod's own set and before damage."""


def no_preference(_: Outlook) -> tuple[int, ...]:
    return ()


def follow(outlook: Outlook) -> tuple[int, ...]:
    """Prefer the domain with most siblings."""
    return (-outlook.siblings,)


def roomiest(outlook: Outlook) -> tuple[int, ...]:
    """As follow(); then the domain with most room: what can be done without any size."""
    return (-outlook.siblings, -outlook.room)


def look_ahead(outlook: Outlook) -> tuple[int, ...]:
    """As follow(); then a domain with room for all that is left, the tightest first; without one, the roomiest."""
    fits = outlook.room >= outlook.left
    return (-outlook.siblings, 0, outlook.room) if fits else (-outlook.siblings, 1, -outlook.room)


def all_left(job: FamilyJob, placed: int) -> int:
    """Return the pods left of a family whose size is told."""
    return job.pods - placed


def created_left(job: FamilyJob, placed: int) -> int:
    """Return the pods left of those that are there when as many are placed: a Job creates them in batches of 1, 2, 4,
    … (slow start of kube-controller-manager), and each batch is placed before the next one comes."""
    created = 1
    while created <= placed:
        created = 2 * created + 1
    return min(created, job.pods) - placed


RULES: Final[Mapping[str, tuple[Prefer, Callable[[FamilyJob, int], int]]]] = {
    NONE: (no_preference, all_left),
    FOLLOW: (follow, all_left),
    ROOMIEST: (roomiest, all_left),
    SEEN: (look_ahead, created_left),
    AHEAD: (look_ahead, all_left),
}


def clusters() -> tuple[Racks, ...]:
    """Return racks of trays, and nodes with NVSwitches, each of which is a domain of its own."""
    tray, hgx = recorded("gb200-tray"), recorded("hgx-h100")
    return (
        Racks(f"{RACKS} racks of {RACK_NODES} gb200-tray", tray, RACKS * RACK_NODES, RACK_NODES, (4,)),
        Racks(f"{SWITCHED_NODES} hgx-h100", hgx, SWITCHED_NODES, 1, (4, 8)),
    )


def families(racks: Racks, load: float, seed: int) -> list[FamilyJob]:
    """Return families that offer this load (GPU time asked for ÷ GPU time there is)."""
    chance = random.Random(f"{racks.name} {load} {seed}")
    gpus = racks.nodes * racks.machine.gpu_count
    mean = sum(PODS) / len(PODS) * sum(racks.sizes) / len(racks.sizes)
    found, now_s = [], 0.0
    for _ in range(FAMILIES):
        now_s += chance.expovariate(load * gpus / (mean * MEAN_DURATION_S))
        found.append(
            FamilyJob(now_s, chance.choice(PODS), chance.choice(racks.sizes), chance.expovariate(1 / MEAN_DURATION_S))
        )
    return found


def run(racks: Racks, jobs: Sequence[FamilyJob], rule: str) -> Shares:
    """Run the families through the cluster under a rule and return what came of them."""
    return _Day(racks, *RULES[rule]).run(jobs)


class _Day:
    """One run; owns the nodes and the families on their way."""

    def __init__(self, racks: Racks, prefer: Prefer, left: Callable[[FamilyJob, int], int]) -> None:
        self._racks, self._prefer, self._left = racks, prefer, left
        self._nodes = [Tray(racks.machine, tuple(range(racks.machine.gpu_count))) for _ in range(racks.nodes)]
        self._waiting: list[_Running] = []
        self._ends: list[tuple[float, int, _Running]] = []
        self._started = 0
        self.shares = Shares()

    def run(self, jobs: Sequence[FamilyJob]) -> Shares:
        for job in jobs:
            self._finish_until(job.arrival_s)
            family = _Running(job, max(self._rooms(job.gpus)) >= job.pods)
            self._waiting.append(family)
            self._place_all(job.arrival_s)
        self._finish_until(float("inf"))
        return self.shares

    def _finish_until(self, now_s: float) -> None:
        while self._ends and self._ends[0][0] <= now_s:
            end_s, _, family = heappop(self._ends)
            for index, gpus in family.placed:
                self._nodes[index].free = tuple(sorted((*self._nodes[index].free, *gpus)))
            self._place_all(end_s)

    def _place_all(self, now_s: float) -> None:
        """Place each waiting pod that fits, in the order in which the families came."""
        still = []
        for family in self._waiting:
            while len(family.placed) < family.job.pods and self._place(family):
                pass
            if len(family.placed) < family.job.pods:
                still.append(family)
                continue
            self._count(family, now_s)
            self._started += 1
            heappush(self._ends, (now_s + family.job.duration_s, self._started, family))
        self._waiting = still

    def _place(self, family: _Running) -> bool:
        count, placed = family.job.gpus, len(family.placed)
        there = Counter(self._domain(index) for index, _ in family.placed)
        left = self._left(family.job, placed)
        likes = [self._prefer(Outlook(there[domain], room, left)) for domain, room in enumerate(self._rooms(count))]
        best: tuple[tuple[int, ...], int, GpuSet] | None = None
        for index, node in enumerate(self._nodes):
            choice = _choose(node.machine, node.free, count) if len(node.free) >= count else None
            if choice is not None:
                (bandwidth, *rest), gpus = choice
                key = (bandwidth, *likes[self._domain(index)], *rest)
                best = (key, index, gpus) if best is None else min(best, (key, index, gpus))
        if best is None:
            return False
        _, index, gpus = best
        self._nodes[index].free = tuple(gpu for gpu in self._nodes[index].free if gpu not in gpus)
        family.placed.append((index, gpus))
        return True

    def _rooms(self, count: int) -> list[int]:
        """Return of each domain how many pods of so many GPUs it can take."""
        rooms = [0] * self._racks.domains
        for index, node in enumerate(self._nodes):
            rooms[self._domain(index)] += len(node.free) // count
        return rooms

    def _domain(self, index: int) -> int:
        return index // self._racks.nodes_of_a_domain

    def _count(self, family: _Running, now_s: float) -> None:
        self.shares.families += 1
        self.shares.wait_s += now_s - family.job.arrival_s
        if family.had_room:
            self.shares.had_room += 1
            self.shares.together += len({self._domain(index) for index, _ in family.placed}) == 1


@cache
def _choose(machine: BenchMachine, free: GpuSet, count: int) -> tuple[tuple[int, ...], GpuSet] | None:
    found = ours.choose(machine, free, count)
    return None if found is None else (found.rank(), found.gpus)


def rows(progress: Progress, *, long: bool = False) -> Section:
    """Run all days and return the figures."""
    seeds = LONG_SEEDS if long else SEEDS
    lines = []
    for racks in clusters():
        for load in LOADS:
            progress(f"siblings: {racks.name}, load {load}")
            for rule in RULES:
                shares = Shares()
                for seed in seeds:
                    shares.add(run(racks, families(racks, load, seed), rule))
                lines.append(
                    (
                        racks.name,
                        f"{load}",
                        rule,
                        f"{shares.had_room}",
                        f"{100 * shares.share:.1f}",
                        f"{100 * shares.share_of_all:.1f}",
                        f"{shares.wait_s / shares.families / 60:.1f}",
                    )
                )
    header = ("cluster", "load", "rule", "had room", "together %", "of all %", "wait min")
    allocated, floors = siblings_allocated.measured(clusters(), progress, long=long)
    allocated_seeds = len(siblings_allocated.seeds(long=long))
    return Section(
        title="Siblings: jobs of 2 to 8 pods of 4 and 8 GPUs",
        tables=(Table("Rules by themselves", header, tuple(lines)), allocated),
        floors=floors,
        notes=(
            f"Rules: {FAMILIES} families with each of {len(seeds)} seeds for each load.",
            "Their pods come at one moment and are placed one by one, as they fit.",
            "Rules: the preference stands after the bandwidth of a pod's own set and before damage.",
            f"Allocator: {siblings_allocated.FAMILIES} families with each of {allocated_seeds}, for each load.",
            "Half of all GPU time is asked for by pods that come alone, and come between.",
        ),
    )
