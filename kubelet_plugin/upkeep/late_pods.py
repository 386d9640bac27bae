"""Warns pods that come to a prepared claim later and cannot use it as it was prepared.

kubelet asks for a claim once: the watch finds the pods that come later, when it is too late to refuse them. The claim
has one CDI spec, which stays as the first pods need it. Two things that a prepare refuses are found here:

* a pod of another kind: what a container gets of a GPU for virtual machines depends on whether its pod runs in one
  (prepare.guests);
* a container that has a share by MPS and something beside it with which the share cannot work (prepare.mps_containers).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import structlog

from dracaena.api.objects import Pod
from dracaena.kubelet_plugin.ports import PodCache
from dracaena.kubelet_plugin.prepare.guests import GuestRuntimes, why_late_pod_differs
from dracaena.kubelet_plugin.prepare.mps_containers import has_share_by_mps, mps_claims, unfit_pods
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim
from dracaena.kubelet_plugin.prepare.reports.podlist import may_run
from dracaena.kubelet_plugin.upkeep.device_watch import TellUsers
from dracaena.kubelet_plugin.upkeep.told_users import ToldUsers

OF_OTHER_KIND: Final = "ClaimOfOtherPods"
UNFIT_FOR_SHARE: Final = "ContainerUnfitForShare"
"""Reasons of the Events."""

log = structlog.get_logger()


class LatePods:
    """For one thread, which calls follow(); never blocks."""

    def __init__(
        self,
        runtimes: GuestRuntimes,
        pods: PodCache,
        tell: TellUsers,
        *,
        mps_folders: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """`mps_folders` returns what containers of shares by MPS see at places of the supervisor's choice."""
        self._runtimes = runtimes
        self._pods = pods
        self._tell = tell
        self._mps_folders = mps_folders
        self._told = {OF_OTHER_KIND: ToldUsers(), UNFIT_FOR_SHARE: ToldUsers()}

    def follow(self, prepared: Sequence[PreparedClaim]) -> None:
        """Check all prepared claims, each with all pods known to use it, and tell those that have not been told."""
        uids = {claim.claim.uid for claim in prepared}
        for told in self._told.values():
            told.keep(uids)
        running = {pod.metadata.uid: pod for pod in self._pods.values() if may_run(pod)}
        self._follow_guests(prepared, running)
        self._follow_shares(prepared, running)

    def _follow_guests(self, prepared: Sequence[PreparedClaim], running: Mapping[str, Pod]) -> None:
        guests = {uid for uid, pod in running.items() if self._runtimes.run(pod)}
        for claim in prepared:
            if not claim.in_guest and guests.isdisjoint(claim.consumers):
                continue
            users = [running[uid] for uid in claim.consumers if uid in running]
            differing = [pod for pod in users if (pod.metadata.uid in guests) is not claim.in_guest]
            self._warn(claim, OF_OTHER_KIND, [(pod, why_late_pod_differs(claim, pod)) for pod in differing])

    def _follow_shares(self, prepared: Sequence[PreparedClaim], running: Mapping[str, Pod]) -> None:
        shared = [claim for claim in prepared if has_share_by_mps(claim)]
        if not shared:
            return
        folders, claims = self._mps_folders(), mps_claims(prepared)
        for claim in shared:
            users = [running[uid] for uid in claim.consumers if uid in running]
            self._warn(claim, UNFIT_FOR_SHARE, list(unfit_pods(claim.claim.uid, claims, users, folders)))

    def _warn(self, claim: PreparedClaim, reason: str, unfit: Sequence[tuple[Pod, str]]) -> None:
        """Tell each pod once, with the first text about it."""
        texts = {pod.metadata.uid: text for pod, text in reversed(unfit)}
        for pod in self._told[reason].tell(claim.claim.uid, reason, [pod for pod, _ in unfit]) if unfit else ():
            text = texts.pop(pod.metadata.uid, None)
            if text is not None:
                log.warning("a pod came to a claim that was prepared for others", claim=str(claim.claim), pod=pod.key)
                self._tell(claim.claim, [pod], reason, text)
