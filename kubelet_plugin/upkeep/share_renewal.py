"""Keeps what the GPU driver enforces of prepared shares as it is wanted: time slices, and memory limits of pods.

Three things happen to a prepared claim without a call of kubelet:

* The GPU driver is reloaded, and forgets both. Nothing announces that. It cannot be reloaded while NVML is open, so
  each opening of NVML counts as a reload; so does the first one, because the driver may have been replaced while no
  plugin ran. If health is not watched, NVML is opened for each reading, once a minute.
* A pod comes later. It may have started before its memory limit is set; what it has allocated by then counts.
* A pod ends while its claim lives on. Its limit is removed, usually before kubelet removes its cgroup.

Without a share that the driver enforces the thread sleeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import structlog

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.names import ClaimUid, PodUid
from dracaena.api.objects import Pod
from dracaena.host.gpu_driver.thread import StoppedError
from dracaena.kubelet_plugin.changes.claim_changes import ClaimChanges, GpusBusyError
from dracaena.kubelet_plugin.device_kinds.memory_limit_effect import is_memory_limit, pod_of, wanted_limits
from dracaena.kubelet_plugin.ports import GpuGoneError, PodCache, PodCgroups
from dracaena.kubelet_plugin.prepare.effects import MEMORY_LIMIT, TIME_SLICE, Effect
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim
from dracaena.kubelet_plugin.prepare.reports.podlist import may_run
from dracaena.kubelet_plugin.store.claims import NodeClaims
from dracaena.kubelet_plugin.upkeep.device_watch import TellUsers
from dracaena.kubelet_plugin.upkeep.told_users import ToldUsers
from dracaena.kubelet_plugin.worker import Worker, WorkerService
from dracaena.process.clock import Clock

ENFORCED: Final = frozenset({MEMORY_LIMIT, TIME_SLICE})
"""Kinds of effects that live in the driver. Compute modes do too, but those belong to the MPS supervisor."""

LOOK_EVERY_S: Final = 1.0
"""Pause while a prepared claim has a memory limit: nothing announces that a cgroup was removed."""

AGAIN_S: Final = 0.2
"""Pause while a pod has no cgroup yet: kubelet creates it within a second of the pod's arrival, before it starts
containers. Also while a call has the GPU, and the first pause after a failure; that doubles while the reason stays the
same."""

FAILING_PAUSE_S: Final = 15.0
"""Longest pause after failures: nvidia-smi takes some tenths of a second, and its answer stays the same until an admin
or the driver has done something."""

GPU_WAIT_S: Final = 1.0
"""Longest wait for a GPU, which a call may hold for some seconds: then it is retried later."""

NOT_ENFORCED: Final = "ShareNotEnforced"
"""Reason of the Event."""

Limited = Sequence[tuple[Effect, str | None]]
"""Memory limits of a claim, each with the cgroup of its pod, None while it has none."""

log = structlog.get_logger()


class LimitStaysError(TemporaryError):
    """A pod that has ended keeps its memory limit for now. Those that run have theirs."""


class ShareUsers(Protocol):
    """The pods that use a claim: those for which it is reserved, whichever pods name it (pods.devices_reporter)."""

    @property
    def users_known(self) -> bool:
        """Whether all pods of the node have been checked since the start."""
        ...

    def users_of(self, prepared: PreparedClaim) -> Sequence[Pod]:
        """Return the pods that use a claim as the watch last reported them."""
        ...

    def users_now(self, prepared: PreparedClaim) -> Sequence[Pod]:
        """Return the same, and those that the watch has not shown yet. Asks the API, without the lock of the claims;
        raises DracaenaError if it does not answer.
        """
        ...


class ShareRenewal(WorkerService):
    """Works in a thread of its own. Only that thread calls look() and pause_s(), or a test in its place."""

    def __init__(
        self,
        *,
        opened: Callable[[], int],
        claims: NodeClaims,
        changes: ClaimChanges,
        pods: PodCache,
        users: ShareUsers,
        cgroups: PodCgroups,
        tell: TellUsers,
        clock: Clock,
    ) -> None:
        """`opened` returns how often NVML was opened."""
        self._opened = opened
        self._claims = claims
        self._changes = changes
        self._pods = pods
        self._users = users
        self._cgroups = cgroups
        self._tell = tell
        self._told = ToldUsers()
        self._seen = 0
        self._forgotten: set[ClaimUid] = set()
        self._settled: dict[ClaimUid, Limited] = {}  # as of the last time that they were settled
        self._pauses_s: dict[ClaimUid, float] = {}  # how long it can wait for the next look
        self._failing: dict[ClaimUid, str] = {}  # why it could not be settled
        self._worker = Worker("share-renewal", self._run, clock)

    def follow(self, prepared: Sequence[PreparedClaim]) -> None:
        """Look soon if anything of `prepared`, which is all prepared claims, is enforced by the driver. Called after
        each change of a claim or its pods, by one thread at a time; never blocks.
        """
        if any(map(_is_enforced, prepared)):
            self._worker.notice()

    def pause_s(self) -> float:
        """Return how long to wait for news before the next look: forever where it can find nothing without any."""
        return min(self._pauses_s.values(), default=math.inf)

    def look(self) -> bool:
        """Look once; return whether nothing is left to do. Raises DracaenaError if checkpoints cannot be read.

        A claim that is set aside, or is being prepared, is looked at until it is prepared: what was made for it before
        may be forgotten as well, and nobody else makes it again.
        """
        opened = self._opened()
        current = {each.prepared.claim.uid: each for each in self._claims.current() if _is_enforced(each.prepared)}
        if opened != self._seen:
            self._forgotten |= current.keys()
            self._seen = opened
        self._forgotten &= current.keys()
        claims = {u: each.prepared for u, each in current.items() if each.in_use or u in self._forgotten}
        self._told.keep(self._failing.keys() & claims.keys())
        for gone in (self._settled.keys() | self._pauses_s.keys()) - claims.keys():
            for kept in (self._settled, self._pauses_s, self._failing):
                kept.pop(gone, None)
        settled = [self._settle(claim) for claim in claims.values()]
        return all(settled)

    def _settle(self, claim: PreparedClaim) -> bool:
        """Bring one claim's share to what it wants; return whether nothing is left to do for it."""
        uid = claim.claim.uid
        try:
            is_settled = self._is_settled(claim) or self._renewed(claim)
        except GpusBusyError:
            self._pauses_s[uid] = AGAIN_S  # nothing is wrong: the next look may have the GPU
            return False
        except (GpuGoneError, StoppedError) as error:
            # A taint says that it is gone, or that the driver is being released; the next instance looks first thing.
            log.info("a share is not enforced while its GPU cannot be asked", claim=str(claim.claim), reason=str(error))
            self._fail(uid, str(error))
            return False
        except LimitStaysError as error:
            log.info("a pod that has ended keeps its memory limit for now", claim=str(claim.claim), reason=str(error))
            self._fail(uid, str(error))
            return False
        except DracaenaError as error:
            self._tell_users(claim, str(error))
            self._fail(uid, str(error))
            return False
        if not is_settled:
            self._fail(uid, "it is set aside, or being prepared")
            return False
        self._failing.pop(uid, None)
        return self._wait_for_pods(uid)

    def _is_settled(self, claim: PreparedClaim) -> bool:
        if claim.claim.uid in self._forgotten:
            return False
        limits = [*filter(is_memory_limit, claim.wants)]
        wanted = self._wanted(claim, limits)
        is_same = len(wanted) == len(limits) and all(effect in limits for effect in wanted)
        return not limits or (is_same and self._settled.get(claim.claim.uid) == self._with_cgroups(wanted))

    def _renewed(self, claim: PreparedClaim) -> bool:
        """Settle what may be otherwise; return whether the claim is prepared, so that it was."""
        uid = claim.claim.uid
        with self._changes.hold(uid, lambda: GPU_WAIT_S):
            effects = self._changes.of(uid)
            wanted = self._wanted(claim, [*filter(is_memory_limit, effects)])
            limited = self._with_cgroups(wanted)
            slices = [each for each in effects if each.kind == TIME_SLICE and uid in self._forgotten]
            if not self._changes.follow(uid, [*wanted, *slices]):
                return False
            self._forgotten.discard(uid)
            self._settled[uid] = limited
            try:
                self._changes.leave(uid, wanted, is_memory_limit)
            except DracaenaError as error:
                raise LimitStaysError(str(error)) from error
        return True

    def _wanted(self, claim: PreparedClaim, limits: Sequence[Effect]) -> tuple[Effect, ...]:
        users = [PodUid(pod.metadata.uid) for pod in self._users.users_of(claim) if may_run(pod)]
        return wanted_limits(limits, users, self._ended(limits))

    def _ended(self, limits: Iterable[Effect]) -> set[PodUid]:
        """Return the pods that have ended: as the watch shows, or unknown to it and without a cgroup."""
        known = {PodUid(pod.metadata.uid): may_run(pod) for pod in self._pods.values()}
        with_limits = {pod_of(effect) for effect in limits}
        gone = {uid for uid in with_limits - known.keys() if self._cgroups.of_pod(uid) is None}
        return gone | {uid for uid, runs in known.items() if not runs}

    def _with_cgroups(self, limits: Iterable[Effect]) -> Limited:
        return [(effect, self._cgroups.of_pod(pod_of(effect))) for effect in limits]

    def _wait_for_pods(self, uid: ClaimUid) -> bool:
        """Note when to look again at a claim that is settled; return whether none of its pods waits for its limit."""
        limited = self._settled.get(uid, ())
        is_waiting = any(cgroup is None for _, cgroup in limited)
        if limited:
            self._pauses_s[uid] = AGAIN_S if is_waiting else LOOK_EVERY_S
        else:
            self._pauses_s.pop(uid, None)
        return not is_waiting

    def _fail(self, uid: ClaimUid, reason: str) -> None:
        """Look less and less often while the reason stays the same."""
        is_same = self._failing.get(uid) == reason
        self._failing[uid] = reason
        self._pauses_s[uid] = min(2 * self._pauses_s[uid], FAILING_PAUSE_S) if is_same else AGAIN_S

    def _tell_users(self, claim: PreparedClaim, reason: str) -> None:
        """Tell all users of the claim, each once: it fails again at the next look."""
        uid = claim.claim.uid
        if not self._users.users_known:
            return
        is_new = not self._told.is_told(uid, reason)
        try:
            pods = self._users.users_now(claim) if is_new else self._users.users_of(claim)
        except DracaenaError as error:
            log.warning("users of a share are not known, retrying", claim=str(claim.claim), error=str(error))
            return
        if is_new:
            log.warning("a share may not be enforced", claim=str(claim.claim), reason=reason)
        news = self._told.tell(uid, reason, pods)
        if not is_new and not news:
            return
        text = (
            f"the GPU driver was opened again and may have forgotten the limits of claim {claim.claim}'s share, which "
            "cannot be restored"
            if uid in self._forgotten
            else f"a pod that started to use claim {claim.claim} later may use more of its GPU's memory than its share"
        )
        self._tell(claim.claim, news, NOT_ENFORCED, f"{text}: {reason}")

    def _run(self) -> None:
        pause_s = math.inf
        while self._worker.wait(within_s=pause_s):
            try:
                self.look()
                pause_s = self.pause_s()
            except DracaenaError as error:
                log.warning("shares are not looked at, retrying", error=str(error))
                pause_s = FAILING_PAUSE_S
            except Exception:
                # The thread's outermost loop: a bug must not end it for the life of the process.
                log.exception("look at shares failed")
                pause_s = FAILING_PAUSE_S


def _is_enforced(claim: PreparedClaim) -> bool:
    return any(effect.kind in ENFORCED for effect in claim.wants)
