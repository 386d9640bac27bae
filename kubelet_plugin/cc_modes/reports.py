"""Reports the state of the mode of confidential computing of this node: log, Events, metric and troubles."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from dracaena.host.facts.troubles import Trouble, TroubleKind, trouble
from dracaena.kube.events import EventType
from dracaena.kubelet_plugin.cc_modes.modes import ModeReport, ModeState
from dracaena.kubelet_plugin.metrics import PluginMetrics

log = structlog.get_logger()


class CcModeReports:
    """For one thread. Does not repeat an unchanged report."""

    def __init__(
        self,
        label: str,
        metrics: PluginMetrics,
        on_node: Callable[[EventType, str, str], None],
        on_troubles: Callable[[Sequence[Trouble]], None],
    ) -> None:
        """`label` is the key of the label that requests a mode."""
        self._label = label
        self._metrics = metrics
        self._on_node = on_node
        self._on_troubles = on_troubles
        self._told: ModeReport | None = None

    def tell(self, report: ModeReport | None) -> None:
        """Report what has changed. An applied mode is an Event only if it was pending before."""
        before, self._told = self._told, report
        if report == before:
            return
        gauge = self._metrics.node.confidential_mode
        gauge.clear()
        if report is None:
            self._on_troubles([])
            log.info("no mode of confidential computing is requested for this node any more")
            return
        gauge.labels(report.mode, report.state.value).set(1)
        text = f"label {self._label} of this node says {report.mode or 'nothing any more'}"
        log.info("mode of confidential computing", mode=report.mode, state=report.state.value, reason=report.reason)
        if report.state is ModeState.APPLIED:
            self._on_troubles([])
            if before is not None:
                self._on_node("Normal", "ConfidentialModeApplied", f"{text}, and all GPUs are in that mode")
            return
        is_waiting = report.state is ModeState.PENDING
        kind = TroubleKind.CONFIDENTIAL_MODE if is_waiting else TroubleKind.CONFIDENTIAL_CHANGE
        self._on_troubles([trouble(kind, f"{text}: {report.reason}")])
