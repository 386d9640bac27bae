"""Shares of GPUs that the node's MPS supervisor serves (docs/design/mps.md): asked for, and given back.

Both sides write files, so nothing is lost when either is killed: the next supervisor serves a pending request, and a
retried call finds its own request and goes on waiting.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
)
from dracaena.api.names import DeviceName
from dracaena.host.facts.troubles import Trouble, TroubleKind, trouble
from dracaena.kubelet_plugin.changes.change import (
    Act,
    End,
    How,
    Note,
    Thing,
    ThingKind,
    ThingPlan,
    Unreadable,
    Wants,
    one_by_one,
)
from dracaena.kubelet_plugin.device_kinds.mps_effect import MpsOffer, NotedShare, mps_edits, mps_request
from dracaena.kubelet_plugin.ports import DocumentStore, EffectPendingError
from dracaena.kubelet_plugin.prepare.cdi.spec import Edits
from dracaena.kubelet_plugin.prepare.effects import MPS_SHARE, gpu_and_part
from dracaena.process.clock import Clock

PATIENCE_S: Final = 10.0
"""Longest wait for one share. It takes some tenths of a second; a daemon that hangs takes longer than the 45 s that
kubelet allows a call, so the call fails earlier and kubelet retries. Another claim waits 20 s for this one's GPU."""

LOOK_S: Final = 0.1
"""Pause between two looks at the status. The supervisor looks for requests every 0.2 s."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Have the supervisor serve a share."""

    request: bytes


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Have it remove the share."""


Step = Ask | Withdraw


class MpsShares(ThingKind[NotedShare, Step]):
    """For MPS_SHARE; a thing is a share on a GPU. From any thread; keeps no state."""

    name = MPS_SHARE
    rank = 50
    noted = NotedShare

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

    def fault(self, share: str) -> MpsFault | None:
        """Return the last fault of a share, by its name (api.mps), None if it had none. Raises DracaenaError if its
        status cannot be read.
        """
        data = self._statuses.read(share + SUFFIX)
        return None if data is None else decode_status(data).fault

    def protocol(self) -> int:
        """Return the supervisor's protocol version, 0 if it cannot be read."""
        with contextlib.suppress(DracaenaError):
            data = self._node.read(NODE_STATUS)
            return 0 if data is None else decode_node_status(data).protocol
        return 0

    def gpu(self, thing: Thing) -> DeviceName:
        """See ThingKind."""
        return gpu_and_part(thing.name)[0]

    def asked(self, wants: Wants) -> bytes:
        """Return the request. Only one claim has a share."""
        for uid, asked in wants.items():
            for parameters in asked:
                return encode(mps_request(uid, parameters, self._boot_id))
        return b""

    def supposed(self, _wants: Wants) -> NotedShare:
        """See ThingKind: what containers get is said again by the supervisor."""
        return NotedShare()

    def look(self, thing: Thing, wants: Wants) -> Edits | None:
        """Return what the containers of a share get, None unless it is ready as it is wanted."""
        name, request = _file_name(thing), self.asked(wants)
        if not request or self._requests.read(name) != request:
            return None
        seen = self._answer(name, digest(request))
        return seen if isinstance(seen, Edits) else None

    def plan(
        self, wants: Wants, seen: Edits | None, note: Note[NotedShare] | Unreadable | None
    ) -> ThingPlan[NotedShare, Step]:
        """See ThingKind."""
        request = self.asked(wants)
        if request:
            return ThingPlan(NotedShare(seen), None) if seen is not None else ThingPlan(NotedShare(), Ask(request))
        if isinstance(note, Unreadable):
            return ThingPlan(
                stays=f"{note.problem}, so it is not known whether its claim still runs: once no pod uses it, remove "
                "that file from the plugin's folder `ledger` and the share's from `requests` of the MPS supervisor"
            )
        return ThingPlan(act=Withdraw())

    def do(self, acts: Sequence[Act[Step]], left_s: Callable[[], float]) -> Sequence[End[NotedShare]]:
        """See ThingKind. A claim waits for the supervisor while that works on its share, or while none runs."""
        return one_by_one(acts, left_s, self._do)

    def trouble(self, thing: Thing, problem: DracaenaError) -> Trouble | None:
        """See ThingKind."""
        text = f"a share by MPS of {self.gpu(thing)} is still served, and no claim has it any more: {problem}"
        return trouble(TroubleKind.NOT_RESTORED, text, thing.name)

    def _do(self, act: Act[Step]) -> End[NotedShare]:
        name = _file_name(act.thing)
        try:
            if isinstance(act.step, Ask):
                self._requests.write_if_changed(name, act.step.request)
                return End(left=NotedShare(self._ready(act.thing, name, digest(act.step.request))))
            self._requests.remove(name)
            self._wait_until_gone(act.thing, name)
        except DracaenaError as error:
            return End(How.UNANSWERED, error)
        return End()

    def _ready(self, thing: Thing, name: str, request: str) -> Edits:
        """Wait for a share. Raises EffectPendingError if it is not ready in time, PermanentError if it is refused."""
        deadline_s = self._clock.monotonic() + PATIENCE_S
        while isinstance(seen := self._answer(name, request), str):
            if self._clock.monotonic() >= deadline_s:
                raise EffectPendingError(f"{thing} is not ready yet: {self._why_not(seen)}")
            self._clock.sleep_until_set(self._never, LOOK_S)
        if isinstance(seen, PermanentError):
            raise seen
        return seen

    def _wait_until_gone(self, thing: Thing, name: str) -> None:
        deadline_s = self._clock.monotonic() + PATIENCE_S
        while self._statuses.read(name) is not None:
            if self._clock.monotonic() >= deadline_s:
                why = self._why_not("the supervisor has not removed it")
                raise TemporaryError(f"{thing} was withdrawn but is still there: {why}")
            self._clock.sleep_until_set(self._never, LOOK_S)

    def _answer(self, name: str, request: str) -> Edits | PermanentError | str:
        """Return what the containers of a ready share get, why it is refused, or what it waits for."""
        try:
            data = self._statuses.read(name)
            status = None if data is None else decode_status(data)
        except DracaenaError as error:
            return f"its status cannot be read: {error}"
        if status is None or status.request != request:
            return "the MPS supervisor has not answered"
        if status.phase is MpsPhase.REFUSED:
            return PermanentError(
                f"the MPS supervisor of this node refuses the share of {status.gpu}: {status.message}"
            )
        if status.phase is not MpsPhase.READY:
            return f"{status.phase.value}, {status.message}"
        return self._edits(status)

    def _edits(self, status: MpsShareStatus) -> Edits | str:
        try:
            return mps_edits(status, self._root)
        except BadInputError as error:
            return f"its MPS supervisor gave a wrong answer: {error}"

    def _why_not(self, seen: str) -> str:
        if self._is_running():
            return seen
        return (
            f"no MPS supervisor runs on this node: see its pod of `dracaena mps` (chart value mps.enabled); the "
            f"next one continues where it stopped ({seen})"
        )


def _file_name(thing: Thing) -> str:
    return gpu_and_part(thing.name)[1] + SUFFIX
