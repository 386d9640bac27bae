"""Reports how far a node is with what a label asks for: log, Events, metric, troubles, and a condition of the Node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
from prometheus_client import Gauge

from dracaena.api.errors import DracaenaError
from dracaena.api.mig_layout import CONDITION, LAYOUT_NAME, NO_LAYOUT, OF_BEFORE, layout_prefix
from dracaena.host.facts.troubles import Trouble, TroubleKind, trouble
from dracaena.kube.events import EventType
from dracaena.kubelet_plugin.labels.follower import LabelReport, LabelState
from dracaena.process.clock import Clock, rfc3339

MOST_CHARACTERS: Final = 1000
"""Most characters of a message; everybody reads Nodes."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LabelWords:
    """The words of one row."""

    text: Callable[[LabelReport | None], str]
    """The report in words."""
    event: str
    """Reason of Events, before the state."""
    troubles: Mapping[LabelState, TroubleKind]
    """States that are reported as a trouble of the node, and not as an Event of their own."""
    condition: str = ""
    """Type of the condition, if there may be one."""


def _layout_text(name: str, report: LabelReport | None) -> str:
    if report is None:
        return "no layout is chosen"
    return f"{layout_prefix(report.value or OF_BEFORE, name)}{report.reason or 'all GPUs have it'}"


MIG_WORDS: Final = LabelWords(
    partial(_layout_text, LAYOUT_NAME), "MigLayout", {LabelState.FAILED: TroubleKind.MIG_LAYOUT}, CONDITION
)
VGPU_WORDS: Final = LabelWords(
    partial(_layout_text, "vGPU layout"),
    "VgpuLayout",
    {LabelState.FAILED: TroubleKind.VGPU_LAYOUT},
    "VgpuLayoutApplied",
)


def cc_mode_words(label: str) -> LabelWords:
    """Return the words of modes of confidential computing, which a label with this key names."""

    def text(report: LabelReport | None) -> str:
        said = f"label {label} of this node says {report.value if report and report.value else 'nothing any more'}"
        if report is None:
            return said
        return f"{said}: {report.reason}" if report.reason else f"{said}, and all GPUs are in that mode"

    troubles = {
        LabelState.PENDING: TroubleKind.CONFIDENTIAL_MODE,
        LabelState.FAILED: TroubleKind.CONFIDENTIAL_CHANGE,
    }
    return LabelWords(text, "ConfidentialMode", troubles)


class LabelReports:
    """For one thread. Does not repeat an unchanged report, except a condition whose write failed."""

    def __init__(
        self,
        words: LabelWords,
        gauge: Gauge,
        on_node: Callable[[EventType, str, str], None],
        on_troubles: Callable[[Sequence[Trouble]], None],
        set_condition: Callable[[Mapping[str, str]], None] | None,
        clock: Clock,
    ) -> None:
        """`gauge` has labels for value and state. `set_condition` writes a condition of the Node, and raises
        DracaenaError; None: there is none.
        """
        self._words = words
        self._gauge = gauge
        self._on_node = on_node
        self._on_troubles = on_troubles
        self._set_condition = set_condition
        self._clock = clock
        self._told: LabelReport | None = None
        self._state_since: tuple[LabelState | None, str] | None = None
        self._due = True  # once, even if nothing is asked for: the condition may be of an earlier run
        self._complained = False

    def tell(self, report: LabelReport | None) -> None:
        """Report what has changed. What is applied as soon as it is asked for is no Event."""
        before, self._told = self._told, report
        if report != before:
            self._due = True
            self._say(before, report)
        if self._due and self._set_condition is not None:
            self._write(self._set_condition, report)

    def _say(self, before: LabelReport | None, report: LabelReport | None) -> None:
        self._gauge.clear()
        text = self._text(report)
        log.info("what a label of this node asks for", about=self._words.event, state=text)
        kind = None if report is None else self._words.troubles.get(report.state)
        self._on_troubles([] if kind is None else [trouble(kind, text)])
        if report is None:
            return
        self._gauge.labels(report.value, report.state.value).set(1)
        same = before is not None and (before.value, before.state) == (report.value, report.state)
        at_once = before is None and report.state is LabelState.APPLIED
        if kind is None and not same and not at_once:
            self._on_node("Normal", f"{self._words.event}{report.state.value}", text)

    def _write(self, set_condition: Callable[[Mapping[str, str]], None], report: LabelReport | None) -> None:
        now, state = rfc3339(self._clock.now()), None if report is None else report.state
        if self._state_since is None or self._state_since[0] is not state:
            self._state_since = (state, now)
        status = {None: "Unknown", LabelState.APPLIED: "True"}.get(state, "False")
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

    def _text(self, report: LabelReport | None) -> str:
        text = self._words.text(report)
        return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 3]}..."
