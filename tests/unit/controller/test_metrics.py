from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry

from dracaena.controller.metrics import ControllerMetrics
from support.metrics_table import documented, registered

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_page_lists_exactly_what_the_controller_has() -> None:
    registry = CollectorRegistry()
    ControllerMetrics(registry)
    assert sorted(documented(PAGE)) == sorted(registered(registry))


def test_every_metric_of_time_says_its_unit() -> None:
    registry = CollectorRegistry()
    ControllerMetrics(registry)
    for name, kind, _, text in registered(registry):
        if kind == "histogram" or "seconds" in name:
            assert name.endswith("_seconds")
            assert text.startswith("Seconds")
