"""Section: which part of which GPU a request for a MIG profile gets (docs/design/mig.md), beside the
rules of other systems (baselines.partitioning).

Requests come at random, hold their part for a random time, and are refused where there is no room. What is measured:
how many are accepted, and with how many memory slices; how many are refused although one GPU has as many slices left.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Final

from bench.baselines.partitioning import SIZES, Grant, Rule, rules
from bench.report import Floor, Progress, Section, Table
from dracaena.controller.allocation.score.partitions import PartitionMove, PartitionTable
from support.mig_tables import A100, geometry
from support.partition_tables import best_move

REQUESTS: Final[Mapping[int, int]] = MappingProxyType({64: 4_000, 8: 2_000})
"""GPUs → requests of each run; the first WARM of them are not counted."""
WARM: Final = 400
SEEDS: Final = range(4)
LOADS: Final = (0.85, 1.0)
"""Memory slices asked for ÷ there are."""
MEAN_DURATION_S: Final = 3_600.0

MIXES: Final[Mapping[str, Mapping[str, float]]] = MappingProxyType(
    {
        "uniform": dict.fromkeys(SIZES, 1 / len(SIZES)),
        "small": dict(zip(SIZES, (0.40, 0.15, 0.20, 0.12, 0.08, 0.05), strict=True)),
        "large": dict(zip(SIZES, (0.10, 0.05, 0.15, 0.25, 0.25, 0.20), strict=True)),
    }
)
"""How often each profile is asked for."""

OURS: Final = "ours"
FIRST_FIT: Final = "first fit"

MARGINS: Final[Mapping[tuple[int, float, str], float]] = MappingProxyType(
    {
        (64, 1.0, "uniform"): 0.037,
        (64, 1.0, "small"): 0.021,
        (64, 1.0, "large"): 0.047,
        (8, 0.85, "uniform"): 0.034,
        (8, 0.85, "small"): 0.021,
        (8, 0.85, "large"): 0.034,
    }
)
"""Slice-weighted acceptance above first fit that was found before there was an allocator for it; the goal."""

LEAST_MARGIN: Final = 0.015
"""The same in every row; the seeds are fixed, so it comes out alike at each run."""


@dataclass(slots=True)
class LeastLoss:
    """Ours: the part of a GPU after which most stays possible, of equal ones on the fuller GPU, of these the first."""

    table: PartitionTable
    gpus: int
    lefts: list[tuple[int, ...]] = field(default_factory=list)
    known: dict[tuple[tuple[int, ...], str], PartitionMove | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lefts = [self.table.geometry.there] * self.gpus

    def take(self, profile: str) -> Grant | None:
        found: tuple[int, int, int] | None = None
        best: PartitionMove | None = None
        for gpu, left in enumerate(self.lefts):
            move = self._best(left, profile)
            if move is not None:
                key = move.loss, sum(left[: A100.slices]), gpu
                if found is None or key < found:
                    found, best = key, move
        if found is None or best is None:
            return None
        self.lefts[found[2]] = best.left
        return found[2], best.place

    def give_back(self, grant: Grant) -> None:
        gpu, place = grant
        takes = self.table.geometry.places[place].takes
        self.lefts[gpu] = tuple(map(sum, zip(self.lefts[gpu], takes, strict=True)))

    def _best(self, left: tuple[int, ...], profile: str) -> PartitionMove | None:
        if (left, profile) not in self.known:
            places = self.table.geometry.places
            allowed = sum(1 << number for number, place in enumerate(places) if place.profile == profile)
            self.known[left, profile] = best_move(self.table, left, allowed)
        return self.known[left, profile]


@dataclass(frozen=True, slots=True)
class Job:
    arrival_s: float
    profile: str
    duration_s: float


@dataclass(slots=True)
class Figures:
    """What came of one rule."""

    asked: int = 0
    accepted: int = 0
    asked_slices: int = 0
    accepted_slices: int = 0
    refused_with_room: int = 0
    """Although one GPU had as many slices of memory and of compute left."""

    def add(self, other: Figures) -> None:
        self.asked += other.asked
        self.accepted += other.accepted
        self.asked_slices += other.asked_slices
        self.accepted_slices += other.accepted_slices
        self.refused_with_room += other.refused_with_room

    @property
    def acceptance(self) -> float:
        return self.accepted / self.asked

    @property
    def by_slices(self) -> float:
        return self.accepted_slices / self.asked_slices


def jobs(gpus: int, load: float, mix: str, seed: int) -> list[Job]:
    """Return requests that offer this load."""
    chance = random.Random(f"mig {gpus} {load} {mix} {seed}")
    names, weights = list(MIXES[mix]), list(MIXES[mix].values())
    mean_slices = sum(weight * SIZES[name][0] for name, weight in MIXES[mix].items())
    rate = load * gpus * A100.slices / (mean_slices * MEAN_DURATION_S)
    found, now_s = [], 0.0
    for _ in range(REQUESTS[gpus]):
        now_s += chance.expovariate(rate)
        found.append(Job(now_s, chance.choices(names, weights)[0], chance.expovariate(1 / MEAN_DURATION_S)))
    return found


def run(gpus: int, todo: Sequence[Job], rule: Rule) -> Figures:
    """Run the requests through a cluster under a rule."""
    figures = Figures()
    used = [[0, 0] for _ in range(gpus)]  # slices of memory and of compute, of what was asked for
    ends: list[tuple[float, int, Grant]] = []
    for number, job in enumerate(todo):
        while ends and ends[0][0] <= job.arrival_s:
            _, done, grant = heappop(ends)
            rule.give_back(grant)
            _use(used[grant[0]], todo[done].profile, -1)
        grant_now = rule.take(job.profile)
        size, compute = SIZES[job.profile]
        if number >= WARM:
            figures.asked += 1
            figures.asked_slices += size
            figures.accepted += grant_now is not None
            figures.accepted_slices += size if grant_now is not None else 0
            figures.refused_with_room += grant_now is None and _has_room(used, size, compute)
        if grant_now is not None:
            _use(used[grant_now[0]], job.profile, 1)
            heappush(ends, (job.arrival_s + job.duration_s, number, grant_now))
    return figures


def _has_room(used: Sequence[Sequence[int]], size: int, compute: int) -> bool:
    """Return whether one GPU has as many slices left, in sum."""
    return any(one[0] + size <= A100.slices and one[1] + compute <= A100.compute for one in used)


def _use(used: list[int], profile: str, sign: int) -> None:
    size, compute = SIZES[profile]
    used[0] += sign * size
    used[1] += sign * compute


def figures_of(gpus: int, load: float, mix: str, seeds: Sequence[int] = SEEDS) -> dict[str, Figures]:
    """Run one row under all rules, with each seed."""
    found: dict[str, Figures] = {}
    for seed in seeds:
        todo = jobs(gpus, load, mix, seed)
        every: dict[str, Rule] = {OURS: LeastLoss(PartitionTable(geometry(A100)), gpus), **rules(gpus, MIXES[mix])}
        for name, rule in every.items():
            found.setdefault(name, Figures()).add(run(gpus, todo, rule))
    return found


def rows(progress: Progress) -> Section:
    """Run all requests under all rules and return the figures."""
    lines: list[tuple[str, ...]] = []
    floors: list[Floor] = []
    for gpus in REQUESTS:
        for load in LOADS:
            for mix in MIXES:
                progress(f"mig: {gpus} GPUs, load {load}, {mix}")
                found = figures_of(gpus, load, mix)
                lines += [(f"{gpus}", f"{load}", mix, name, *_cells(one)) for name, one in found.items()]
                floors += _floors(found, gpus, load, mix)
    return Section(
        title="MIG: which part of which GPU",
        tables=(
            Table(
                "Requests for a profile of A100 80GB or H100 80GB",
                ("GPUs", "load", "mix", "rule", "accepted", "by slices", "refused with room %"),
                tuple(lines),
            ),
        ),
        floors=tuple(floors),
        notes=(
            f"Requests with each of {len(SEEDS)} seeds: 4,000 for 64 GPUs, 2,000 for 8; the first {WARM} not counted.",
            "By slices: each request counts with its memory slices.",
            "With room: refused although some GPU had as many slices of memory and of compute left, % of all requests.",
            "The goals are margins that were found with mixes of which only the names are known; ours stand in MIXES.",
        ),
    )


def _cells(figures: Figures) -> Iterator[str]:
    yield f"{figures.acceptance:.3f}"
    yield f"{figures.by_slices:.3f}"
    yield f"{100 * figures.refused_with_room / figures.asked:.2f}"


def _floors(found: Mapping[str, Figures], gpus: int, load: float, mix: str) -> Iterator[Floor]:
    ours, name = found[OURS], f"mig: {gpus} GPUs, load {load}, {mix}"
    above = ours.by_slices - found[FIRST_FIT].by_slices
    yield Floor(
        f"{name}: by slices above first fit", above, LEAST_MARGIN, goal=MARGINS.get((gpus, load, mix)), at_least=True
    )
    best = max(one.by_slices for rule, one in found.items() if rule != OURS)
    yield Floor(f"{name}: by slices above the best of all others", ours.by_slices - best, 0.0, at_least=True)
