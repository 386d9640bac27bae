"""Warns pods that come to a prepared claim later and differ in kind from those for which it was prepared.

What a container gets of a GPU for virtual machines depends on whether its pod runs in one (prepare.guests). kubelet
asks for a claim once: the watch finds the pods that come later, when it is too late to refuse them. The claim has one
CDI spec, which stays as the first pods need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog

from dracaena.kubelet_plugin.ports import PodCache
from dracaena.kubelet_plugin.prepare.guests import GuestRuntimes, why_late_pod_differs
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim
from dracaena.kubelet_plugin.prepare.reports.podlist import may_run
from dracaena.kubelet_plugin.upkeep.device_watch import TellUsers
from dracaena.kubelet_plugin.upkeep.told_users import ToldUsers

OF_OTHER_KIND: Final = "ClaimOfOtherPods"
"""Reason of the Event."""

log = structlog.get_logger()


class MixedPods:
    """For one thread, which calls follow(); never blocks."""

    def __init__(self, runtimes: GuestRuntimes, pods: PodCache, tell: TellUsers) -> None:
        self._runtimes = runtimes
        self._pods = pods
        self._tell = tell
        self._told = ToldUsers()

    def follow(self, prepared: Sequence[PreparedClaim]) -> None:
        """Check all prepared claims, each with all pods known to use it, and tell those that have not been told."""
        self._told.keep({claim.claim.uid for claim in prepared})
        running = {pod.metadata.uid: pod for pod in self._pods.values() if may_run(pod)}
        guests = {uid for uid, pod in running.items() if self._runtimes.run(pod)}
        for claim in prepared:
            if not claim.in_guest and guests.isdisjoint(claim.consumers):
                continue
            users = [running[uid] for uid in claim.consumers if uid in running]
            differing = [pod for pod in users if (pod.metadata.uid in guests) is not claim.in_guest]
            for pod in self._told.tell(claim.claim.uid, OF_OTHER_KIND, differing) if differing else ():
                text = why_late_pod_differs(claim, pod)
                log.warning("a pod joined a claim of pods of another kind", claim=str(claim.claim), pod=pod.key)
                self._tell(claim.claim, [pod], OF_OTHER_KIND, text)
