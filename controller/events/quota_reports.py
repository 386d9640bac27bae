"""Shows how many GPUs namespaces may have and hold, and reports quotas that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from dracaena.api.gpu_quota import QuotaItem
from dracaena.api.objects import Namespace
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.ports import EventSink
from dracaena.controller.state.quotas import QuotaState

EVENT_REASON: Final = "QuotaNotRead"

MOST_SERIES: Final = 1_000
"""Limits with metrics, the first by namespace: each takes two time series of every replica."""

log = structlog.get_logger()


class QuotaReports:
    """Called from one thread, about once a second. Every replica has the metrics; only the leader writes Events."""

    def __init__(
        self,
        events: EventSink,
        metrics: ControllerMetrics,
        states: Callable[[], tuple[QuotaState, ...]],
        namespace: Callable[[str], Namespace | None],
        is_leading: Callable[[], bool],
    ) -> None:
        self._events, self._metrics, self._states = events, metrics.quotas, states
        self._namespace, self._is_leading = namespace, is_leading
        self._series: set[tuple[str, QuotaItem]] = set()
        self._logged: dict[str, str] = {}
        self._reported: dict[str, str] = {}

    def look(self) -> None:
        """Measure the quotas as they are now, and report each mistake once. A fault of ours in one namespace's report
        is logged once, and does not keep the others from being reported. Cost: O(limits)."""
        states = self._states()
        self._measure(states)
        problems = {state.namespace: state.problem for state in states if state.problem}
        self._metrics.unread.set(len(problems))
        for name, problem in problems.items():
            if self._logged.get(name) != problem:
                log.warning("quota cannot be read, the last valid one stays in force", namespace=name, problem=problem)
        self._logged = problems
        if self._is_leading():
            for name, problem in problems.items():
                if self._reported.get(name) != problem:
                    self._report(name, problem)
            self._reported = problems

    def _report(self, name: str, problem: str) -> None:
        try:
            subject = self._namespace(name)
            if subject is not None:
                text = f"The quota annotation cannot be read; the last valid quota stays in force. {problem}"
                self._events.record(subject, "Warning", EVENT_REASON, text)
        except Exception:  # one namespace's trouble must not keep the others from being reported
            log.exception("fault in the controller, the mistake in a quota is not reported", namespace=name)

    def _measure(self, states: tuple[QuotaState, ...]) -> None:
        every = [(state.namespace, one, *amounts) for state in states for one, amounts in state.limits.items()]
        shown = every[:MOST_SERIES]
        for name, one in self._series - {(name, one) for name, one, _, _ in shown}:
            self._metrics.limit.remove(name, one.key, one.name)
            self._metrics.held.remove(name, one.key, one.name)
        for name, one, limit, held in shown:
            self._metrics.limit.labels(name, one.key, one.name).set(limit)
            self._metrics.held.labels(name, one.key, one.name).set(held)
        self._series = {(name, one) for name, one, _, _ in shown}
