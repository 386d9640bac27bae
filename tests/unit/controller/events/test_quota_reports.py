"""Quotas have metrics, of which there are not too many, and a mistake in one is told once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import structlog
from prometheus_client import CollectorRegistry

from dracaena.api.gpu_quota import GPUS, GPUS_BY_PRODUCT, QuotaItem
from dracaena.api.objects import Namespace, ObjectMeta
from dracaena.controller.events import quota_reports
from dracaena.controller.events.quota_reports import QuotaReports
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.state.quotas import QuotaState
from support.claim_api import FakeEvents

STATE = QuotaState("research", {QuotaItem(GPUS): (8, 7), QuotaItem(GPUS_BY_PRODUCT, "H100"): (4, 0)})


class Bench:
    def __init__(self) -> None:
        self.states: tuple[QuotaState, ...] = (STATE,)
        self.is_leading = True
        self.events = FakeEvents()
        self.registry = CollectorRegistry()
        self.reports = QuotaReports(
            self.events,
            ControllerMetrics(self.registry),
            lambda: self.states,
            lambda name: Namespace(ObjectMeta(name)),
            lambda: self.is_leading,
        )

    def value(self, metric: str, namespace: str, counted: str = GPUS, name: str = "") -> float | None:
        labels = {"namespace": namespace, "counted": counted, "name": name}
        return self.registry.get_sample_value(f"dracaena_controller_quota_{metric}", labels)


def test_each_limit_and_what_is_held_of_it_has_a_series_until_it_goes() -> None:
    bench = Bench()
    bench.reports.look()
    assert (bench.value("limit", "research"), bench.value("held", "research")) == (8, 7)
    assert bench.value("limit", "research", GPUS_BY_PRODUCT, "H100") == 4
    bench.states = ()
    bench.reports.look()
    assert bench.value("limit", "research") is None


def test_there_are_not_more_series_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_reports, "MOST_SERIES", 3)
    bench = Bench()
    bench.states = tuple(QuotaState(f"n{number}", {QuotaItem(GPUS): (1, 0)}) for number in range(9))
    bench.reports.look()
    shown = [number for number in range(9) if bench.value("limit", f"n{number}") is not None]
    assert shown == [0, 1, 2]


def test_a_mistake_is_logged_and_told_once_by_the_leader_alone() -> None:
    bench = Bench()
    bench.is_leading = False
    bench.states = (replace(STATE, problem="gpu: unknown"),)
    with structlog.testing.capture_logs() as logs:
        bench.reports.look()
        bench.reports.look()
    assert [line["problem"] for line in logs] == ["gpu: unknown"]
    assert bench.events.seen == []
    bench.is_leading = True
    bench.reports.look()
    bench.reports.look()
    told = "The annotation with the quota cannot be read; the last one stays in force. gpu: unknown"
    assert bench.events.seen == [("Namespace research", "QuotaNotRead", told)]
    assert bench.registry.get_sample_value("dracaena_controller_unread_quotas") == 1
    bench.states = (STATE,)
    bench.reports.look()
    assert bench.registry.get_sample_value("dracaena_controller_unread_quotas") == 0
