"""The hardware of one node as far as a choice depends on it: the class of a node. Nodes of one model share one Box.

First comes the box with the links and rates of its GPUs (nominal_rates looks them up), then which GPUs can change
places, last which sets a policy lets a request have (meanings: api.config.v1alpha1).

Two GPUs are interchangeable when every third GPU, and all else that counts, is the same to both: most boxes are built
of a few kinds. A set's worth depends only on how many GPUs of each kind it holds, and of all sets with equal numbers
the one with the lowest ordinals stands for the others. That makes switched boxes and PCIe trees of any size cheap, and
exact, without special cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import combinations
from typing import Final, Protocol

from dracaena.api.config.v1alpha1 import NicAlignment, NumaAlignment, Requirement, TopologyPolicy
from dracaena.api.groups import lowest_in_group
from dracaena.api.links import Link, LinkLevel
from dracaena.api.topology import Topology

KB_S_PER_GB_S: Final = 1_000_000

MAX_LINKED: Final = 1_024
"""Boxes with one active partition: 16 for each of 64 models. An HGX of 8 has 7 partitions of several GPUs."""


@dataclass(frozen=True, slots=True)
class GpuRates:
    """What the worth of one GPU's links depends on."""

    nvlink_kb_s: int
    """Of one NVLink."""
    pcie_kb_s: int
    """Of all its PCIe lanes."""
    nvlinks: int
    """Its NVLinks to anywhere; if unknown, the most that it can have."""


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """Links and rates by ordinal (rank by PCI address). In equal boxes every choice is worth the same.

    Canonical: names and numbers that no choice depends on are gone. Boxes whose GPUs are linked alike but numbered
    differently remain two boxes. Sets of GPUs are bit masks over ordinals. The hash is computed once, because boxes are
    keys of tables that are looked up for every node.
    """

    topology: Topology
    """NUMA nodes numbered from 0 in the order of their first GPU, no NICs."""
    gpus: tuple[GpuRates, ...]
    nic_levels: tuple[LinkLevel | None, ...]
    """Level from each GPU to its nearest NIC; None: no NIC, or unknown."""
    partitions: tuple[int, ...] = ()
    """The sets of GPUs that Fabric Manager can link, including those of one GPU, ascending. The GPUs of one claim are
    linked if they are one of these sets, and only by PCIe if not; `topology` then has no NVLinks. Empty: the links of
    `topology` exist for any set of holders (docs/design/fabric-partitions.md)."""
    wired: Topology | None = None
    """With `partitions`: `topology` plus the NVLinks inside them."""
    switched: int = field(init=False)
    """The GPUs whose NVLinks end at switches: each pair of them shows a GPU's whole count, one uplink for all peers."""
    nvlink_peers: tuple[int, ...] = field(init=False)
    """For each GPU the mask of the GPUs that NVLinks join to it."""
    _hash: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        peers = tuple(mask_of(self.topology.nvlink_peers(ordinal)) for ordinal in range(self.gpu_count))
        object.__setattr__(self, "nvlink_peers", peers)
        object.__setattr__(self, "switched", _switched(self.topology, self.gpus))
        object.__setattr__(self, "_hash", hash(self._content()))

    @property
    def gpu_count(self) -> int:
        """GPUs of the node, published or not."""
        return self.topology.gpu_count

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Box):
            return NotImplemented
        return self._hash == other._hash and self._content() == other._content()

    def _content(self) -> tuple[object, ...]:
        return self.topology, self.gpus, self.nic_levels, self.partitions, self.wired

    def linked(self, mask: int) -> Box:
        """Return the box as its GPUs are linked when one claim has exactly this set: this box, except with
        `partitions`."""
        if self.wired is None:
            return self
        return _linked(self, mask if mask in self.partitions else 0)

    def can_have(self, mask: int) -> bool:
        """Return whether the GPUs of a set work in one claim: as one partition, or each as a partition of its own."""
        partitions = self.partitions
        return not partitions or mask in partitions or all(1 << gpu in partitions for gpu in ordinals_of(mask))

    def check(self) -> None:
        """State the invariants; raise TopologyError or AssertionError at the first that does not hold."""
        self.topology.check()
        count = self.gpu_count
        assert len(self.gpus) == len(self.nic_levels) == count, "one entry a GPU"
        assert self.topology == canonical(self.topology), "the topology is canonical"
        assert self.switched >> count == 0, "only GPUs of the box are behind switches"
        assert self.partitions == tuple(sorted(set(self.partitions))), "each partition once, in order"
        assert bool(self.partitions) == (self.wired is not None), "links inside of partitions, where there are some"
        assert self.wired is None or self.topology == without_nvlinks(self.wired), "nothing else tells them apart"


@lru_cache(MAX_LINKED)
def _linked(box: Box, active: int) -> Box:
    """Return a box with `partitions` as a box without them, while one partition is active; 0: none is."""
    assert box.wired is not None
    inside = [1 << a | 1 << b for a, b in combinations(range(box.gpu_count), 2)]
    pairs = zip(inside, box.wired.pairs, box.topology.pairs, strict=True)
    links = tuple(link if active & pair == pair else idle for pair, link, idle in pairs)
    return replace(box, topology=replace(box.topology, pairs=links), partitions=(), wired=None)


def without_nvlinks(topology: Topology) -> Topology:
    """Return the links over PCIe only."""
    return replace(topology, pairs=tuple(replace(link, nvlinks=0) for link in topology.pairs))


def canonical(topology: Topology) -> Topology:
    """Return links without what no choice depends on: NICs, and the numbering of NUMA nodes."""
    numbers: dict[int, int] = {}
    for numa_node in topology.numa_nodes:
        if numa_node is not None:
            numbers.setdefault(numa_node, len(numbers))
    numa_nodes = tuple(None if known is None else numbers[known] for known in topology.numa_nodes)
    return replace(topology, numa_nodes=numa_nodes, nics=())


def _switched(topology: Topology, gpus: Sequence[GpuRates]) -> int:
    """Return the GPUs of each NVLink group in which the pairs of some GPU show more links than that GPU has.

    Those cannot be separate links. A group is switched as a whole: a GPU with two peers left may show no more links
    than it has, though they end at the same switches. A second group of the box may well be a mesh.
    """
    ordinals = range(topology.gpu_count)
    joins = [(ordinal, peer) for ordinal in ordinals for peer in topology.nvlink_peers(ordinal)]
    lowest = lowest_in_group(topology.gpu_count, joins)
    groups = {
        lowest[ordinal]
        for ordinal in ordinals
        if sum(topology.link(ordinal, peer).nvlinks or 0 for peer in topology.nvlink_peers(ordinal))
        > gpus[ordinal].nvlinks
    }
    return mask_of(ordinal for ordinal in ordinals if lowest[ordinal] in groups)


def kb_s(gb_s: float) -> int:
    """Return a figure of a policy in whole kB/s."""
    return round(gb_s * KB_S_PER_GB_S)


def mask_of(ordinals: Iterable[int]) -> int:
    """Return the bit mask of a set of ordinals."""
    mask = 0
    for ordinal in ordinals:
        mask |= 1 << ordinal
    return mask


_LOW = tuple(tuple(bit for bit in range(8) if byte >> bit & 1) for byte in range(256))
_HIGH = tuple(tuple(bit + 8 for bit in ordinals) for ordinals in _LOW)


def ordinals_of(mask: int) -> tuple[int, ...]:
    """Return the ordinals of a bit mask, ascending."""
    if mask < 1 << 16:  # every box on sale; called for each candidate
        return _LOW[mask & 255] + _HIGH[mask >> 8]
    return tuple(ordinal for ordinal in range(mask.bit_length()) if mask >> ordinal & 1)


def connected(near: Sequence[int], mask: int) -> bool:
    """Return whether each GPU of a set can be reached from every other through GPUs of the set alone. Cost: O(k).

    `near`: for each GPU the mask of the GPUs one step away.
    """
    return reached_from(mask & -mask, near, mask) == mask


def reached_from(first: int, near: Sequence[int], mask: int) -> int:
    """Return the GPUs of a set that can be reached from some of them, these included, through GPUs of the set alone.
    Cost: O(k). `near` as in connected()."""
    reached = grown = first
    while grown:
        around = 0
        for ordinal in ordinals_of(grown):
            around |= near[ordinal]
        grown = around & mask & ~reached
        reached |= grown
    return reached


def interchangeable(box: Box) -> tuple[int, ...]:
    """Return the kinds of GPUs as masks, in the order of their lowest ordinals. Cost: O(GPUs³).

    Being interchangeable is transitive: a swaps with b and b with c, so a with c by three swaps.
    """
    kinds: list[list[int]] = []
    for ordinal in range(box.gpu_count):
        for kind in kinds:
            if _can_swap(box, kind[0], ordinal):
                kind.append(ordinal)
                break
        else:
            kinds.append([ordinal])
    return tuple(map(mask_of, kinds))


def _can_swap(box: Box, a: int, b: int) -> bool:
    link = box.topology.link
    return (
        box.gpus[a] == box.gpus[b]
        and box.topology.numa_nodes[a] == box.topology.numa_nodes[b]
        and box.nic_levels[a] == box.nic_levels[b]
        and all(link(a, other) == link(b, other) for other in range(box.gpu_count) if other not in (a, b))
        and (box.wired is None or _can_swap_in_partitions(box, box.wired, a, b))
    )


def _can_swap_in_partitions(box: Box, wired: Topology, a: int, b: int) -> bool:
    both = 1 << a | 1 << b
    swapped = (mask if mask & both in (0, both) else mask ^ both for mask in box.partitions)
    others = (other for other in range(box.gpu_count) if other not in (a, b))
    return set(swapped) == set(box.partitions) and all(wired.link(a, one) == wired.link(b, one) for one in others)


def refined(kinds: Sequence[int], masks: Sequence[int]) -> tuple[int, ...]:
    """Split kinds so that the GPUs of one kind are all inside or all outside of each mask."""
    parts = tuple(kinds)
    for mask in masks:
        parts = tuple(part for kind in parts for part in (kind & mask, kind & ~mask) if part)
    return parts


def canonical_mask(kinds: Sequence[int], mask: int) -> int:
    """Return the set that stands for all sets with as many GPUs of each kind: the lowest of each."""
    for kind in kinds:
        inside = mask & kind
        if inside and inside != kind:
            mask = mask & ~kind | lowest_of(kind, inside.bit_count())
    return mask


def lowest_of(mask: int, count: int) -> int:
    """Return the `count` lowest members of a set."""
    lowest = 0
    for _ in range(count):
        bit = mask & -mask
        lowest |= bit
        mask ^= bit
    return lowest


def representatives(kinds: Sequence[int], free: int, count: int) -> Iterator[int]:
    """Yield one set of `count` free GPUs for each combination of numbers per kind: the lowest GPUs of each kind."""
    inside = [kind & free for kind in kinds if kind & free]
    singles = [kind for kind in inside if not kind & (kind - 1)]
    shared = [kind for kind in inside if kind & (kind - 1)]
    for taken, mask in _shares(shared, count):
        # Distinct bits sum up to their mask; map and combinations do that without running our code.
        yield from (mask | rest for rest in map(sum, combinations(singles, count - taken)))


def _shares(kinds: Sequence[int], count: int) -> Iterator[tuple[int, int]]:
    """Yield (GPUs taken, their mask) for each way to take up to `count` of the kinds, the lowest of each."""
    if not kinds:
        yield 0, 0
        return
    first, rest = kinds[0], kinds[1:]
    for number in range(min(count, first.bit_count()) + 1):
        mask = lowest_of(first, number)
        for taken, others in _shares(rest, count - number):
            yield number + taken, mask | others


def equals(kinds: Sequence[int], free: int, representative: int) -> Iterator[tuple[int, ...]]:
    """Yield the ordinals of every set that a representative stands for, itself first, in the order of the ordinals."""
    if not any(kind & free & representative and kind & free & ~representative for kind in kinds):
        # It has all or none of each kind.
        yield ordinals_of(representative)
        return
    kind_of = {ordinal: place for place, kind in enumerate(kinds) for ordinal in ordinals_of(kind & free)}
    wanted = [(kind & representative).bit_count() for kind in kinds]
    left = [(kind & free).bit_count() for kind in kinds]
    ordinals = sorted(kind_of)

    def walk(place: int, taken: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(taken) == representative.bit_count():
            yield taken
            return
        ordinal = ordinals[place]
        kind = kind_of[ordinal]
        left[kind] -= 1
        if wanted[kind]:
            wanted[kind] -= 1
            yield from walk(place + 1, (*taken, ordinal))
            wanted[kind] += 1
        if left[kind] >= wanted[kind]:
            yield from walk(place + 1, taken)
        left[kind] += 1

    yield from walk(0, ())


class Bandwidths(Protocol):
    """What the sets of GPUs of one box can carry (class_table.ClassTable)."""

    @property
    def box(self) -> Box:
        """The box."""

    @property
    def twins(self) -> tuple[int, ...]:
        """Masks of GPUs of which any two can change places."""

    def kb_s(self, mask: int) -> int:
        """Return the bandwidth of a collective."""

    def most_kb_s(self, mask: int) -> int:
        """Return an upper bound of a set's bandwidth, at a fraction of its cost."""


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

    table: Bandwidths
    eligible: int
    """GPUs that it may have at all."""
    peers: tuple[int, ...] | None
    """For each GPU the mask of the GPUs that it may share a set with, itself included; None: any."""
    nvlink: bool
    """Whether the NVLink graph of the set must be connected."""
    least_kb_s: int
    """Least bandwidth of two or more GPUs."""

    @property
    def any_set(self) -> bool:
        """Whether any set of eligible GPUs is allowed."""
        return self.peers is None and not self.nvlink and not self.least_kb_s

    def whole(self, mask: int) -> tuple[int] | None:
        """Return the set as the part of a lone request, or None if it may not have the set (Splitter.split)."""
        return (mask,) if self.allows(mask) else None

    def allows(self, mask: int) -> bool:
        """Return whether a set follows the rule; a single GPU only has to be eligible. Cost: O(k) look-ups."""
        if mask & ~self.eligible:
            return False
        if self.any_set or not mask & (mask - 1):
            return True
        if self.peers is not None and any(mask & ~self.peers[ordinal] for ordinal in ordinals_of(mask)):
            return False
        if self.nvlink and not nvlink_connected(self.table.box, mask):
            return False
        # The bound costs less and mostly decides.
        return not self.least_kb_s or (
            self.table.most_kb_s(mask) >= self.least_kb_s and self.table.kb_s(mask) >= self.least_kb_s
        )


def make_rule(table: Bandwidths, policy: TopologyPolicy, eligible: int) -> SetRule:
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
    """Return whether the NVLink graph of just the GPUs of a set is connected. Cost: O(k)."""
    return connected(box.nvlink_peers, mask)


def rule_words(policy: TopologyPolicy) -> str:
    """Return what a policy demands as a user would write it, for example `requirement NVLink, minBandwidth 100`."""
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
