"""Keeps claims from GPUs that must compute confidentially and do not, or that accept no work until they are attested.

The driver is asked each time instead of trusting an earlier reading: each time it is loaded it forgets that the GPUs
were attested, and comes up in whatever mode the hardware is in by then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dracaena.api.errors import TemporaryError
from dracaena.api.names import DeviceName
from dracaena.api.passthrough import pci_bus_id_in
from dracaena.kubelet_plugin.device_kinds.confidential import why_not_ready
from dracaena.kubelet_plugin.device_kinds.plan import GatedDevice
from dracaena.kubelet_plugin.discovery.confidential import ConfidentialState, state_by_labels
from dracaena.kubelet_plugin.ports import ReadPool

ASK_DEADLINE_S = 10.0
"""Longest wait for the driver: it answers within microseconds, but may be busy with a reading of the node."""


class NotConfidentialError(TemporaryError):
    """A GPU is not in the mode that a claim requires, or accepts no work yet. Kubelet retries."""


class ConfidentialGate:
    """Checks devices before a claim is first prepared. Call from any thread, without the node's lock; keeps no
    state.
    """

    def __init__(
        self,
        read_state: Callable[[], ConfidentialState],
        labels: Callable[[], Mapping[str, str]] = dict,
        guest_modes: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`read_state` asks the driver, `labels` returns those of the Node, `guest_modes` what this plugin knows of the
        modes of GPUs for virtual machines, by PCI address.
        """
        self._read_state = read_state
        self._labels = labels
        self._guest_modes = guest_modes

    def refuse(self, gated: Sequence[GatedDevice]) -> None:
        """Raise NotConfidentialError, with all reasons, if one cannot be given to containers now; other DracaenaErrors
        if the driver cannot be asked. May wait for it.
        """
        of_guest = self._states_of_guests()
        of_driver = ConfidentialState() if all(each.is_passthrough for each in gated) else self._read_state()
        states = (of_guest(each.device) if each.is_passthrough else of_driver for each in gated)
        reasons = [why for each, state in zip(gated, states, strict=True) if (why := why_not_ready(each, state))]
        if reasons:
            raise NotConfidentialError("; ".join(reasons))

    def _states_of_guests(self) -> Callable[[DeviceName], ConfidentialState]:
        """Return a function from a device for virtual machines to its state; attesting it is up to the guest."""
        by_labels, known = state_by_labels(self._labels()), self._guest_modes()

        def state(device: DeviceName) -> ConfidentialState:
            mode = known.get(pci_bus_id_in(device) or "")
            return by_labels if mode is None else ConfidentialState(mode, ready=True)

        return state


def confidential_gate(
    by_driver: Callable[[], ConfidentialState] | None,
    read_pool: ReadPool,
    labels: Callable[[], Mapping[str, str]] = dict,
    guest_modes: Callable[[], Mapping[str, str]] = dict,
) -> ConfidentialGate:
    """Return the gate of a node whose driver answers `by_driver`, within ASK_DEADLINE_S; None: a recorded machine."""

    def of_recording() -> ConfidentialState:
        """It runs nothing, so its GPUs need not be attested."""
        modes = {gpu.cc_mode for gpu in read_pool().gpus.values()}
        return ConfidentialState(modes.pop() if len(modes) == 1 else None, ready=True)

    return ConfidentialGate(by_driver or of_recording, labels, guest_modes)
