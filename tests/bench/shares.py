"""Section: where requests for a part of a GPU go (docs/design/shares.md), by the real allocator and by the rules
of other systems (baselines.sharing).

Requests come at random, hold their share for a random time, and are refused where there is no room. What is measured
between them: GPUs that have a share, and the sets of whole GPUs that the others still make, with their bandwidth.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import heappop, heappush
from typing import Final

from bench.baselines.sharing import CORES, RULES, Load, Place
from bench.machines import BenchMachine, recorded
from bench.report import Floor, Progress, Section, Table
from bench.worth import GROUP_SIZES, GpuSet, groups_gb_s
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.result import Allocation, commit
from dracaena.controller.allocation.state.node_state import claim_holder
from dracaena.controller.allocation.state.size_demand import SizeDemand
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, claim, device_class, node, pod, pool_slice
from support.shares import in_shares, share

ALL_GIB: Final = 80
REQUESTS: Final = 500
"""Of each run; the first WARM of them are not counted."""
WARM: Final = 100
SEEDS: Final = range(3)
LOADS: Final = (0.5, 0.85, 1.0)
"""Memory asked for ÷ memory there is."""
MEAN_DURATION_S: Final = 900

SIZES: Final = ((4, 0.30), (8, 0.25), (16, 0.20), (24, 0.15), (40, 0.10))
"""GiB of a share and how often: inference of small models is most of what shares are used for."""
MOST_CORES: Final = 60
"""Percent; ceilings follow the memory, half as much to half as much again."""

OURS: Final = "ours"


@dataclass(frozen=True, slots=True)
class Job:
    arrival_s: float
    memory_gib: int
    cores: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster."""

    name: str
    machines: tuple[BenchMachine, ...]

    @property
    def gpus(self) -> int:
        return sum(machine.gpu_count for machine in self.machines)

    @property
    def is_of_equal_nodes(self) -> bool:
        return len(set(self.machines)) == 1


@dataclass(slots=True)
class Figures:
    """What came of one rule. Sums over moments, one before each request that counts."""

    moments: int = 0
    requests: int = 0
    refused: int = 0
    refused_with_room: int = 0
    """Although all GPUs together had room in memory and cores."""
    in_use: int = 0
    sets: dict[int, int] = field(default_factory=lambda: dict.fromkeys(GROUP_SIZES, 0))
    gb_s: dict[int, int] = field(default_factory=lambda: dict.fromkeys(GROUP_SIZES, 0))

    def add(self, other: Figures) -> None:
        self.moments += other.moments
        self.requests += other.requests
        self.refused += other.refused
        self.refused_with_room += other.refused_with_room
        self.in_use += other.in_use
        for size in GROUP_SIZES:
            self.sets[size] += other.sets[size]
            self.gb_s[size] += other.gb_s[size]


def sites() -> tuple[Site, ...]:
    """Return clusters of NVLink meshes, where it matters which GPU is lost, of NVSwitches, and of unlike nodes."""
    mesh, bridged, switched = (recorded(name) for name in ("dgx-1v", "h100-pcie-bridged-numa-3-5", "hgx-h100"))
    return (
        Site("6 dgx-1v", (mesh,) * 6),
        Site("6 hgx-h100", (switched,) * 6),
        Site("4 dgx-1v, 4 h100-pcie-bridged", (mesh,) * 4 + (bridged,) * 4),
    )


def jobs(site: Site, load: float, seed: int) -> list[Job]:
    """Return requests that offer this load."""
    chance = random.Random(f"shares {site.name} {load} {seed}")
    sizes, weights = [size for size, _ in SIZES], [weight for _, weight in SIZES]
    mean_gib = sum(size * weight for size, weight in SIZES)
    found, now_s = [], 0.0
    for _ in range(REQUESTS):
        now_s += chance.expovariate(load * site.gpus * ALL_GIB / (mean_gib * MEAN_DURATION_S))
        gib = chance.choices(sizes, weights)[0]
        cores = min(MOST_CORES, max(5, round(100 * gib / ALL_GIB * chance.uniform(0.5, 1.5))))
        found.append(Job(now_s, gib, cores, chance.expovariate(1 / MEAN_DURATION_S)))
    return found


class Places:
    """Puts requests where a rule says, and takes them away again."""

    def __init__(self, site: Site) -> None:
        self.loads = [[Load()] * machine.gpu_count for machine in site.machines]

    def put(self, number: int, job: Job, place: Place) -> None:
        before = self.loads[place[0]][place[1]]
        if not before.fits(job.memory_gib, job.cores, ALL_GIB):
            raise AssertionError(f"request {number} does not fit on {place}")
        self.loads[place[0]][place[1]] = Load(
            before.memory_gib + job.memory_gib, before.cores + job.cores, before.shares + 1
        )

    def take(self, number: int, job: Job, place: Place) -> None:
        before = self.loads[place[0]][place[1]]
        self.loads[place[0]][place[1]] = Load(
            before.memory_gib - job.memory_gib, before.cores - job.cores, before.shares - 1
        )


class OurPlaces(Places):
    """The same with the real allocator."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        named = {f"node-{index:02}": machine for index, machine in enumerate(site.machines)}
        self._names = list(named)
        self._inventory = make_inventory(
            DRIVER,
            nodes=[node(name) for name in named],
            slices=[in_shares(pool_slice(name, one.machine), ALL_GIB) for name, one in named.items()],
            classes=[device_class()],
        )
        self._allocator = Allocator()
        self._allocator.reprice(self._inventory, SizeDemand().shares({}, now_s=0.0))

    def choose(self, number: int, job: Job) -> Place | None:
        asked = claim(f"c{number}", share("gpu", f"{job.memory_gib}Gi", job.cores))
        found = self._allocator.allocate(self._inventory, pod(f"p{number}", f"c{number}"), [asked])
        if not isinstance(found, Allocation):
            return None
        commit(self._inventory, found)
        (result,) = found.claims[0].results
        return self._names.index(found.node), found.pool.devices.index(result.device)

    def take(self, number: int, job: Job, place: Place) -> None:
        super().take(number, job, place)
        self._inventory.release(claim_holder(claim(f"c{number}")))


def run(site: Site, todo: Sequence[Job], rule: str) -> Figures:
    """Run the requests through the cluster under a rule."""
    places = OurPlaces(site) if rule == OURS else Places(site)
    figures = Figures()
    ends: list[tuple[float, int, Place]] = []
    for number, job in enumerate(todo):
        while ends and ends[0][0] <= job.arrival_s:
            _, done, place = heappop(ends)
            places.take(done, todo[done], place)
        if number >= WARM:
            _look(site, places, figures)
        found = places.choose(number, job) if isinstance(places, OurPlaces) else _by_rule(places, job, rule)
        if number >= WARM:
            figures.requests += 1
            figures.refused += found is None
            figures.refused_with_room += found is None and _has_room_in_sum(places, job)
        if found is not None:
            places.put(number, job, found)
            heappush(ends, (job.arrival_s + job.duration_s, number, found))
    return figures


def _by_rule(places: Places, job: Job, rule: str) -> Place | None:
    return RULES[rule](places.loads, job.memory_gib, job.cores, ALL_GIB)


def _has_room_in_sum(places: Places, job: Job) -> bool:
    every = [load for loads in places.loads for load in loads]
    memory_gib = sum(ALL_GIB - load.memory_gib for load in every)
    return memory_gib >= job.memory_gib and sum(CORES - load.cores for load in every) >= job.cores


def _look(site: Site, places: Places, figures: Figures) -> None:
    figures.moments += 1
    for machine, loads in zip(site.machines, places.loads, strict=True):
        free = tuple(gpu for gpu, load in enumerate(loads) if not load.shares)
        figures.in_use += len(loads) - len(free)
        for size in GROUP_SIZES:
            figures.sets[size] += len(free) // size
            figures.gb_s[size] += _groups_gb_s(machine, free, size)


@cache
def _groups_gb_s(machine: BenchMachine, free: GpuSet, size: int) -> int:
    return groups_gb_s(machine, free, size)


def rows(progress: Progress) -> Section:
    """Run all requests under all rules and return the figures."""
    lines: list[tuple[str, ...]] = []
    totals = {rule: Figures() for rule in (OURS, *RULES)}
    of_equal_nodes = {rule: Figures() for rule in (OURS, *RULES)}
    for site in sites():
        for load in LOADS:
            for rule in (OURS, *RULES):
                progress(f"shares: {site.name}, load {load}, {rule}")
                figures = Figures()
                for seed in SEEDS:
                    figures.add(run(site, jobs(site, load, seed), rule))
                totals[rule].add(figures)
                if site.is_of_equal_nodes:
                    of_equal_nodes[rule].add(figures)
                lines.append((site.name, f"{load}", rule, *_cells(figures)))
    header = (
        "cluster",
        "load",
        "rule",
        "GPUs in use",
        "refused %",
        "with room %",
        *(f"sets of {size}" for size in GROUP_SIZES),
        *(f"GB/s of {size}s" for size in GROUP_SIZES),
    )
    return Section(
        title="Shares: requests for a part of a GPU",
        tables=(Table("Means over the moments before each request", header, tuple(lines)),),
        floors=(*_floors(totals), *_set_floors(totals, (8, 4)), *_set_floors(of_equal_nodes, (2,))),
        notes=(
            f"{REQUESTS} requests with each of {len(SEEDS)} seeds for each load, the first {WARM} not counted.",
            "With room: refused although all GPUs together had as much memory and cores left, % of all requests.",
            "Sets: disjoint sets of whole GPUs among those without a share; GB/s: the best such sets together.",
            "Where nodes are unlike, sets of 8 and 4 are kept at the cost of pairs: floors of 2 are of equal nodes.",
        ),
    )


def _cells(figures: Figures) -> Iterator[str]:
    yield f"{figures.in_use / figures.moments:.1f}"
    yield f"{100 * figures.refused / figures.requests:.2f}"
    yield f"{100 * figures.refused_with_room / figures.requests:.2f}"
    yield from (f"{figures.sets[size] / figures.moments:.2f}" for size in GROUP_SIZES)
    yield from (f"{figures.gb_s[size] / figures.moments:.0f}" for size in GROUP_SIZES)


def _floors(totals: dict[str, Figures]) -> Iterator[Floor]:
    ours, others = totals[OURS], [totals[rule] for rule in RULES]
    fewest = min(other.in_use for other in others)
    yield Floor("shares: GPUs in use ÷ the fewest of any other rule", ours.in_use / fewest, 1.0)
    least = min(other.refused_with_room for other in others)
    yield Floor("shares: refused with room in sum, beyond the fewest of any other", ours.refused_with_room - least, 0.0)


def _set_floors(totals: dict[str, Figures], sizes: Sequence[int]) -> Iterator[Floor]:
    ours, others = totals[OURS], [totals[rule] for rule in RULES]
    for size in sizes:
        for what, of in (("sets", _sets_of), ("GB/s", _gb_s_of)):
            most = max(of(other, size) for other in others)
            ratio = of(ours, size) / most if most else 1.0
            yield Floor(f"shares: {what} of {size} ÷ the most of any other rule", ratio, 1.0, at_least=True)


def _sets_of(figures: Figures, size: int) -> int:
    return figures.sets[size]


def _gb_s_of(figures: Figures, size: int) -> int:
    return figures.gb_s[size]
