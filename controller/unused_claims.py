"""Frees claims that hold devices for nobody.

kube-controller-manager frees a claim when its last user goes. It does not when there never was one, or when the
reservation was dropped before: a process was killed between two writes, or somebody removed the finalizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import structlog

from dracaena.api.objects import ResourceClaim
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.ports import ClaimApi
from dracaena.controller.take_back import our_decision
from dracaena.kube.errors import ApiUnavailableError, KubeError
from dracaena.process.clock import Clock

UNUSED_S: Final = 15.0
"""A claim has to be unused for so long. Pods and claims come by watches of their own, and a pod may come soon: then it
finds its devices on the node that they were chosen on. Longer than any watch of a live server is behind."""

log = structlog.get_logger()


class UnusedClaims:
    """Call sweep() about once a second, from one thread.

    `unused` returns the claims that are allocated, reserved for nobody and named by no pod, as the watches show it.
    """

    def __init__(
        self,
        driver: str,
        *,
        unused: Callable[[], Iterable[ResourceClaim]],
        claims: ClaimApi,
        clock: Clock,
        metrics: ControllerMetrics,
    ) -> None:
        self._driver = driver
        self._unused = unused
        self._claims = claims
        self._clock = clock
        self._metrics = metrics
        self._since_s: dict[tuple[str, str], float] = {}

    def sweep(self) -> None:
        """Free what has been unused for long enough. Raises KubeError when the server does not answer, or for the first
        claim that it has trouble with: then all others were tried.

        The write is guarded by the version that the watch shows: who reserves the claim at the same moment wins, and
        kube-scheduler, if it comes later, finds the claim unallocated and reserves nothing.
        """
        now_s = self._clock.monotonic()
        found = {_identity(claim): claim for claim in self._unused() if self._is_ours_to_free(claim)}
        self._since_s = {identity: self._since_s.get(identity, now_s) for identity in found}
        failed: KubeError | None = None
        for identity, claim in found.items():
            if now_s - self._since_s[identity] >= UNUSED_S:
                try:
                    self._free(claim)
                except KubeError as error:
                    if error.status is None:
                        raise
                    failed = failed or error
        if failed is not None:
            raise failed

    def _is_ours_to_free(self, claim: ResourceClaim) -> bool:
        """Whether it is allocated by us; one that is being deleted is freed by kube-controller-manager."""
        return claim.metadata.deletion_timestamp is None and our_decision(claim, self._driver) is not None

    def _free(self, claim: ResourceClaim) -> None:
        try:
            self._claims.deallocate(claim)
        except ApiUnavailableError:
            raise
        except KubeError as error:
            # It changed, which the watch shows soon; or it cannot be written, and then once a second is too often.
            self._since_s[_identity(claim)] = self._clock.monotonic()
            log.info("unused claim not freed", claim=claim.key, again_in_s=UNUSED_S, error=str(error))
            return
        self._metrics.take_backs.labels("unused", "cleared").inc()
        log.info("unused claim freed", claim=claim.key, claim_uid=claim.metadata.uid)


def _identity(claim: ResourceClaim) -> tuple[str, str]:
    """A version of a claim: the wait begins anew when it changes."""
    return claim.metadata.uid, claim.metadata.resource_version
