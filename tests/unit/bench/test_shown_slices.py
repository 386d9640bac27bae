"""The bench of answers about hostile nodes (tests/bench/shown_slices.py), on a few of them."""

from __future__ import annotations

from itertools import islice

import pytest

from bench import shown_slices
from bench.report import as_text
from dracaena.api.node_status import MOST_PAGES


def test_each_reader_is_measured_and_the_worst_case_named(monkeypatch: pytest.MonkeyPatch) -> None:
    few = list(islice(shown_slices._cases(), 2))
    monkeypatch.setattr(shown_slices, "_cases", lambda: iter(few))
    section = shown_slices.rows(lambda text: None)
    (table,) = section.tables
    assert [row[0] for row in table.rows] == ["page", "status", "explain", "simulate"]
    names = {name for name, _ in few}
    assert {cell for row in table.rows for cell in (row[2], row[4])} <= names
    assert all(floor.measured > 0 for floor in section.floors)
    assert "hostile node" in as_text(section)


def test_the_largest_nodes_are_among_the_cases() -> None:
    cases = dict(shown_slices._cases())
    assert len(cases["as many GPUs as there may be"][0].spec.devices) == 128
    assert len(cases["more slices than are shown"]) == 2 * MOST_PAGES
