"""What NVML says of confidential computing, and labels of the Node, in our words. What is not known is not guessed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dracaena.api.confidential import (
    CC_DEVTOOLS,
    CC_MODES,
    CC_OFF,
    CC_ON,
    MODE_STATE_LABEL,
    READY_STATE_LABEL,
    cc_mode_label,
)
from dracaena.api.machine import Machine
from dracaena.kubelet_plugin.discovery.health.troubles import Trouble, TroubleKind, trouble
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


def state_by_labels(labels: Mapping[str, str]) -> ConfidentialState:
    """Return the state of the GPUs for virtual machines, as NVIDIA's manager of the modes says it in labels of the
    Node: the driver does not see these GPUs, and their guest is what attests them.
    """
    mode, ready = labels.get(MODE_STATE_LABEL), labels.get(READY_STATE_LABEL)
    return ConfidentialState(
        mode if mode in CC_MODES else None, None if ready not in ("true", "false") else ready == "true"
    )


def with_modes_of_guests(machine: Machine, labels: Mapping[str, str], known: Mapping[str, str]) -> Machine:
    """Return a machine whose GPUs for virtual machines have the mode that is known of them, by PCI address, or else
    the one that the labels say.
    """
    by_labels = state_by_labels(labels).mode
    gpus = (replace(gpu, cc_mode=known.get(gpu.pci_bus_id, by_labels)) for gpu in machine.passthrough)
    return replace(machine, passthrough=tuple(gpus))


def mode_troubles(machine: Machine, labels: Mapping[str, str], driver: str) -> tuple[Trouble, ...]:
    """Return that GPUs are not in the mode that an admin wants for the node; with_modes_of_guests() comes before."""
    label = cc_mode_label(driver)
    wanted = labels.get(label)
    if wanted is None:
        return ()
    if wanted not in CC_MODES:
        text = f"label {label} of this node is {wanted[:63]!r}, expected one of {', '.join(CC_MODES)}"
        return (trouble(TroubleKind.CONFIDENTIAL_MODE, text),)
    modes = [*(gpu.cc_mode for gpu in machine.gpus), *(gpu.cc_mode for gpu in machine.passthrough if gpu.is_bound)]
    others = sorted({mode or "not known" for mode in modes if mode != wanted})
    if not others:
        return ()
    count = sum(1 for mode in modes if mode != wanted)
    text = f"label {label} of this node says {wanted}, and the mode of {count} of its {len(modes)} GPUs is"
    return (trouble(TroubleKind.CONFIDENTIAL_MODE, f"{text} {' or '.join(others)}"),)
