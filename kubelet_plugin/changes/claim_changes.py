"""Has the engine bring about what one claim wants of its node, and undo it, for the calls of kubelet.

That may take long (an MPS server takes some seconds), so it is done without the lock that guards kubelet's calls, and
ordered by one lock per GPU. GPU locks are taken before the lock of the calls, several of them in the order of their
names. What a claim wants is in its checkpoint before anything is done, and what was done is in the ledger: a restart,
or the other instance during an upgrade, needs nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from collections.abc import Callable, Iterator, Sequence

import structlog

from dracaena.api.errors import TemporaryError
from dracaena.api.names import ClaimUid, DeviceName
from dracaena.api.passthrough import passthrough_device_name
from dracaena.kubelet_plugin.changes.change import ForOwner, Thing, thing_of
from dracaena.kubelet_plugin.changes.engine import ChangeEngine
from dracaena.kubelet_plugin.ports import NodeLock
from dracaena.kubelet_plugin.prepare.effects import MEMORY_LIMIT, Effect
from dracaena.kubelet_plugin.prepare.journals.checkpoint import State
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim
from dracaena.kubelet_plugin.store.claims import NodeClaims

MAX_WAITING = 8
"""Most calls that may wait for GPUs at once, a quarter of the workers (adapters.kubelet.grpc_server): a slow effect
must leave some for claims of other GPUs. Further calls fail at once; kubelet retries them."""

LeftS = Callable[[], float]
"""Returns the seconds that are left of a call."""

log = structlog.get_logger()


class GpusBusyError(TemporaryError):
    """Another call has a GPU, or has settled the claim meanwhile: nothing is wrong, and the next try may have it."""


class ClaimChanges:
    """Callers of hold(), apply() and undo() do not hold the lock of the calls; these take it for each write."""

    def __init__(self, *, claims: NodeClaims, engine: ChangeEngine, gpu_lock: Callable[[DeviceName], NodeLock]) -> None:
        """`gpu_lock` returns the lock of a GPU, the same one for the same name."""
        self._claims = claims
        self._engine = engine
        self._gpu_lock = gpu_lock
        self._waiting = threading.BoundedSemaphore(MAX_WAITING)

    def of(self, uid: ClaimUid) -> tuple[Effect, ...]:
        """Return what a claim of this boot wants."""
        found = self._claims.current_of(uid)
        return () if found is None else found.prepared.wants

    def leave_nothing(self, uid: ClaimUid) -> bool:
        """Whether nothing has to be undone for a claim."""
        return all(effect.leaves_nothing for effect in self.of(uid)) and not self._noted(uid)

    def are_settled(self, uid: ClaimUid) -> bool:
        """Whether a claim wants nothing of the node."""
        return not self.of(uid) and not self._noted(uid)

    def _noted(self, uid: ClaimUid) -> Sequence[Thing]:
        """Return what the ledger says that a claim has if its checkpoint does not: it broke, is gone or was rebuilt."""
        found = self._claims.current_of(uid)
        return () if found is not None and (not found.provisional or found.prepared.wants) else self._engine.noted(uid)

    def are_noted(self, claim: PreparedClaim) -> bool:
        """Whether anything was done for a claim in this boot, by the ledger alone."""
        return any(
            self._engine.is_owner(thing_of(effect), claim.claim.uid)
            for effect in claim.wants
            if effect.kind in self._engine.kinds
        )

    def with_noted(self, claim: PreparedClaim) -> PreparedClaim:
        """Return a claim that also wants what the ledger says that it has, if its checkpoint does not say: its
        containers may run with that, whatever it would be given now.
        """
        known = {thing_of(effect) for effect in claim.wants}
        had = [
            Effect(thing.kind, self._engine.gpu(thing), self._engine.gpu(thing), parameters=asked, thing=thing.name)
            for thing in self._noted(claim.claim.uid)
            if thing not in known and thing.kind != MEMORY_LIMIT  # which follow the pods of a claim anyway
            for asked in self._engine.asked_by(thing, claim.claim.uid)
        ]
        return dataclasses.replace(claim, wants=(*claim.wants, *had))

    def noted(self, effect: Effect) -> object | None:
        """Return what the ledger says of the thing that an effect is about, None if that is nothing."""
        return self._engine.noted_of(thing_of(effect)) if effect.kind in self._engine.kinds else None

    @contextlib.contextmanager
    def hold(self, uid: ClaimUid, left_s: LeftS) -> Iterator[None]:
        """Hold the GPUs of which a claim wants something for a block, for apply() and undo().

        `left_s` returns how long to wait for them at most. Raises GpusBusyError if another call holds one for longer,
        if too many calls wait already, or if another call had the claim want something of other GPUs meanwhile.
        """
        gpus = self._gpus(uid)
        with contextlib.ExitStack() as stack:
            for gpu in gpus:
                self._enter(stack, gpu, left_s)
            if self._gpus(uid) != gpus:
                raise GpusBusyError(f"another call settled claim UID {uid} while this one waited for its GPUs")
            yield

    def _enter(self, stack: contextlib.ExitStack, gpu: DeviceName, left_s: LeftS) -> None:
        lock = self._gpu_lock(gpu)
        with contextlib.suppress(TemporaryError):
            stack.enter_context(lock.hold(0.0))
            return
        if not self._waiting.acquire(blocking=False):
            raise GpusBusyError(f"{gpu} is busy, and {MAX_WAITING} calls wait already: asked again")
        try:
            stack.enter_context(lock.hold(left_s()))
        except TemporaryError as error:
            raise GpusBusyError(f"{gpu} is busy: {error}") from error
        finally:
            self._waiting.release()

    def _gpus(self, uid: ClaimUid) -> Sequence[DeviceName]:
        """Return the GPUs sorted, so that two claims never deadlock on each other's GPUs. A GPU that the NVIDIA driver
        has is named by its PCI address, too: to VFIO it has no other name.
        """
        with self._claims.hold():
            found = self._claims.current_of(uid)
            gpus = {*(effect.gpu for effect in self.of(uid)), *map(self._engine.gpu, self._noted(uid))}
        devices = () if found is None else found.prepared.devices
        addresses = (device.pci_bus_id for device in devices if device.physical_gpu in gpus)
        return sorted({*gpus, *map(passthrough_device_name, filter(None, addresses))})

    def apply(self, uid: ClaimUid, planned: Sequence[Effect], left_s: LeftS) -> None:
        """Bring about what a claim wants; all of it must be in its checkpoint already, and its GPUs held. Nothing is
        begun once `left_s` returns 0.

        What an earlier plan wanted is undone first. Raises DracaenaError. Does nothing if another call, with another
        plan, has changed what the claim wants.
        """
        known = self.of(uid)
        if not all(effect in known for effect in planned):
            raise TemporaryError(f"another call settled claim UID {uid} while this one waited for its GPUs")
        self._undo(uid, left_s, keep=planned)
        self._settle(planned, ForOwner(begins=uid), left_s)

    def undo(self, uid: ClaimUid, left_s: LeftS) -> None:
        """Undo all that a claim wanted; its GPUs must be held. Nothing is begun once `left_s` returns 0.

        Raises DracaenaError if something cannot be undone: the claim goes on wanting that.
        """
        self._undo(uid, left_s, keep=())
        self._engine.settle(self._noted(uid), ForOwner(ends=uid), left_s).check()

    def follow(self, uid: ClaimUid, wanted: Sequence[Effect]) -> bool:
        """Bring things that containers do not see to what a claim wants of them now, again if they are; their GPUs must
        be held.

        Only changes prepared claims: of a claim that is set aside or being prepared, nothing changes and the answer is
        False. Raises DracaenaError at the first that cannot be settled.
        """
        with self._claims.hold():
            checkpoint = self._claims.current_of(uid)
            if checkpoint is None:
                return True
            if checkpoint.state is not State.DONE:
                return False
            known = checkpoint.prepared.wants
            new = [effect for effect in wanted if effect not in known]
            if new:
                self._claims.want(checkpoint, [*known, *new])
        self._settle(wanted, ForOwner(begins=uid), _unlimited)
        return True

    def leave(self, uid: ClaimUid, wanted: Sequence[Effect], of_kind: Callable[[Effect], bool]) -> None:
        """Undo what a claim that was followed wants of some kinds besides `wanted`. Raises DracaenaError: it goes on
        wanting what cannot be undone.
        """
        self._undo(uid, _unlimited, keep=[*wanted, *(effect for effect in self.of(uid) if not of_kind(effect))])

    def _undo(self, uid: ClaimUid, left_s: LeftS, keep: Sequence[Effect]) -> None:
        """Undo what a claim wants besides `keep`; of a thing of which it wants two, the one in `keep` stays."""
        left = [effect for effect in self.of(uid) if effect not in keep]
        if not left:
            return
        kept = {thing_of(effect) for effect in keep}
        ended = [effect for effect in left if thing_of(effect) not in kept]
        settled = self._engine.settle([*map(thing_of, ended)], ForOwner(ends=uid), left_s)
        with self._claims.hold():
            checkpoint = self._claims.current_of(uid)
            if checkpoint is None or any(effect not in checkpoint.prepared.wants for effect in left):
                raise TemporaryError(f"the checkpoint of claim UID {uid} was changed while its GPUs were being settled")
            gone = [effect for effect in left if thing_of(effect) not in settled.problems]
            self._claims.want(checkpoint, [each for each in checkpoint.prepared.wants if each not in gone])
        settled.check()

    def _settle(self, effects: Sequence[Effect], call: ForOwner, left_s: LeftS) -> None:
        self._engine.settle([*map(thing_of, effects)], call, left_s).check()


def _unlimited() -> float:
    return math.inf
