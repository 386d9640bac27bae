"""Restores the time slices of GPUs that were set for a claim of which nothing is left.

The last share of a GPU restores the interval from before the first one. If its checkpoint broke, and the claim ended
before it was rebuilt from the API, nothing else would before the next boot.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import structlog

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.names import DeviceName
from dracaena.kubelet_plugin.effects.time_slice_records import TimeSliceRecords
from dracaena.kubelet_plugin.effects.time_slices import TimeSlicesBefore
from dracaena.kubelet_plugin.ports import NodeLock
from dracaena.kubelet_plugin.prepare.effects import TIME_SLICE, TIME_SLICE_BEFORE
from dracaena.kubelet_plugin.store.claims import NodeClaims

log = structlog.get_logger()


class UnclaimedTimeSlices:
    """For one thread; keeps no state."""

    def __init__(
        self,
        *,
        records: TimeSliceRecords,
        before: TimeSlicesBefore,
        claims: NodeClaims,
        gpu_lock: Callable[[DeviceName], NodeLock],
    ) -> None:
        self._records = records
        self._before = before
        self._claims = claims
        self._gpu_lock = gpu_lock

    def restore(self) -> int:
        """Restore the intervals of GPUs on which no claim has time slices or may have them; return how many there were.
        Raises DracaenaError if the records cannot be read.
        """
        return sum(map(self._restore, self._records.gpus()))

    def _restore(self, gpu: DeviceName) -> bool:
        """Restore the interval of a GPU if it is due; return whether there was one. A GPU that a call works on is left
        to that call.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._gpu_lock(gpu).hold(0.0))  # before the lock of the calls, as they do
            except TemporaryError:
                return False
            try:
                if self._may_be_divided(gpu):
                    return False
                was_set = self._before.restore(gpu)
            except DracaenaError as error:
                log.info("time slices that no claim has stay for now", device=gpu, error=str(error))
                return False
        if was_set:
            log.warning("time slices that no claim had any more are restored", device=gpu)
        return was_set

    def _may_be_divided(self, gpu: DeviceName) -> bool:
        """Whether a claim has time slices on a GPU, or its checkpoint, which broke or was lost, may name some."""
        with self._claims.hold():
            if any(effect.gpu == gpu for _, effect in self._claims.effects(TIME_SLICE, TIME_SLICE_BEFORE)):
                return True
            held = ({device.physical_gpu for device in salvaged.devices} for _, salvaged in self._claims.unsure())
            return any(not gpus or gpu in gpus for gpus in held)
