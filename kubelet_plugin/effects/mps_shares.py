"""Asks the node's MPS supervisor for shares, and gives them back (docs/design/0030-mps.md).

Both sides write files, so nothing is lost when either is killed: the next supervisor serves a pending request, and a
retried call finds its own request and goes on waiting.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dracaena.api.errors import BadInputError, DracaenaError, PermanentError, TemporaryError
from dracaena.api.mps import (
    NODE_STATUS,
    SUFFIX,
    MpsFault,
    MpsPhase,
    MpsShareStatus,
    decode_node_status,
    decode_status,
    digest,
    encode,
    share_name,
)
from dracaena.kubelet_plugin.device_kinds.mps_effect import MpsOffer, mps_outcome, mps_request
from dracaena.kubelet_plugin.ports import DocumentStore, EffectPendingError
from dracaena.kubelet_plugin.prepare.effects import Effect, Scalar
from dracaena.process.clock import Clock

PATIENCE_S: Final = 10.0
"""Longest wait for one share. It takes some tenths of a second; a daemon that hangs takes longer than the 45 s that
kubelet allows a call, so the call fails earlier and kubelet retries. Another claim waits 20 s for this one's GPU."""

LOOK_S: Final = 0.1
"""Pause between two looks at the status. The supervisor looks for requests every 0.2 s."""


class MpsShares:
    """Implements EffectMeans for MPS_SHARE. From any thread; keeps no state."""

    def __init__(
        self,
        *,
        root: str,
        requests: DocumentStore,
        statuses: DocumentStore,
        node: DocumentStore,
        is_running: Callable[[], bool],
        boot_id: str,
        clock: Clock,
    ) -> None:
        """The stores are the supervisor's folder `root` and its two subfolders; `is_running`: whether it runs."""
        self._root = root
        self._requests = requests
        self._statuses = statuses
        self._node = node
        self._is_running = is_running
        self._boot_id = boot_id
        self._clock = clock
        self._never = threading.Event()

    def offer(self) -> MpsOffer:
        """Return what the supervisor can do now, as far as it has said."""
        try:
            data = self._node.read(NODE_STATUS)
            said = None if data is None else decode_node_status(data)
        except DracaenaError as error:
            return MpsOffer(f"what the MPS supervisor says about this node cannot be read: {error}", runs=False)
        if said is None or said.boot_id != self._boot_id:
            problem = (
                f"no MPS supervisor has run in {self._root} since this node was started: see the pods of `dracaena "
                "mps` (chart values mps.enabled and mps.nodeSelector)"
            )
            return MpsOffer(problem, runs=False)
        if said.protocol == 0:
            return MpsOffer(f"the GPU driver of this node serves no MPS: {said.message}", runs=False)
        if not said.multi_user:
            problem = (
                "its MPS supervisor serves the clients of one user at a time, and it is not known which user a pod's "
                "containers run as: leave its setting multi-user at true"
            )
            return MpsOffer(problem, runs=False)
        return MpsOffer(None, runs=self._is_running())

    def apply(self, effect: Effect, _others: Sequence[Effect]) -> Mapping[str, Scalar]:
        """See EffectMeans. Raises EffectPendingError while the supervisor works on it, or none runs.

        Raises PermanentError with the supervisor's reason if it refuses.
        """
        name, data = _file_name(effect), encode(mps_request(effect, self._boot_id))
        self._requests.write_if_changed(name, data)
        deadline_s = self._clock.monotonic() + PATIENCE_S
        while True:
            seen = self._answer(name, digest(data))
            if isinstance(seen, MpsShareStatus):
                try:
                    return mps_outcome(seen, self._root)
                except BadInputError as error:
                    seen = f"its MPS supervisor gave a wrong answer: {error}"
            if self._clock.monotonic() >= deadline_s:
                raise EffectPendingError(f"{effect} is not ready yet: {self._why_not(seen)}")
            self._clock.sleep_until_set(self._never, LOOK_S)

    def undo(self, effect: Effect, _others: Sequence[Effect]) -> None:
        """See EffectMeans. Raises TemporaryError until the supervisor has removed the share."""
        name = _file_name(effect)
        self._requests.remove(name)
        deadline_s = self._clock.monotonic() + PATIENCE_S
        while self._statuses.read(name) is not None:
            if self._clock.monotonic() >= deadline_s:
                why = self._why_not("the supervisor has not removed it")
                raise TemporaryError(f"{effect} was withdrawn but is still there: {why}")
            self._clock.sleep_until_set(self._never, LOOK_S)

    def fault(self, effect: Effect) -> MpsFault | None:
        """Return the last fault of a share, None if it had none. Raises DracaenaError if its status cannot be read."""
        data = self._statuses.read(_file_name(effect))
        return None if data is None else decode_status(data).fault

    def protocol(self) -> int:
        """Return the supervisor's protocol version, 0 if it cannot be read."""
        with contextlib.suppress(DracaenaError):
            data = self._node.read(NODE_STATUS)
            return 0 if data is None else decode_node_status(data).protocol
        return 0

    def _answer(self, name: str, request: str) -> MpsShareStatus | str:
        """Return the status of a ready share, or what it waits for. Raises PermanentError if it is refused."""
        try:
            data = self._statuses.read(name)
            status = None if data is None else decode_status(data)
        except DracaenaError as error:
            return f"its status cannot be read: {error}"
        if status is None or status.request != request:
            return "the MPS supervisor has not answered"
        if status.phase is MpsPhase.REFUSED:
            raise PermanentError(f"the MPS supervisor of this node refuses the share of {status.gpu}: {status.message}")
        return status if status.phase is MpsPhase.READY else f"{status.phase.value}, {status.message}"

    def _why_not(self, seen: str) -> str:
        if self._is_running():
            return seen
        return (
            f"no MPS supervisor runs on this node: see its pod of `dracaena mps` (chart value mps.enabled); the "
            f"next one continues where it stopped ({seen})"
        )


def share_name_of(effect: Effect) -> str:
    """Return the name of the share that an effect is."""
    given = effect.parameters
    return share_name(str(given["gpu"]), str(given["claim_uid"]), effect.share_id or "")


def _file_name(effect: Effect) -> str:
    return share_name_of(effect) + SUFFIX
