"""All nodes as rows that fit into one answer, and later only those that changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from dracaena.controller.views.names import Sight, shown_text
from dracaena.controller.views.node_line import NodeLine
from dracaena.controller.views.snapshot import ClusterSnapshot

NOBODY: Final = -1
HIDDEN: Final = -2
"""In `held`: a namespace that the reader may not see."""

MOST_REMARKS: Final = 4
"""Of one node."""


@dataclass(frozen=True, slots=True)
class Changes:
    """When the rows of a snapshot changed last, as numbers of snapshots."""

    rows: tuple[int, ...] = ()
    """For each line."""
    lists: int = 0
    """Nodes came or went, or the products, racks or namespaces that rows refer to are others."""


def changes(before: ClusterSnapshot | None, known: Changes, now: ClusterSnapshot, number: int) -> Changes:
    """Return the changes of snapshot `number`, which follows `before`. Cost: O(nodes)."""
    if before is None or _lists(before) != _lists(now):
        return Changes((number,) * len(now.lines), number)
    rows = tuple(
        last if line is old or line == old else number
        for line, old, last in zip(now.lines, before.lines, known.rows, strict=True)
    )
    return Changes(rows, known.lists)


def _lists(snapshot: ClusterSnapshot) -> tuple[Sequence[str], ...]:
    lines = snapshot.lines
    return [line.name for line in lines], products(lines), racks(lines), namespaces(lines)


def products(lines: Sequence[NodeLine]) -> list[str]:
    """Return the products, by name."""
    return sorted({line.product for line in lines})


def racks(lines: Sequence[NodeLine]) -> list[str]:
    """Return the racks that Nodes name, by name."""
    return sorted({line.rack for line in lines if line.rack})


def namespaces(lines: Sequence[NodeLine]) -> list[str]:
    """Return the namespaces that have GPUs or parts of them, by name."""
    return sorted({namespace for line in lines for namespace in line.holds})


def fleet(snapshot: ClusterSnapshot, sight: Sight, known: Changes, about: Mapping[str, Any], since: int = 0) -> bytes:
    """Return the JSON of all nodes, or of the rows that changed after snapshot `since` if all else is as it was then.

    A row is [name, product, rack, cells, held, more]: product and rack are numbers of the lists (rack -1: none),
    `cells` one sign per GPU (views.node_line), `held` for each cell the number of a team, NOBODY, HIDDEN or a list of
    these.
    """
    lines = snapshot.lines
    teams = [namespace for namespace in namespaces(lines) if sight(namespace)]
    row = _Row(products(lines), racks(lines), teams)
    if since < known.lists:
        lists = {"products": [*map(shown_text, row.products)], "racks": [*map(shown_text, row.racks)]}
        return msgspec.json.encode({**about, "teams": teams, **lists, "nodes": [row.of(line) for line in lines]})
    rows = {str(place): row.of(line) for place, line in enumerate(lines) if known.rows[place] > since}
    return msgspec.json.encode({**about, "teams": teams, "rows": rows})


class _Row:
    def __init__(self, products: Sequence[str], racks: Sequence[str], teams: Sequence[str]) -> None:
        self.products, self.racks = products, racks
        self._product = {name: place for place, name in enumerate(products)}
        self._rack = {name: place for place, name in enumerate(racks)}
        self._team = {name: place for place, name in enumerate(teams)}

    def of(self, line: NodeLine) -> list[Any]:
        held = [self._holders(each) for each in line.held]
        rack = self._rack.get(line.rack, -1)
        return [line.name, self._product[line.product], rack, line.cells, held, _more(line)]

    def _holders(self, namespaces: Sequence[str]) -> int | list[int]:
        numbers = sorted({self._team.get(namespace, HIDDEN) for namespace in namespaces})
        return NOBODY if not numbers else numbers[0] if len(numbers) == 1 else numbers


def _more(line: NodeLine) -> Any:
    more = {
        "sick": {str(place): shown_text(what) for place, what in line.sick.items()},
        "informs": {str(place): shown_text(what) for place, what in line.told.items()},
        "mig": [*line.mig_slices] if line.mig_slices.all else [],
        "share": [*line.share_gib] if line.share_gib.all else [],
        "remarks": [shown_text(remark) for remark in line.remarks[:MOST_REMARKS]],
        "closed": line.closed,
    }
    return {name: value for name, value in more.items() if value} or 0
