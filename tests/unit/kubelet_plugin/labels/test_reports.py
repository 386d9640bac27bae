from __future__ import annotations

from collections.abc import Mapping

import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.errors import TemporaryError
from dracaena.host.facts.troubles import Trouble
from dracaena.kubelet_plugin.labels.follower import LabelReport, LabelState
from dracaena.kubelet_plugin.labels.reports import MIG_WORDS, MOST_CHARACTERS, LabelReports, cc_mode_words
from dracaena.kubelet_plugin.metrics import PluginMetrics
from dracaena.kubelet_plugin.node.troubles import NodeTroubles
from support.clock import FakeClock

PENDING = LabelReport("all-1g", LabelState.PENDING, "claim a/b has it")
APPLIED = LabelReport("all-1g", LabelState.APPLIED, "")
FAILED = LabelReport("all-1g", LabelState.FAILED, "there is no layout 'all-1g'")

MODE_PENDING = LabelReport("on", LabelState.PENDING, "claim a/b has a GPU of this node")
MODE_FAILED = LabelReport("on", LabelState.FAILED, "KVM runs no confidential guests")
MODE_APPLIED = LabelReport("on", LabelState.APPLIED)


class Node:
    """Events and conditions of one node."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []
        self.conditions: list[Mapping[str, str]] = []
        self.is_away = False
        self.clock = FakeClock()
        self.metrics = PluginMetrics(CollectorRegistry())
        self.troubles = NodeTroubles(self.metrics, lambda *event: self.events.append(event))
        self.reports = LabelReports(
            MIG_WORDS,
            self.metrics.node.mig_layout,
            lambda *event: self.events.append(event),
            lambda found: self.troubles.update("mig-layouts", found),
            self._set_condition,
            self.clock,
        )

    def _set_condition(self, condition: Mapping[str, str]) -> None:
        if self.is_away:
            raise TemporaryError("the API server does not answer")
        self.conditions.append(condition)

    def states(self) -> set[tuple[str, ...]]:
        return {tuple(labels) for labels in self.metrics.node.mig_layout._metrics}


@pytest.fixture
def node() -> Node:
    return Node()


def test_each_change_is_told_once(node: Node) -> None:
    for report in (PENDING, PENDING, APPLIED, APPLIED):
        node.reports.tell(report)
    assert node.events == [
        ("Normal", "MigLayoutPending", "MIG layout all-1g: claim a/b has it"),
        ("Normal", "MigLayoutApplied", "MIG layout all-1g: all GPUs have it"),
    ]
    assert [(each["status"], each["reason"]) for each in node.conditions] == [("False", "Pending"), ("True", "Applied")]
    assert node.states() == {("all-1g", "Applied")}


def test_another_reason_for_the_same_state_is_no_event_but_shown(node: Node) -> None:
    node.reports.tell(PENDING)
    node.clock.advance(60)
    node.reports.tell(LabelReport("all-1g", LabelState.PENDING, "claim c/d has it"))
    assert len(node.events) == 1
    first, second = node.conditions
    assert second["message"] == "MIG layout all-1g: claim c/d has it"
    assert second["lastTransitionTime"] == first["lastTransitionTime"]
    assert second["lastHeartbeatTime"] > first["lastHeartbeatTime"]


def test_what_fails_is_a_trouble_with_what_to_do(node: Node) -> None:
    node.reports.tell(FAILED)
    ((kind, reason, text),) = node.events
    assert (kind, reason) == ("Warning", "MigLayoutFailed")
    assert "there is no layout 'all-1g'; the GPUs stay as they are" in text
    assert node.troubles.words() is not None
    node.reports.tell(APPLIED)
    assert node.troubles.words() is None


def test_a_condition_that_could_not_be_written_is_tried_again(node: Node) -> None:
    node.is_away = True
    node.reports.tell(PENDING)
    node.reports.tell(PENDING)
    assert node.conditions == []
    node.is_away = False
    node.reports.tell(PENDING)
    node.reports.tell(PENDING)
    assert len(node.conditions) == 1


def test_a_node_without_a_layout_says_so_in_case_an_earlier_run_had_one(node: Node) -> None:
    node.is_away = True
    node.reports.tell(None)
    node.is_away = False
    node.reports.tell(None)
    node.reports.tell(None)
    assert [(each["status"], each["reason"]) for each in node.conditions] == [("Unknown", "NoLayout")]
    assert node.events == []


def test_a_node_that_has_its_layout_no_more_says_so(node: Node) -> None:
    node.reports.tell(APPLIED)
    node.reports.tell(None)
    assert (node.conditions[-1]["status"], node.conditions[-1]["reason"]) == ("Unknown", "NoLayout")
    assert node.states() == set()


def test_a_message_is_short(node: Node) -> None:
    node.reports.tell(LabelReport("all-1g", LabelState.PENDING, "x" * 10_000))
    assert len(node.conditions[-1]["message"]) == MOST_CHARACTERS


class Told:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.events: list[tuple[str, str, str]] = []
        self.troubles: list[Trouble] = []
        self.reports = LabelReports(
            cc_mode_words("gpu.dracaena.dev/cc-mode"),
            PluginMetrics(self.registry).node.confidential_mode,
            lambda kind, reason, text: self.events.append((kind, reason, text)),
            lambda found: self.troubles.__setitem__(slice(None), found),
            None,
            FakeClock(),
        )

    def value(self, state: str) -> float | None:
        return self.registry.get_sample_value("dracaena_plugin_confidential_mode", {"mode": "on", "state": state})


@pytest.fixture
def told() -> Told:
    return Told()


def test_a_mode_that_is_waited_for_is_a_trouble_that_says_for_whom(told: Told) -> None:
    told.reports.tell(MODE_PENDING)
    (trouble,) = told.troubles
    assert trouble.reason == "ConfidentialModeDiffers"
    assert trouble.text == "label gpu.dracaena.dev/cc-mode of this node says on: claim a/b has a GPU of this node"
    assert told.value("Pending") == 1
    told.reports.tell(MODE_APPLIED)
    assert told.troubles == []
    assert told.events == [
        (
            "Normal",
            "ConfidentialModeApplied",
            "label gpu.dracaena.dev/cc-mode of this node says on, and all GPUs are in that mode",
        )
    ]
    assert (told.value("Pending"), told.value("Applied")) == (None, 1)


def test_a_mode_that_cannot_be_is_another_trouble(told: Told) -> None:
    told.reports.tell(MODE_FAILED)
    (trouble,) = told.troubles
    assert trouble.reason == "ConfidentialModeFailed"
    assert "remove the label and set it again" in trouble.advice
    told.reports.tell(None)
    assert told.troubles == []
    assert told.value("Failed") is None


def test_a_node_that_is_as_its_label_says_when_the_plugin_starts_is_no_event(told: Told) -> None:
    told.reports.tell(MODE_APPLIED)
    told.reports.tell(MODE_APPLIED)
    assert told.events == []
