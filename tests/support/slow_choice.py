"""The choice, written a second time: slow, obvious, and sharing no code with controller/allocation.

Sets are frozensets of ordinals, rates are Fractions of GB/s, whole kB/s where a level takes a share of the lanes.
Cuts are looked for among all bipartitions, groups among all families of disjoint groups, sets among all sets,
dealings among all dealings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations, permutations
from math import lcm

from dracaena.api.config.v1alpha1 import TopologyPolicy
from dracaena.api.machine import Gpu
from dracaena.api.topology import Topology

Gpus = frozenset[int]

NVLINK = {1: Fraction(20), 2: Fraction(25), 3: Fraction(25), 4: Fraction(25), 5: Fraction(50), 6: Fraction(50)}
NVLINKS = {1: 4, 2: 6, 3: 12, 4: 18, 5: 18, 6: 36}
GENERATION = {"Pascal": 1, "Volta": 2, "Turing": 2, "Ampere": 3, "Hopper": 4, "Blackwell": 5}
LANE_MB_S = {1: "250", 2: "500", 3: "984.615", 4: "1969.230", 5: "3938.461", 6: "7562.500"}
PERCENT = {"PSB": 87, "PIX": 87, "PXB": 87, "PHB": 80, "NODE": 75, "SYS": 60}
STEPS = {"PSB": 0, "PIX": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5}
ORDER = ["PSB", "PIX", "PXB", "PHB", "NODE", "SYS"]


def in_whole_units(hops: Mapping[tuple[int, int], Fraction]) -> tuple[dict[tuple[int, int], int], int]:
    """The same as integers, and how many of their unit a GB/s is. Fractions take ten times as long to add up."""
    unit = lcm(*(gb_s.denominator for gb_s in hops.values()))
    return {hop: int(gb_s * unit) for hop, gb_s in hops.items()}, unit


@dataclass
class SlowBox:
    topology: Topology
    gpus: Mapping[int, Gpu]
    policy: TopologyPolicy = field(default_factory=TopologyPolicy)
    _rates: dict[Gpus, tuple[Fraction, int]] = field(default_factory=dict)
    _rings: dict[Gpus, Fraction] = field(default_factory=dict)
    _groups: dict[tuple[Gpus, int], tuple[Fraction, Fraction, int]] = field(default_factory=dict)
    _pairs: dict[tuple[int, int], tuple[Fraction, Fraction]] = field(default_factory=dict)
    """GB/s of each pair over PCIe, and over its NVLinks: asked for hundreds of times each."""

    # One GPU and one pair.

    def ga102(self, gpu: Gpu) -> bool:
        words = (gpu.product_name or "").replace("-", " ").split()
        return gpu.cuda_compute_capability == "8.6" or any(
            word in words for word in ("A40", "3090", "A4500", "A5000", "A5500", "A6000")
        )

    def generation(self, gpu: Gpu) -> int | None:
        return gpu.nvlink_generation or GENERATION.get(gpu.architecture or "")

    def one_nvlink(self, ordinal: int) -> Fraction:
        if self.policy.link_bandwidth.nvlink is not None:
            return Fraction(self.policy.link_bandwidth.nvlink)
        gpu = self.gpus[ordinal]
        if self.ga102(gpu):
            return Fraction("14.0625")
        return NVLINK.get(self.generation(gpu) or 0, Fraction(25))

    def own_nvlinks(self, ordinal: int) -> int:
        gpu = self.gpus[ordinal]
        if gpu.nvlink_count:
            return gpu.nvlink_count
        return 4 if self.ga102(gpu) else NVLINKS.get(self.generation(gpu) or 0, 18)

    def lanes(self, ordinal: int) -> Fraction:
        gpu = self.gpus[ordinal]
        width = gpu.pcie_width if gpu.pcie_width in (1, 2, 4, 8, 12, 16, 32) else 16
        return Fraction(LANE_MB_S.get(gpu.pcie_generation or 0, LANE_MB_S[3])) * (width or 16) / 1000

    def level(self, a: int, b: int) -> str:
        known = self.topology.link(a, b).level
        if known is not None:
            return known.name
        numa = self.topology.numa_nodes
        return "NODE" if numa[a] is not None and numa[a] == numa[b] else "SYS"

    def pcie(self, a: int, b: int) -> Fraction:
        return self._of_pair(a, b)[0]

    def nvlink(self, a: int, b: int) -> Fraction:
        return self._of_pair(a, b)[1]

    def _of_pair(self, a: int, b: int) -> tuple[Fraction, Fraction]:
        if (a, b) not in self._pairs:
            self._pairs[a, b] = self._pcie(a, b), self._nvlink(a, b)
        return self._pairs[a, b]

    def _pcie(self, a: int, b: int) -> Fraction:
        level = self.level(a, b)
        told = getattr(self.policy.link_bandwidth, level.lower())
        if told is not None:
            return Fraction(round(told * 10**6), 10**6)
        return Fraction(int(min(self.lanes(a), self.lanes(b)) * PERCENT[level] * 10**4), 10**6)

    def nvlinks(self, a: int, b: int) -> int:
        return self.topology.link(a, b).nvlinks or 0

    def _nvlink(self, a: int, b: int) -> Fraction:
        return self.nvlinks(a, b) * min(self.one_nvlink(a), self.one_nvlink(b))

    def pair(self, a: int, b: int) -> Fraction:
        return max(self.pcie(a, b), self.nvlink(a, b))

    # A set.

    def everything(self) -> Gpus:
        return frozenset(range(self.topology.gpu_count))

    def reached(self, start: int, within: Gpus) -> Gpus:
        found = {start}
        while True:
            more = {b for a in found for b in within - found if self.nvlinks(a, b)}
            if not more:
                return frozenset(found)
            found |= more

    def switched(self, ordinal: int) -> bool:
        return any(
            sum(self.nvlinks(gpu, peer) for peer in self.everything() - {gpu}) > self.own_nvlinks(gpu)
            for gpu in self.reached(ordinal, self.everything())
        )

    def rate(self, chosen: Gpus) -> tuple[Fraction, int]:
        """GB/s, and 5 where NVLinks carry it, else how near the pair is that bounds it."""
        if chosen not in self._rates:
            self._rates[chosen] = self._rate(chosen)
        return self._rates[chosen]

    def _rate(self, chosen: Gpus) -> tuple[Fraction, int]:
        if len(chosen) < 2:
            return Fraction(0), 5
        pairs = list(combinations(sorted(chosen), 2))
        over_pcie = min((self.pcie(a, b), 5 - STEPS[self.level(a, b)]) for a, b in pairs)
        if self.switched(min(chosen)) and chosen <= self.reached(min(chosen), self.everything()):
            over_nvlink = min(self.nvlink(a, b) for a, b in pairs)
        else:
            hops, unit = in_whole_units({(a, b): self.nvlink(a, b) for a, b in permutations(chosen, 2)})
            least = min(
                sum(hops[a, b] for a in side for b in chosen - set(side))
                for size in range(1, len(chosen))
                for side in combinations(sorted(chosen), size)
            )
            over_nvlink = Fraction(least, unit)
        return max(over_pcie, (over_nvlink, 5 if over_nvlink else 0))

    def ring(self, chosen: Gpus) -> Fraction:
        """The slowest hop of the best of all circles."""
        if chosen not in self._rings:
            self._rings[chosen] = self._ring(chosen)
        return self._rings[chosen]

    def _ring(self, chosen: Gpus) -> Fraction:
        if len(chosen) < 3:
            return self.pair(*chosen) if len(chosen) == 2 else Fraction(0)
        first, *others = sorted(chosen)
        hops, unit = in_whole_units({(a, b): self.pair(a, b) for a, b in permutations(chosen, 2)})
        best = max(
            min(hops[hop] for hop in zip((first, *order), (*order, first), strict=True))
            for order in permutations(others)
        )
        return Fraction(best, unit)

    def groups(self, free: Gpus, size: int) -> tuple[Fraction, Fraction, int]:
        """Best (GB/s, GB/s around rings, steps) in sum over disjoint groups."""
        if (free, size) not in self._groups:
            best = (Fraction(0), Fraction(0), 0)
            for group in map(frozenset, combinations(sorted(free), size)):
                gb_s, steps = self.rate(group)
                rest = self.groups(free - group, size)
                best = max(best, (gb_s + rest[0], self.ring(group) + rest[1], steps + rest[2]))
            self._groups[free, size] = best
        return self._groups[free, size]

    def nic_steps(self, ordinal: int) -> int:
        numa = self.topology.numa_nodes[ordinal]
        found = [5]
        for nic in self.topology.nics:
            level = nic.levels[ordinal]
            if numa is not None and nic.numa_node == numa and (level is None or level.name == "SYS"):
                found.append(STEPS["NODE"])
            elif level is not None:
                found.append(STEPS[level.name])
        return min(found)

    def nic_known(self, ordinal: int) -> bool:
        numa = self.topology.numa_nodes[ordinal]
        return any(
            nic.levels[ordinal] is not None or (numa is not None and nic.numa_node == numa)
            for nic in self.topology.nics
        )

    # What counts, by name: less is better.

    def parts(self, free: Gpus, chosen: Gpus, beside: Gpus = frozenset()) -> dict[str, int]:
        together = chosen | beside
        pairs = list(combinations(sorted(together), 2))
        gb_s, near = self.rate(together)
        before = [self.groups(free, size) for size in (8, 4, 2)]
        after = [self.groups(free - chosen, size) for size in (8, 4, 2)]
        lost = [int(was[0]) - int(now[0]) for was, now in zip(before, after, strict=True)]
        return {
            "bandwidth_gb_s": -int(gb_s),
            "ring_gb_s": -int(self.ring(together)),
            "damage_8_gb_s": lost[0],
            "damage_4_gb_s": lost[1],
            "damage_2_gb_s": lost[2],
            "damage_ring_gb_s": sum(int(was[1]) - int(now[1]) for was, now in zip(before[:2], after[:2], strict=True)),
            "bound_level": 10 * (5 - near),
            "damage_levels": sum(was[2] - now[2] for was, now in zip(before, after, strict=True)),
            "numa_nodes": len({self.topology.numa_nodes[gpu] for gpu in together}),
            "nic_levels": sum(map(self.nic_steps, together)),
            "pair_sum_gb_s": -int(sum(self.pair(a, b) for a, b in pairs)),
            "worst_pair_gb_s": -int(min((self.pair(a, b) for a, b in pairs), default=0)),
            "worst_level": max(
                (0 if self.nvlinks(a, b) else 10 * STEPS[self.level(a, b)] for a, b in pairs), default=0
            ),
        }

    def key(self, parts: Mapping[str, int]) -> tuple[int, ...]:
        names = ["bandwidth_gb_s", "ring_gb_s"]
        names += ["damage_8_gb_s", "damage_4_gb_s", "damage_2_gb_s", "damage_ring_gb_s"]
        names += ["bound_level", "worst_pair_gb_s", "damage_levels"]
        if self.policy.numa_alignment is None or self.policy.numa_alignment.value != "Ignored":
            names.append("numa_nodes")
        names += ["pair_sum_gb_s", "worst_level"]
        if self.policy.nic_alignment is None or self.policy.nic_alignment.value != "Ignored":
            names.append("nic_levels")
        return tuple(parts[name] for name in names)

    # What is allowed, and all choices.

    def allowed(self, part: Gpus) -> bool:
        policy = self.policy
        near = policy.nic_alignment.value if policy.nic_alignment is not None else ""
        if near in ORDER and not all(self.nic_known(gpu) and self.nic_steps(gpu) <= STEPS[near] for gpu in part):
            return False
        if len(part) < 2:
            return True
        pairs = list(combinations(sorted(part), 2))
        wanted = policy.requirement.value if policy.requirement is not None else "BestEffort"
        if wanted == "NVLink" and self.reached(min(part), part) != part:
            return False
        if wanted in ORDER and not all(self._within(a, b, wanted) for a, b in pairs):
            return False
        numa = {self.topology.numa_nodes[gpu] for gpu in part}
        required = policy.numa_alignment is not None and policy.numa_alignment.value == "Required"
        if required and (len(numa) > 1 or None in numa):
            return False
        return self.rate(part)[0] >= Fraction(policy.min_bandwidth_gb_s or 0)

    def _within(self, a: int, b: int, wanted: str) -> bool:
        level = self.topology.link(a, b).level
        return self.nvlinks(a, b) > 0 or (level is not None and STEPS[level.name] <= STEPS[wanted])

    def dealings(self, chosen: Gpus, shares: Sequence[tuple[int, Gpus]]) -> Iterator[tuple[Gpus, ...]]:
        """Every way to give each share its count of the GPUs that it is eligible for."""
        if not shares:
            yield ()
            return
        (count, eligible), *others = shares
        for part in map(frozenset, combinations(sorted(chosen & eligible), count)):
            if self.allowed(part):
                for rest in self.dealings(chosen - part, others):
                    yield (part, *rest)

    def best_first(
        self, free: Gpus, shares: Sequence[tuple[int, Gpus]], beside: Gpus = frozenset()
    ) -> list[tuple[tuple[int, ...], Gpus]]:
        """Every legal set with its key, best first, equal ones by their ordinals."""
        count = sum(share for share, _ in shares)
        sets = [frozenset(chosen) for chosen in combinations(sorted(free), count)]
        legal = [chosen for chosen in sets if next(self.dealings(chosen, shares), None) is not None]
        keyed = [(self.key(self.parts(free, chosen, beside)), chosen) for chosen in legal]
        return sorted(keyed, key=lambda item: (item[0], sorted(item[1])))
