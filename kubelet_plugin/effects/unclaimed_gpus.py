"""Gives GPUs back to their drivers that VFIO has for a claim of which nothing is left.

A claim's checkpoint says what has to be undone when it ends. Where it broke, and the claim ended before it was rebuilt
from the API, nobody would undo the binding before the next boot: the node lacks a GPU, and no claim holds it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import structlog

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.names import DeviceName
from dracaena.api.passthrough import passthrough_device_name
from dracaena.kubelet_plugin.discovery.health.troubles import Trouble, TroubleKind, trouble
from dracaena.kubelet_plugin.effects.bound_gpus import BoundGpus
from dracaena.kubelet_plugin.ports import NodeLock
from dracaena.kubelet_plugin.prepare.effects import VFIO_BIND, Effect

log = structlog.get_logger()


class UnclaimedGpus:
    """For one thread; holds nothing itself."""

    def __init__(
        self,
        *,
        bound: BoundGpus,
        undo: Callable[[Effect, Sequence[Effect]], None],
        user_of: Callable[[DeviceName], str | None],
        gpu_lock: Callable[[DeviceName], NodeLock],
        lock: NodeLock,
        on_troubles: Callable[[Sequence[Trouble]], None],
    ) -> None:
        """`undo` is VfioBinding's: it refuses while a process has the GPU open. `user_of` says, with `lock` held, which
        claim has a device, or may have (GpuUsers.prepared). `on_troubles` is told what cannot be given back.
        """
        self._bound = bound
        self._undo = undo
        self._user_of = user_of
        self._gpu_lock = gpu_lock
        self._lock = lock
        self._on_troubles = on_troubles

    def give_back(self) -> int:
        """Give back what no claim has or may have, and nobody has open; return how many GPUs. Raises DracaenaError
        where it is not known which there are.
        """
        count, troubles = 0, []
        for address in self._bound.addresses():
            try:
                count += self._give_back(address)
            except DracaenaError as error:
                text = f"no claim has the GPU at {address}, and it stays with its VFIO driver: {error}"
                troubles.append(trouble(TroubleKind.NOT_GIVEN_BACK, text, address))
        self._on_troubles(troubles)
        return count

    def _give_back(self, address: str) -> bool:
        """Return whether it was given back now; a GPU that a call is at work on is left to that."""
        device = passthrough_device_name(address)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._gpu_lock(device).hold(0.0))  # before the lock of the calls, as they do
            except TemporaryError:
                return False
            with self._lock.hold():
                user = self._user_of(device)
            if user is not None:
                log.debug("a GPU stays with VFIO", device=device, reason=user)
                return False
            was_bound = bool(self._bound.functions(address))
            self._undo(Effect(VFIO_BIND, device, device, parameters={"address": address}), ())
            self._bound.forget(address)
        if was_bound:
            log.warning("a GPU that VFIO had for no claim is given back", device=device)
        return was_bound
