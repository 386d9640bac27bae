"""Topologies from rows of printed tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from dracaena.api.links import UNKNOWN_LINK, Link
from dracaena.api.topology import SELF, Nic, Topology, TopologyError


def topology_from_matrix(
    matrix: Sequence[Sequence[str]],
    *,
    numa_nodes: Sequence[int | None] | None = None,
    nics: Sequence[Nic] = (),
) -> Topology:
    """Build a Topology from square rows of printed tokens, where `?` is a pair about which nothing is known.

    Raises TopologyError when the rows are not square, the diagonal is not `X`, a token is unknown, or the two
    halves differ.
    """
    count = len(matrix)
    for row, cells in enumerate(matrix):
        if len(cells) != count:
            raise TopologyError(f"row {row} has {len(cells)} cells, expected {count}")
        if cells[row] != SELF:
            raise TopologyError(f"row {row} has {cells[row]!r} on the diagonal, expected {SELF!r}")
    pairs = tuple(_pair(matrix, a, b) for a, b in combinations(range(count), 2))
    topology = Topology(
        gpu_count=count,
        pairs=pairs,
        numa_nodes=tuple(numa_nodes) if numa_nodes is not None else (None,) * count,
        nics=tuple(nics),
    )
    topology.check()
    return topology


def _pair(matrix: Sequence[Sequence[str]], a: int, b: int) -> Link:
    forth, back = (_link(matrix[a][b], a, b), _link(matrix[b][a], b, a))
    if forth != back:
        raise TopologyError(f"GPU{a} says {matrix[a][b]} to GPU{b}, but GPU{b} says {matrix[b][a]} to GPU{a}")
    return forth


def _link(token: str, a: int, b: int) -> Link:
    if token == UNKNOWN_LINK.token:
        return UNKNOWN_LINK
    try:
        return Link.from_token(token)
    except ValueError as error:
        raise TopologyError(f"GPU{a} to GPU{b}: {error}") from error
