"""What is told of a mode, and what is told once."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from dracaena.host.facts.troubles import Trouble
from dracaena.kubelet_plugin.cc_modes.modes import ModeReport, ModeState
from dracaena.kubelet_plugin.cc_modes.reports import CcModeReports
from dracaena.kubelet_plugin.metrics import PluginMetrics

PENDING = ModeReport("on", ModeState.PENDING, "claim a/b has a GPU of this node")
FAILED = ModeReport("on", ModeState.FAILED, "KVM runs no confidential guests")
APPLIED = ModeReport("on", ModeState.APPLIED)


class Told:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.events: list[tuple[str, str, str]] = []
        self.troubles: list[Trouble] = []
        self.reports = CcModeReports(
            "gpu.dracaena.dev/cc-mode",
            PluginMetrics(self.registry),
            lambda kind, reason, text: self.events.append((kind, reason, text)),
            lambda found: self.troubles.__setitem__(slice(None), found),
        )

    def value(self, state: str) -> float | None:
        return self.registry.get_sample_value("dracaena_plugin_confidential_mode", {"mode": "on", "state": state})


@pytest.fixture
def told() -> Told:
    return Told()


def test_a_mode_that_is_waited_for_is_a_trouble_that_says_for_whom(told: Told) -> None:
    told.reports.tell(PENDING)
    (trouble,) = told.troubles
    assert trouble.reason == "ConfidentialModeDiffers"
    assert trouble.text == "label gpu.dracaena.dev/cc-mode of this node says on: claim a/b has a GPU of this node"
    assert told.value("Pending") == 1
    told.reports.tell(APPLIED)
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
    told.reports.tell(FAILED)
    (trouble,) = told.troubles
    assert trouble.reason == "ConfidentialModeFailed"
    assert "remove the label and set it again" in trouble.advice
    told.reports.tell(None)
    assert told.troubles == []
    assert told.value("Failed") is None


def test_a_node_that_is_as_its_label_says_when_the_plugin_starts_is_no_event(told: Told) -> None:
    told.reports.tell(APPLIED)
    told.reports.tell(APPLIED)
    assert told.events == []
