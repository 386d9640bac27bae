"""What a set of GPUs is worth as numbers, and in which order these numbers count (docs/design/0005-choice.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dracaena.api.config.v1alpha1 import NicAlignment, NodeStrategy, NumaAlignment, Objective, TopologyPolicy

GROUP_SIZES: Final = (8, 4, 2)
"""Sizes of the groups whose loss is damage, in the order in which they count: most jobs ask for a power of two, and a
whole box is the hardest to get back."""

SHARE_PARTS: Final = 1_000_000
"""Resolution of bandwidth ÷ ideal: finer than any two bandwidths differ, so inside one node both orders are one."""


@dataclass(frozen=True, slots=True)
class Order:
    """In which order the parts of a score count, and which of them do."""

    objective: Objective = Objective.BANDWIDTH
    node_strategy: NodeStrategy = NodeStrategy.PACK
    numa_counts: bool = True
    nic_counts: bool = True
    relative: bool = False
    """Compare bandwidth ÷ the best that a set of that size has on the empty node, instead of bandwidth. Inside one node
    it is the same order; between nodes a job then does not take the fastest machine when a slower one serves it as well
    as that machine can."""


DEFAULT_ORDER: Final = Order()

_Section = tuple[tuple[str, int, int], ...]
"""Parts that stay together: (name, what is shown, rank)."""


def order_of(policies: Iterable[TopologyPolicy], *, relative: bool = False) -> Order:
    """Return the order for a pod: of each field the first of its requests' policies that says something."""
    told = tuple(policies)
    objective = next((policy.objective for policy in told if policy.objective), Objective.BANDWIDTH)
    node_strategy = next((policy.node_strategy for policy in told if policy.node_strategy), NodeStrategy.PACK)
    numa = next((policy.numa_alignment for policy in told if policy.numa_alignment), None)
    nic = next((policy.nic_alignment for policy in told if policy.nic_alignment), None)
    return Order(
        objective=objective,
        node_strategy=node_strategy,
        numa_counts=numa is not NumaAlignment.IGNORED,
        nic_counts=nic is not NicAlignment.IGNORED,
        relative=relative,
    )


@dataclass(frozen=True, slots=True)
class Score:
    """What taking a set is worth on one node. Whole numbers, so equal sets never differ by rounding.

    Compare with `>`: greater is better. Scores of one Order compare, between nodes too.
    """

    bandwidth_gb_s: int
    """Rate of a collective over the set, whole GB/s one way (objectives.collective). More is better; 0 for one GPU."""
    ideal_gb_s: int
    """The greatest bandwidth of a set of this size on the node when all its GPUs are free; 0 where the order does not
    ask for it."""
    damage_gb_s: tuple[int, int, int]
    """For groups of 8, 4 and 2: by how much the greatest total bandwidth of disjoint groups among the free GPUs of the
    node falls when the set is taken. Less is better."""
    bound_level: int
    """LinkLevel of the pair that bounds the bandwidth, 0 where NVLinks carry it or there is one GPU: it tells levels of
    equal bandwidth apart. Less is better."""
    damage_levels: int
    """The same damage in levels: steps of bound_level that the groups of 8, 4 and 2 lose in sum. Less is better."""
    numa_nodes: int
    """NUMA nodes spanned, unknown ones counting as one. Less is better."""
    nic_distance: int
    """Sum over the GPUs of the level to their nearest NIC in steps: PSB 0, PIX 1, … SYS and unknown 5. Less is
    better."""
    pair_sum_gb_s: int
    """Sum over all pairs, each by its better way: what all-to-all traffic sees. More is better."""
    worst_pair_gb_s: int
    """The slowest pair by its better way; 0 for one GPU. More is better."""
    worst_level: int
    """LinkLevel of the worst pair, 0 for a pair with NVLinks and for one GPU. Less is better."""
    free_gpus: int
    """Free GPUs of the node before the set is taken. Fewer are better (nodeStrategy Spread: more)."""
    order: Order = DEFAULT_ORDER

    def rank(self) -> tuple[int, ...]:
        """Return a key that sorts best first, among scores of one order."""
        sections = self._sections()
        return tuple(value for section in sections for _, _, value in section)

    def __lt__(self, other: Score) -> bool:
        return self.rank() > other.rank()

    def parts(self) -> tuple[tuple[str, int], ...]:
        """Return the named parts that count, in the order in which they do; each name ends with its unit."""
        return tuple((name, shown) for section in self._sections() for name, shown, _ in section)

    def first_difference(self, other: Score) -> str | None:
        """Return the name of the first part in which two scores of one order differ, None when they are equal."""
        for mine, theirs in zip(self._sections(), other._sections(), strict=True):
            for (name, _, my_rank), (_, _, their_rank) in zip(mine, theirs, strict=True):
                if my_rank != their_rank:
                    return name
        return None

    def _sections(self) -> tuple[_Section, ...]:
        """Return (name, what is shown, rank) of each part, in order."""
        order = self.order
        bandwidth = (self._bandwidth(),)
        damage = tuple(
            (f"damage_{size}_gb_s", lost, lost) for size, lost in zip(GROUP_SIZES, self.damage_gb_s, strict=True)
        )
        bound = (("bound_level", self.bound_level, self.bound_level),)
        damage_levels = (("damage_levels", self.damage_levels, self.damage_levels),)
        if order.objective is Objective.PACK:
            sections: list[_Section] = [damage, bandwidth, damage_levels, bound]
        else:
            sections = [bandwidth, damage, bound, damage_levels]
        if order.numa_counts:
            sections.append((("numa_nodes", self.numa_nodes, self.numa_nodes),))
        if order.nic_counts:
            sections.append((("nic_levels", self.nic_distance, self.nic_distance),))
        sections.append((("pair_sum_gb_s", self.pair_sum_gb_s, -self.pair_sum_gb_s),))
        sections.append((("worst_pair_gb_s", self.worst_pair_gb_s, -self.worst_pair_gb_s),))
        sections.append((("worst_level", self.worst_level, self.worst_level),))
        if order.node_strategy is NodeStrategy.SPREAD:
            emptier = (("free_gpus", self.free_gpus, -self.free_gpus),)
            sections.insert(0 if order.objective is Objective.PACK else 1, emptier)
        else:
            sections.append((("free_gpus", self.free_gpus, self.free_gpus),))
        return tuple(sections)

    def _bandwidth(self) -> tuple[str, int, int]:
        if not self.order.relative:
            return "bandwidth_gb_s", self.bandwidth_gb_s, -self.bandwidth_gb_s
        if not self.ideal_gb_s:
            return "bandwidth_gb_s", self.bandwidth_gb_s, 0
        return "bandwidth_gb_s", self.bandwidth_gb_s, -(self.bandwidth_gb_s * SHARE_PARTS // self.ideal_gb_s)
