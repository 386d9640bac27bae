"""Makes the effects of claims and undoes them, each journaled in its claim's checkpoint for as long as it may exist.

Effects whose kind is in the engine (changes.engine) are only what their claim wants: they are journaled without an
outcome, and the engine brings their things to that.

They may take long (an MPS server takes some seconds), so they are made without the lock that guards kubelet's calls,
and ordered by one lock per GPU. GPU locks are taken before the lock of the calls, several of them in the order of their
names. The journal is written under the lock of the calls, before an effect is made and after it was undone. So the
journal always covers at least what exists, and a restart, or the other instance during an upgrade, needs nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import structlog

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.names import ClaimUid, DeviceName
from dracaena.api.passthrough import passthrough_device_name
from dracaena.kubelet_plugin.changes.change import ForClaim, Thing, thing_of
from dracaena.kubelet_plugin.changes.engine import ChangeEngine
from dracaena.kubelet_plugin.ports import EffectMeans, NodeLock
from dracaena.kubelet_plugin.prepare.effects import Effect, Scalar, is_among
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


class ClaimEffects:
    """Callers of hold(), apply() and undo() do not hold the lock of the calls; these take it for each write."""

    def __init__(
        self,
        *,
        claims: NodeClaims,
        engine: ChangeEngine,
        means: Mapping[str, EffectMeans],
        gpu_lock: Callable[[DeviceName], NodeLock],
    ) -> None:
        """`means` by the kind of effect, for those that the engine does not have. `gpu_lock` returns the lock of a GPU,
        the same one for the same name.
        """
        self._claims = claims
        self._engine = engine
        self._means = means
        self._gpu_lock = gpu_lock
        self._waiting = threading.BoundedSemaphore(MAX_WAITING)

    def of(self, uid: ClaimUid) -> tuple[Effect, ...]:
        """Return the journaled effects of a claim in this boot."""
        found = self._claims.current_of(uid)
        return () if found is None else found.prepared.effects

    def leave_nothing(self, uid: ClaimUid) -> bool:
        """Whether nothing has to be undone for a claim."""
        return all(effect.leaves_nothing for effect in self.of(uid)) and not self._noted(uid)

    def are_settled(self, uid: ClaimUid) -> bool:
        """Whether a claim has no effects."""
        return not self.of(uid) and not self._noted(uid)

    def _noted(self, uid: ClaimUid) -> Sequence[Thing]:
        """Return what the ledger says that a claim has if its checkpoint does not: it broke, is gone or was rebuilt."""
        found = self._claims.current_of(uid)
        return () if found is not None and (found.planned or found.prepared.effects) else self._engine.noted(uid)

    def are_recorded(self, claim: PreparedClaim) -> bool:
        """Whether any effect of a claim was made for it in this boot, by records other than its checkpoint."""
        return any(
            self._engine.is_owner(thing_of(effect), claim.claim.uid)
            for effect in claim.effects
            if effect.kind in self._engine.kinds
        )

    def noted(self, effect: Effect) -> object | None:
        """Return what the ledger says of the thing that an effect is about, None if that is nothing."""
        return self._engine.noted_of(thing_of(effect)) if effect.kind in self._engine.kinds else None

    @contextlib.contextmanager
    def hold(self, uid: ClaimUid, left_s: LeftS) -> Iterator[None]:
        """Hold the GPUs of a claim's journaled effects for a block, for apply() and undo().

        `left_s` returns how long to wait for them at most. Raises GpusBusyError if another call holds one for longer,
        if too many calls wait already, or if another call changed the claim's journal to other GPUs meanwhile.
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
        """Make the planned effects of a claim, in order; all must be journaled already, and their GPUs held. The engine
        begins nothing once `left_s` returns 0.

        Effects of an earlier plan are undone first. Raises DracaenaError; what may have been made by then stays
        journaled. Makes nothing if another call, with another plan, has undone what was journaled.
        """
        known = self.of(uid)
        if not all(is_among(effect, known) for effect in planned):
            raise TemporaryError(f"another call settled claim UID {uid} while this one waited for its GPUs")
        self._undo(uid, left_s, keep=planned)
        for effects in _in_runs(next(each for each in known if each.is_same(one)) for one in planned):
            if effects[0].kind in self._engine.kinds:
                self._settle(effects, ForClaim(begins=uid), left_s)
                continue
            for effect in effects:
                self._note(uid, effect, dataclasses.replace(effect, outcome=self._apply(uid, effect)))
                log.info("effect made", effect=str(effect), claim_uid=uid)

    def _apply(self, uid: ClaimUid, effect: Effect) -> Mapping[str, Scalar]:
        return self._means_of(effect).apply(effect, self._others(uid, effect))

    def _settle(self, effects: Sequence[Effect], call: ForClaim, left_s: LeftS) -> None:
        """Have the engine settle what effects of one kind are about. Those of a claim that ends are forgotten then."""
        uid = ClaimUid(call.begins or call.ends)
        settled = self._engine.settle(map(thing_of, effects), call, left_s)
        for effect in effects if call.ends else ():
            if thing_of(effect) in settled.acted:
                self._note_undone(uid, effect)
            elif thing_of(effect) not in settled.problems:
                self._note(uid, effect, None)
        _raise_first(settled.problems)

    def undo(self, uid: ClaimUid, left_s: LeftS) -> None:
        """Undo all journaled effects of a claim, last first; their GPUs must be held. The engine begins nothing once
        `left_s` returns 0.

        Raises DracaenaError at the first that cannot be undone: it and those before it stay journaled.
        """
        self._undo(uid, left_s, keep=())
        _raise_first(self._engine.settle(self._noted(uid), ForClaim(ends=uid), left_s).problems)

    def follow(self, uid: ClaimUid, wanted: Sequence[Effect], of_kind: Callable[[Effect], bool]) -> bool:
        """Bring the things of some kinds, which containers do not see, to what a claim wants of them now, again if they
        are; their GPUs must be held.

        Only changes prepared claims: of a claim that is set aside or being prepared, nothing changes and the answer is
        False. Raises DracaenaError at the first that cannot be settled.
        """
        with self._claims.hold():
            checkpoint = self._claims.current_of(uid)
            if checkpoint is None:
                return True
            if checkpoint.state is not State.DONE:
                return False
            known = checkpoint.prepared.effects
            new = [effect for effect in wanted if not is_among(effect, known)]
            if new:
                self._claims.journal(checkpoint, [*known, *new])
        self._settle(wanted, ForClaim(begins=uid), _unlimited)
        self._undo(uid, _unlimited, keep=[*wanted, *(effect for effect in known if not of_kind(effect))])
        return True

    def _undo(self, uid: ClaimUid, left_s: LeftS, keep: Sequence[Effect]) -> None:
        left = [effect for effect in self.of(uid) if not is_among(effect, keep)]
        kept = {thing_of(effect) for effect in keep if effect.kind in self._engine.kinds}
        for effect in left:
            if thing_of(effect) in kept:  # the claim wants something else of the same thing
                self._note(uid, effect, None)
        self._undo_each(uid, [effect for effect in left if thing_of(effect) not in kept], left_s)

    def _undo_each(self, uid: ClaimUid, left: Sequence[Effect], left_s: LeftS) -> None:
        for effects in _in_runs(reversed(left)):
            if effects[0].kind in self._engine.kinds:
                self._settle(effects, ForClaim(ends=uid), left_s)
                continue
            for effect in effects:
                self._means_of(effect).undo(effect, self._others_to_undo(uid, effect))
                self._note_undone(uid, effect)

    def _others_to_undo(self, uid: ClaimUid, effect: Effect) -> tuple[Effect, ...]:
        """Return the effects beside one that is about to be undone. Raises TemporaryError if there may be others."""
        others = self._others(uid, effect)
        if all(other.outcome is None for other in others):
            self._refuse_beside_broken(effect)
        return others

    def _note_undone(self, uid: ClaimUid, effect: Effect) -> None:
        self._note(uid, effect, None)
        log.info("effect undone", effect=str(effect), claim_uid=uid)

    def _means_of(self, effect: Effect) -> EffectMeans:
        means = self._means.get(effect.kind)
        if means is None:
            raise TemporaryError(
                f"{effect} cannot be made or undone: this release, or its settings on this node, do not support "
                f"{effect.kind!r}. Run the release that prepared the claim; its devices stay held until then"
            )
        return means

    def _others(self, uid: ClaimUid, effect: Effect) -> tuple[Effect, ...]:
        """Return the other journaled effects of the same kind on the same GPU, by claim UID."""
        return tuple(
            other
            for checkpoint, other in self._claims.effects(effect.kind)
            if other.gpu == effect.gpu and not (checkpoint.prepared.claim.uid == uid and other.is_same(effect))
        )

    def _refuse_beside_broken(self, effect: Effect) -> None:
        """Refuse to undo the last known effect of its kind on a GPU while a checkpoint that broke or was lost may name
        another: containers may use what the two have in common.
        """
        for each, salvaged in self._claims.unsure():
            gpus = {device.physical_gpu for device in salvaged.devices}
            if not gpus or effect.gpu in gpus:
                raise TemporaryError(
                    f"{effect} is not undone while the checkpoint of claim UID {each.uid} {each.problem}: that claim "
                    f"may share what is behind it on {effect.gpu}. Waiting until the checkpoint is rebuilt from the "
                    "claim, or the claim is gone"
                )

    def _note(self, uid: ClaimUid, effect: Effect, now: Effect | None) -> None:
        """Journal how far an effect got; None: it was undone."""
        with self._claims.hold():
            checkpoint = self._claims.current_of(uid)
            if checkpoint is None or not is_among(effect, checkpoint.prepared.effects):
                raise TemporaryError(f"the checkpoint of claim UID {uid} was changed while {effect} was being settled")
            journal = [now if each.is_same(effect) else each for each in checkpoint.prepared.effects]
            self._claims.journal(checkpoint, [each for each in journal if each is not None])


def _unlimited() -> float:
    return math.inf


def _raise_first(problems: Mapping[Thing, DracaenaError]) -> None:
    for thing, problem in list(problems.items())[1:]:
        log.warning("not settled yet", thing=str(thing), error=str(problem))
    for problem in problems.values():
        raise problem


def _in_runs(effects: Iterable[Effect]) -> Iterator[Sequence[Effect]]:
    """Yield effects in order, grouping consecutive effects of one kind."""
    for _, run in itertools.groupby(effects, key=lambda effect: effect.kind):
        yield tuple(run)
