"""Limits the memory of pods that come to a prepared claim later: kubelet makes no call for those.

It also removes the limits of pods that have ended while their claim lives on, usually before kubelet removes their
cgroup. A later pod may have started before its limit is set; what it has allocated by then counts.

A node has no thread for this until a prepared claim has a memory limit. Once the last such claim is gone, the thread
sleeps until the next one comes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import structlog

from dracaena.api.errors import DracaenaError
from dracaena.api.names import PodUid
from dracaena.api.objects import Pod
from dracaena.host.gpu_driver.thread import StoppedError
from dracaena.kubelet_plugin.changes.claim_changes import ClaimChanges, GpusBusyError
from dracaena.kubelet_plugin.device_kinds.memory_limit_effect import (
    is_memory_limit,
    pod_of,
    wanted_limits,
)
from dracaena.kubelet_plugin.ports import PodCache, PodCgroups
from dracaena.kubelet_plugin.prepare.effects import Effect
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim
from dracaena.kubelet_plugin.prepare.reports.podlist import may_run
from dracaena.kubelet_plugin.store.claims import NodeClaims
from dracaena.kubelet_plugin.upkeep.device_watch import TellUsers
from dracaena.kubelet_plugin.upkeep.share_troubles import ShareTroubles
from dracaena.kubelet_plugin.worker import Worker
from dracaena.process.clock import Clock

LOOK_EVERY_S = 1.0
"""Pause while a prepared claim has a memory limit: nothing announces that a cgroup was removed."""

AGAIN_S = 0.2
"""Pause while a pod has no cgroup yet: kubelet creates it within a second of the pod's arrival, before it starts
containers. Also the first pause after a limit could not be set; it doubles while the reason stays the same."""

FAILING_PAUSE_S = 5.0
"""Longest pause while a limit cannot be set, so that an admin's fix takes effect within seconds."""

GPU_WAIT_S = 1.0
"""Longest wait for the GPU of a limit, which a call may hold for some seconds: then it is retried later."""

NOT_LIMITED = "MemoryNotLimited"
"""Reason of the Event."""

log = structlog.get_logger()


class PodLimits:
    """Looks in a thread of its own. Only that thread calls look() and pause_s(), or a test in its place."""

    def __init__(
        self,
        *,
        claims: NodeClaims,
        changes: ClaimChanges,
        pods: PodCache,
        pods_of: Callable[[PreparedClaim], Sequence[Pod]],
        cgroups: PodCgroups,
        tell: TellUsers,
        clock: Clock,
    ) -> None:
        """`pods_of` returns the pods that use a claim, as the watch `pods` last reported: those for which the claim is
        reserved, whichever pods name it.
        """
        self._claims = claims
        self._changes = changes
        self._pods = pods
        self._pods_of = pods_of
        self._cgroups = cgroups
        self._troubles = ShareTroubles(tell, NOT_LIMITED, "memory limits of pods are not settled yet")
        self._pauses_s: dict[str, float] = {}  # claim UID → how long it can wait for the next look
        self._settled: dict[str, object] = {}  # claim UID → its limits and their cgroups when they were settled
        self._started = False
        self._worker = Worker("pod-limits", self._run, clock)

    def follow(self, prepared: Sequence[PreparedClaim]) -> None:
        """Look soon if any of `prepared`, which is all prepared claims, has memory limits; the first such call starts
        the thread. Called after each change of a claim or its pods, by one thread at a time; never blocks.
        """
        if not any(map(_is_limited, prepared)):
            return
        if not self._started:
            self._started = True
            self._worker.start()
        self._worker.notice()

    def stop(self) -> None:
        """End the thread."""
        self._worker.stop()

    def pause_s(self) -> float:
        """Return how long to wait for news before the next look: forever while no claim has a memory limit."""
        return min(self._pauses_s.values(), default=math.inf)

    def look(self) -> bool:
        """Look once; return whether nothing is left for a later look. Raises DracaenaError if checkpoints cannot be
        read.
        """
        prepared = [claim for claim in self._claims.prepared() if _is_limited(claim)]
        uids = {claim.claim.uid for claim in prepared}
        self._troubles.keep(uids)
        self._pauses_s = {uid: pause_s for uid, pause_s in self._pauses_s.items() if uid in uids}
        self._settled = {uid: settled for uid, settled in self._settled.items() if uid in uids}
        settled = [self._settle(claim) for claim in prepared]
        return all(settled)

    def _settle(self, claim: PreparedClaim) -> bool:
        """Adapt the limits of one claim to its current pods; return whether each pod has its limit."""
        limits = [effect for effect in claim.effects if is_memory_limit(effect)]
        users = [pod for pod in self._pods_of(claim) if may_run(pod)]
        wanted = wanted_limits(limits, [PodUid(pod.metadata.uid) for pod in users], self._ended(limits))
        uid, cgroups = claim.claim.uid, [self._cgroups.of_pod(pod_of(effect)) for effect in wanted]
        is_same = len(wanted) == len(limits) and all(effect in limits for effect in wanted)
        try:
            if not is_same or self._settled.get(uid) != (wanted, cgroups):
                with self._changes.hold(uid, lambda: GPU_WAIT_S):
                    is_followed = self._changes.follow(uid, wanted, is_memory_limit)
                if not is_followed:  # set aside, or being prepared: nobody else sets what is missing afterwards
                    self._pauses_s[uid] = LOOK_EVERY_S
                    return False
        except GpusBusyError:
            self._pauses_s[uid] = AGAIN_S  # nothing is wrong: the next look may have the GPU
            return False
        except StoppedError:
            return False  # nothing to report: the next instance of the plugin looks first thing
        except DracaenaError as error:
            self._fail(claim, users, str(error))
            return False
        self._settled[uid] = (wanted, cgroups)
        self._pauses_s[uid] = AGAIN_S if None in cgroups else LOOK_EVERY_S
        return None not in cgroups

    def _ended(self, limits: Sequence[Effect]) -> set[PodUid]:
        """Return the pods that have ended: as the watch shows, or unknown to it and without a cgroup."""
        known = {PodUid(pod.metadata.uid): may_run(pod) for pod in self._pods.values()}
        with_limits = {pod_of(effect) for effect in limits}
        gone = {uid for uid in with_limits - known.keys() if self._cgroups.of_pod(uid) is None}
        return gone | {uid for uid, runs in known.items() if not runs}

    def _fail(self, claim: PreparedClaim, users: Sequence[Pod], reason: str) -> None:
        """Tell each pod of a reason once, and look less and less often while it stays."""
        uid, first = claim.claim.uid, self._troubles.is_new(claim, reason)
        self._pauses_s[uid] = AGAIN_S if first else min(2 * self._pauses_s.get(uid, AGAIN_S), FAILING_PAUSE_S)
        text = f"a pod that started to use claim {claim.claim} later may use more of its GPU's memory than its share"
        self._troubles.tell(claim, reason, users, text)

    def _run(self) -> None:
        pause_s = LOOK_EVERY_S
        while self._worker.wait(within_s=pause_s):
            try:
                self.look()
                pause_s = self.pause_s()
            except DracaenaError as error:
                log.warning("memory limits of pods not checked, retrying", error=str(error))
                pause_s = LOOK_EVERY_S
            except Exception:
                # The thread's outermost loop: a bug must not end it for the life of the process.
                log.exception("look at memory limits of pods failed")
                pause_s = LOOK_EVERY_S


def _is_limited(claim: PreparedClaim) -> bool:
    return any(map(is_memory_limit, claim.effects))
