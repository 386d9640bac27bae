"""Reconciles prepared claims with where their devices are now.

It runs at the start before anything is served, in prepare before any device is given, and, for DeviceWatch, after each
change. If a claim's device has new numbers, the claim's files are rewritten in an order that makes a crash after any
step harmless: remove the CDI spec → checkpoint "aside" with the new and the former numbers → CDI spec → device
metadata → checkpoint "done". A claim stays aside, without a CDI spec, while one of its devices is gone, and while
containers of another claim hold a node that it would get. Meanwhile the runtime starts none of its containers, and
kubelet reports that on the pod. If the nodes are the same and only other facts about the devices changed, the files are
replaced in place, so that the spec never disappears.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.names import ClaimUid
from dracaena.kubelet_plugin.device_kinds.holders import ANYWHERE, held_at
from dracaena.kubelet_plugin.device_kinds.moved_devices import (
    Followed,
    follow,
    held_nodes,
    mig_device_gone,
    moves,
    same_nodes,
)
from dracaena.kubelet_plugin.prepare.journals.checkpoint import Checkpoint, State
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim, PublishedPool
from dracaena.kubelet_plugin.store.claim_files import ClaimFiles
from dracaena.kubelet_plugin.store.claims import NodeClaims, differing

REWRITING = "its files are being rewritten"
"""Why a claim is aside although nothing blocks it."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ClaimTrouble:
    """What users must know of a prepared claim whose devices moved."""

    prepared: PreparedClaim
    aside: str | None
    """Why none of its containers can be started; None: they can."""
    moved: tuple[str, ...]
    """In words: device nodes that its containers may have and that are other devices by now; without those of
    `vanished`, and without those of GPUs that have left VFIO, which `aside` covers."""
    vanished: tuple[str, ...] = ()
    """UUIDs of MIG devices that were created for it and are gone."""

    @property
    def aside_besides(self) -> str | None:
        """Why none of its containers can be started, apart from the loss of `vanished`."""
        gone = set(map(mig_device_gone, self.vanished))
        return "; ".join(one for one in (self.aside or "").split("; ") if one not in gone) or None


class ClaimReconciler:
    """Keeps prepared claims in line with their devices. Callers hold the node's claims.

    A prepare asks with hundreds of claims on the node, nearly all of them as they were: only those that were written
    since the last question are looked at.
    """

    def __init__(self, claims: NodeClaims, files: ClaimFiles) -> None:
        self._claims = claims
        self._files = files
        self._forget()

    def _forget(self) -> None:
        self._pool: PublishedPool | None = None
        self._now: tuple[Checkpoint, ...] = ()
        self._followed: dict[ClaimUid, tuple[Checkpoint, Followed]] = {}  # by that pool
        self._not_followed: dict[ClaimUid, DracaenaError] = {}  # of those, why
        self._restless: set[ClaimUid] = set()  # of those, what has to be brought in line, or was not when last seen
        self._with_former: set[ClaimUid] = set()  # of those, whose containers may have other nodes too
        self._at: dict[str, dict[ClaimUid, PreparedClaim]] = {}  # all that they hold, by where (held_at)

    def reconcile(self, pool: PublishedPool) -> Mapping[ClaimUid, DracaenaError]:
        """Reconcile all prepared claims of this boot with a pool; return those for which that failed, and why."""
        self._look(pool)
        failed: dict[ClaimUid, DracaenaError] = dict(self._not_followed)
        formers = [self._followed[uid][1].prepared for uid in sorted(self._with_former)]
        # A broken or lost checkpoint cannot be followed: its containers may have every node that its spec names.
        formers += [salvaged for _, salvaged in self._claims.unsure()]
        for uid in sorted(self._followed if formers else self._restless):
            checkpoint, followed = self._followed[uid]
            if not checkpoint.in_use or checkpoint.provisional or uid in failed:
                continue
            try:
                held = held_nodes(followed.prepared, formers) if formers else ()
                problems = (*followed.missing, *map(str, held))
                names = sorted({str(node.holder.claim) for node in held})
                self._bring(checkpoint, followed.prepared, "; ".join(problems) or None, pool, held_by=names)
            except DracaenaError as error:
                failed[uid] = error
                log.warning(
                    "claim of a moved device is not settled yet", claim=str(followed.prepared.claim), error=str(error)
                )
            except Exception as error:
                # A bug that hits one claim must not fail the others.
                log.exception("claim not settled: internal error of the plugin", claim=str(checkpoint.prepared.claim))
                failed[uid] = _internal_error(checkpoint.prepared, error)
        return failed

    def possible_conflicts(self, plan: PreparedClaim, pool: PublishedPool) -> Sequence[PreparedClaim]:
        """Return the claims of this boot that may hold something of a plan, as a pool says they should be, whatever is
        on disk; sorted by claim UID.
        """
        self._look(pool)
        places = {*held_at(plan), ANYWHERE}
        found = {uid: held for place in places for uid, held in self._at.get(place, {}).items()}
        return [found[uid] for uid in sorted(found)]

    def troubles(self) -> Sequence[ClaimTrouble]:
        """Return what users must be told about prepared claims, according to their checkpoints."""
        now = self._claims.current()
        gone = {} if self._pool is None else self._pool.vanished
        lost = {
            c.prepared.claim.uid: [d.uuid for d in c.prepared.devices if gone.get(d.device) == d.uuid]
            for c in now
            if gone
        }
        return [
            ClaimTrouble(
                c.prepared, c.aside, moves(c.prepared, told=[*vanished, *_out_of_vfio(c.prepared)]), tuple(vanished)
            )
            for c, vanished in ((c, lost.get(c.prepared.claim.uid, [])) for c in now)
            if c.aside not in (None, REWRITING) or c.prepared.former or vanished
        ]

    def _look(self, pool: PublishedPool) -> None:
        now = self._claims.current()
        if pool is not self._pool:
            self._forget()
        elif now is self._now:
            return
        gone, come = differing(self._now, now)
        again = {uid: self._followed[uid][0] for uid in self._not_followed}
        for checkpoint in gone:
            again.pop(checkpoint.prepared.claim.uid, None)
            self._drop(checkpoint.prepared.claim.uid)
        for uid in again:
            self._drop(uid)
        for checkpoint in sorted((*come, *again.values()), key=lambda each: each.prepared.claim.uid):
            self._take(checkpoint, self._follow(checkpoint, pool))
        self._pool, self._now = pool, now

    def _take(self, checkpoint: Checkpoint, followed: Followed) -> None:
        uid = checkpoint.prepared.claim.uid
        self._followed[uid] = (checkpoint, followed)
        is_as_it_was = followed.prepared is checkpoint.prepared and not followed.missing
        if not is_as_it_was or checkpoint.state is not State.DONE:
            self._restless.add(uid)
        if followed.prepared.former:
            self._with_former.add(uid)
        for place in held_at(followed.prepared):
            self._at.setdefault(place, {})[uid] = followed.prepared

    def _drop(self, uid: ClaimUid) -> None:
        _, followed = self._followed.pop(uid)
        self._not_followed.pop(uid, None)
        self._restless.discard(uid)
        self._with_former.discard(uid)
        for place in held_at(followed.prepared):
            self._at[place].pop(uid, None)

    def _follow(self, checkpoint: Checkpoint, pool: PublishedPool) -> Followed:
        """Follow one claim. If a bug keeps us from following it, it holds all that it had."""
        prepared = checkpoint.prepared
        try:
            return follow(prepared, pool)
        except Exception as error:
            log.exception("claim not followed: internal error of the plugin", claim=str(prepared.claim))
            self._not_followed[prepared.claim.uid] = _internal_error(prepared, error)
            return Followed(dataclasses.replace(prepared, former=(*prepared.former, *prepared.devices)))

    def _bring(
        self,
        checkpoint: Checkpoint,
        prepared: PreparedClaim,
        problem: str | None,
        pool: PublishedPool,
        held_by: Sequence[str],
    ) -> None:
        """`held_by` names claims for the log, where `problem` may not (ClaimReference.told_to)."""
        settled = problem is not None or checkpoint.state is State.DONE
        if settled and checkpoint.prepared == prepared and checkpoint.aside == problem:
            return
        uid = prepared.claim.uid
        if problem is None and checkpoint.state is State.DONE and same_nodes(checkpoint.prepared, prepared):
            # Its pod may be running and the spec names the right nodes: replace it in place, so that one always exists.
            self._files.write(prepared, pool)
            self._claims.finish(dataclasses.replace(checkpoint, prepared=prepared))
            log.info("files of a claim's devices updated in place", claim=str(prepared.claim), claim_uid=uid)
            return
        self._claims.remove_spec(uid)
        aside = self._claims.set_aside(prepared, problem or REWRITING, provisional=False)
        if problem is not None:
            log.error(
                "claim set aside", claim=str(prepared.claim), claim_uid=uid, reason=problem, held_by=held_by or None
            )
            return
        self._files.write(prepared, pool)
        self._claims.finish(aside)
        log.warning("files of a claim rewritten", claim=str(prepared.claim), claim_uid=uid, moved=moves(prepared))


def _out_of_vfio(prepared: PreparedClaim) -> list[str]:
    """Return the UUIDs of GPUs for virtual machines that no VFIO driver has now: these were not renumbered."""
    return [device.uuid for device in prepared.devices if device.is_passthrough and device.iommu_group is None]


def _internal_error(prepared: PreparedClaim, error: Exception) -> TemporaryError:
    return TemporaryError(
        f"claim {prepared.claim} cannot be brought in line with its devices: internal error of the plugin "
        f"({type(error).__name__}), see its log"
    )
