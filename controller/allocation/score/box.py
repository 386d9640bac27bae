"""The hardware of one node as far as a choice depends on it: the class of a node. Nodes of one model share one Box.

First what links are worth, then the box with the links and rates of its GPUs, then which of them can change places.

Rates are nominal figures, one way, that order sets of GPUs; no measurements. All are whole kB/s, so that sums and
comparisons are exact. Sources of the figures:
[P100] NVIDIA Tesla P100 whitepaper: 4 links, 160 GB/s both ways. [V100] Tesla V100 whitepaper: 6 links, 300 GB/s.
[A100] A100 whitepaper: 12 links, 600 GB/s; A800 has 8 of the same links (`NV8`). [GA102] Ampere GA102 whitepaper:
4 links of 14.0625 GB/s. [H100] H100 whitepaper: 18 links, 900 GB/s. [B200] DGX B200 data sheet: 18 links, 1,800 GB/s.
[Rubin] announced: 36 links, 3,600 GB/s. Pages that give 50 GB/s a link for NVLink 4 count both ways.
[PCIe] per lane after encoding: 8b/10b to generation 2, 128b/130b from 3, FLIT with FEC for 6.
[Levels] transfers between GPUs over one PCIe 5.0 switch, one socket and two sockets reach 50-56, 53-56 and 38-51 of
63 GB/s (github.com/local-inference-lab/rtx6kpro).

Two GPUs are interchangeable when every third GPU, and all else that counts, is the same to both: most boxes are built
of a few kinds. Only how many of each kind a set holds tells its worth, and of all sets that are equal in this the one
with the lowest ordinals stands for the others. That makes switched boxes and PCIe trees of any size cheap, exactly and
without a case of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import combinations
from typing import Final

from dracaena.api.groups import lowest_in_group
from dracaena.api.links import UNKNOWN_LINK, Link, LinkLevel
from dracaena.api.machine import Gpu
from dracaena.api.topology import Nic, Topology

KB_S_PER_GB_S: Final = 1_000_000

MAX_BOXES: Final = 64
"""Node models whose links are kept in words: clusters have a handful."""


@dataclass(frozen=True, slots=True)
class NvlinkFigures:
    """What one product's NVLinks are."""

    kb_s: int
    """Of one link, one way."""
    links: int
    """Most that a GPU of this kind has."""


NVLINK_BY_GENERATION: Final = {
    1: NvlinkFigures(20_000_000, 4),  # [P100]
    2: NvlinkFigures(25_000_000, 6),  # [V100]; Turing cards have 1 or 2 of them
    3: NvlinkFigures(25_000_000, 12),  # [A100]
    4: NvlinkFigures(25_000_000, 18),  # [H100]
    5: NvlinkFigures(50_000_000, 18),  # [B200]
    6: NvlinkFigures(50_000_000, 36),  # [Rubin]
}

GA102_NVLINK: Final = NvlinkFigures(14_062_500, 4)
"""[GA102] These cards report generation 3 as the A100 does; product and compute capability tell them apart."""
GA102_CAPABILITY: Final = "8.6"
GA102_PRODUCTS: Final = frozenset({"A40", "3090", "A4500", "A5000", "A5500", "A6000"})
"""Words by which the names of GA102 cards with NVLinks are known, for example `NVIDIA GeForce RTX 3090 Ti`."""

GENERATION_BY_ARCHITECTURE: Final = {"Pascal": 1, "Volta": 2, "Turing": 2, "Ampere": 3, "Hopper": 4, "Blackwell": 5}
"""For a GPU whose driver does not tell the generation."""

USUAL_NVLINK: Final = NvlinkFigures(25_000_000, 18)
"""For a GPU of which nothing is told: the rate of most generations, and the largest count that any GPU has in a mesh
without switches."""

PCIE_LANE_KB_S: Final = {1: 250_000, 2: 500_000, 3: 984_615, 4: 1_969_230, 5: 3_938_461, 6: 7_562_500}
"""[PCIe] One lane, one way, by generation."""
USUAL_PCIE_GENERATION: Final = 3
"""For a GPU that does not tell: a slow one, so that an unknown machine is never preferred for a guess."""
USUAL_PCIE_LANES: Final = 16
PCIE_LANES: Final = frozenset({1, 2, 4, 8, 12, 16, 32})

LEVEL_PERCENT: Final = {
    LinkLevel.PSB: 87,
    LinkLevel.PIX: 87,
    LinkLevel.PXB: 87,
    LinkLevel.PHB: 80,
    LinkLevel.NODE: 75,
    LinkLevel.SYS: 60,
}
"""[Levels] Share of the lanes' rate that a pair reaches. PSB, PIX and PXB measure alike; scores keep them apart behind
the figure (order.Score.bound_level)."""


@dataclass(frozen=True, slots=True)
class GpuRates:
    """What the worth of one GPU's links depends on."""

    nvlink_kb_s: int
    """Of one NVLink."""
    pcie_kb_s: int
    """Of all its PCIe lanes."""
    nvlinks: int
    """Its NVLinks to anywhere; where nobody told, the most that it can have."""


def gpu_rates(gpu: Gpu) -> GpuRates:
    """Look the figures of a GPU up; what is missing or impossible gets the usual one."""
    figures = nvlink_figures(gpu)
    lanes = gpu.pcie_width if gpu.pcie_width in PCIE_LANES else USUAL_PCIE_LANES
    lane_kb_s = PCIE_LANE_KB_S.get(gpu.pcie_generation or 0, PCIE_LANE_KB_S[USUAL_PCIE_GENERATION])
    told = gpu.nvlink_count
    return GpuRates(
        nvlink_kb_s=figures.kb_s,
        pcie_kb_s=lane_kb_s * (lanes or USUAL_PCIE_LANES),
        nvlinks=told if told is not None and told > 0 else figures.links,
    )


def nvlink_figures(gpu: Gpu) -> NvlinkFigures:
    """Return what a GPU's NVLinks are by its product, its generation or its architecture, in this order."""
    words = (gpu.product_name or "").replace("-", " ").split()
    if gpu.cuda_compute_capability == GA102_CAPABILITY or not GA102_PRODUCTS.isdisjoint(words):
        return GA102_NVLINK
    generation = gpu.nvlink_generation or GENERATION_BY_ARCHITECTURE.get(gpu.architecture or "", 0)
    return NVLINK_BY_GENERATION.get(generation, USUAL_NVLINK)


UNKNOWN_GPU_RATES: Final = gpu_rates(Gpu(uuid="", index=0))
"""Of a GPU whose device is not published."""


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """Links and rates by ordinal (rank by PCI address). Equal boxes: every choice among their GPUs is worth the same.

    Canonical: names and numbers that no choice depends on are gone. Boxes whose GPUs are linked alike but numbered
    differently stay two boxes. Sets of GPUs are bit masks over ordinals. The hash is computed once, because boxes are
    keys of tables that are looked up for every node.
    """

    topology: Topology
    """NUMA nodes numbered from 0 in the order of their first GPU, no NICs."""
    gpus: tuple[GpuRates, ...]
    nic_levels: tuple[LinkLevel | None, ...]
    """Level from each GPU to its nearest NIC; None: no NIC, or unknown."""
    switched: int = field(init=False)
    """The GPUs whose NVLinks end at switches: each pair of them shows a GPU's whole count, one uplink for all peers."""
    nvlink_peers: tuple[int, ...] = field(init=False)
    """For each GPU the mask of those that NVLinks join to it."""
    _hash: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        peers = tuple(mask_of(self.topology.nvlink_peers(ordinal)) for ordinal in range(self.gpu_count))
        object.__setattr__(self, "nvlink_peers", peers)
        object.__setattr__(self, "switched", _switched(self.topology, self.gpus))
        object.__setattr__(self, "_hash", hash((self.topology, self.gpus, self.nic_levels)))

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

    def _content(self) -> tuple[Topology, tuple[GpuRates, ...], tuple[LinkLevel | None, ...]]:
        return self.topology, self.gpus, self.nic_levels

    def check(self) -> None:
        """State the invariants; raise TopologyError or AssertionError at the first that does not hold."""
        self.topology.check()
        count = self.gpu_count
        assert len(self.gpus) == len(self.nic_levels) == count, "one entry a GPU"
        assert self.topology == _canonical(self.topology), "the topology is canonical"
        assert self.switched >> count == 0, "only GPUs of the box are behind switches"


def make_box(topology: Topology, gpus: Mapping[int, Gpu]) -> Box:
    """Build the box of a node from its links and its GPUs by ordinal; an ordinal may be missing."""
    ordinals = range(topology.gpu_count)
    return Box(
        topology=_canonical(topology),
        gpus=tuple(gpu_rates(gpus[ordinal]) if ordinal in gpus else UNKNOWN_GPU_RATES for ordinal in ordinals),
        nic_levels=tuple(_nearest_nic(topology, ordinal) for ordinal in ordinals),
    )


def _canonical(topology: Topology) -> Topology:
    numbers: dict[int, int] = {}
    for numa_node in topology.numa_nodes:
        if numa_node is not None:
            numbers.setdefault(numa_node, len(numbers))
    numa_nodes = tuple(None if known is None else numbers[known] for known in topology.numa_nodes)
    return replace(topology, numa_nodes=numa_nodes, nics=())


def _nearest_nic(topology: Topology, ordinal: int) -> LinkLevel | None:
    levels = [_nic_level(nic, ordinal, topology.numa_nodes[ordinal]) for nic in topology.nics]
    return min((level for level in levels if level is not None), default=None)


def _nic_level(nic: Nic, ordinal: int, numa_node: int | None) -> LinkLevel | None:
    """Return the level of a NIC; SYS is wrong where both have one NUMA node (GB200: the CPU link hides that)."""
    level = nic.levels[ordinal]
    same = numa_node is not None and numa_node == nic.numa_node
    return LinkLevel.NODE if same and level in (None, LinkLevel.SYS) else level


def _switched(topology: Topology, gpus: Sequence[GpuRates]) -> int:
    """Return the GPUs of each NVLink group in which the pairs of some GPU show more links than that GPU has.

    Those cannot be separate links. A group is switched as a whole: a GPU with two peers left may show no more than it
    has, though its links end at the same switches. A second group of the box may well be a mesh.
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
    if mask < 1 << 16:  # every box that is sold; asked for each candidate
        return _LOW[mask & 255] + _HIGH[mask >> 8]
    return tuple(ordinal for ordinal in range(mask.bit_length()) if mask >> ordinal & 1)


def connected(near: Sequence[int], mask: int) -> bool:
    """Return whether each GPU of a set can be reached from each other through GPUs of the set alone. Cost: O(k).

    `near`: for each GPU the mask of those that are one step away.
    """
    return reached_from(mask & -mask, near, mask) == mask


def reached_from(first: int, near: Sequence[int], mask: int) -> int:
    """Return the GPUs of a set that can be reached from some of it, themselves included, through GPUs of the set alone.
    Cost: O(k). `near` as in connected()."""
    reached = grown = first
    while grown:
        around = 0
        for ordinal in ordinals_of(grown):
            around |= near[ordinal]
        grown = around & mask & ~reached
        reached |= grown
    return reached


def links_in_words(box: Box, mask: int) -> str:
    """Return how a set is linked, best links first: `6 pairs NV12`, `1 pair PIX, 2 pairs PHB`, `one GPU`.

    Cost: one step for each pair of the box; the first time for a box the reading of them.
    """
    counted = Counter(token for pair, token in _tokens(box) if pair & mask == pair)
    if not counted:
        return "one GPU" if mask else "no GPU"
    return ", ".join(f"{count} pair{'s' if count > 1 else ''} {token}" for token, count in counted.items())


def worst_link(box: Box, mask: int) -> str:
    """Return what joins the worst pair of a set: `NVLink` however many, a PCIe level, `unknown`, or `none` for fewer
    than two GPUs. Cost: one step for each pair of the box."""
    last = next((token for pair, token in reversed(_tokens(box)) if pair & mask == pair), None)
    if last is None:
        return "none"
    if last == UNKNOWN_LINK.token:
        return "unknown"
    return last if last in LinkLevel.__members__ else "NVLink"


@lru_cache(MAX_BOXES)
def _tokens(box: Box) -> tuple[tuple[int, str], ...]:
    """Return each pair of a box as a mask, with the token of its link; the best links first."""
    pairs = combinations(range(box.gpu_count), 2)
    links = sorted(((box.topology.link(a, b), 1 << a | 1 << b) for a, b in pairs), key=_best_first)
    return tuple((pair, link.token) for link, pair in links)


def _best_first(pair: tuple[Link, int]) -> tuple[int, int]:
    link, unknown = pair[0], 1_000  # after every level
    return (-(link.nvlinks or 0), unknown if link.level is None else link.level)


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
    )


def refined(kinds: Sequence[int], masks: Sequence[int]) -> tuple[int, ...]:
    """Return kinds that are also alike in being inside or outside of each mask."""
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
    """Yield one set of `count` free GPUs for each way to take so many of each kind: the lowest of each."""
    inside = [kind & free for kind in kinds if kind & free]
    singles = [kind for kind in inside if not kind & (kind - 1)]
    shared = [kind for kind in inside if kind & (kind - 1)]
    for taken, mask in _shares(shared, count):
        # A set of different bits sums up to its mask; map and combinations do that without running our code.
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
        # Of each kind it has all or nothing.
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
