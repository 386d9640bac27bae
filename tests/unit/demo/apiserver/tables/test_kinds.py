"""The columns of the kinds. That they are kube-apiserver's is in tests/transcripts."""

from __future__ import annotations

from datetime import UTC, datetime

from dracaena.demo.apiserver.decode import zero
from dracaena.demo.apiserver.resources import KINDS
from dracaena.demo.apiserver.schema import structs
from dracaena.demo.apiserver.tables.kinds import EVENT

NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)


def test_each_row_has_as_many_cells_as_columns() -> None:
    for kind in KINDS:
        empty = zero(kind.struct)
        document = empty | {"metadata": {"name": "x"}}
        assert len(kind.table.cells(document, NOW)) == len(kind.table.columns), kind.kind


def test_an_event_says_when_it_was_seen_first_and_last() -> None:
    event = zero(structs()["Event"]) | {
        "metadata": {"name": "x"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:30:00Z",
        "count": 2,
    }
    cells = EVENT.cells(event, NOW)
    assert (cells[0], cells[7], cells[8]) == ("30m", "60m", 2)
