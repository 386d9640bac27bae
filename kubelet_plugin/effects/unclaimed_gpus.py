"""Gives GPUs back to their drivers if VFIO still has them for a claim of which nothing is left.

A claim's checkpoint says what to undo when it ends. If the checkpoint broke, and the claim ended before it was rebuilt
from the API, nothing else would undo the binding before the next boot: the node would lack a GPU that no claim holds.
The same goes for what its end left with VFIO, such as a sound card whose driver refused it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import structlog

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.names import DeviceName
from dracaena.api.passthrough import passthrough_device_name
from dracaena.host.facts.troubles import Trouble, TroubleKind, trouble
from dracaena.kubelet_plugin.effects.bound_gpus import BoundGpus
from dracaena.kubelet_plugin.ports import NodeLock

log = structlog.get_logger()


class UnclaimedGpus:
    """For one thread; keeps no state."""

    def __init__(
        self,
        *,
        bound: BoundGpus,
        give_back: Callable[[str], str],
        user_of: Callable[[DeviceName], str | None],
        gpu_lock: Callable[[DeviceName], NodeLock],
        on_troubles: Callable[[Sequence[Trouble]], None],
    ) -> None:
        """`give_back` is VfioBinding's: it refuses while a process has the GPU open. `user_of` returns
        which claim has a device or may have it (NodeClaims.who_has). `on_troubles` gets what cannot be given back.
        """
        self._bound = bound
        self._give_back_now = give_back
        self._user_of = user_of
        self._gpu_lock = gpu_lock
        self._on_troubles = on_troubles

    def give_back(self) -> int:
        """Give back GPUs that no claim has or may have, and no process has open; return how many. Raises DracaenaError
        if the records of bound GPUs cannot be read.
        """
        count, troubles = 0, []
        for address in self._bound.addresses():
            try:
                left = self._give_back(address)
            except DracaenaError as error:
                left = str(error)
            if left:
                text = f"the GPU at {address} is not yet as it was before a claim had it: {left}"
                troubles.append(trouble(TroubleKind.NOT_GIVEN_BACK, text, address))
            count += left == ""
        self._on_troubles(troubles)
        return count

    def _give_back(self, address: str) -> str | None:
        """Give a GPU back if it is due; return what is left of it, None if it is not due. A GPU that a call works on is
        left to that call.
        """
        device = passthrough_device_name(address)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._gpu_lock(device).hold(0.0))  # before the lock of the calls, as they do
            except TemporaryError:
                return None
            user = self._user_of(device)
            if user is not None:
                log.debug("a GPU stays with VFIO", device=device, reason=user)
                return None
            was_bound = bool(self._bound.functions(address))
            left = self._give_back_now(address)
        if was_bound and not left:
            log.warning("a GPU that VFIO had for no claim is given back", device=device)
        return left if was_bound or left else None
