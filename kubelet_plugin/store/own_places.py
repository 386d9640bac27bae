"""Which MIG devices of this node belong to claims, by place."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from dracaena.api.names import DeviceName
from dracaena.kubelet_plugin.discovery.mig.instances import MadeDevice
from dracaena.kubelet_plugin.prepare.effects import MIG_INSTANCE
from dracaena.kubelet_plugin.prepare.journals.checkpoint import Checkpoint
from dracaena.kubelet_plugin.store.claims import NodeClaims
from dracaena.process.clock import Clock

SETTLED_S = 180.0
"""How long a place counts as ours after something was last made or undone there: a reading that began earlier may show
what is gone by now. Longer than a reading may take (live_machine.READ_DEADLINE_S)."""


class OwnPlaces:
    """Answers from the journals of claims, and remembers what this process touched. From any thread."""

    def __init__(self, clock: Clock, claims: NodeClaims) -> None:
        self._clock = clock
        self._claims = claims
        self._lock = threading.Lock()
        self._touched: dict[DeviceName, float] = {}

    def touch(self, place: DeviceName) -> None:
        """Record that something is made or undone at a place."""
        with self._lock:
            self._touched[place] = self._clock.monotonic()

    def names(self) -> frozenset[DeviceName]:
        """Return the places where claims have MIG devices, may have them, or had them a moment ago.

        Raises DracaenaError where the journals cannot be read.
        """
        touched = self._settling()
        return frozenset(effect.device for _, effect in self._claims.effects(MIG_INSTANCE)) | touched

    def made(self) -> Mapping[DeviceName, MadeDevice]:
        """Return the MIG devices that claims have, by place, without those that a reading may be too old to show.

        Raises DracaenaError where the journals cannot be read.
        """
        touched = self._settling()
        return {
            effect.device: MadeDevice(
                str(effect.parameters["gpu"]), str(effect.outcome["uuid"]), effect.device in _lost(checkpoint)
            )
            for checkpoint, effect in self._claims.effects(MIG_INSTANCE)
            if effect.outcome is not None and "uuid" in effect.outcome and effect.device not in touched
        }

    def _settling(self) -> frozenset[DeviceName]:
        since_s = self._clock.monotonic() - SETTLED_S
        with self._lock:
            self._touched = {place: at_s for place, at_s in self._touched.items() if at_s >= since_s}
            return frozenset(self._touched)


def _lost(checkpoint: Checkpoint) -> frozenset[DeviceName]:
    """Return the devices for which a claim is set aside (prepare.moved_devices)."""
    if checkpoint.aside is None or not checkpoint.planned:
        return frozenset()
    return frozenset(device.device for device in checkpoint.prepared.devices if device.index is None)
