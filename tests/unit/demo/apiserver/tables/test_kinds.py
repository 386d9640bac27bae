"""The columns of the kinds. That they are kube-apiserver's is in tests/transcripts."""

from __future__ import annotations

from datetime import UTC, datetime

from dracaena.demo.apiserver.decode import zero
from dracaena.demo.apiserver.resources import KINDS
from dracaena.demo.apiserver.schema import structs
from dracaena.demo.apiserver.tables.kinds import TABLES

NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)


def test_every_served_kind_has_a_table_and_each_row_as_many_cells_as_columns() -> None:
    assert TABLES.keys() == {kind.kind for kind in KINDS}
    for kind in KINDS:
        empty = zero(kind.struct)
        document = empty | {"metadata": {"name": "x"}}
        assert len(TABLES[kind.kind].cells(document, NOW)) == len(TABLES[kind.kind].columns), kind.kind


def test_an_event_was_last_seen_when_its_series_was() -> None:
    event = zero(structs()["Event"]) | {
        "metadata": {"name": "x"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:30:00Z",
        "count": 2,
    }
    cells = TABLES["Event"].cells(event, NOW)
    assert (cells[0], cells[7], cells[8]) == ("30m", "60m", 2)
    series = {"count": 7, "lastObservedTime": "2026-01-01T00:59:00.000000Z"}
    cells = TABLES["Event"].cells(event | {"series": series}, NOW)
    assert (cells[0], cells[7], cells[8]) == ("60s", "60m", 7)
