"""Metrics as a table: each instance registers all of them, and rows say what is registered."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from dracaena.controller.metrics import TABLES, ControllerMetrics
from dracaena.kubelet_plugin.metrics import TABLES as PLUGIN_TABLES
from dracaena.kubelet_plugin.metrics import PluginMetrics
from dracaena.process.metrics import MetricTable, counter, gauge, histogram, rows
from support.metrics_table import registered


class Some(MetricTable):
    taken = counter("some_taken", "What was taken", "kind")
    total = counter("some_given_total", "What was given")
    held = gauge("some_held", "What is held", "kind", "name")
    seconds = histogram("some_seconds", "How long it took", buckets=(0.1, 1.0))


def test_each_registry_has_metrics_of_its_own() -> None:
    first, second = CollectorRegistry(), CollectorRegistry()
    one, other = Some(first), Some(second)
    one.taken.labels("a").inc(2)
    other.held.labels("a", "b").set(3)
    one.seconds.observe(0.5)
    one.total.inc()
    assert first.get_sample_value("some_taken_total", {"kind": "a"}) == 2
    assert second.get_sample_value("some_taken_total", {"kind": "a"}) is None
    assert second.get_sample_value("some_held", {"kind": "a", "name": "b"}) == 3
    assert first.get_sample_value("some_seconds_bucket", {"le": "1.0"}) == 1
    assert first.get_sample_value("some_given_total") == 1


def test_rows_are_named_as_they_are_queried_in_the_order_of_the_table() -> None:
    found = rows([Some])
    assert list(found) == ["some_taken_total", "some_given_total", "some_held", "some_seconds"]
    assert (found["some_held"].labels, found["some_held"].help) == (("kind", "name"), "What is held")


@pytest.mark.parametrize(("tables", "program"), [(TABLES, ControllerMetrics), (PLUGIN_TABLES, PluginMetrics)])
def test_the_tables_of_a_program_are_all_that_it_registers(
    tables: tuple[type[MetricTable], ...], program: type[ControllerMetrics | PluginMetrics]
) -> None:
    registry = CollectorRegistry()
    program(registry)
    assert sorted(rows(tables)) == sorted(name for name, *_ in registered(registry))
