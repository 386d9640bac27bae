"""What a set of GPUs is worth, and what taking it costs the rest of its node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from types import MappingProxyType
from typing import Final

from dracaena.controller.allocation.bandwidth import collective_gb_s, pair_gb_s, switched_gb_s
from dracaena.controller.allocation.box import Box, mask_of, ordinals_of

GROUP_SIZES: Final = (8, 4, 2)
"""Sizes of the groups whose loss is damage, in the order in which they count: most jobs ask for a power of two, and a
whole box is the hardest to get back."""


@dataclass(frozen=True, slots=True)
class Score:
    """The parts in the order in which they count; whole numbers, so equal sets never differ by rounding.

    Compare with `>`: greater is better.
    """

    bandwidth_gb_s: int
    """Rate of a collective over the set (bandwidth.collective_gb_s). More is better; 0 for one GPU."""
    damage_gb_s: tuple[int, int, int]
    """For groups of 8, 4 and 2: by how much the best total bandwidth of disjoint groups among the free GPUs of the node
    falls when the set is taken. Less is better."""
    worst_level: int
    """LinkLevel of the worst pair, 0 for a pair with NVLinks. Less is better."""
    numa_nodes: int
    """NUMA nodes spanned, unknown ones counting as one. Less is better."""
    pair_sum_gb_s: int
    """Sum over all pairs: what all-to-all traffic sees. More is better."""

    def rank(self) -> tuple[int, ...]:
        """Return a key that sorts best first."""
        return (-self.bandwidth_gb_s, *self.damage_gb_s, self.worst_level, self.numa_nodes, -self.pair_sum_gb_s)

    def __lt__(self, other: Score) -> bool:
        return self.rank() > other.rank()

    def parts(self) -> tuple[tuple[str, int], ...]:
        """Return the named parts in the order in which they count, for logs, the annotation and `explain`."""
        damage = tuple((f"damage_{size}_gb_s", lost) for size, lost in zip(GROUP_SIZES, self.damage_gb_s, strict=True))
        return (
            ("bandwidth_gb_s", self.bandwidth_gb_s),
            *damage,
            ("worst_level", self.worst_level),
            ("numa_nodes", self.numa_nodes),
            ("pair_sum_gb_s", self.pair_sum_gb_s),
        )

    def first_difference(self, other: Score) -> str | None:
        """Return the name of the first part in which two scores differ, None when they are equal."""
        for (name, mine), (_, theirs) in zip(self.parts(), other.parts(), strict=True):
            if mine != theirs:
                return name
        return None


class BoxScores:
    """Scores of the sets of one box. Remembers what it computed: at most one entry a subset of the GPUs."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self._bandwidth: dict[int, int] = {}
        self._totals: dict[tuple[int, int], int] = {}
        self._groups: dict[int, _Groups] = {}

    def bandwidth_gb_s(self, mask: int) -> int:
        """Return the collective bandwidth of a set."""
        if self._switched_gb_s is not None:
            return self._switched_gb_s if mask & (mask - 1) else 0
        known = self._bandwidth.get(mask)
        if known is None:
            known = self._bandwidth[mask] = collective_gb_s(self.box, mask)
        return known

    def score(self, free: int, chosen: int, beside: int = 0) -> Score:
        """Return the score of taking `chosen` out of the free GPUs, for a pod that holds the GPUs `beside` already.

        All are masks; `free` holds `chosen`. Only what is taken now does damage; all else is about both together.
        """
        left = free & ~chosen
        damage = tuple(self.groups_gb_s(free, size) - self.groups_gb_s(left, size) for size in GROUP_SIZES)
        together = ordinals_of(chosen | beside)
        pairs = tuple(combinations(together, 2))
        topology = self.box.topology
        return Score(
            bandwidth_gb_s=self.bandwidth_gb_s(chosen | beside),
            damage_gb_s=(damage[0], damage[1], damage[2]),
            worst_level=max(
                (
                    0 if topology.link(a, b).nvlinks else self.box.topology.level_or_assumed(a, b).value
                    for a, b in pairs
                ),
                default=0,
            ),
            numa_nodes=len({topology.numa_nodes[ordinal] for ordinal in together}),
            pair_sum_gb_s=sum(self._pairs[pair] for pair in pairs),
        )

    def groups_gb_s(self, free: int, size: int) -> int:
        """Return the best total bandwidth of disjoint groups of `size` among the free GPUs.

        Exact. Cost: one step for a box whose sets of one size are all worth the same; else it grows with the subsets of
        the free GPUs, once a box.
        """
        if free.bit_count() < size:
            return 0
        if self._uniform:
            return free.bit_count() // size * self.bandwidth_gb_s(mask_of(range(size)))
        known = self._totals.get((free, size))
        if known is None:
            known = self._totals[free, size] = self._best_total(free, size)
        return known

    def _best_total(self, free: int, size: int) -> int:
        """Decide about the lowest free GPU: in each group that has it as lowest, or left out.

        It need not be left out when the groups can use up all GPUs: one group more never makes the total smaller.
        """
        count = free.bit_count()
        lowest = free & -free
        best = self.groups_gb_s(free ^ lowest, size) if count % size else 0
        groups = self._groups_of(size)
        most_of_the_others = (count // size - 1) * groups.most
        for group, bandwidth in groups.by_lowest.get(lowest, ()):
            if bandwidth + most_of_the_others <= best:
                break  # groups come in falling order: none of the next can be better
            if group & ~free == 0:
                best = max(best, bandwidth + self.groups_gb_s(free ^ group, size))
        return best

    def _groups_of(self, size: int) -> _Groups:
        known = self._groups.get(size)
        if known is None:
            sets = combinations(range(self.box.topology.gpu_count), size)
            known = self._groups[size] = _sorted_groups(
                (mask, self.bandwidth_gb_s(mask)) for mask in map(mask_of, sets)
            )
        return known

    @cached_property
    def _pairs(self) -> dict[tuple[int, int], int]:
        """GB/s of each pair of ordinals, the lower one first."""
        return {(a, b): pair_gb_s(self.box, a, b) for a, b in combinations(range(self.box.topology.gpu_count), 2)}

    @cached_property
    def _switched_gb_s(self) -> int | None:
        """Bandwidth of every set of two or more, where NVSwitches make it one figure."""
        return switched_gb_s(self.box)

    @cached_property
    def _uniform(self) -> bool:
        """Whether all sets of one size have the same bandwidth: equal pairs, or NVSwitches that hide the levels."""
        if self._switched_gb_s is not None:
            return True
        pairs = combinations(range(self.box.topology.gpu_count), 2)
        kinds = {(self.box.topology.link(a, b).nvlinks, self.box.topology.level_or_assumed(a, b)) for a, b in pairs}
        return len(kinds) <= 1 and len(set(self.box.traits)) <= 1


@dataclass(frozen=True, slots=True)
class _Groups:
    """All groups of one size with their bandwidth."""

    by_lowest: Mapping[int, tuple[tuple[int, int], ...]]
    """Bit of the lowest member → (mask, GB/s), best first."""
    most: int
    """GB/s of the best group."""


def _sorted_groups(groups: Iterable[tuple[int, int]]) -> _Groups:
    by_lowest: dict[int, list[tuple[int, int]]] = {}
    for mask, bandwidth in groups:
        by_lowest.setdefault(mask & -mask, []).append((mask, bandwidth))
    ordered = {
        lowest: tuple(sorted(members, key=lambda member: (-member[1], member[0])))
        for lowest, members in by_lowest.items()
    }
    most = max((members[0][1] for members in ordered.values()), default=0)
    return _Groups(by_lowest=MappingProxyType(ordered), most=most)
