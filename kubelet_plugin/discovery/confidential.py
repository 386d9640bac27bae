"""What NVML and labels of the Node say about confidential computing, in our terms. Unknown values are not guessed."""

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
from dracaena.host.facts.machine import ConfidentialFacts
from dracaena.host.facts.troubles import Trouble, TroubleKind, trouble

_CAPABLE = {0: False, 1: True}
_MODES = {(0, 0): CC_OFF, (0, 1): CC_OFF, (1, 0): CC_ON, (1, 1): CC_DEVTOOLS}
"""Feature and developer tools, as NVML's numbers → mode. The tools count only if the feature is enabled."""


@dataclass(frozen=True, slots=True)
class ConfidentialState:
    """The state of all GPUs of a node together at one moment. None: not known."""

    mode: str | None = None
    """One of dracaena.api.confidential.CC_MODES."""
    ready: bool | None = None
    """Whether they accept work; None also in a mode in which that needs no permission."""


def cc_capable(facts: ConfidentialFacts) -> bool | None:
    """Return whether the GPUs can compute confidentially, None if that is not known."""
    return None if facts.gpus_capable is None else _CAPABLE.get(facts.gpus_capable)


def cc_mode(facts: ConfidentialFacts) -> str | None:
    """Return the mode that all GPUs are in, None if it is not reported or unknown to us."""
    if facts.feature is None or facts.dev_tools is None:
        return None
    return _MODES.get((facts.feature, facts.dev_tools))


def state_by_labels(labels: Mapping[str, str]) -> ConfidentialState:
    """Return the state of the GPUs for virtual machines, as NVIDIA's manager of the modes reports it in labels of the
    Node: the driver does not see these GPUs, and their guest attests them.
    """
    mode, ready = labels.get(MODE_STATE_LABEL), labels.get(READY_STATE_LABEL)
    return ConfidentialState(
        mode if mode in CC_MODES else None, None if ready not in ("true", "false") else ready == "true"
    )


def with_modes_of_guests(machine: Machine, labels: Mapping[str, str], known: Mapping[str, str]) -> Machine:
    """Return a machine whose GPUs for virtual machines have their known mode, by PCI address, or otherwise the one in
    the labels.
    """
    by_labels = state_by_labels(labels).mode
    gpus = (replace(gpu, cc_mode=known.get(gpu.pci_bus_id, by_labels)) for gpu in machine.passthrough)
    return replace(machine, passthrough=tuple(gpus))


def mode_troubles(machine: Machine, labels: Mapping[str, str], driver: str) -> tuple[Trouble, ...]:
    """Return a trouble if GPUs are not in the mode that an admin wants; call with_modes_of_guests() first."""
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
