from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry

from dracaena.kubelet_plugin.metrics import CALL_SECONDS, PluginMetrics
from support.metrics_table import documented, registered

PAGE = Path(__file__).parents[3] / "docs" / "metrics-node.md"


def test_the_page_lists_exactly_what_the_plugin_has() -> None:
    registry = CollectorRegistry()
    PluginMetrics(registry)
    assert sorted(documented(PAGE)) == sorted(registered(registry))


def test_the_buckets_begin_at_a_millisecond_and_end_where_kubelet_gives_up() -> None:
    assert (CALL_SECONDS[0], CALL_SECONDS[-1]) == (0.001, 45.0)
    assert list(CALL_SECONDS) == sorted(CALL_SECONDS)
