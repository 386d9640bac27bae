"""Destroys MIG devices that were made for a claim of which nothing is left.

A claim's checkpoint says what to destroy when it ends. If the checkpoint broke, and the claim ended before it was
rebuilt from the API, its MIG device would stay until the next boot, and its slices go to no claim.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import structlog

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.names import ClaimUid, DeviceName
from dracaena.kubelet_plugin.effects.mig_device_records import MigDeviceRecords
from dracaena.kubelet_plugin.ports import NodeLock, ReadPool
from dracaena.kubelet_plugin.prepare.effects import MIG_INSTANCE, Effect
from dracaena.kubelet_plugin.store.claims import NodeClaims

log = structlog.get_logger()


class UnclaimedMigDevices:
    """For one thread; keeps no state."""

    def __init__(
        self,
        *,
        records: MigDeviceRecords,
        read_pool: ReadPool,
        destroy: Callable[[Effect, Sequence[Effect]], bool],
        claims: NodeClaims,
        gpu_lock: Callable[[DeviceName], NodeLock],
        destroyed: Callable[[], None],
    ) -> None:
        """`destroy` is MigInstances': it refuses while a process uses the device. `destroyed` is called after a device
        was destroyed.
        """
        self._records = records
        self._read_pool = read_pool
        self._destroy = destroy
        self._claims = claims
        self._gpu_lock = gpu_lock
        self._destroyed = destroyed

    def destroy(self) -> int:
        """Destroy the MIG devices that are recorded as ours, and that no claim has or may have; return how many. Raises
        DracaenaError if the records cannot be read.

        Those of a GPU that is no longer divided on demand stay: they are published as they are, and a claim gets one of
        them without its GPU's lock.
        """
        return sum(map(self._destroy_at, self._records.places()))

    def _destroy_at(self, place: DeviceName) -> bool:
        """Destroy one MIG device if it is due; return whether it was there. A GPU that a call works on is left to that
        call.
        """
        found = self._records.checked(place)
        if found is None:
            return False
        claim, effect = found
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._gpu_lock(effect.gpu).hold(0.0))  # before the lock of the calls, as they do
            except TemporaryError:
                return False
            try:
                if place not in self._read_pool().mig_places:
                    return False
                if self._records.of(place) != found:
                    return False  # it was another device's by the time that the GPU was free: left to the next sweep
                with self._claims.hold():
                    if not self._has_ended(claim, place):
                        return False
                    others = self._others(effect)
                was_there = self._destroy(effect, others)
                self._records.forget(place)
            except DracaenaError as error:
                log.info("a MIG device that no claim has stays for now", device=place, reason=str(error))
                return False
        if was_there:
            log.warning("a MIG device that no claim had any more is destroyed", device=place)
            self._destroyed()
        return was_there

    def _has_ended(self, claim: ClaimUid, place: DeviceName) -> bool:
        """Whether a claim whose checkpoint broke was unprepared since, and no other has the device of its place or may
        have it. Of a checkpoint that was lost nobody can tell when the containers of its claim end.
        """
        if self._claims.who_has(place, lambda each, _: each.device == place):
            return False
        is_gone = self._claims.of(claim) is None and self._claims.is_without_spec(claim)
        return is_gone and self._claims.was_broken(claim)

    def _others(self, effect: Effect) -> Sequence[Effect]:
        return [other for _, other in self._claims.effects(MIG_INSTANCE) if other.gpu == effect.gpu]
