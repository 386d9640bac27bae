"""Reports the state of a layout of this node: log, Events, metric, troubles, and a condition of the Node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from prometheus_client import Gauge

from dracaena.api.errors import DracaenaError
from dracaena.api.mig_layout import CONDITION, LAYOUT_NAME, NO_LAYOUT, OF_BEFORE, layout_prefix
from dracaena.host.facts.troubles import Trouble, TroubleKind, trouble
from dracaena.kube.events import EventType
from dracaena.kubelet_plugin.layouts.rounds import LayoutReport, LayoutState
from dracaena.process.clock import Clock, rfc3339

MOST_CHARACTERS: Final = 1000
"""Most characters of a message; everybody reads Nodes."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LayoutWords:
    """The names of one kind of layouts."""

    name: str
    """Prefix of messages: `MIG layout`."""
    event: str
    """Reason of Events, before the state."""
    trouble: TroubleKind
    condition: str
    """Type of the condition."""


MIG_WORDS: Final = LayoutWords(LAYOUT_NAME, "MigLayout", TroubleKind.MIG_LAYOUT, CONDITION)
VGPU_WORDS: Final = LayoutWords("vGPU layout", "VgpuLayout", TroubleKind.VGPU_LAYOUT, "VgpuLayoutApplied")


class LayoutReports:
    """For one thread. Does not repeat an unchanged report, except a condition whose write failed."""

    def __init__(
        self,
        words: LayoutWords,
        gauge: Gauge,
        on_node: Callable[[EventType, str, str], None],
        on_troubles: Callable[[Sequence[Trouble]], None],
        set_condition: Callable[[Mapping[str, str]], None] | None,
        clock: Clock,
    ) -> None:
        """`gauge` has labels for layout and state. `set_condition` writes a condition of the Node, and raises
        DracaenaError; None: there is none.
        """
        self._words = words
        self._gauge = gauge
        self._on_node = on_node
        self._on_troubles = on_troubles
        self._set_condition = set_condition
        self._clock = clock
        self._told: LayoutReport | None = None
        self._state_since: tuple[LayoutState | None, str] | None = None
        self._due = True  # once, even without a layout: the condition may be of an earlier run
        self._complained = False

    def tell(self, report: LayoutReport | None) -> None:
        """Report what has changed."""
        before, self._told = self._told, report
        if report != before:
            self._due = True
            self._say(before, report)
        if self._due and self._set_condition is not None:
            self._write(self._set_condition, report)

    def _say(self, before: LayoutReport | None, report: LayoutReport | None) -> None:
        self._gauge.clear()
        failed = report is not None and report.state is LayoutState.FAILED
        self._on_troubles([trouble(self._words.trouble, self._text(report))] if failed else [])
        if report is None:
            log.info("this node has no layout of this kind any more", kind=self._words.name)
            return
        self._gauge.labels(report.layout, report.state.value).set(1)
        log.info(self._words.name, layout=report.layout, state=report.state.value, reason=report.reason or None)
        same = before is not None and (before.layout, before.state) == (report.layout, report.state)
        if not same and not failed:  # a failure is reported as a trouble
            self._on_node("Normal", f"{self._words.event}{report.state.value}", self._text(report))

    def _write(self, set_condition: Callable[[Mapping[str, str]], None], report: LayoutReport | None) -> None:
        now, state = rfc3339(self._clock.now()), None if report is None else report.state
        if self._state_since is None or self._state_since[0] is not state:
            self._state_since = (state, now)
        status = {None: "Unknown", LayoutState.APPLIED: "True"}.get(state, "False")
        try:
            set_condition(
                {
                    "type": self._words.condition,
                    "status": status,
                    "reason": NO_LAYOUT if state is None else state.value,
                    "message": self._text(report),
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": self._state_since[1],
                }
            )
        except DracaenaError as error:
            if not self._complained:
                log.warning("condition of the Node is not written", condition=self._words.condition, error=str(error))
            self._complained = True
            return
        self._due = self._complained = False

    def _text(self, report: LayoutReport | None) -> str:
        if report is None:
            return "no layout is chosen"
        prefix = layout_prefix(report.layout or OF_BEFORE, self._words.name)
        text = f"{prefix}{report.reason or 'all GPUs have it'}"
        return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 3]}..."
