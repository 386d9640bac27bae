"""Prepares and unprepares one claim, writing in an order that makes a crash after any step harmless.

Prepare: checkpoint "started" → CDI spec → device metadata → podlist.json → checkpoint "done" → answer. Unprepare undoes
this in reverse order, from the files of this node alone: the claim may be gone. Both are idempotent.

The answer for a prepared claim comes from its checkpoint, without reading the API: after a restart of kubelet the pods
of this node must come up even while the API server is away, and a server that hangs would use up the 45 s that kubelet
allows for all claims of a call. So a claim that was allocated again under the same UID while it is prepared gets the
devices of its first allocation. That takes force (a pod deleted without kubelet, or a status written by hand): kubelet
unprepares a claim before its last pod counts as ended, and the claim can be deallocated only after that. No device goes
to two claims this way: the claim holds the devices that its checkpoint names against all others. Wherever the claim is
read anyway, the two are compared, and a claim whose allocation differs is refused with both sets of devices named.

A kind of device may need more than files on its node, for example an MPS server (docs/design/device-kinds.md).
Such effects stand in the checkpoint "started", are made before the CDI spec without the lock that the calls share
(changes.claim_changes), and undone before the checkpoint is removed. A claim without effects, as most for whole GPUs,
holds that lock from "started" to "done".

Before anything is granted or answered, the prepared claims are reconciled with the latest reading of the devices
(claims.reconciler). Only kubelet gives back what a container may be using: a claim that may have been answered and can
no longer be prepared is set aside, and holds its devices until kubelet unprepares it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from dracaena.api.errors import DracaenaError, PermanentError, TemporaryError
from dracaena.api.names import ClaimUid
from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kubelet_plugin.changes.claim_changes import ClaimChanges, LeftS
from dracaena.kubelet_plugin.claims.last_guard import DeviceHeldError, LastGuard, refuse_other_allocation
from dracaena.kubelet_plugin.claims.reconciler import ClaimReconciler
from dracaena.kubelet_plugin.claims.unprepares import Unprepares
from dracaena.kubelet_plugin.device_kinds.device_kind import KindOf
from dracaena.kubelet_plugin.device_kinds.mig_place import with_made
from dracaena.kubelet_plugin.device_kinds.moved_devices import Followed, follow, with_former
from dracaena.kubelet_plugin.device_kinds.mps_effect import with_shares
from dracaena.kubelet_plugin.device_kinds.plan import Refusal, allocated_claim, plan_claim
from dracaena.kubelet_plugin.device_kinds.table import kind_of
from dracaena.kubelet_plugin.node.context import NodeContext
from dracaena.kubelet_plugin.pods.devices_reporter import PodDevicesReporter
from dracaena.kubelet_plugin.ports import ClaimGoneError, EffectPendingError, ReadPool
from dracaena.kubelet_plugin.prepare.effects import Effect
from dracaena.kubelet_plugin.prepare.journals.checkpoint import Broken, Checkpoint, State
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference, PreparedClaim, PreparedDevice, PublishedPool
from dracaena.kubelet_plugin.prepare.reports.device_metadata import claim_metadata
from dracaena.kubelet_plugin.store.claim_files import ClaimFiles

_PLAIN_UID = re.compile("[A-Za-z0-9-]{1,63}")
"""UIDs name our files."""

UNPREPARE_WAIT_S = 20.0
"""Longest that an unprepare waits for the GPUs of its claim. Kubelet allows 45 s for all claims of a call."""

SETTLE_S = 30.0
"""After so much time since a call began, for however many claims, no further change of the node is begun: what is left
is for the next call. Kubelet allows 45 s, and a change may take 15."""

log = structlog.get_logger()


class PrepareError(PermanentError):
    """The claim cannot be prepared as it is; the text says why and reaches the pod's Events through kubelet."""


class SetAsideError(TemporaryError):
    """The claim holds its devices, but none of its containers can start for now; the text says what helps."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """A claim whose checkpoint says "started", or "done" if it has no effects."""

    prepared: PreparedClaim
    planned: tuple[Effect, ...]
    """What it wants; its other effects come from an earlier plan that nobody was answered."""
    fresh: bool
    """Whether it held nothing before, so that all of it can be rolled back."""


class DeviceState:
    """The claims of this node. Calls may come from several threads; the node's lock orders them."""

    def __init__(
        self,
        context: NodeContext,
        *,
        read_pool: ReadPool,
        files: ClaimFiles,
        claim_reconciler: ClaimReconciler,
        guard: LastGuard,
        reporter: PodDevicesReporter,
        changes: ClaimChanges,
        kind_of: KindOf = kind_of,
    ) -> None:
        self._driver, self._api, self._claims, self._clock = context.driver, context.api, context.claims, context.clock
        self.unprepares = Unprepares(context.clock)
        self._read_pool = read_pool
        self._files = files
        self._metadata = files.metadata
        self._claim_reconciler = claim_reconciler
        self._guard = guard
        self._reporter = reporter
        self._changes = changes
        self._kind_of = kind_of

    def prepare(
        self,
        reference: ClaimReference,
        *,
        within_s: float = 0.0,
        settle_by_s: float | None = None,
        resumes: bool = False,
    ) -> PreparedClaim:
        """Make a claim's devices ready for containers and return them; a prepared claim gets the same answer again.

        Waits up to within_s, without the node's lock, for devices of a claim that is being torn down and for GPUs on
        which another call makes effects. Raises DracaenaError; then nothing of this call is left behind, unless the
        disk refuses even removals or another call has the GPUs of its effects: the next call or unprepare goes on from
        there. What an earlier call left stays as it is. No change of the node begins after `settle_by_s`, by the clock;
        None: SETTLE_S from now. `resumes`: only finish what an earlier call began, and raise
        ClaimGoneError if kubelet has unprepared it meanwhile, since it would not unprepare it a second time.
        """
        _check_uid(reference)
        began_s = self._clock.monotonic()
        deadline_s = began_s + within_s
        settle_by_s = began_s + SETTLE_S if settle_by_s is None else settle_by_s
        while True:
            torn_down = self.unprepares.count
            try:
                return self._prepare_once(reference, deadline_s, settle_by_s, resumes=resumes)
            except DeviceHeldError as error:
                # If no known pod uses the holder, kubelet is about to unprepare it. Otherwise waiting does not help.
                if error.outlasts(self._reporter.in_use):
                    raise
                if not self.unprepares.wait(torn_down, deadline_s):
                    raise
                log.debug("waited for a device that was held", claim=str(reference), held=str(error))

    def _prepare_once(
        self, reference: ClaimReference, deadline_s: float, settle_by_s: float, *, resumes: bool
    ) -> PreparedClaim:
        with self._claims.hold():
            prepared = self._already_prepared(reference.uid)
        if prepared is not None:
            return prepared
        # The API is read without the lock: a slow server must not hold up the other claims of the node.
        claim = self._api.read_claim(reference)
        self._guard.refuse_unready(claim, self._read_pool())  # for the same reason, without the lock: it may hang
        pods = self._reporter.learn_consumers(claim)
        with self._claims.hold():
            prepared = self._already_prepared(reference.uid)
            if prepared is not None:
                refuse_other_allocation(prepared, claim, self._driver)
                return prepared
            if resumes and self._claims.of(reference.uid) is None and not self._claims.has_spec(reference.uid):
                raise ClaimGoneError(f"claim {reference} was unprepared meanwhile")
            begun = self._begin(claim, pods)
        return self._make_effects(begun, deadline_s, settle_by_s) if begun.prepared.wants else begun.prepared

    def unprepare(self, reference: ClaimReference, *, settle_by_s: float | None = None) -> None:
        """Undo what prepare did; does nothing for a claim that was never prepared. `settle_by_s` as for prepare().

        Raises DracaenaError; the claim then still holds its devices, and kubelet retries.
        """
        self._unprepare(reference, settle_by_s, even_if_in_use=True)

    def unprepare_unused(self, reference: ClaimReference) -> None:
        """Like unprepare(), for a claim that was not answered: does nothing if containers may have its devices."""
        self._unprepare(reference, None, even_if_in_use=False)

    def restore(self, reference: ClaimReference) -> None:
        """Rewrite lost files of a claim if it is prepared. Raises SetAsideError if none of its containers may start."""
        with self._claims.hold():
            self._already_prepared(reference.uid)

    def _unprepare(self, reference: ClaimReference, settle_by_s: float | None, *, even_if_in_use: bool) -> None:
        _check_uid(reference)
        uid = reference.uid
        with self._claims.hold():
            if not even_if_in_use and self._claims.may_be_in_use(uid):
                return
            settled = self._changes.are_settled(uid)
            if settled:
                self._take_back(uid)
        if not settled:
            now_s = self._clock.monotonic()
            settle_by_s = now_s + SETTLE_S if settle_by_s is None else settle_by_s
            left_s = self._countdown(settle_by_s)
            with self._changes.hold(uid, self._countdown(min(now_s + UNPREPARE_WAIT_S, settle_by_s))):
                self._undo_effects(uid, left_s, even_if_in_use=even_if_in_use)
        self.unprepares.note()
        self._reporter.changed()

    def _already_prepared(self, uid: ClaimUid) -> PreparedClaim | None:
        """Return the claim if it is prepared, None if it still has to be. Raises SetAsideError."""
        checkpoint = self._prepared_in_this_boot(uid)
        if checkpoint is None:
            return None
        try:
            pool = self._read_pool()
        except TemporaryError:
            if checkpoint.state is not State.DONE or not self._claims.has_spec(uid):
                raise
            self._guard.refuse_stale(checkpoint.prepared)
            self._metadata.restore(checkpoint.prepared, self._read_pool)
            return checkpoint.prepared
        failed = self._claim_reconciler.reconcile(pool)
        if uid in failed:
            raise failed[uid]
        checkpoint = self._prepared_in_this_boot(uid)
        if checkpoint is None:
            return None
        if checkpoint.state is not State.DONE:
            raise SetAsideError(f"claim {checkpoint.prepared.claim} is set aside: {checkpoint.aside}")
        self._guard.refuse_stale(checkpoint.prepared)
        if not self._claims.has_spec(uid):
            self._files.write_spec(checkpoint.prepared)
            log.warning("CDI spec was gone, written again", claim_uid=uid)
        self._metadata.restore(checkpoint.prepared, self._read_pool)
        return checkpoint.prepared

    def _prepared_in_this_boot(self, uid: ClaimUid) -> Checkpoint | None:
        found = self._claims.current_of(uid)
        return found if found is not None and found.in_use and not found.provisional else None

    def _begin(self, claim: ResourceClaim, pods: Sequence[Pod]) -> _Begun:
        """Take the devices of a claim of these pods, and prepare it if it needs no effects."""
        pool, uid = self._read_pool(), ClaimUid(claim.metadata.uid)
        self._claim_reconciler.reconcile(pool)
        known = self._claims.of(uid)
        # Its containers may run if anything but a checkpoint shows that it was here.
        lost = known is None and self._claims.has_spec(uid)
        earlier = self._earlier(uid, known, lost=lost)
        try:
            plan = self._plan(claim, pool, earlier, pods)
        except DracaenaError as error:
            # A container may run with the devices of an earlier call, whose spec may no longer be right.
            if lost or self._claims.may_be_in_use(uid):
                self._hold(claim, pool, earlier, str(error))
            raise
        lost |= known is None and bool(plan.wants) and self._changes.are_noted(plan)
        if lost or isinstance(known, Broken) or (known is not None and known.provisional):
            plan = self._changes.with_noted(plan)
        fresh = not lost and (known is None or self._is_of_earlier_boot(known))
        try:
            started = self._claims.start(plan, lost=lost)
            if not started.prepared.wants:
                self._finish(started, pool)
        except DracaenaError:
            if fresh:
                self._undo(plan.claim)
            # Otherwise a container may run: an earlier call may have been answered, whose checkpoint broke or was lost.
            raise
        return _Begun(started.prepared, started.prepared.wants if started.answered else plan.wants, fresh)

    def _finish(self, started: Checkpoint, pool: PublishedPool) -> None:
        self._files.write(started.prepared, pool)
        self._reporter.write_podlist(including=started.prepared)
        self._claims.finish(started)
        self._reporter.changed()
        log.info("claim prepared", uuids=[device.uuid for device in started.prepared.devices])

    def _make_effects(self, begun: _Begun, deadline_s: float, settle_by_s: float) -> PreparedClaim:
        """Make the effects of a claim that has begun, then prepare it. The caller does not hold the lock.

        Another call for the same claim may come while this one waits for the GPUs or makes effects: this call then
        gives the same answer as that one, and never rolls it back. If the GPUs cannot be acquired, the journal stays as
        it is: the call that has them may be working for this claim.
        """
        uid, left_s = begun.prepared.claim.uid, self._countdown(settle_by_s)
        with self._changes.hold(uid, self._countdown(deadline_s)):
            with self._claims.hold():
                known = self._prepared_in_this_boot(uid)
            if known is not None and known.state is State.DONE:
                return known.prepared
            try:
                self._changes.apply(uid, begun.planned, left_s)
                with self._claims.hold():
                    return self._with_effects(uid, begun.planned)
            except EffectPendingError:
                raise  # the next call goes on with what was begun
            except DracaenaError:
                if begun.fresh:
                    try:
                        self._undo_effects(uid, left_s, even_if_in_use=False)
                    except DracaenaError as error:
                        log.warning("unfinished preparation cannot be undone", claim_uid=uid, error=str(error))
                raise

    def _with_effects(self, uid: ClaimUid, planned: Sequence[Effect]) -> PreparedClaim:
        """Prepare a claim whose effects are made, unless its devices have moved since it began."""
        checkpoint = self._claims.of(uid)
        assert isinstance(checkpoint, Checkpoint)  # it was journaled under the GPUs' locks, which are still held
        prepared = checkpoint.prepared
        if not all(effect in planned for effect in prepared.wants):
            raise TemporaryError(f"claim {prepared.claim} was planned again while it was being prepared: retry")
        pool = self._read_pool()
        if follow(prepared, pool) != Followed(prepared):
            raise TemporaryError(f"devices of claim {prepared.claim} moved while it was being prepared: retry")
        self._guard.refuse_stale(prepared)
        noted = self._changes.noted
        made = with_shares(with_made(prepared, noted), noted)
        prepared = with_former(made, ())  # its nodes may be those that its containers have anyway
        self._guard.refuse_held(prepared, pool)
        self._finish(dataclasses.replace(checkpoint, prepared=prepared), pool)
        return prepared

    def _undo_effects(self, uid: ClaimUid, left_s: LeftS, *, even_if_in_use: bool) -> None:
        """Undo a claim with effects; the caller holds its GPUs. If an effect cannot be undone, the claim holds its
        devices and none of its containers starts.
        """
        with self._claims.hold():
            if not even_if_in_use and self._claims.may_be_in_use(uid):
                return
            if self._changes.leave_nothing(uid):
                self._take_back(uid)
                return
            checkpoint = self._claims.current_of(uid)
            if checkpoint is not None:
                self._reporter.forget(uid)
                self._claims.remove_spec(uid)
                # After a crash from here on, the claim does not count as prepared: its effects may be half undone.
                self._claims.begin_again(checkpoint)
        self._changes.undo(uid, left_s)
        with self._claims.hold():
            self._take_back(uid)

    def _plan(
        self, claim: ResourceClaim, pool: PublishedPool, earlier: Sequence[PreparedDevice], pods: Sequence[Pod]
    ) -> PreparedClaim:
        """Return what to prepare. Raises DracaenaError if the claim, or a holder of its devices, does not allow it."""
        plan = plan_claim(claim, pool, self._kind_of)
        if isinstance(plan, Refusal):
            raise PrepareError(str(plan))
        self._guard.refuse_stale(plan)
        if self._metadata.is_wanted:
            plan = dataclasses.replace(plan, metadata=claim_metadata(claim))
        plan = with_former(plan, earlier) if earlier else plan
        self._guard.refuse_held(plan, pool)
        fitted = self._guard.fitted(plan, pods)
        if isinstance(fitted, str):
            raise PrepareError(fitted)
        return fitted

    def _hold(self, claim: ResourceClaim, pool: PublishedPool, earlier: Sequence[PreparedDevice], reason: str) -> None:
        """Set aside a claim that may have been answered and cannot be prepared as it is: its pod may run."""
        allocated = allocated_claim(claim, pool, earlier)
        if allocated is None:
            return  # the claim does not say what its devices are: the files of this node still hold them
        held = with_former(allocated, earlier)
        known = self._claims.of(held.claim.uid)
        if not isinstance(known, Checkpoint):  # only its spec tells what it holds, until its checkpoint does
            self._claims.set_aside(held, reason, provisional=True)
        self._claims.remove_spec(held.claim.uid)
        if isinstance(known, Checkpoint):
            if known.provisional and (known.prepared, known.aside) == (held, reason):
                return
            self._claims.set_aside(held, reason, provisional=True)
        self._reporter.changed()
        log.error("claim set aside", claim=str(held.claim), claim_uid=held.claim.uid, reason=reason)

    def _earlier(self, uid: ClaimUid, known: Checkpoint | Broken | None, *, lost: bool) -> Sequence[PreparedDevice]:
        """Return the devices that containers may have from an earlier preparation in this boot, at former nodes too."""
        if isinstance(known, Checkpoint):
            is_held = known.in_use and not self._is_of_earlier_boot(known)
            return (*known.prepared.devices, *known.prepared.former) if is_held else ()
        return self._claims.salvage(known or Broken(uid, "is gone")).devices if known is not None or lost else ()

    def _is_of_earlier_boot(self, known: Checkpoint | Broken) -> bool:
        return isinstance(known, Checkpoint) and known.boot_id != self._claims.boot_id

    def _undo(self, reference: ClaimReference) -> None:
        """Roll back a first preparation that failed: kubelet got no answer, so no container has its devices."""
        try:
            self._take_back(reference.uid)
            return
        except DracaenaError as error:
            log.warning("unfinished preparation cannot be undone", claim=str(reference), error=str(error))
        try:
            if self._claims.spec_is_seen(reference.uid):
                return  # keep the checkpoint too: it tells the next start that there is something to remove
            self._claims.remove(reference.uid)
        except DracaenaError as error:
            log.warning("unfinished preparation stays until the next attempt", claim=str(reference), error=str(error))

    def _take_back(self, uid: ClaimUid) -> None:
        known = self._claims.of(uid)
        if known is not None:
            self._reporter.forget(uid)
        self._claims.remove_spec(uid)
        if known is not None:
            self._metadata.remove(known)
            self._claims.remove(uid)
            log.info("claim unprepared", claim_uid=uid)

    def _countdown(self, until_s: float) -> Callable[[], float]:
        """Return a function that returns the seconds left until then, 0 once it has passed."""
        return lambda: max(0.0, until_s - self._clock.monotonic())


def _check_uid(reference: ClaimReference) -> None:
    """Refuse a claim UID that could name a file elsewhere; the API server makes UUIDs."""
    if _PLAIN_UID.fullmatch(reference.uid) is None:
        raise PrepareError(
            f"claim {reference} has UID {reference.uid[:100]!r}, expected 1 to 63 letters, digits and '-': "
            "kubelet must ask with the UID that the API server gave"
        )
