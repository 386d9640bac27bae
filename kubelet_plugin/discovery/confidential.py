"""What NVML says of confidential computing, in our words. A number that is not known is not guessed at."""

from __future__ import annotations

from dataclasses import dataclass

from dracaena.api.confidential import CC_DEVTOOLS, CC_OFF, CC_ON
from dracaena.kubelet_plugin.discovery.machine_facts import ConfidentialFacts

_CAPABLE = {0: False, 1: True}
_MODES = {(0, 0): CC_OFF, (0, 1): CC_OFF, (1, 0): CC_ON, (1, 1): CC_DEVTOOLS}
"""Feature and tools for developers, as numbers of NVML → mode. The tools count only where the feature is enabled."""


@dataclass(frozen=True, slots=True)
class ConfidentialState:
    """How the GPUs of a node are at one moment, all of them together. None: that is not told."""

    mode: str | None = None
    """One of dracaena.api.confidential.CC_MODES."""
    ready: bool | None = None
    """Whether they take work; None also in a mode in which nobody has to say so."""


def cc_capable(facts: ConfidentialFacts) -> bool | None:
    """Return whether the GPUs can compute confidentially, None where that is not told."""
    return None if facts.gpus_capable is None else _CAPABLE.get(facts.gpus_capable)


def cc_mode(facts: ConfidentialFacts) -> str | None:
    """Return the mode that all GPUs are in, None where it is not told or not one that we know."""
    if facts.feature is None or facts.dev_tools is None:
        return None
    return _MODES.get((facts.feature, facts.dev_tools))
