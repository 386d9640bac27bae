"""What is remembered about one class of nodes: what every set of GPUs can carry and is worth, and what stays free.

All of it is a memo of collective() and only serves speed. Bandwidths are whole kB/s, one way. Worths are whole numbers
that add up part by part: kB/s of the collective in the upper bits, then those of the best ring, in the lowest bits what
distinguishes levels of equal bandwidth (collective.Collective.steps). Only sums that are shown or compared are rounded
to whole GB/s, never their addends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import combinations

from dracaena.api.config.v1alpha1 import NO_LINK_BANDWIDTH, LinkBandwidth
from dracaena.api.links import LinkLevel
from dracaena.controller.allocation.score.box import (
    KB_S_PER_GB_S,
    Box,
    canonical_mask,
    ordinals_of,
    representatives,
)
from dracaena.controller.allocation.score.box_tables import (
    COLLECTIVE_SHIFT,
    KB_S_BITS,
    MAX_ENTRIES,
    NVLINK_STEPS,
    STEP_BITS,
    STEP_SUM_BITS,
    BoxTables,
)
from dracaena.controller.allocation.score.collective import LEVEL_STEP, collective
from dracaena.controller.allocation.score.groups import Groups, Pairings, SortedGroups, best_halves
from dracaena.controller.allocation.score.order import DEFAULT_ORDER, GROUP_SIZES, Order, Score


class ClassTable(BoxTables):
    """Worths of the sets of one box under the figures of one policy. One thread at a time."""

    def __init__(self, box: Box, figures: LinkBandwidth = NO_LINK_BANDWIDTH) -> None:
        super().__init__(box, figures)
        self._rates: dict[int, int] = {}
        self._worths: dict[int, int] = {}
        self._totals: dict[int, dict[int, int]] = {size: {} for size in GROUP_SIZES}
        self._groups: dict[int, Groups] = {}
        self._groups_by_kind: dict[int, SortedGroups] = {}
        self._ideals: dict[int, int] = {}
        self._left_known: dict[int, tuple[tuple[int, int, int, int], int]] = {}
        self._pair_ranks: dict[int, tuple[int, int, int]] = {}

    def linked(self, mask: int) -> ClassTable:
        """Return the table that is valid while one claim has exactly this set: here links do not depend on it."""
        return self

    # Rates: kB/s and steps of one set in one number, so that greater is better (Collective.steps).

    def rate(self, mask: int) -> int:
        """Return `kB/s << STEP_BITS | steps` of a collective over two or more GPUs.

        Cost: O(k³) for a set whose minimum cut is not obvious, then a look-up.
        """
        known = self._rates.get(mask)
        if known is not None:
            return known
        over_pcie, over_nvlink = self._pcie_rate(mask), self._most_nvlink_rate(mask)
        if over_nvlink <= over_pcie:
            return over_pcie
        if len(self._rates) >= MAX_ENTRIES:
            self._rates.clear()
        known = self._rates[mask] = max(over_pcie, self._nvlink_rate(mask, over_nvlink))
        return known

    def most_rate(self, mask: int) -> int:
        """Return an upper bound of rate(mask), at a fraction of its cost: no minimum cut is heavier than the links of
        one GPU.
        """
        known = self._rates.get(mask)
        return max(self._pcie_rate(mask), self._most_nvlink_rate(mask)) if known is None else known

    def kb_s(self, mask: int) -> int:
        """Return the bandwidth of a collective; 0 for fewer than two GPUs."""
        return self.rate(mask) >> STEP_BITS if mask & (mask - 1) else 0

    def most_kb_s(self, mask: int) -> int:
        """Return an upper bound of a set's bandwidth; 0 for fewer than two GPUs."""
        return self.most_rate(mask) >> STEP_BITS if mask & (mask - 1) else 0

    def gb_s(self, mask: int) -> int:
        """Return the bandwidth of a collective in whole GB/s; 0 for fewer than two GPUs."""
        return self.kb_s(mask) // KB_S_PER_GB_S

    def ring_kb_s(self, mask: int) -> int:
        """Return the slowest hop of the best ring through a set, each pair over its better network; 0 for one GPU.

        For two GPUs it is the pair. Exact on boxes of up to MAX_AT_ONCE GPUs. On larger ones an upper bound: the
        fastest hops with which each GPU has two neighbours and all are connected, which is exact on trees and behind
        switches. Cost: a step for each rate that some pair has; the first time for a box all its rings.
        """
        if not mask & (mask - 1):
            return 0
        if self._rings is None:
            return self._most_ring_kb_s(mask)
        for rate, has_ring in self._rings:
            if has_ring[mask >> 3] >> (mask & 7) & 1:
                return rate
        return self._hops[-1][0]

    def ring_gb_s(self, mask: int) -> int:
        """Return the slowest hop of the best ring in whole GB/s; 0 for one GPU."""
        return self.ring_kb_s(mask) // KB_S_PER_GB_S

    def _most_nvlink_rate(self, mask: int) -> int:
        """Return the least total of one GPU's NVLinks to the others, behind switches the narrowest uplink; 0: none."""
        if mask & ~self.fabric.nvlink_group[(mask & -mask).bit_length() - 1]:
            return 0
        if self._degree_of is not None:
            least = self._degree_of[mask] * self._degree_unit
        elif self.box.switched & mask:
            nvlinks = self.fabric.nvlink_kb_s
            least = min(nvlinks[a][b] for a, b in combinations(ordinals_of(mask), 2))
        else:
            rows, ordinals = self.fabric.nvlink_kb_s, ordinals_of(mask)
            least = min(sum(map(rows[ordinal].__getitem__, ordinals)) for ordinal in ordinals)
        return least << STEP_BITS | NVLINK_STEPS if least else 0

    def _pcie_rate(self, mask: int) -> int:
        if self._pcie_of is not None:
            return self._pcie_of[mask]
        ordinals = ordinals_of(mask)
        for rate, somewhere, rows in self._slowest_pcie:
            if somewhere & mask:
                for ordinal in ordinals:
                    if rows[ordinal] & mask:
                        return rate
        return 0

    # Worths.

    def worth(self, mask: int) -> int:
        """Return the kB/s of a collective and of the best ring, and the steps, as one number; 0 for one GPU.

        Worths of disjoint groups add up; greater is better.
        """
        known = self._worths.get(mask)
        if known is None:
            if len(self._worths) >= MAX_ENTRIES:
                self._worths.clear()
            known = self._worths[mask] = _worth(self.rate(mask), self.ring_kb_s(mask)) if mask & (mask - 1) else 0
        return known

    def ideal_gb_s(self, count: int) -> int:
        """Return the greatest bandwidth of `count` GPUs of the box, free or not; 0 if there are too many sets."""
        return whole_gb_s(self._ideal_worth(count))

    def _ideal_worth(self, count: int) -> int:
        if count < 2 or count > self.box.gpu_count or not self.comparable:
            return 0
        known = self._ideals.get(count)
        if known is None:
            everything = (1 << self.box.gpu_count) - 1
            known = self._ideals[count] = self._best_worth(list(representatives(self.twins, everything, count)))
        return known

    def most_worth(self, count: int) -> int:
        """Return a worth that no `count` GPUs of the box exceed."""
        if count < 2:
            return 0
        return self._ideal_worth(count) if self.comparable else 1 << COLLECTIVE_SHIFT + KB_S_BITS

    def _best_worth(self, masks: Sequence[int]) -> int:
        best = 0
        for most, mask in sorted(zip(self._most_worths(masks), masks, strict=True), reverse=True):
            if most <= best:
                break
            best = max(best, self.worth(mask))
        return best

    # What stays free.

    def free_worth(self, free: int, size: int) -> int:
        """Return the greatest total worth of disjoint groups of `size` among the free GPUs; 0 if it is not counted.

        Exact. Cost: once per state it grows with the groups among the free GPUs, then a look-up.
        """
        if not self.comparable:
            return 0
        return self._free_worth(canonical_mask(self._shared_twins, free), size)

    def _free_worth(self, free: int, size: int) -> int:
        count = free.bit_count()
        if count <= size:
            return self.worth(free) if count == size else 0
        if size == 2 and self.many_unlike:
            return self._pairing_of(free)
        known = self._totals[size].get(free)
        if known is None:
            known = self._best_total(free, size)
            self._remember_total(free, size, known)
        return known

    def _remember_total(self, free: int, size: int, total: int) -> None:
        totals = self._totals[size]
        if len(totals) >= MAX_ENTRIES:
            totals.clear()
        totals[free] = total

    def free_worths(self, sets: Sequence[int], size: int) -> Iterator[tuple[int, list[int]]]:
        """Yield (free_worth, sets) for sets of free GPUs, all of one size, greatest worth first; some without any set.

        Lazy. Among many unlike GPUs thousands of sets cost little more than one, and the best are known before the
        others are looked at.
        """
        count = sets[0].bit_count()
        if self.comparable and self.many_unlike and 2 < size <= count:
            yield from self._free_worths(sets, size, count // size)
            return
        worths: dict[int, list[int]] = {}
        for each in sets:
            worths.setdefault(self.free_worth(each, size), []).append(each)
        for worth in sorted(worths, reverse=True):
            yield worth, worths[worth]

    def _free_worths(self, sets: Sequence[int], size: int, groups: int) -> Iterator[tuple[int, list[int]]]:
        stands_for: dict[int, list[int]] = {}
        for each in sets:
            stands_for.setdefault(canonical_mask(self._shared_twins, each), []).append(each)
        for total, found in self._groups_of(size).totals(list(stands_for), groups):
            for each in found:
                self._remember_total(each, size, total)
            yield total, [each for one in found for each in stands_for[one]]

    def _best_total(self, free: int, size: int) -> int:
        """Return the greatest total worth of disjoint groups among more free GPUs than one group has."""
        count = free.bit_count()
        if count < 2 * size:
            return self._best_group(free, size)
        if self.many_unlike and count == 2 * size:
            return best_halves(free, size, self._most_worths, self.worth)
        if self.many_unlike:
            return next(total for total, found in self._groups_of(size).totals([free], count // size) if found)
        # Decide about the lowest free GPU: in each group that has it as lowest, or left out. It need not be left out
        # when the groups can use up all GPUs: one group more never makes the total smaller.
        lowest = free & -free
        best = self.free_worth(free ^ lowest, size) if count % size else 0
        groups = self._sorted_groups(size)
        most_of_the_others = (count // size - 1) * groups.most
        taken = ~free
        for most, group in groups.by_lowest.get(lowest, ()):
            if most + most_of_the_others <= best:
                break  # groups come in descending order: none of the next can be better
            if not group & taken:
                best = max(best, self.worth(group) + self.free_worth(free ^ group, size))
        return best

    def _best_group(self, free: int, size: int) -> int:
        """Return the worth of the best single group."""
        if self.many_unlike:
            return self._groups_of(size).best_inside(free)
        return self._sorted_groups(size).best_inside(free, self.worth)

    def _groups_of(self, size: int) -> Groups:
        """Return all groups of a size, on boxes of many unlike GPUs."""
        known = self._groups.get(size)
        if known is None:
            masks = list(map(sum, combinations([1 << ordinal for ordinal in range(self.box.gpu_count)], size)))
            known = self._groups[size] = Groups(zip(self._most_worths(masks), masks, strict=True), self.worth)
        return known

    def _sorted_groups(self, size: int) -> SortedGroups:
        """Return a group of each kind, on all other boxes."""
        known = self._groups_by_kind.get(size)
        if known is None:
            masks = list(representatives(self.twins, (1 << self.box.gpu_count) - 1, size))
            known = self._groups_by_kind[size] = SortedGroups(zip(self._most_worths(masks), masks, strict=True))
        return known

    def _most_worths(self, masks: Sequence[int]) -> list[int]:
        """Return an upper bound of the worth of each set of two or more GPUs (most_rate)."""
        if self._degree_of is None or self._pcie_of is None:
            return [_worth(self.most_rate(mask), self.ring_kb_s(mask)) for mask in masks]
        # Asked for 12,870 sets of 8 at once: most_rate without its calls.
        degrees, over_pcie, unit = self._degree_of, self._pcie_of, self._degree_unit << STEP_BITS
        islands = self.fabric.nvlink_group
        rates = [
            max(over_pcie[mask], degrees[mask] * unit | NVLINK_STEPS)
            if degrees[mask] and not mask & ~islands[(mask & -mask).bit_length() - 1]
            else over_pcie[mask]
            for mask in masks
        ]
        worths = {rate: _worth(rate, 0) for rate in set(rates)}
        return [worths[rate] | self.ring_kb_s(mask) << STEP_SUM_BITS for rate, mask in zip(rates, masks, strict=True)]

    def _pairing_of(self, free: int) -> int:
        """Return the greatest total worth of disjoint pairs, on boxes of many unlike GPUs."""
        kb_s, steps = self._pairings.best(free)
        return kb_s << COLLECTIVE_SHIFT | kb_s << STEP_SUM_BITS | steps  # for a pair, collective and ring are the same

    @cached_property
    def _pairings(self) -> Pairings:
        return Pairings(self.box.gpu_count, lambda pair: divmod(self.rate(pair), 1 << STEP_BITS), NVLINK_STEPS)

    # Scores.

    def score(self, free: int, chosen: int, held: int = 0, order: Order = DEFAULT_ORDER) -> Score:
        """Return the score of taking `chosen` out of the free GPUs, for a pod that already holds the GPUs `held`.

        All are masks; `free` contains `chosen`. Only what is taken now does damage; all else is about both together.
        """
        left = free & ~chosen
        together = chosen | held
        before, steps_before = self._left(free)
        after, steps_after = self._left(left)
        worst_pair, pair_sum, worst_level = self.pair_rank(together)
        return Score(
            bandwidth_gb_s=self.gb_s(together),
            ring_gb_s=self.ring_gb_s(together),
            ideal_gb_s=self.ideal_gb_s(together.bit_count()),
            damage_gb_s=(after[0] - before[0], after[1] - before[1], after[2] - before[2]),
            damage_ring_gb_s=after[3] - before[3],
            bound_level=self.bound_level(together),
            damage_levels=steps_before - steps_after,
            numa_nodes=self.numa_nodes(together),
            nic_distance=self.nic_distance(together),
            pair_sum_gb_s=-pair_sum,
            worst_pair_gb_s=-worst_pair,
            worst_level=worst_level,
            gpus=together.bit_count(),
            taken_gpus=chosen.bit_count(),
            free_gpus=free.bit_count(),
            order=order,
        )

    def left_rank(self, free: int) -> tuple[int, int, int, int]:
        """Return free_worth in whole GB/s for groups of 8, 4 and 2, then the sum of the rings of the groups of 8 and 4,
        all negative: a key that sorts best first.
        """
        return self._left(free)[0]

    def left_steps(self, free: int) -> int:
        """Return the steps of free_worth of groups of 8, 4 and 2 together."""
        return self._left(free)[1]

    def _left(self, free: int) -> tuple[tuple[int, int, int, int], int]:
        known = self._left_known.get(free)
        if known is None:
            eights, fours, pairs = (self.free_worth(free, size) for size in GROUP_SIZES)
            rings_gb_s = whole_ring_gb_s(eights) + whole_ring_gb_s(fours)  # for a pair it is the bandwidth
            known = (
                (-whole_gb_s(eights), -whole_gb_s(fours), -whole_gb_s(pairs), -rings_gb_s),
                whole_steps(eights) + whole_steps(fours) + whole_steps(pairs),
            )
            if len(self._left_known) >= MAX_ENTRIES:
                self._left_known.clear()
            self._left_known[free] = known
        return known

    def pair_rank(self, mask: int) -> tuple[int, int, int]:
        """Return worst_pair_gb_s and pair_sum_gb_s, both negative, and worst_level: a key that sorts best first.

        Remembered: few sets are ever the best, and many states share them.
        """
        known = self._pair_ranks.get(mask)
        if known is None:
            if len(self._pair_ranks) >= MAX_ENTRIES:
                self._pair_ranks.clear()
            known = -self.worst_pair_gb_s(mask), -self.pair_sum_gb_s(mask), self.worst_level(mask)
            self._pair_ranks[mask] = known
        return known

    def bound_level(self, mask: int) -> int:
        """Return the LinkLevel that bounds a collective; 0 if NVLinks carry it, and for one GPU."""
        return LinkLevel.SYS - (self.worth(mask) & 7) * LEVEL_STEP if mask & (mask - 1) else 0

    def numa_nodes(self, mask: int) -> int:
        """Return how many NUMA nodes a set spans; the unknown ones count as one."""
        return sum(1 for gpus in self._numa_masks if gpus & mask)

    def nic_distance(self, mask: int) -> int:
        """Return the sum of the steps from each GPU to its nearest NIC."""
        return sum(self._nic_steps[ordinal] for ordinal in ordinals_of(mask))

    def pair_sum_gb_s(self, mask: int) -> int:
        """Return the sum over all pairs of what each reaches over its better network, in whole GB/s."""
        pairs = self.pairs_kb_s
        return sum(pairs[a][b] for a, b in combinations(ordinals_of(mask), 2)) // KB_S_PER_GB_S

    def worst_pair_gb_s(self, mask: int) -> int:
        """Return what the slowest pair reaches, in whole GB/s; 0 for one GPU."""
        pairs = self.pairs_kb_s
        return min((pairs[a][b] for a, b in combinations(ordinals_of(mask), 2)), default=0) // KB_S_PER_GB_S

    def worst_level(self, mask: int) -> int:
        """Return the LinkLevel of the worst pair, 0 for a pair with NVLinks and for one GPU."""
        levels = self._pair_levels
        return max((levels[a][b] for a, b in combinations(ordinals_of(mask), 2)), default=0)

    def check(self) -> None:
        """Raise AssertionError unless every remembered result is what a fresh table computes. Slow: for tests."""
        self.box.check()
        assert sum(self.twins) == (1 << self.box.gpu_count) - 1, "every GPU has one class of twins"
        for mask, rate in self._rates.items():
            found = collective(self.fabric, mask)
            assert rate == found.kb_s << STEP_BITS | found.steps, f"rate of {mask:b}"
        for size, totals in self._totals.items():
            assert len(totals) <= MAX_ENTRIES
            fresh = type(self)(self.box, self.figures)
            for free, worth in totals.items():
                assert worth == fresh.free_worth(free, size), f"groups of {size} among {free:b}"
        fresh = type(self)(self.box, self.figures)
        for free, left in self._left_known.items():
            assert left == (fresh.left_rank(free), fresh.left_steps(free)), f"groups among {free:b}"
        for mask, rank in self._pair_ranks.items():
            assert rank == fresh.pair_rank(mask), f"pairs of {mask:b}"


class PartitionedTable(ClassTable):
    """Worths of the sets of a box with partitions, each as if one claim had it. One thread at a time.

    A claim's GPUs are linked if they are exactly one partition (Box.partitions), so the links depend on the set. A box
    with one active partition is a box like any other, and so is one with none: each has its own table, and a set is
    looked up in the table that would apply to it.
    """

    def __init__(self, box: Box, figures: LinkBandwidth = NO_LINK_BANDWIDTH) -> None:
        super().__init__(box, figures)
        self._linked_sets = frozenset(mask for mask in box.partitions if mask & (mask - 1))
        self._tables: dict[int, ClassTable] = {}

    def linked(self, mask: int) -> ClassTable:
        """Return the table that is valid while one claim has exactly this set: its partition is active, or none is."""
        active = mask if mask in self._linked_sets else 0
        known = self._tables.get(active)
        if known is None:
            known = self._tables[active] = ClassTable(self.box.linked(active), self.figures)
        return known

    def rate(self, mask: int) -> int:
        """Return `kB/s << STEP_BITS | steps` of a collective over two or more GPUs."""
        return self.linked(mask).rate(mask) if mask in self._linked_sets else super().rate(mask)

    def most_rate(self, mask: int) -> int:
        """Return an upper bound of rate(mask)."""
        return self.linked(mask).rate(mask) if mask in self._linked_sets else super().most_rate(mask)

    def ring_kb_s(self, mask: int) -> int:
        """Return the slowest hop of the best ring through a set, each pair by its better way; 0 for one GPU."""
        return self.linked(mask).ring_kb_s(mask) if mask in self._linked_sets else super().ring_kb_s(mask)

    def pair_rank(self, mask: int) -> tuple[int, int, int]:
        """Return worst_pair_gb_s and pair_sum_gb_s, both negative, and worst_level."""
        return self.linked(mask).pair_rank(mask) if mask in self._linked_sets else super().pair_rank(mask)

    def partitions_of(self, count: int, within: int) -> Iterator[int]:
        """Yield the partitions of `count` GPUs that lie inside a set."""
        return (mask for mask in self.box.partitions if mask.bit_count() == count and not mask & ~within)

    def _most_worths(self, masks: Sequence[int]) -> list[int]:
        found = super()._most_worths(masks)
        for place, mask in enumerate(masks):
            if mask in self._linked_sets:
                found[place] = self.worth(mask)
        return found


def _worth(rate: int, ring_kb_s: int) -> int:
    return rate >> STEP_BITS << COLLECTIVE_SHIFT | ring_kb_s << STEP_SUM_BITS | rate & (1 << STEP_BITS) - 1


def whole_gb_s(worth: int) -> int:
    """Return the whole GB/s of the collectives of a worth or a sum of worths."""
    return (worth >> COLLECTIVE_SHIFT) // KB_S_PER_GB_S


def whole_ring_gb_s(worth: int) -> int:
    """Return the whole GB/s of the rings of a worth or a sum of worths."""
    return (worth >> STEP_SUM_BITS & (1 << KB_S_BITS) - 1) // KB_S_PER_GB_S


def whole_steps(worth: int) -> int:
    """Return the steps of a worth or a sum of worths."""
    return worth & (1 << STEP_SUM_BITS) - 1
