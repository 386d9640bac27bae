"""Cleans up, at the start and every few minutes, what no call of kubelet will clean up any more.

Kubelet unprepares every claim that it prepared, and retries until that works. It cannot do so if it has lost its own
state (a new disk, its folder removed) or if the plugin was given another folder. What remains then:

* half a preparation, a lost CDI spec, a broken checkpoint: ClaimRecovery.recover settles them;
* a prepared claim that is gone from the API, replaced by another of its name, or deallocated, and that no pod of this
  node uses: it would hold its devices forever;
* a checkpoint of an earlier boot whose claim is gone: it holds nothing and would stay forever;
* a CDI spec without a checkpoint, which holds the devices that it names, since containers of its claim may run. A claim
  of a pod of this node gets its checkpoint back;
* device metadata that no checkpoint mentions: left by another release, or by another setting;
* what the ledger says was changed for claims that are gone (ChangeEngine.sweep).

A claim that is gone may still have containers: a pod that is deleted by force disappears from the API first, and while
kubelet is down or cannot reach the API, its containers keep running. Only kubelet ends them. Every minute it looks at
what it prepared for pods that are no longer active, and unprepares it; it also ends containers that it does not know.
So devices are freed only if, for ORPHAN_GRACE_S, kubelet answered at every look, with its node ready and without a
restart, knew no pod with the claim, and still did not unprepare it: then it does not know the claim. Any doubt, such as
an API or a kubelet that does not answer, frees nothing. After ORPHAN_GRACE_S an Event on the node reports this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from types import MappingProxyType

import structlog

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.machine import Machine
from dracaena.api.names import ClaimUid
from dracaena.api.objects import Pod
from dracaena.kubelet_plugin.claims.device_state import DeviceState
from dracaena.kubelet_plugin.claims.recovery import ClaimRecovery
from dracaena.kubelet_plugin.node.context import NodeContext
from dracaena.kubelet_plugin.ports import ClaimGoneError, KubeletWitness, PodCache
from dracaena.kubelet_plugin.prepare.journals.checkpoint import Checkpoint
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference, PreparedClaim
from dracaena.kubelet_plugin.worker import Worker, WorkerService

SWEEP_EVERY_S = 300.0
"""Pause between sweeps. Nothing waits for a sweep, and each reads all checkpoints once."""

LOOK_AGAIN_S = 60.0
"""Pause while some claims seem to be gone: as often as kubelet itself looks at claims of ended pods."""

ORPHAN_GRACE_S = 600.0
"""How long the API and one run of kubelet must both say that a prepared claim is gone; kubelet has looked at it some
ten times by then. A pod that ends in order has 30 s by default (terminationGracePeriodSeconds)."""

UNHEARD = "KubeletUnheard"
"""Reason of the Event on the node."""

log = structlog.get_logger()


class Sweeper(WorkerService):
    """Sweeps in a thread of its own, the first time as soon as the pods of this node are known. Only that thread calls
    sweep(), or a test in its place.
    """

    def __init__(
        self,
        context: NodeContext,
        *,
        state: DeviceState,
        recovery: ClaimRecovery,
        pods: PodCache,
        may_be_in_use: Callable[[PreparedClaim], bool],
        kubelet: KubeletWitness,
        unclaimed: Mapping[str, Callable[[], int]] = MappingProxyType({}),
    ) -> None:
        """`unclaimed` gives back what is left of claims of which nothing else is, by kind; each returns how many there
        were.
        """
        self._state = state
        self._recovery = recovery
        self._api, self._claims, self._events = context.api, context.claims, context.events
        self._clock, self._metrics = context.clock, context.metrics
        self._pods = pods
        self._may_be_in_use = may_be_in_use
        self._kubelet = kubelet
        self._unclaimed = unclaimed
        self._gone_since_s: dict[ClaimUid, float] = {}  # according to the API
        self._unknown_since_s: dict[ClaimUid, float] = {}  # unknown to kubelet as well, throughout _kubelet_run
        self._kubelet_run = ""
        self._said = ""
        self._devices_known = False  # only for the thread that calls take()
        self._worker = Worker("sweeper", self._run, context.clock)

    def take(self, _machine: Machine) -> None:
        """Sweep at once when the first reading comes: until then nothing that needs devices can be settled. Never
        blocks.
        """
        if not self._devices_known:
            self._devices_known = True
            self._worker.hurry()

    def sweep(self) -> None:
        """Sweep once, each part whatever becomes of the others. Raises TemporaryError for the parts that could not
        read what they need; other failures are only logged.
        """
        failed = []
        for what, part in self._parts().items():
            try:
                part()
            except DracaenaError as error:
                failed.append(f"{what}: {error}")
            except Exception as error:
                log.exception("part of a sweep failed: internal error of the plugin", part=what)
                failed.append(f"{what}: {error!r}")
        if failed:
            raise TemporaryError("; ".join(failed))

    def _parts(self) -> Mapping[str, Callable[[], None]]:
        given_back = {kind: partial(self._give_back, kind, what) for kind, what in self._unclaimed.items()}
        return {"claim": self._sweep_claims, "metadata": self._sweep_metadata, **given_back}

    def _sweep_claims(self) -> None:
        pods = self._pods.values()
        self._recovery.recover(pods)
        with self._claims.hold():
            now, earlier, broken = self._claims.by_boot()
            lost = self._claims.with_spec() - self._claims.uids()
            holding = lost & {each.uid for each, _ in self._claims.unsure()}
        of_nobody = self._settle_lost(lost, holding, pods)
        for checkpoint in earlier:
            if self._is_orphan(checkpoint.prepared):
                self._take_back(checkpoint.prepared.claim, "of an earlier boot")
        gone = [c.prepared.claim for c in now if self._is_orphan(c.prepared)]
        gone += [*self._of_nobody({b.uid for b in broken}, pods), *of_nobody]
        self._take_back_after_grace(gone)

    def _sweep_metadata(self) -> None:
        stray = self._recovery.drop_stray_metadata()
        if stray:
            self._metrics.sweeping.swept.labels("metadata").inc(stray)
            log.warning("device metadata without a checkpoint removed", files=stray)

    def _give_back(self, kind: str, give_back: Callable[[], int]) -> None:
        self._metrics.sweeping.swept.labels(kind).inc(give_back())

    def _take_back_after_grace(self, gone: Sequence[ClaimReference]) -> None:
        now_s = self._clock.monotonic()
        self._metrics.sweeping.orphaned_claims.set(len(gone))
        self._gone_since_s = {c.uid: self._gone_since_s.get(c.uid, now_s) for c in gone}
        for claim in self._unknown_to_kubelet(gone):
            unknown_for_s = now_s - self._unknown_since_s[claim.uid]
            if unknown_for_s >= ORPHAN_GRACE_S and self._is_still_gone(claim.uid):
                self._take_back(claim, f"gone, and unknown to kubelet, for {unknown_for_s:.0f} s")

    def _is_still_gone(self, uid: ClaimUid) -> bool:
        """Whether nobody was given a claim anew since it was looked at: others are asked about and taken back between,
        each of which may take half a minute.
        """
        found = self._claims.of(uid)
        if isinstance(found, Checkpoint):
            return self._is_orphan(found.prepared)
        if found is None and uid not in self._claims.with_spec():
            return False
        return bool(self._of_nobody({uid}, self._pods.values()))

    def _unknown_to_kubelet(self, gone: Sequence[ClaimReference]) -> Sequence[ClaimReference]:
        """Return those that kubelet does not know either, recording since when; none if it does not answer."""
        if not gone:
            self._unknown_since_s, self._said = {}, ""
            return ()
        try:
            view = self._kubelet.look()
        except DracaenaError as error:
            self._unknown_since_s = {}
            self._say_unheard(str(error))
            return ()
        self._said = ""
        if view.run != self._kubelet_run:
            self._kubelet_run, self._unknown_since_s = view.run, {}
        now_s = self._clock.monotonic()
        unknown = [claim for claim in gone if claim.uid not in view.claims]
        self._unknown_since_s = {c.uid: self._unknown_since_s.get(c.uid, now_s) for c in unknown}
        return unknown

    def _say_unheard(self, why: str) -> None:
        """Say once, after some time, that devices stay held because of kubelet."""
        since_s = min(self._gone_since_s.values())
        if self._clock.monotonic() - since_s < ORPHAN_GRACE_S or self._said == why:
            return
        self._said = why
        text = (
            f"{len(self._gone_since_s)} claims that are gone from the API still hold GPUs of this node, since kubelet "
            f"does not say whether their containers have ended: {why}. Start kubelet: it ends them and frees the GPUs"
        )
        log.error("devices stay held until kubelet answers", claim_uids=sorted(self._gone_since_s), reason=why)
        self._events.warn_node(UNHEARD, text)

    def _settle_lost(
        self, uids: AbstractSet[ClaimUid], holding: AbstractSet[ClaimUid], pods: Sequence[Pod]
    ) -> Sequence[ClaimReference]:
        """Write lost checkpoints again, and remove specs of nobody that hold nothing; return the claims of nobody whose
        specs hold devices.
        """
        used = self._used(uids, pods)
        if used is None:
            return []
        for uid in sorted(uids):
            claim = used.get(uid)
            try:
                if claim is not None:
                    self._state.prepare(claim, resumes=True)
                    self._metrics.sweeping.swept.labels("checkpoint").inc()
                    log.warning("lost checkpoint written again", claim=str(claim), claim_uid=uid)
                elif uid not in holding and self._recovery.drop_stray_spec(uid):
                    self._metrics.sweeping.swept.labels("spec").inc()
                    log.warning("CDI spec without a checkpoint removed", claim_uid=uid)
            except ClaimGoneError:
                continue  # kubelet has unprepared it meanwhile
            except DracaenaError as error:
                log.warning("CDI spec without a checkpoint stays", claim_uid=uid, error=str(error))
            except Exception:
                # As in ClaimRecovery.recover(): a bug that hits one claim must not hold up the others.
                log.exception("CDI spec without a checkpoint stays: internal error of the plugin", claim_uid=uid)
        return [ClaimReference("", "", uid) for uid in sorted(holding - set(used))]

    def _of_nobody(self, uids: AbstractSet[ClaimUid], pods: Sequence[Pod]) -> list[ClaimReference]:
        """Return the claims that no pod of this node uses, names unknown; none while the API does not answer."""
        used = self._used(uids, pods)
        return [] if used is None else [ClaimReference("", "", uid) for uid in sorted(uids - set(used))]

    def _used(self, uids: AbstractSet[ClaimUid], pods: Sequence[Pod]) -> Mapping[ClaimUid, ClaimReference] | None:
        """Return those of the claims that pods of this node use; None while the API does not answer."""
        try:
            return {claim.uid: claim for claim in self._recovery.find_claims(uids, pods)}
        except DracaenaError as error:
            log.warning("names of claims are not known", claim_uids=sorted(uids), error=str(error))
            return None

    def _is_orphan(self, prepared: PreparedClaim) -> bool:
        return not self._may_be_in_use(prepared) and self._is_gone(prepared.claim)

    def _is_gone(self, claim: ClaimReference) -> bool:
        """Whether the API shows that the claim no longer holds anything; False if the API does not answer."""
        try:
            return self._api.read_claim(claim).status.allocation is None
        except ClaimGoneError:
            return True
        except DracaenaError as error:
            log.warning("it is not known whether the claim is gone", claim=str(claim), error=str(error))
            return False

    def _take_back(self, claim: ClaimReference, why: str) -> None:
        try:
            self._state.unprepare(claim)
        except DracaenaError as error:
            log.warning("orphaned claim stays prepared", claim=str(claim), claim_uid=claim.uid, error=str(error))
            return
        self._gone_since_s.pop(claim.uid, None)
        self._unknown_since_s.pop(claim.uid, None)
        self._metrics.sweeping.swept.labels("claim").inc()
        log.warning("orphaned claim unprepared", claim=str(claim), claim_uid=claim.uid, why=why)

    def _run(self) -> None:
        while self._worker.wait(lambda: self._pods.synced, look_every_s=1.0):
            try:
                self.sweep()
                self._metrics.sweeping.sweeps.labels("ok").inc()
            except DracaenaError as error:
                self._metrics.sweeping.sweeps.labels("failed").inc()
                log.warning("sweep failed, trying again", error=str(error))
            if not self._worker.again(LOOK_AGAIN_S if self._gone_since_s else SWEEP_EVERY_S):
                return
