"""Links of machines drawn for the tests of the bench."""

from __future__ import annotations

from collections.abc import Mapping

from bench.baselines.answer import Links
from dracaena.api.links import LinkLevel


def tree(*sockets: tuple[int, ...], inside: str = "PIX", socket: str = "PHB", across: str = "SYS") -> Links:
    """Sockets of PCIe switches of so many GPUs: levels inside a switch, between switches and between sockets."""
    places = [
        (number, switch) for number, switches in enumerate(sockets) for switch, size in enumerate(switches)
        for _ in range(size)
    ]  # fmt: skip

    def level(a: int, b: int) -> LinkLevel | None:
        if a == b:
            return None
        if places[a] == places[b]:
            return LinkLevel[inside]
        return LinkLevel[socket if places[a][0] == places[b][0] else across]

    gpus = range(len(places))
    return Links(
        tuple(tuple(level(a, b) for b in gpus) for a in gpus),
        ((0,) * len(places),) * len(places),
        tuple(number for number, _ in places),
    )


def bridged(base: Links, nvlinks: Mapping[tuple[int, int], int], *, switched: bool = False) -> Links:
    """The same machine with NVLinks between some pairs."""
    gpus = range(base.gpu_count)
    counts = tuple(tuple(nvlinks.get((min(a, b), max(a, b)), 0) for b in gpus) for a in gpus)
    return Links(base.levels, counts, base.numa_nodes, switched)


PIX_PAIRS = tree((2, 2), (2, 2))
"""8 GPUs: pairs below a switch, PHB within a socket, SYS across."""

DGX_1V = bridged(
    PIX_PAIRS,
    {
        (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2, (2, 6): 1, (3, 7): 1,
        (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
    },
)  # fmt: skip
"""The cube mesh of 8 V100: six NVLinks a GPU."""

FLAT_4 = tree((1, 1, 1, 1))
"""Four GPUs on root ports of their own, PHB apart."""
