"""Quotas have metrics, of which there are not too many, and a mistake in one is told once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry, generate_latest

from dracaena.api.gpu_quota import GPUS, GPUS_BY_PRODUCT, QuotaItem, read_leniently
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


def test_no_quota_that_is_read_breaks_the_scrape() -> None:
    bench = Bench()
    limits, _ = read_leniently(r'{"gpusByProduct": {"\ud800": 1, "\u0000\"\\\n": 2}}')
    bench.states = (QuotaState("research", {one: (limit, 0) for one, limit in limits.items()}),)
    bench.reports.look()
    assert b"quota_limit{" in generate_latest(bench.registry)


def test_a_fault_with_one_namespace_does_not_keep_the_others_from_being_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    bench.states = tuple(QuotaState(name, {}, problem="gpu: unknown") for name in ("broken", "other"))
    record = bench.events.record

    def faulty(subject: Namespace, *args: Any, **more: Any) -> None:
        if subject.key == "broken":
            raise ValueError
        record(subject, *args, **more)

    monkeypatch.setattr(bench.events, "record", faulty)
    with structlog.testing.capture_logs() as logs:
        bench.reports.look()
        bench.reports.look()
    assert [subject for subject, _, _ in bench.events.seen] == ["Namespace other"]
    assert sum(line["log_level"] == "error" for line in logs) == 1


def test_a_mistake_is_logged_and_reported_once_by_the_leader_alone() -> None:
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
    told = "The quota annotation cannot be read; the last valid quota stays in force. gpu: unknown"
    assert bench.events.seen == [("Namespace research", "QuotaNotRead", told)]
    assert bench.registry.get_sample_value("dracaena_controller_unread_quotas") == 1
    bench.states = (STATE,)
    bench.reports.look()
    assert bench.registry.get_sample_value("dracaena_controller_unread_quotas") == 0
