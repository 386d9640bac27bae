"""What a set of GPUs is worth as numbers, and in which order these numbers count (docs/design/choice-on-a-node.md)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import itemgetter
from typing import Final

from dracaena.api.config.v1alpha1 import NicAlignment, NodeStrategy, NumaAlignment, Objective, Siblings, TopologyPolicy

GROUP_SIZES: Final = (8, 4, 2)
"""Sizes of the groups whose loss is damage, in the order in which they count: most jobs ask for a power of two, and a
whole box is the hardest to get back."""

SHARE_PARTS: Final = 1_000
"""Resolution of bandwidth ÷ ideal between nodes: a job does not notice less."""

PRICE_UNITS: Final = 64
"""The share in Prices that stands for all GPUs that pods ask for."""

NEAR_SHARE_UNITS: Final = 1
"""Shares that differ by no more count as the same. A few percent of the GPUs that pods of 8 ask for decide whether pods
of 4 leave NVSwitches to them."""

NEAR_USUAL_UNITS: Final = 4
"""The same for the usual bandwidth, in 1 / PRICE_UNITS of it: a sixteenth."""

LATER_BY_NAME: Final = "equal, and later by name"
"""What is said about a node that is equal in all parts."""

PART_BITS: Final = 48
"""Bits of a part of a rank: even kB/s would fit."""
_HALF: Final = 1 << (PART_BITS - 1)


@dataclass(frozen=True, slots=True)
class Prices:
    """What GPUs are worth to other pods (docs/design/choice-of-node.md). By GROUP_SIZES."""

    shares: tuple[int, int, int]
    """The share of pods of this size in the GPUs that pods ask for; in PRICE_UNITS, together at most all of them."""
    usual_gb_s: tuple[int, int, int]
    """The best bandwidth that an empty node has for such a pod, averaged over all nodes; at least 1."""

    def usual_of(self, gpus: int) -> int:
        """Return the usual bandwidth of a pod of any size: that of the next larger group, or of the largest."""
        return next((usual for size, usual in self._ascending() if gpus <= size), self.usual_gb_s[0])

    def is_near(self, other: Prices | None) -> bool:
        """Return whether prices are about the same; the current prices, and the choices made by them, then stay."""
        if other is None:
            return False
        shares = zip(self.shares, other.shares, strict=True)
        usual = zip(self.usual_gb_s, other.usual_gb_s, strict=True)
        return all(abs(mine - theirs) <= NEAR_SHARE_UNITS for mine, theirs in shares) and all(
            abs(mine - theirs) * PRICE_UNITS <= mine * NEAR_USUAL_UNITS for mine, theirs in usual
        )

    def _ascending(self) -> Iterable[tuple[int, int]]:
        return zip(reversed(GROUP_SIZES), reversed(self.usual_gb_s), strict=True)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a pod's family finds around a node (docs/design/choice-of-node.md).

    Steps are counted from the node up: 0 is its NVLink domain (its clique, or the node if it is in none), 1 the lowest
    of TopologyLevels, and the last, after the topmost, the cluster.
    """

    sibling_steps: int = 0
    """To the nearest level at which other pods of the family are in the node's domain. Less is better."""
    sibling_pods: int = 0
    """How many are in that domain; 0 for the cluster. More are better."""
    room_steps: int = 0
    """To the nearest level at which the node's domain has room for all pods of the family still to be placed; to the
    cluster if none has, or if nobody says how many they are. Less is better."""
    room_pods: int = 0
    """Pods like this one that this domain has free GPUs for; 0 for the cluster. Fewer are better."""
    near_room_pods: int = 0
    """The same for the smallest domain with other nodes. More are better."""

    def rank(self) -> tuple[int, ...]:
        """Return a key that sorts nodes best first. One value for each of FAMILY_PARTS."""
        return self.sibling_steps, -self.sibling_pods, self.room_steps, self.room_pods, -self.near_room_pods

    def parts(self) -> tuple[int, ...]:
        """Return FAMILY_PARTS as people read them."""
        return self.sibling_steps, self.sibling_pods, self.room_steps, self.room_pods, self.near_room_pods


NO_OUTLOOK: Final = Outlook()

FAMILY_PARTS: Final = ("sibling_steps", "sibling_pods", "room_steps", "room_pods", "near_room_pods")
"""What an Outlook adds to a score."""


@dataclass(frozen=True, slots=True)
class Order:
    """Which parts of a score count, and in which order."""

    objective: Objective = Objective.BANDWIDTH
    node_strategy: NodeStrategy = NodeStrategy.PACK
    numa_counts: bool = True
    nic_counts: bool = True
    prices: Prices | None = None
    """None: nodes compare as sets of one node do, and last by their free GPUs."""
    has_family: bool = False
    """Whether FAMILY_PARTS count: after what the pod itself gains minus what others lose in whole GPUs. What a policy
    says about nodes comes first."""
    node_names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Names of the parts that compare nodes, in the order in which they count. Equal nodes go by name."""
    set_names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Names of the parts that compare the sets of one node, in the order in which they count."""
    of_node: Callable[[tuple[int, ...]], tuple[int, ...]] = field(init=False, repr=False, compare=False)
    """Picks the values that compare nodes out of one value for each of PARTS. Made once: every compared choice is
    ranked."""
    of_set: Callable[[tuple[int, ...]], tuple[int, ...]] = field(init=False, repr=False, compare=False)
    """Picks the values that compare sets."""

    def __post_init__(self) -> None:
        set_names = self._set_names()
        node_names = self._node_names()
        if self.objective is not Objective.PACK:
            last = () if "free_gpus" in node_names else ("free_gpus",)
            node_names = tuple(dict.fromkeys((*node_names, *set_names, *last)))
        object.__setattr__(self, "set_names", set_names)
        object.__setattr__(self, "node_names", node_names)
        object.__setattr__(self, "of_set", itemgetter(*map(PARTS.index, set_names)))
        object.__setattr__(self, "of_node", itemgetter(*map(PARTS.index, node_names)))

    def _node_names(self) -> tuple[str, ...]:
        """Return the parts that compare nodes before those of their sets do. Under Pack the latter do not count: pods
        that go to the first of many nodes empty the last ones."""
        family = FAMILY_PARTS if self.has_family else ()
        if self.objective is Objective.PACK:
            return ("free_gpus", "net_gain_gpus", "bandwidth_percent_of_ideal", *family)
        if self.node_strategy is NodeStrategy.SPREAD:
            return ("bandwidth_gb_s", "ring_gb_s", "free_gpus", *family)
        if self.prices is None:
            return ("bandwidth_gb_s", "ring_gb_s", *family) if family else ()
        return ("net_gain_gpus", "bandwidth_percent_of_ideal", *family, "free_gpus", "loss_milligpus")

    def _set_names(self) -> tuple[str, ...]:
        damage = (*(f"damage_{size}_gb_s" for size in GROUP_SIZES), "damage_ring_gb_s")
        names = ("bandwidth_gb_s", "ring_gb_s", *damage, "bound_level", "worst_pair_gb_s", "damage_levels")
        if self.numa_counts:
            names += ("numa_nodes",)
        names += ("pair_sum_gb_s", "worst_level")
        return (*names, "nic_levels") if self.nic_counts else names


PARTS: Final = (
    "net_gain_gpus",
    "bandwidth_percent_of_ideal",
    "free_gpus",
    "loss_milligpus",
    *FAMILY_PARTS,
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
)
"""Names of all parts of a score, each ending with its unit. An Order says which of them count, and when."""

_NODE_PARTS: Final = 4
"""The first of these parts, which say what a set means for a node."""

_NO_DAMAGE: Final = (0,) * (len(GROUP_SIZES) + 1)
"""By size, and by rings."""

DEFAULT_ORDER: Final = Order()


@lru_cache(64)
def with_family(order: Order) -> Order:
    """Return the order for a pod of a family."""
    return replace(order, has_family=True)


def follows_siblings(policies: Iterable[TopologyPolicy]) -> bool:
    """Return whether siblings count for a pod, according to the first of its requests' policies that says so or not."""
    return next((policy.siblings for policy in policies if policy.siblings), None) is not Siblings.IGNORED


def order_of(policies: Iterable[TopologyPolicy], prices: Prices | None = None) -> Order:
    """Return the order for a pod, each field according to the first of its requests' policies that sets it."""
    asked = tuple(policies)
    objective = next((policy.objective for policy in asked if policy.objective), Objective.BANDWIDTH)
    node_strategy = next((policy.node_strategy for policy in asked if policy.node_strategy), NodeStrategy.PACK)
    numa = next((policy.numa_alignment for policy in asked if policy.numa_alignment), None)
    nic = next((policy.nic_alignment for policy in asked if policy.nic_alignment), None)
    return Order(
        objective=objective,
        node_strategy=node_strategy,
        numa_counts=numa is not NumaAlignment.IGNORED,
        nic_counts=nic is not NicAlignment.IGNORED,
        prices=prices,
    )


@dataclass(frozen=True, slots=True)
class Score:
    """What taking a set is worth on one node. Whole numbers, so equal sets never differ by rounding.

    Compare with `>`: greater is better. Scores of one Order are comparable, even between nodes.
    """

    bandwidth_gb_s: int
    """Rate of a collective over the set, whole GB/s one way (collective.collective). More is better; 0 for one GPU."""
    ring_gb_s: int
    """The slowest hop of the best ring through the set (ClassTable.ring_kb_s), whole GB/s one way. More is better; 0
    for one GPU."""
    ideal_gb_s: int
    """The greatest bandwidth of a set of this size on the node when all its GPUs are free; 0 for one GPU, and if there
    are too many sets to compare."""
    damage_gb_s: tuple[int, int, int]
    """For groups of 8, 4 and 2: by how much the greatest total bandwidth of disjoint groups among the free GPUs of the
    node falls when the set is taken. Less is better."""
    damage_ring_gb_s: int
    """The sum of what the best rings of the groups of 8 and 4 lose. Less is better."""
    bound_level: int
    """LinkLevel of the pair that bounds the bandwidth, 0 if NVLinks carry it or there is one GPU: it distinguishes
    levels of equal bandwidth. Less is better."""
    damage_levels: int
    """The same damage in levels: all steps of bound_level that the groups of 8, 4 and 2 lose. Less is better."""
    numa_nodes: int
    """NUMA nodes spanned, unknown ones counting as one. Less is better."""
    nic_distance: int
    """Sum over the GPUs of the level to their nearest NIC in steps: PSB 0, PIX 1, … SYS and unknown 5. Less is
    better."""
    pair_sum_gb_s: int
    """Sum over all pairs, each over its better network: what all-to-all traffic sees. More is better."""
    worst_pair_gb_s: int
    """The slowest pair over its better network; 0 for one GPU. More is better."""
    worst_level: int
    """LinkLevel of the worst pair, 0 for a pair with NVLinks and for one GPU. Less is better."""
    gpus: int
    """GPUs of the set. All compared sets have the same number, except for those that the pod already holds."""
    taken_gpus: int
    """How many of them are taken now."""
    free_gpus: int
    """Free GPUs of the node before the set is taken. Fewer are better (nodeStrategy Spread: more)."""
    order: Order = DEFAULT_ORDER
    outlook: Outlook = NO_OUTLOOK
    """The outlook of the node's domain, for a pod of a family."""

    @property
    def net_gain_gpus(self) -> int:
        """What the pod gains on this node minus what others lose there (loss_milligpus), in GPUs at the bandwidth that
        is usual in this cluster for its size, rounded to the nearest whole GPU. More is better. One GPU gains nothing.
        0 without prices.
        """
        prices = self.order.prices
        if prices is None:
            return 0
        gain_milligpus = 1_000 * self.gpus * self.bandwidth_gb_s // prices.usual_of(self.gpus)
        return (gain_milligpus - self.loss_milligpus + 500) // 1_000

    @property
    def loss_milligpus(self) -> int:
        """What other pods can be expected to lose on this node, in thousandths of a GPU at the usual bandwidth: the
        bandwidth of the groups that are no longer possible, and the places for such groups, weighted by the shares of
        GPUs that pods of 8, 4 and 2 ask for. Less is better. 0 without prices.
        """
        prices = self.order.prices
        if prices is None:
            return 0
        left = self.free_gpus - self.taken_gpus
        loss = 0
        for place, size in enumerate(GROUP_SIZES):
            places = self.free_gpus // size - left // size
            lost = 1_000 * self.damage_gb_s[place] // prices.usual_gb_s[place] + 1_000 * places
            loss += prices.shares[place] * size * lost
        return loss // PRICE_UNITS

    def node_rank(self) -> tuple[int, ...]:
        """Return a key that sorts the choices of several nodes best first, among scores of one order."""
        return self.order.of_node(_values(self))

    def rank(self) -> tuple[int, ...]:
        """Return a key that sorts the sets of one node best first, among scores of one order."""
        return self.order.of_set(_values(self))

    def best_node_rank(self) -> tuple[int, ...]:
        """Return a key that no set of the node with at most this bandwidth sorts before: as if it did no damage."""
        unharmed = _values(replace(self, damage_gb_s=(0, 0, 0), taken_gpus=0))
        return self.order.of_node((*unharmed[:_NODE_PARTS], *_values(self)[_NODE_PARTS:]))

    def __lt__(self, other: Score) -> bool:
        return self.node_rank() > other.node_rank()

    def parts(self) -> tuple[tuple[str, int], ...]:
        """Return the parts that count, each once: first those that compare nodes, then those that compare sets. Each
        name ends with its unit."""
        shown = (
            self.net_gain_gpus,
            _share(self.bandwidth_gb_s, self.ideal_gb_s, 100),
            self.free_gpus,
            self.loss_milligpus,
            *self.outlook.parts(),
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
        )
        values = dict(zip(PARTS, shown, strict=True))
        return tuple((name, values[name]) for name in dict.fromkeys((*self.order.node_names, *self.order.set_names)))

    def first_difference(self, other: Score, *, on_one_node: bool = False) -> str | None:
        """Return the name of the first part in which two scores of one order differ; None when they are equal.
        `on_one_node`: only among the parts that compare sets."""
        if on_one_node:
            compared = zip(self.order.set_names, self.rank(), other.rank(), strict=True)
        else:
            compared = zip(self.order.node_names, self.node_rank(), other.node_rank(), strict=True)
        return next((name for name, mine, theirs in compared if mine != theirs), None)


def _values(score: Score) -> tuple[int, ...]:
    """Return a value for each of PARTS; less is better."""
    is_spread = score.order.objective is not Objective.PACK and score.order.node_strategy is NodeStrategy.SPREAD
    return (
        -score.net_gain_gpus,
        -_share(score.bandwidth_gb_s, score.ideal_gb_s, SHARE_PARTS),
        -score.free_gpus if is_spread else score.free_gpus,
        score.loss_milligpus,
        *score.outlook.rank(),
        -score.bandwidth_gb_s,
        -score.ring_gb_s,
        *score.damage_gb_s,
        score.damage_ring_gb_s,
        score.bound_level,
        -score.worst_pair_gb_s,
        score.damage_levels,
        score.numa_nodes,
        -score.pair_sum_gb_s,
        score.worst_level,
        score.nic_distance,
    )


def own_values(score: Score) -> tuple[int, ...]:
    """Return a value for each of PARTS that says what the pod has, and 0 for those that say what others lose or what
    node it is; less is better."""
    return (
        0,
        -_share(score.bandwidth_gb_s, score.ideal_gb_s, SHARE_PARTS),
        0,
        0,
        *score.outlook.rank(),
        -score.bandwidth_gb_s,
        -score.ring_gb_s,
        *_NO_DAMAGE,
        score.bound_level,
        -score.worst_pair_gb_s,
        0,
        score.numa_nodes,
        -score.pair_sum_gb_s,
        score.worst_level,
        score.nic_distance,
    )


def values_together(pods: Sequence[Score], node: Score) -> tuple[int, ...]:
    """Return a value for each of PARTS for pods that take their sets from one node at once; less is better. What they
    have adds up, and what others lose counts once: for one pod the values are those of its score.

    `pods`: the score of each; `node`: that of taking all sets together, which says what others lose.
    """
    own, lost = [sum(column) for column in zip(*map(own_values, pods), strict=True)], _values(node)
    prices, free, each_free = node.order.prices, node.free_gpus, 0
    for pod in pods:  # a pod finds the GPUs taken that those before it have
        each_free, free = each_free + free, free - pod.gpus
    values = dict(zip(PARTS, own, strict=True))
    others = dict(zip(PARTS, lost, strict=True))
    for name in PARTS:
        if name.startswith("damage") or name == "loss_milligpus":
            values[name] = others[name]
    values["free_gpus"] = each_free if others["free_gpus"] >= 0 else -each_free
    if prices is not None:
        gain_milligpus = sum(1_000 * pod.gpus * pod.bandwidth_gb_s // prices.usual_of(pod.gpus) for pod in pods)
        values["net_gain_gpus"] = -((gain_milligpus - node.loss_milligpus + 500) // 1_000)
    return tuple(values.values())


def _share(gb_s: int, ideal_gb_s: int, whole: int) -> int:
    """Return a bandwidth ÷ its ideal, `whole` being all of it; 0 without an ideal."""
    return gb_s * whole // ideal_gb_s if ideal_gb_s else 0


def one_number(rank: Iterable[int]) -> int:
    """Return a number that sorts as the parts do, in their order; all ranks must have the same number of parts."""
    number = 0
    for part in rank:
        assert abs(part) < _HALF, "a part of a rank is below 2^47"
        number = (number << PART_BITS) + part + _HALF
    return number


def bits_behind_family(order: Order) -> int:
    """Return how many bits of one_number() of a node's rank come after FAMILY_PARTS, under with_family(order)."""
    names = with_family(order).node_names
    return PART_BITS * (len(names) - 1 - names.index(FAMILY_PARTS[-1]))


def widened(number: int, bits_behind: int, outlook: int) -> int:
    """Return one_number() of a node's rank under with_family(order): `number` is that under `order`, `outlook` that of
    Outlook.rank(). Cost: a step, where ranking the score takes twenty."""
    before = number >> bits_behind
    behind = number & (1 << bits_behind) - 1
    return (before << PART_BITS * len(FAMILY_PARTS) | outlook) << bits_behind | behind


def first_difference(one: int, other: int) -> int | None:
    """Return the first part in which two ranks differ, as a place from the end with 0 for the last; None: no part.

    Cost: a step, where comparing the parts takes twenty.
    """
    different = one ^ other
    return (different.bit_length() - 1) // PART_BITS if different else None


def first_differences(one: int, others: Sequence[int]) -> Iterator[tuple[int | None, int, int]]:
    """Yield each first_difference() from ascending ranks, none of which comes before `one`, with the begin and the end
    of the ranks that have it. Cost: a search for each part."""
    start = 0
    while start < len(others):
        place = first_difference(one, others[start])
        bits = 0 if place is None else PART_BITS * (place + 1)  # the parts before these are equal
        end = bisect_left(others, ((one >> bits) + 1) << bits, start)
        yield place, start, end
        start = end
