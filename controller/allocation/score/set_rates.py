"""What every set of GPUs of one box can carry, looked up, and which sets a policy lets a request have.

Bandwidths are whole kB/s, one way, as collective defines them; who compares sets of GPUs quantises them (order.Score).
What stays free is worth what its best groups are worth; that needs more memory and stands in class_table. What a policy
demands (meanings: api.config.v1alpha1) is looked up once for a box.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import gcd, prod
from typing import Final

from dracaena.api.config.v1alpha1 import (
    NO_LINK_BANDWIDTH,
    LinkBandwidth,
    NicAlignment,
    NumaAlignment,
    Requirement,
    TopologyPolicy,
)
from dracaena.api.links import Link, LinkLevel
from dracaena.controller.allocation.score.box import (
    KB_S_PER_GB_S,
    Box,
    connected,
    interchangeable,
    mask_of,
    ordinals_of,
)
from dracaena.controller.allocation.score.collective import (
    LEVEL_STEP,
    kb_s,
    lightest_division,
    make_fabric,
    minimum_cut,
    pair_kb_s,
)
from dracaena.controller.allocation.score.subsets import (
    least_degree_of_subsets,
    least_pair_of_subsets,
    total_of_subsets,
    with_ring,
)

STEP_BITS: Final = 3
"""Steps of a rate are 0 to 5."""
NVLINK_STEPS: Final = LinkLevel.SYS // LEVEL_STEP

MAX_STATES: Final = 1 << 16
"""Free sets of a box that differ in more than interchangeable GPUs: as many as 16 GPUs can have that are all unlike.
Beyond it damage is not counted, and sets are grown instead of compared (choices.grown)."""

FEW_STATES: Final = 1 << 12
"""Up to as many free sets each is looked at alone; above, all subsets at once (subsets), at some 10 ms a table."""

MAX_AT_ONCE: Final = 16
"""GPUs whose subsets are looked at all at once: 65,536; each GPU more doubles them."""

MAX_DIVIDED: Final = 8
"""GPUs of a set of which all ways to divide it are compared for the lightest cut: 127; each GPU more doubles them."""

MAX_COMPARED: Final = 3
"""GPUs of which all sets are compared for their heaviest links: 560 of 16 GPUs, 1,820 if it were 4."""

MAX_ENTRIES: Final = 1 << 17
"""Entries of one memo of a table; a full one starts afresh. 65,536 sets of 16 GPUs fit, at about 100 bytes each."""


class SetRates:
    """A memo of collective() under the figures of one policy: nothing here but speed. One thread at a time.

    kB/s and steps of one set stand in one number, so that greater is better (Collective.steps).
    """

    def __init__(self, box: Box, figures: LinkBandwidth = NO_LINK_BANDWIDTH) -> None:
        self.box = box
        self.figures = figures
        self.fabric = make_fabric(box, figures)
        self.twins = interchangeable(box)
        """Masks of GPUs of which any two can change places and nothing else changes; every GPU is in one."""
        states = prod(twins.bit_count() + 1 for twins in self.twins)
        self.comparable = states <= MAX_STATES
        self.many_unlike = states > FEW_STATES and box.gpu_count <= MAX_AT_ONCE
        """Whether thousands of sets can be free: figures are then computed for all at once (subsets, groups)."""
        self._slowest_pcie = _slowest_first(self._pcie_rates)
        self._rates: dict[int, int] = {}
        self._heaviest_of: dict[int, int] = {}

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
        """Return a number that rate(mask) does not exceed, at a fraction of its cost: no cut is lighter than the links
        of one GPU.
        """
        known = self._rates.get(mask)
        return max(self._pcie_rate(mask), self._most_nvlink_rate(mask)) if known is None else known

    def kb_s(self, mask: int) -> int:
        """Return the bandwidth of a collective; 0 for fewer than two GPUs."""
        return self.rate(mask) >> STEP_BITS if mask & (mask - 1) else 0

    def most_kb_s(self, mask: int) -> int:
        """Return a bandwidth that the one of a set does not exceed; 0 for fewer than two GPUs."""
        return self.most_rate(mask) >> STEP_BITS if mask & (mask - 1) else 0

    def gb_s(self, mask: int) -> int:
        """Return the bandwidth of a collective in whole GB/s; 0 for fewer than two GPUs."""
        return self.kb_s(mask) // KB_S_PER_GB_S

    def ring_kb_s(self, mask: int) -> int:
        """Return the slowest hop of the best ring through a set, each pair by its better way; 0 for one GPU.

        Of two GPUs it is the pair. Exact on boxes of up to MAX_AT_ONCE GPUs. On larger ones an upper bound: the fastest
        hops with which each GPU has two neighbours and all are connected, which on trees and behind switches is exact.
        Cost: a step for each rate that a pair has; the first time for a box all its rings.
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

    def _most_ring_kb_s(self, mask: int) -> int:
        enough = 2 if mask.bit_count() > 2 else 1
        for rate, near in self._hops[:-1]:
            neighbours = ((near[ordinal] & mask).bit_count() for ordinal in ordinals_of(mask))
            if all(count >= enough for count in neighbours) and connected(near, mask):
                return rate
        return self._hops[-1][0]

    def _nvlink_rate(self, mask: int, most: int) -> int:
        """Return the rate over NVLinks alone, 0 where they do not connect the set."""
        if self.box.switched & mask:
            return most
        ordinals = ordinals_of(mask)
        if self._is_least_cut(len(ordinals), most >> STEP_BITS):
            return most
        if self._nvlinks_within is not None and len(ordinals) <= MAX_DIVIDED:
            least = self._degree_unit * lightest_division(self._nvlinks_within, mask)
        else:
            nvlinks = self.fabric.nvlink_kb_s
            least = minimum_cut([[nvlinks[a][b] for b in ordinals] for a in ordinals])
        return least << STEP_BITS | NVLINK_STEPS if least else 0

    def _is_least_cut(self, count: int, least: int) -> bool:
        """Whether the least sum of one GPU's links is the minimum cut of `count` GPUs for sure.

        Cutting off t GPUs, at most half of them, cuts their links less twice those among them: at least
        t·least - 2·heaviest(t), where no t GPUs of the box have heavier links among them.
        """
        return all((t - 1) * least >= 2 * self._heaviest(t) for t in range(2, count // 2 + 1))

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

    @cached_property
    def _degree_of(self) -> Sequence[int] | None:
        """Least degree of every set in _degree_unit, on boxes where most sets are asked for; None on others."""
        if self._pcie_of is None or self.box.switched:
            return None
        return least_degree_of_subsets([[kb_s // self._degree_unit for kb_s in row] for row in self.fabric.nvlink_kb_s])

    @cached_property
    def _nvlinks_within(self) -> Sequence[int] | None:
        """Total of the NVLinks inside every set in _degree_unit, where there is _degree_of."""
        if self._degree_of is None:
            return None
        return total_of_subsets([[kb_s // self._degree_unit for kb_s in row] for row in self.fabric.nvlink_kb_s])

    @cached_property
    def _degree_unit(self) -> int:
        return gcd(*(kb_s for row in self.fabric.nvlink_kb_s for kb_s in row)) or 1

    @cached_property
    def _pcie_of(self) -> Sequence[int] | None:
        """PCIe rate of every set, on boxes where most sets are asked for; None on others."""
        return least_pair_of_subsets(self._pcie_rates) if self.many_unlike else None

    @cached_property
    def pairs_kb_s(self) -> tuple[tuple[int, ...], ...]:
        """What each pair reaches by its better way, 0 on the diagonal."""
        ordinals = range(self.box.gpu_count)
        return tuple(tuple(pair_kb_s(self.fabric, a, b) if a != b else 0 for b in ordinals) for a in ordinals)

    @cached_property
    def _hops(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """For each rate that a pair has, fastest first: the peers of each GPU at this rate or faster."""
        pairs, ordinals = self.pairs_kb_s, range(self.box.gpu_count)
        return tuple(
            (rate, tuple(mask_of(b for b in ordinals if b != a and pairs[a][b] >= rate) for a in ordinals))
            for rate in sorted({pairs[a][b] for a, b in combinations(ordinals, 2)}, reverse=True)
        )

    @cached_property
    def _rings(self) -> tuple[tuple[int, bytes], ...] | None:
        """For each rate of _hops but the last: which sets have a ring of such hops, mask by mask (subsets.with_ring);
        None on boxes of too many GPUs. With the last rate all sets have.
        """
        if self.box.gpu_count > MAX_AT_ONCE:
            return None
        return tuple((rate, with_ring(near)) for rate, near in self._hops[:-1])

    @cached_property
    def _pcie_rates(self) -> tuple[tuple[int, ...], ...]:
        fabric, ordinals = self.fabric, range(self.box.gpu_count)
        return tuple(
            tuple(
                fabric.pcie_kb_s[a][b] << STEP_BITS | (LinkLevel.SYS - fabric.levels[a][b]) // LEVEL_STEP
                for b in ordinals
            )
            for a in ordinals
        )

    def _heaviest(self, count: int) -> int:
        """Return what the NVLinks among `count` GPUs of the box weigh at most."""
        known = self._heaviest_of.get(count)
        if known is None:
            rows = self.fabric.nvlink_kb_s
            if count <= MAX_COMPARED and self.many_unlike:
                sets = combinations(range(self.box.gpu_count), count)
                known = max(sum(rows[a][b] for a, b in combinations(ordinals, 2)) for ordinals in sets)
            else:
                known = count * (count - 1) // 2 * max(map(max, rows), default=0)
            self._heaviest_of[count] = known
        return known


def _slowest_first(rates: Sequence[Sequence[int]]) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """Return, for each rate of a pair that there is, (rate, GPUs that have such a pair, mask of each GPU's peers)."""
    ordinals = range(len(rates))
    found = []
    for rate in sorted({rates[a][b] for a, b in combinations(ordinals, 2)}):
        rows = tuple(mask_of(b for b in ordinals if b != a and rates[a][b] == rate) for a in ordinals)
        found.append((rate, mask_of(a for a in ordinals if rows[a]), rows))
    return tuple(found)


_WORST_ALLOWED: Final = {
    Requirement.PIX: LinkLevel.PIX,
    Requirement.PXB: LinkLevel.PXB,
    Requirement.PHB: LinkLevel.PHB,
    Requirement.NODE: LinkLevel.NODE,
}
_FARTHEST_NIC: Final = {
    NicAlignment.PIX: LinkLevel.PIX,
    NicAlignment.PXB: LinkLevel.PXB,
    NicAlignment.PHB: LinkLevel.PHB,
    NicAlignment.NODE: LinkLevel.NODE,
}


@dataclass(frozen=True, slots=True)
class SetRule:
    """Which sets of GPUs of one box a request may have."""

    table: SetRates
    eligible: int
    """GPUs that it may have at all."""
    peers: tuple[int, ...] | None
    """For each GPU the mask of those it may be in one set with, itself included; None: any."""
    nvlink: bool
    """Whether the NVLink graph of the set must be connected."""
    least_kb_s: int
    """Least bandwidth of two or more GPUs."""

    @property
    def any_set(self) -> bool:
        """Whether any set of eligible GPUs will do."""
        return self.peers is None and not self.nvlink and not self.least_kb_s

    def whole(self, mask: int) -> tuple[int] | None:
        """Return the set as the part of a request that is alone, or None when it may not have it (Splitter.split)."""
        return (mask,) if self.allows(mask) else None

    def allows(self, mask: int) -> bool:
        """Return whether a set holds to the rule; one GPU alone needs only to be eligible. Cost: O(k) look-ups."""
        if mask & ~self.eligible:
            return False
        if self.any_set or not mask & (mask - 1):
            return True
        if self.peers is not None and any(mask & ~self.peers[ordinal] for ordinal in ordinals_of(mask)):
            return False
        if self.nvlink and not nvlink_connected(self.table.box, mask):
            return False
        # The bound costs less and mostly settles it.
        return not self.least_kb_s or (
            self.table.most_kb_s(mask) >= self.least_kb_s and self.table.kb_s(mask) >= self.least_kb_s
        )


def make_rule(table: SetRates, policy: TopologyPolicy, eligible: int) -> SetRule:
    """Look up what a policy demands. Cost: O(GPUs²)."""
    box = table.box
    requirement = policy.requirement or Requirement.BEST_EFFORT
    farthest = _FARTHEST_NIC.get(policy.nic_alignment or NicAlignment.PREFERRED)
    if farthest is not None:
        near = (o for o, level in enumerate(box.nic_levels) if level is not None and level <= farthest)
        eligible &= mask_of(near)
    peers: tuple[int, ...] | None = None
    if requirement in _WORST_ALLOWED:
        worst = _WORST_ALLOWED[requirement]
        peers = _peers(box, lambda a, b: _no_worse(box.topology.link(a, b), worst))
    if policy.numa_alignment is NumaAlignment.REQUIRED:
        numa = box.topology.numa_nodes
        same = _peers(box, lambda a, b: numa[a] is not None and numa[a] == numa[b])
        peers = same if peers is None else tuple(one & other for one, other in zip(peers, same, strict=True))
    return SetRule(
        table=table,
        eligible=eligible,
        peers=peers,
        nvlink=requirement is Requirement.NVLINK,
        least_kb_s=kb_s(policy.min_bandwidth_gb_s) if policy.min_bandwidth_gb_s else 0,
    )


def nvlink_connected(box: Box, mask: int) -> bool:
    """Return whether the NVLink graph of the GPUs of a set alone is connected. Cost: O(k)."""
    return connected(box.nvlink_peers, mask)


def rule_words(policy: TopologyPolicy) -> str:
    """Return what a policy demands as a user wrote it, for example `requirement NVLink, minBandwidth 100`."""
    words = []
    if policy.requirement not in (None, Requirement.BEST_EFFORT):
        words.append(f"requirement {policy.requirement.value}")
    if policy.min_bandwidth_gb_s is not None:
        words.append(f"minBandwidth {policy.min_bandwidth_gb_s:g}")
    if policy.numa_alignment is NumaAlignment.REQUIRED:
        words.append("numaAlignment Required")
    if policy.nic_alignment in _FARTHEST_NIC:
        words.append(f"nicAlignment {policy.nic_alignment.value}")
    return ", ".join(words)


def _peers(box: Box, together: Callable[[int, int], bool]) -> tuple[int, ...]:
    rows = [1 << ordinal for ordinal in range(box.gpu_count)]
    for a, b in combinations(range(box.gpu_count), 2):
        if together(a, b):
            rows[a] |= 1 << b
            rows[b] |= 1 << a
    return tuple(rows)


def _no_worse(link: Link, worst: LinkLevel) -> bool:
    return bool(link.nvlinks) or (link.level is not None and link.level <= worst)
