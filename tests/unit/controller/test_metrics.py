from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry

from dracaena.api.config.v1alpha1 import Requirement
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


def test_a_set_larger_than_any_box_on_sale_is_counted_with_its_like() -> None:
    registry = CollectorRegistry()
    metrics = ControllerMetrics(registry).sets
    for gpus in (16, 17, 64):
        metrics.count(gpus, Requirement.NVLINK, "NVLink")
    found = [
        registry.get_sample_value(
            "dracaena_controller_allocated_sets_total",
            {"gpus": gpus, "requirement": "NVLink", "worst_link": "NVLink"},
        )
        for gpus in ("16", "17+")
    ]
    assert found == [1, 2]
