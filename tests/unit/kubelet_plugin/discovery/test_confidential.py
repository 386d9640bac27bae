"""NVML's numbers for confidential computing in words, and what is no number of NVML's."""

from __future__ import annotations

import pynvml
import pytest

from dracaena.api.confidential import (
    CC_DEVTOOLS,
    CC_MODES,
    CC_OFF,
    CC_ON,
    MODE_STATE_LABEL,
    READY_STATE_LABEL,
    cc_mode_label,
)
from dracaena.host.facts.machine import ConfidentialFacts
from dracaena.kubelet_plugin.discovery.confidential import (
    ConfidentialState,
    cc_capable,
    cc_mode,
    mode_troubles,
    state_by_labels,
    with_modes_of_guests,
)
from support.machines import plain_machine
from support.passthrough import passthrough_gpu, with_passthrough
from support.plugin import DRIVER

DISABLED, ENABLED = pynvml.NVML_CC_SYSTEM_FEATURE_DISABLED, pynvml.NVML_CC_SYSTEM_FEATURE_ENABLED
TOOLS_OFF, TOOLS_ON = pynvml.NVML_CC_SYSTEM_DEVTOOLS_MODE_OFF, pynvml.NVML_CC_SYSTEM_DEVTOOLS_MODE_ON


@pytest.mark.parametrize(
    ("feature", "dev_tools", "mode"),
    [
        (DISABLED, TOOLS_OFF, CC_OFF),
        (DISABLED, TOOLS_ON, CC_OFF),
        (ENABLED, TOOLS_OFF, CC_ON),
        (ENABLED, TOOLS_ON, CC_DEVTOOLS),
        (None, TOOLS_OFF, None),
        (ENABLED, None, None),
        (2, TOOLS_OFF, None),
        (ENABLED, 2, None),
    ],
)
def test_a_mode_is_named_where_both_of_its_numbers_are_known(
    feature: int | None, dev_tools: int | None, mode: str | None
) -> None:
    assert cc_mode(ConfidentialFacts(feature=feature, dev_tools=dev_tools)) == mode
    assert mode in (None, *CC_MODES)


def test_an_unknown_capability_is_neither_of_both() -> None:
    told = {
        pynvml.NVML_CC_SYSTEM_GPUS_CC_CAPABLE: True,
        pynvml.NVML_CC_SYSTEM_GPUS_CC_NOT_CAPABLE: False,
        None: None,
        7: None,
    }
    assert {number: cc_capable(ConfidentialFacts(gpus_capable=number)) for number in told} == told


@pytest.mark.parametrize(
    ("labels", "state"),
    [
        ({}, ConfidentialState()),
        ({MODE_STATE_LABEL: "on", READY_STATE_LABEL: "true"}, ConfidentialState("on", ready=True)),
        ({MODE_STATE_LABEL: "off", READY_STATE_LABEL: "false"}, ConfidentialState("off", ready=False)),
        ({MODE_STATE_LABEL: "failed", READY_STATE_LABEL: "True"}, ConfidentialState()),
        ({READY_STATE_LABEL: "true"}, ConfidentialState(ready=True)),
    ],
)
def test_labels_that_are_none_of_the_managers_words_tell_nothing(
    labels: dict[str, str], state: ConfidentialState
) -> None:
    assert state_by_labels(labels) == state


MIXED = with_passthrough(plain_machine(1, cc_mode="off"), [passthrough_gpu(0)])
WANTED = cc_mode_label(DRIVER)


def test_a_label_tells_the_mode_of_gpus_for_virtual_machines_and_of_no_other() -> None:
    told = with_modes_of_guests(MIXED, {MODE_STATE_LABEL: "on"}, {})
    assert ([gpu.cc_mode for gpu in told.gpus], [gpu.cc_mode for gpu in told.passthrough]) == (["off"], ["on"])
    assert with_modes_of_guests(told, {}, {}) == MIXED, "a label that went is not remembered"


def test_what_is_known_of_a_gpu_counts_before_the_labels() -> None:
    address = MIXED.passthrough[0].pci_bus_id
    told = with_modes_of_guests(MIXED, {MODE_STATE_LABEL: "on"}, {address: "devtools"})
    assert {gpu.pci_bus_id: gpu.cc_mode for gpu in told.passthrough} == {
        gpu.pci_bus_id: "devtools" if gpu.pci_bus_id == address else "on" for gpu in MIXED.passthrough
    }


@pytest.mark.parametrize(
    ("wanted", "state", "words"),
    [
        (None, "on", None),
        ("on", "on", "says on, and the mode of 1 of its 2 GPUs is off"),
        ("on", "off", "says on, and the mode of 2 of its 2 GPUs is off"),
        ("off", "off", None),
        ("off", None, "says off, and the mode of 1 of its 2 GPUs is not known"),
        ("devtools", "failed", "says devtools, and the mode of 2 of its 2 GPUs is not known or off"),
        ("", "on", "is '', expected one of off, on, devtools"),
        ("On", "on", "is 'On', expected one of off, on, devtools"),
    ],
)
def test_gpus_that_are_not_in_the_wanted_mode_are_a_trouble_that_says_who_must_act(
    wanted: str | None, state: str | None, words: str | None
) -> None:
    labels = {WANTED: wanted, MODE_STATE_LABEL: state}
    known = {key: value for key, value in labels.items() if value is not None}
    found = mode_troubles(with_modes_of_guests(MIXED, known, {}), known, DRIVER)
    assert [trouble.reason for trouble in found] == (["ConfidentialModeDiffers"] if words else [])
    for trouble in found:
        assert words is not None
        assert trouble.text.endswith(words)
        assert "else let NVIDIA's manager do so (label `nvidia.com/cc.mode`), or correct the label" in trouble.advice
