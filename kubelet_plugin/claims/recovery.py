"""Settles what nobody else would: what a crash, a power cut or a lost file left of the claims of this node.

Kubelet does not ask again for a claim whose pod runs, and a restarted container asks only the runtime. What kubelet may
have been answered is brought back, or set aside with its devices held; what it never got an answer for is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import structlog

from dracaena.api.errors import DracaenaError
from dracaena.api.names import ClaimUid
from dracaena.api.objects import Pod
from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.claims.device_state import DeviceState, PrepareError, SetAsideError
from dracaena.kubelet_plugin.claims.reconciler import ClaimReconciler, ClaimTrouble
from dracaena.kubelet_plugin.node.context import NodeContext
from dracaena.kubelet_plugin.pods.devices_reporter import PodDevicesReporter
from dracaena.kubelet_plugin.ports import ClaimGoneError, EffectPendingError, ReadPool
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference
from dracaena.kubelet_plugin.prepare.reports.podlist import claim_names
from dracaena.kubelet_plugin.store.metadata_files import MetadataFiles

log = structlog.get_logger()


class ClaimRecovery:
    """Callers do not hold the node's claims. Calls may come from several threads."""

    def __init__(
        self,
        context: NodeContext,
        *,
        state: DeviceState,
        read_pool: ReadPool,
        ledger: Ledger,
        metadata: MetadataFiles,
        claim_reconciler: ClaimReconciler,
        reporter: PodDevicesReporter,
    ) -> None:
        self._state = state
        self._read_pool = read_pool
        self._api, self._claims = context.api, context.claims
        self._ledger = ledger
        self._metadata = metadata
        self._claim_reconciler = claim_reconciler
        self._reporter = reporter

    def enter_boot(self) -> None:
        """Remove what a power cut left half written, before anything is served; kubelet prepares its claims again.

        Content is not synced (adapters.files), so a checkpoint may be torn or missing. Left alone, it would count as
        one of this boot: for an operator who can do nothing about it, its devices held by the old boot's CDI spec.
        """
        try:
            with self._claims.hold():
                before = self._claims.enter_boot(self._forget_notes)
                for broken, _ in self._claims.unsure() if before else ():
                    self._claims.remove_spec(broken.uid)
                    self._metadata.remove(broken)
                    self._claims.discard(broken.uid)
                    log.info("remains of an earlier boot removed", claim_uid=broken.uid, problem=broken.problem)
        except DracaenaError as error:
            log.warning("remains of an earlier boot are not cleaned up", error=str(error))

    def _forget_notes(self) -> None:
        """Before the boot is marked, and while nobody else can write a note: from then on each note is of this boot.
        Notes that cannot be removed are never removed by a later start, which could not tell them from new ones.
        """
        try:
            self._ledger.clear()
        except DracaenaError as error:
            log.warning("notes of an earlier boot are not cleaned up", error=str(error))

    def recover(self, pods: Iterable[Pod]) -> bool:
        """Finish or roll back what a crash left half done, rewrite lost CDI specs, rebuild broken checkpoints.

        The names of claims with broken checkpoints come from `pods`. Returns whether nothing is left that a later try
        could settle.
        """
        with self._claims.hold():
            self._claims.look_at_each()
            good, broken = self._claims.current(), self._claims.broken()
        prepared = [c.prepared.claim for c in good if c.in_use and not c.provisional]
        unprepared = [c.prepared.claim for c in good if not c.in_use or c.provisional]
        settled = [self._settle(claim, self._state.restore) for claim in prepared]
        settled += [self._settle(claim, self._prepare_or_take_back) for claim in unprepared]
        uids = {b.uid for b in broken}
        try:
            named = self.find_claims(uids, pods)
        except DracaenaError as error:
            log.warning("claims with broken checkpoints not recovered yet", claim_uids=sorted(uids), error=str(error))
            return False
        settled += [self._settle(claim, self._prepare_or_take_back) for claim in named]
        return all(settled)

    def _settle(self, reference: ClaimReference, settle: Callable[[ClaimReference], None]) -> bool:
        """Settle one claim; return whether that is done."""
        try:
            settle(reference)
        except SetAsideError:
            return True
        except EffectPendingError as error:
            log.info("claim waits for kubelet to ask again", claim=str(reference), reason=str(error))
        except DracaenaError as error:
            log.warning("claim not recovered yet", claim=str(reference), error=str(error))
            return False
        except Exception:
            # A bug that hits one claim must not hold up the others, nor the start. It is retried.
            log.exception("claim not recovered: internal error of the plugin", claim=str(reference))
            return False
        return True

    def _prepare_or_take_back(self, reference: ClaimReference) -> None:
        try:
            self._state.prepare(reference, resumes=True)
        except (ClaimGoneError, PrepareError) as error:
            if self._claims.may_be_in_use(reference.uid):
                return  # its pod may run: left to kubelet, or to the sweeper once kubelet no longer knows it
            log.info("unfinished preparation undone", claim=str(reference), reason=str(error))
            self._state.unprepare_unused(reference)  # another call may have prepared it since

    def follow_devices(self) -> tuple[Sequence[ClaimTrouble], Sequence[DracaenaError]]:
        """Reconcile prepared claims with the latest reading of the devices.

        Returns what users must be told of them, and why some could not be settled. Raises DracaenaError before the
        first reading, and if the node's lock cannot be acquired.
        """
        with self._claims.hold():
            before = self._claims.prepared()
            failed = self._claim_reconciler.reconcile(self._read_pool())
            troubles = self._claim_reconciler.troubles()
            same = self._claims.prepared() is before
            provisional = [c.prepared.claim for c in self._claims.current() if c.in_use and c.provisional]
        if not same:
            self._reporter.changed()
        for claim in provisional:
            self._settle(claim, self._prepare_or_take_back)  # the obstacle may be gone
        return troubles, list(failed.values())

    def find_claims(self, uids: Collection[ClaimUid], pods: Iterable[Pod]) -> Sequence[ClaimReference]:
        """Return the claims with these UIDs that pods of this node use, from the API: only it knows their names. One
        read for each claim of a pod. Raises TemporaryError if the API does not answer.
        """
        found = []
        for namespace, name in sorted({(p.metadata.namespace, name) for p in pods for name in claim_names(p)}):
            claim = self._api.find_claim(namespace, name) if uids else None
            if claim is not None and claim.metadata.uid in uids:
                found.append(ClaimReference(namespace, name, ClaimUid(claim.metadata.uid)))
        return found

    def drop_stray_spec(self, uid: ClaimUid) -> bool:
        """Remove the CDI spec of a claim that has no checkpoint; return whether it had none and a spec was there."""
        with self._claims.hold():
            if self._claims.of(uid) is not None or not self._claims.has_spec(uid):
                return False
            self._claims.remove_spec(uid)
        return True

    def drop_stray_metadata(self) -> int:
        """Remove device metadata that no checkpoint mentions; return how many files were removed."""
        with self._claims.hold():
            now, earlier, broken = self._claims.by_boot()
            known = {c.prepared.claim.uid for c in (*now, *earlier) if c.prepared.metadata is not None}
            return self._metadata.remove_strays(known | {b.uid for b in broken})
