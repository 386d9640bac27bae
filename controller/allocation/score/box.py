"""The hardware of one node as far as a choice depends on it: the class of a node. Nodes of one model share one Box."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dracaena.api.groups import lowest_in_group
from dracaena.api.links import Link, LinkLevel
from dracaena.api.machine import Gpu
from dracaena.api.topology import Nic, Topology
from dracaena.controller.allocation.score.link_rates import UNKNOWN_GPU_RATES, GpuRates, gpu_rates


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


def links_among(box: Box, mask: int) -> tuple[Link, ...]:
    """Return the links of all pairs of a set, in the order of the pairs."""
    ordinals = ordinals_of(mask)
    return tuple(box.topology.link(a, b) for place, a in enumerate(ordinals) for b in ordinals[place + 1 :])


def links_in_words(box: Box, mask: int) -> str:
    """Return how a set is linked, best links first: `6 pairs NV12`, `1 pair PIX, 2 pairs PHB`, `one GPU`."""
    links = links_among(box, mask)
    if not links:
        return "one GPU" if mask else "no GPU"
    counted = Counter(link.token for link in sorted(links, key=_best_first))
    return ", ".join(f"{count} pair{'s' if count > 1 else ''} {token}" for token, count in counted.items())


def _best_first(link: Link) -> tuple[int, int]:
    unknown = 1_000  # after every level
    return (-(link.nvlinks or 0), unknown if link.level is None else link.level)
