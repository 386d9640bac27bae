"""What a set of GPUs is worth as numbers, and in which order these numbers count (docs/design/0005-choice.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final

from dracaena.api.config.v1alpha1 import NicAlignment, NodeStrategy, NumaAlignment, Objective, TopologyPolicy

GROUP_SIZES: Final = (8, 4, 2)
"""Sizes of the groups whose loss is damage, in the order in which they count: most jobs ask for a power of two, and a
whole box is the hardest to get back."""

SHARE_PARTS: Final = 1_000_000
"""Resolution of bandwidth ÷ ideal: finer than any two bandwidths differ, so inside one node both orders are one."""

_PART_BITS: Final = 48
"""Bits of a part of a rank: even kB/s would fit."""
_HALF: Final = 1 << (_PART_BITS - 1)


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
    in_order: itemgetter[tuple[int, ...]] = field(init=False, repr=False, compare=False)
    """Picks what counts out of one value for each of PARTS, in the order in which it counts. Made once: every choice
    that is compared is ranked."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "in_order", itemgetter(*map(PARTS.index, self._names())))

    def _names(self) -> tuple[str, ...]:
        speed = ("bandwidth_percent_of_ideal" if self.relative else "bandwidth_gb_s", "ring_gb_s")
        damage = (*(f"damage_{size}_gb_s" for size in GROUP_SIZES), "damage_ring_gb_s")
        if self.objective is Objective.PACK:
            names = (*damage, *speed, "worst_pair_gb_s", "damage_levels", "bound_level")
        else:
            names = (*speed, *damage, "bound_level", "worst_pair_gb_s", "damage_levels")
        if self.numa_counts:
            names += ("numa_nodes",)
        names += ("pair_sum_gb_s", "worst_level")
        if self.nic_counts:
            names += ("nic_levels",)
        if self.node_strategy is NodeStrategy.SPREAD:
            place = 0 if self.objective is Objective.PACK else len(speed)
            names = (*names[:place], "free_gpus", *names[place:])
        else:
            names += ("free_gpus",)
        return (*names, "bandwidth_gb_s") if self.relative else names


PARTS: Final = (
    "bandwidth_percent_of_ideal",
    "bandwidth_gb_s",
    "ring_gb_s",
    *(f"damage_{size}_gb_s" for size in GROUP_SIZES),
    "damage_ring_gb_s",
    "bound_level",
    "worst_pair_gb_s",
    "damage_levels",
    "numa_nodes",
    "pair_sum_gb_s",
    "worst_level",
    "nic_levels",
    "free_gpus",
)
"""Names of all parts of a score, each with its unit at the end; which of them count, and when, an Order says."""

DEFAULT_ORDER: Final = Order()


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
    """Rate of a collective over the set, whole GB/s one way (set_rates.collective). More is better; 0 for one GPU."""
    ring_gb_s: int
    """The slowest hop of the best ring through the set (SetRates.ring_kb_s), whole GB/s one way. More is better; 0 for
    one GPU. With Order.relative it counts as a share of its ideal, like the bandwidth."""
    ideal_gb_s: int
    """The greatest bandwidth of a set of this size on the node when all its GPUs are free; 0 where the order does not
    ask for it."""
    ideal_ring_gb_s: int
    """The ring of such a set, the fastest of those of the greatest bandwidth; 0 where the order does not ask for it."""
    damage_gb_s: tuple[int, int, int]
    """For groups of 8, 4 and 2: by how much the greatest total bandwidth of disjoint groups among the free GPUs of the
    node falls when the set is taken. Less is better."""
    damage_ring_gb_s: int
    """What the best rings of the groups of 8 and 4 lose in sum. Less is better."""
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
        values = (
            -_share(self.bandwidth_gb_s, self.ideal_gb_s, SHARE_PARTS),
            -self.bandwidth_gb_s,
            -(_share(self.ring_gb_s, self.ideal_ring_gb_s, SHARE_PARTS) if self.order.relative else self.ring_gb_s),
            *self.damage_gb_s,
            self.damage_ring_gb_s,
            self.bound_level,
            -self.worst_pair_gb_s,
            self.damage_levels,
            self.numa_nodes,
            -self.pair_sum_gb_s,
            self.worst_level,
            self.nic_distance,
            -self.free_gpus if self.order.node_strategy is NodeStrategy.SPREAD else self.free_gpus,
        )
        rank: tuple[int, ...] = self.order.in_order(values)
        return rank

    def __lt__(self, other: Score) -> bool:
        return self.rank() > other.rank()

    def parts(self) -> tuple[tuple[str, int], ...]:
        """Return the named parts that count, in the order in which they do; each name ends with its unit."""
        places = self.order.in_order(tuple(range(len(PARTS))))
        shown = (
            _share(self.bandwidth_gb_s, self.ideal_gb_s, 100),
            self.bandwidth_gb_s,
            self.ring_gb_s,
            *self.damage_gb_s,
            self.damage_ring_gb_s,
            self.bound_level,
            self.worst_pair_gb_s,
            self.damage_levels,
            self.numa_nodes,
            self.pair_sum_gb_s,
            self.worst_level,
            self.nic_distance,
            self.free_gpus,
        )
        return tuple((PARTS[place], shown[place]) for place in places)

    def first_difference(self, other: Score) -> str | None:
        """Return the name of the first part in which two scores of one order differ, None when they are equal."""
        for (name, _), mine, theirs in zip(self.parts(), self.rank(), other.rank(), strict=True):
            if mine != theirs:
                return name
        return None


def _share(gb_s: int, ideal_gb_s: int, whole: int) -> int:
    """Return a bandwidth ÷ its ideal, `whole` being all of it; 0 where the ideal is not asked for."""
    return gb_s * whole // ideal_gb_s if ideal_gb_s else 0


def one_number(rank: Iterable[int]) -> int:
    """Return a number that sorts as the parts do, in their order; all ranks have to have as many parts."""
    number = 0
    for part in rank:
        assert abs(part) < _HALF, "a part of a rank is below 2^47"
        number = (number << _PART_BITS) + part + _HALF
    return number


def first_difference(one: int, other: int) -> int | None:
    """Return the first part in which two ranks differ as a place from the end, 0 being the last; None: in none.

    Cost: a step, where comparing the parts takes twenty.
    """
    different = one ^ other
    return (different.bit_length() - 1) // _PART_BITS if different else None
