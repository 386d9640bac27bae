"""The bench of the exporter, on a few scrapes (tests/bench/node/exporter.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from bench.node import exporter
from support.sockets import short_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield made


def test_a_process_is_measured_that_serves_all_gpus(folder: Path) -> None:
    with (
        patch.object(exporter, "WARM_SCRAPES", 1),
        patch.object(exporter, "SCRAPES", 3),
        patch.object(exporter, "SLOW_SCRAPES", 2),
    ):
        costs = exporter.measure(folder, 0.1, lambda _: None)
    assert len(costs.scrapes_s) == len(costs.fixed_s) == 3
    assert costs.series > 24 * exporter.GPUS
    assert costs.rss_bytes > 10 << 20
    shown = [row.against for row in exporter.rows(costs)[0] if row.against]
    assert shown == ["fixed work"] * 2 + ["one thread"] * 2
    assert min(costs.one_thread_s) > exporter.GPUS * sum(exporter.CALLS_S.values()), "each call takes its time"


def test_costs_are_those_of_scrapes_and_of_the_time_between() -> None:
    costs = exporter.ExporterCosts([0.01, 0.02], cpu_per_scrape_s=0.02, cpu_at_rest=0.001, rss_bytes=50 << 20, series=9)
    assert costs.cpu_percent == pytest.approx(0.3)
    _, floors = exporter.rows(costs)
    assert [floor.holds for floor in floors] == [True, True, True]
    dear = exporter.ExporterCosts([0.2], cpu_per_scrape_s=0.2, cpu_at_rest=0, rss_bytes=500 << 20, series=9)
    assert [floor.holds for floor in exporter.rows(dear)[1]] == [False, False, False]
