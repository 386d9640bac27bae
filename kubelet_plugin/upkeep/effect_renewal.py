"""Restores what the GPU driver forgets when it is reloaded: time slices and memory limits of prepared shares.

Nothing announces that the driver was reloaded. It cannot be while NVML is open, so each opening of NVML counts as a
reload; so does the first one, because the driver may have been replaced while no plugin ran. If health is not watched,
NVML is opened for each reading, once a minute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from dracaena.api.errors import DracaenaError
from dracaena.api.names import ClaimUid
from dracaena.api.objects import Pod
from dracaena.host.gpu_driver.thread import StoppedError
from dracaena.kubelet_plugin.changes.claim_changes import ClaimChanges, GpusBusyError
from dracaena.kubelet_plugin.ports import GpuGoneError
from dracaena.kubelet_plugin.prepare.effects import MEMORY_LIMIT, TIME_SLICE, Effect
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim
from dracaena.kubelet_plugin.store.claims import NodeClaims
from dracaena.kubelet_plugin.upkeep.device_watch import TellUsers
from dracaena.kubelet_plugin.upkeep.share_troubles import ShareTroubles
from dracaena.kubelet_plugin.worker import Worker
from dracaena.process.clock import Clock

FORGOTTEN: Final = frozenset({MEMORY_LIMIT, TIME_SLICE})
"""Kinds of effects that live in the driver. Compute modes do too, but those belong to the MPS supervisor."""

AGAIN_S: Final = 15.0
"""Pause after an effect could not be made: nvidia-smi takes some tenths of a second, and its answer stays the same
until an admin or the driver has done something."""

GPU_WAIT_S: Final = 1.0
"""Longest wait for a GPU, which a call may hold for some seconds: then it is retried later."""

NOT_ENFORCED: Final = "ShareNotEnforced"
"""Reason of the Event."""

log = structlog.get_logger()


class EffectRenewal:
    """Works in a thread of its own. Only that thread calls look(), or a test in its place."""

    def __init__(
        self,
        *,
        opened: Callable[[], int],
        claims: NodeClaims,
        changes: ClaimChanges,
        users_known: Callable[[], bool],
        pods_of: Callable[[PreparedClaim], Sequence[Pod]],
        pods_now: Callable[[PreparedClaim], Sequence[Pod]],
        tell: TellUsers,
        clock: Clock,
    ) -> None:
        """`opened` returns how often NVML was opened. `pods_of` returns the pods that use a claim as the watch has
        shown them, all of them once `users_known`. `pods_now` also asks the API for those that the watch has not shown
        yet; it is called without the lock, once for each trouble, and raises DracaenaError if they are not known.
        """
        self._opened = opened
        self._claims = claims
        self._changes = changes
        self._users_known, self._pods_of, self._pods_now = users_known, pods_of, pods_now
        self._seen = 0
        self._due: set[ClaimUid] = set()
        self._troubles = ShareTroubles(tell, NOT_ENFORCED, "a share may not be enforced")
        self._worker = Worker("effect-renewal", self._run, clock)

    def start(self) -> None:
        """Begin to look."""
        self._worker.start()

    def stop(self) -> None:
        """End the thread."""
        self._worker.stop()

    def changed(self) -> None:
        """Look soon: the driver was read, or the users of claims are known. From any thread; never blocks."""
        self._worker.notice()

    def look(self) -> bool:
        """Restore what is due; return whether nothing is left to do. Raises DracaenaError if checkpoints cannot be
        read.

        A claim that is set aside, or is being prepared, is due until it is prepared: what was made for it before may be
        forgotten as well, and nobody else makes it again.
        """
        opened = self._opened()
        claims = {each.prepared.claim.uid: each.prepared for each in self._claims.current()}
        if opened != self._seen:
            self._due |= {uid for uid, claim in claims.items() if any(map(_is_forgotten, claim.effects))}
            self._seen = opened
        self._due &= claims.keys()
        self._troubles.keep(self._due)
        for uid in sorted(self._due):
            if self._renewed(claims[uid]):
                self._due.discard(uid)
        return not self._due

    def _renewed(self, claim: PreparedClaim) -> bool:
        uid = claim.claim.uid
        try:
            with self._changes.hold(uid, lambda: GPU_WAIT_S):
                made = [effect for effect in self._changes.of(uid) if _is_forgotten(effect)]
                return self._changes.follow(uid, made, _is_forgotten)
        except (GpusBusyError, StoppedError):
            return False  # the next look may get the GPUs, and the next instance of the plugin looks first thing
        except GpuGoneError as error:  # a taint says that it is gone, or that the driver is being released
            log.info("a share is not enforced while its GPU is away", claim=str(claim.claim), reason=str(error))
            return False
        except DracaenaError as error:
            self._fail(claim, str(error))
            return False

    def _fail(self, claim: PreparedClaim, reason: str) -> None:
        """Tell all users of the claim, each once: it fails again at the next look."""
        if not self._users_known():
            return
        try:
            pods = self._pods_now(claim) if self._troubles.is_new(claim, reason) else self._pods_of(claim)
        except DracaenaError as error:
            log.warning("users of a share are not known, retrying", claim=str(claim.claim), error=str(error))
            return
        text = (
            f"the GPU driver was opened again and may have forgotten the limits of claim {claim.claim}'s share, which "
            "cannot be restored"
        )
        self._troubles.tell(claim, reason, pods, text)

    def _run(self) -> None:
        pause_s = math.inf
        while self._worker.wait(within_s=pause_s):
            try:
                pause_s = math.inf if self.look() else AGAIN_S
            except DracaenaError as error:
                log.warning("limits of shares not renewed, retrying", error=str(error))
                pause_s = AGAIN_S
            except Exception:
                # The thread's outermost loop: a bug must not end it for the life of the process.
                log.exception("look at shares failed")
                pause_s = AGAIN_S


def _is_forgotten(effect: Effect) -> bool:
    return effect.kind in FORGOTTEN
