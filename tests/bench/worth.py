"""What a set of GPUs is worth, computed slowly and without our engine: the judge between ours and theirs.

Exact arithmetic in GB/s one way; only results, sums as a whole, are cut to whole GB/s, as our engine's are. NVLink:
the published rate of one link by generation. PCIe: the signalling rate after its encoding, times the lanes, times the
share that transfers between GPUs reach at each level.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import combinations, permutations
from typing import Final

from bench.machines import BenchMachine
from dracaena.api.links import LinkLevel

NVLINK_GB_S: Final = {1: 20, 2: 25, 3: 25, 4: 25, 5: 50, 6: 50}
GENERATION_OF: Final = {"Pascal": 1, "Volta": 2, "Turing": 2, "Ampere": 3, "Hopper": 4, "Blackwell": 5}
GA102_GB_S: Final = Fraction(225, 16)
"""Workstation cards of generation 3: 112.5 GB/s both ways over 4 links."""
GA102_CARDS: Final = ("A40", "A4500", "A5000", "A5500", "A6000", "3090")
USUAL_NVLINK_GB_S: Final = 25
LANE_GB_S: Final = {
    1: Fraction(5, 2) * Fraction(8, 10) / 8,
    2: Fraction(5) * Fraction(8, 10) / 8,
    3: Fraction(8) * Fraction(128, 130) / 8,
    4: Fraction(16) * Fraction(128, 130) / 8,
    5: Fraction(32) * Fraction(128, 130) / 8,
    6: Fraction(64) * Fraction(242, 256) / 8,
}
USUAL_LANES, USUAL_PCIE_GENERATION = 16, 3
SHARE_PERCENT: Final = {
    LinkLevel.PSB: 87,
    LinkLevel.PIX: 87,
    LinkLevel.PXB: 87,
    LinkLevel.PHB: 80,
    LinkLevel.NODE: 75,
    LinkLevel.SYS: 60,
}
GROUP_SIZES: Final = (8, 4, 2)

GpuSet = tuple[int, ...]
"""Ordinals, ascending."""


def collective_gb_s(machine: BenchMachine, gpus: GpuSet) -> int:
    """Return the rate of a collective over a set, 0 for one GPU.

    Over PCIe the slowest pair; over NVLink the lightest of all ways to cut the set in two, behind NVSwitches the
    narrowest uplink. The better of both.
    """
    return int(_collective(machine, gpus))


@cache
def _collective(machine: BenchMachine, gpus: GpuSet) -> Fraction:
    if len(gpus) < 2:
        return Fraction(0)
    over_pcie = min(_pcie_gb_s(machine, a, b) for a, b in combinations(gpus, 2))
    over_nvlink = _narrowest_uplink(machine, gpus) if machine.links.switched else _lightest_cut(machine, gpus)
    return max(over_pcie, over_nvlink)


def ring_gb_s(machine: BenchMachine, gpus: GpuSet) -> int:
    """Return the slowest hop of the best ring through a set, 0 for one GPU; of two it is the pair."""
    return int(_ring(machine, gpus))


@cache
def _ring(machine: BenchMachine, gpus: GpuSet) -> Fraction:
    """Where pairs differ, all circles that start at the first GPU are tried."""
    hops = {frozenset(pair): _pair_gb_s(machine, *pair) for pair in combinations(gpus, 2)}
    if len(set(hops.values())) < 2:
        return next(iter(hops.values()), Fraction(0))
    first, *others = gpus
    circles = ((first, *order, first) for order in permutations(others))
    return max(min(hops[frozenset(circle[at : at + 2])] for at in range(len(gpus))) for circle in circles)


def worst_pair_gb_s(machine: BenchMachine, gpus: GpuSet) -> int:
    """Return what the slowest pair of a set reaches by its better way, 0 for one GPU."""
    return int(min((_pair_gb_s(machine, a, b) for a, b in combinations(gpus, 2)), default=Fraction(0)))


def pair_sum_gb_s(machine: BenchMachine, gpus: GpuSet) -> int:
    """Return the sum over all pairs of a set, each by its better way."""
    return int(sum((_pair_gb_s(machine, a, b) for a, b in combinations(gpus, 2)), Fraction(0)))


@cache
def ideal_gb_s(machine: BenchMachine, count: int) -> int:
    """Return the best that a set of this size can reach when the whole machine is free."""
    return max(collective_gb_s(machine, gpus) for gpus in combinations(range(machine.gpu_count), count))


def groups_gb_s(machine: BenchMachine, free: GpuSet, size: int) -> int:
    """Return the best total over disjoint groups of `size` among the free GPUs."""
    return int(_groups(machine, free, size)[0])


@cache
def _groups(machine: BenchMachine, free: GpuSet, size: int) -> tuple[Fraction, Fraction]:
    """Return (bandwidth, rings) of the best groups. The lowest GPU is left out, or it is in one of all the groups that
    hold it.
    """
    if len(free) < size:
        return Fraction(0), Fraction(0)
    lowest, others = free[0], free[1:]
    best = _groups(machine, others, size)
    for rest in combinations(others, size - 1):
        left = tuple(gpu for gpu in others if gpu not in rest)
        group, others_gb_s = (lowest, *rest), _groups(machine, left, size)
        best = max(best, (_collective(machine, group) + others_gb_s[0], _ring(machine, group) + others_gb_s[1]))
    return best


def damage_gb_s(machine: BenchMachine, free: GpuSet, chosen: GpuSet) -> tuple[int, ...]:
    """Return by how much the best totals of groups of 8, 4 and 2 fall when the chosen GPUs are taken, and by how much
    the rings of those of 8 and 4 do.
    """
    left = tuple(gpu for gpu in free if gpu not in chosen)
    lost = [groups_gb_s(machine, free, size) - groups_gb_s(machine, left, size) for size in GROUP_SIZES]
    return *lost, _rings_gb_s(machine, free) - _rings_gb_s(machine, left)


def _rings_gb_s(machine: BenchMachine, free: GpuSet) -> int:
    return sum(int(_groups(machine, free, size)[1]) for size in GROUP_SIZES if size > 2)


def is_one_nvlink_group(machine: BenchMachine, gpus: GpuSet) -> bool:
    """Return whether the NVLinks among these GPUs alone connect all of them."""
    reached, waiting = {gpus[0]}, [gpus[0]]
    while waiting:
        one = waiting.pop()
        for other in gpus:
            if other not in reached and machine.links.nvlinks[one][other]:
                reached.add(other)
                waiting.append(other)
    return len(reached) == len(gpus)


@cache
def has_nvlink_group(machine: BenchMachine, free: GpuSet, count: int) -> bool:
    """Return whether some set of this size among the free GPUs is one NVLink group."""
    return any(is_one_nvlink_group(machine, gpus) for gpus in combinations(free, count))


@cache
def _pair_gb_s(machine: BenchMachine, a: int, b: int) -> Fraction:
    return max(_pcie_gb_s(machine, a, b), _nvlinks_gb_s(machine, a, b))


def _pcie_gb_s(machine: BenchMachine, a: int, b: int) -> Fraction:
    level = machine.links.levels[a][b]
    assert level is not None
    return min(_lanes_gb_s(machine, gpu) for gpu in (a, b)) * SHARE_PERCENT[level] / 100


def _lanes_gb_s(machine: BenchMachine, ordinal: int) -> Fraction:
    gpu = machine.machine.gpus[ordinal]
    return LANE_GB_S[gpu.pcie_generation or USUAL_PCIE_GENERATION] * (gpu.pcie_width or USUAL_LANES)


def _one_nvlink_gb_s(machine: BenchMachine, ordinal: int) -> Fraction:
    gpu = machine.machine.gpus[ordinal]
    if any(word in (gpu.product_name or "").split() for word in GA102_CARDS):
        return GA102_GB_S
    generation = gpu.nvlink_generation or GENERATION_OF.get(gpu.architecture or "", 0)
    return Fraction(NVLINK_GB_S.get(generation, USUAL_NVLINK_GB_S))


@cache
def _nvlinks_gb_s(machine: BenchMachine, a: int, b: int) -> Fraction:
    return machine.links.nvlinks[a][b] * min(_one_nvlink_gb_s(machine, gpu) for gpu in (a, b))


def _narrowest_uplink(machine: BenchMachine, gpus: GpuSet) -> Fraction:
    return min(_nvlinks_gb_s(machine, a, b) for a, b in combinations(gpus, 2))


def _lightest_cut(machine: BenchMachine, gpus: GpuSet) -> Fraction:
    """Try all ways to part the set in two; the first GPU stands on one side."""
    first, *others = gpus
    lightest: Fraction | None = None
    for size in range(len(others)):
        for beside in combinations(others, size):
            side = {first, *beside}
            far = [gpu for gpu in gpus if gpu not in side]
            cut = sum((_nvlinks_gb_s(machine, a, b) for a in side for b in far), Fraction(0))
            lightest = cut if lightest is None else min(lightest, cut)
    assert lightest is not None
    return lightest
