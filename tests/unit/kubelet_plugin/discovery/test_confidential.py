"""NVML's numbers for confidential computing in words, and what is no number of NVML's."""

from __future__ import annotations

import pynvml
import pytest

from dracaena.api.confidential import CC_DEVTOOLS, CC_MODES, CC_OFF, CC_ON
from dracaena.kubelet_plugin.discovery.confidential import cc_capable, cc_mode
from dracaena.kubelet_plugin.discovery.machine_facts import ConfidentialFacts

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
