"""What must hold for the GPUs of one request, looked up once for a box (meanings: api.config.v1alpha1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from dracaena.api.config.v1alpha1 import NicAlignment, NumaAlignment, Requirement, TopologyPolicy
from dracaena.api.links import Link, LinkLevel
from dracaena.controller.allocation.score.box import Box, mask_of, ordinals_of
from dracaena.controller.allocation.score.class_table import ClassTable
from dracaena.controller.allocation.score.objectives import kb_s

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
class Rule:
    """Which sets of GPUs of one box a request may have."""

    table: ClassTable
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


def make_rule(table: ClassTable, policy: TopologyPolicy, eligible: int) -> Rule:
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
    return Rule(
        table=table,
        eligible=eligible,
        peers=peers,
        nvlink=requirement is Requirement.NVLINK,
        least_kb_s=kb_s(policy.min_bandwidth_gb_s or 0),
    )


def nvlink_connected(box: Box, mask: int) -> bool:
    """Return whether the NVLink graph of the GPUs of a set alone is connected. Cost: O(k)."""
    reached = mask & -mask
    grown = reached
    while grown:
        near = 0
        for ordinal in ordinals_of(grown):
            near |= box.nvlink_peers[ordinal]
        grown = near & mask & ~reached
        reached |= grown
    return reached == mask


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
