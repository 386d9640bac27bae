"""Keeps prepared claims up to date when the node's devices change, and tells the users who have to act.

It looks at them after each change of the machine, after each unprepare (which may free a device node that another claim
waits for), when the pods of the node are first known, and once a minute. It never keeps kubelet waiting: prepare checks
for itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import structlog

from dracaena.api.errors import DracaenaError
from dracaena.api.machine import Machine
from dracaena.api.objects import Pod
from dracaena.kube.reflector import Backoff
from dracaena.kubelet_plugin.claims.reconciler import ClaimTrouble
from dracaena.kubelet_plugin.claims.recovery import ClaimRecovery
from dracaena.kubelet_plugin.node.context import NodeContext
from dracaena.kubelet_plugin.ports import PodCache
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference
from dracaena.kubelet_plugin.prepare.reports.podlist import may_run
from dracaena.kubelet_plugin.worker import Worker, WorkerService

LOOK_EVERY_S = 60.0
"""A look when nothing has changed costs some microseconds per claim; pods that come later are told within this time."""

GATHER_S = 0.05
"""Pause between a change and the look: the answer to kubelet goes first, and a burst of changes costs one look."""

MOVED, SET_ASIDE, VANISHED = "GpuMoved", "ClaimSetAside", "MigDeviceGone"
"""Reasons of the Events."""

TellUsers = Callable[[ClaimReference, Sequence[Pod], str, str], None]
"""Writes a warning on a claim and on its pods: reason, text. Never blocks."""

log = structlog.get_logger()


class DeviceWatch(WorkerService):
    """Looks in a thread of its own. Only that thread calls look(), or a test in its place."""

    def __init__(
        self,
        context: NodeContext,
        recovery: ClaimRecovery,
        pods: PodCache,
    ) -> None:
        self._events, self._metrics = context.events, context.metrics
        self._recovery = recovery
        self._pods = pods
        self._backoff = Backoff(random.Random())  # noqa: S311 - jitter, no secret
        self._told: set[tuple[str, str, str]] = set()  # claim, pod or nothing, text
        self._complaint = ""
        self._worker = Worker("device-watch", self._run, context.clock)

    def take(self, _machine: Machine) -> None:
        """Look at once, even in the pause after a failure: the devices are known, or are others. Never blocks."""
        self._worker.hurry()

    def look(self) -> None:
        """Look once. Raises DracaenaError if a claim could not be settled, once everything has been told."""
        troubles, failures = self._recovery.follow_devices()
        self._metrics.claims.set_aside.set(sum(trouble.aside is not None for trouble in troubles))
        self._metrics.claims.moved.set(sum(bool(trouble.prepared.former) for trouble in troubles))
        self._metrics.claims.lost_mig.set(sum(bool(trouble.vanished) for trouble in troubles))
        said = {
            told
            for trouble in troubles
            for reason, text in _words(trouble)
            for told in self._say(trouble, reason, text)
        }
        self._told = said
        for failure in failures:
            raise failure

    def _say(self, trouble: ClaimTrouble, reason: str, text: str) -> set[tuple[str, str, str]]:
        """Tell the claim, and those of its pods that have not been told; return all that have been told by now."""
        claim = trouble.prepared.claim
        users = [p for p in self._pods.values() if p.metadata.uid in trouble.prepared.consumers and may_run(p)]
        knows: set[tuple[str, str, str]] = {
            (claim.uid, "", text),
            *((claim.uid, pod.metadata.uid, text) for pod in users),
        }
        news = [pod for pod in users if (claim.uid, pod.metadata.uid, text) not in self._told]
        if news or (claim.uid, "", text) not in self._told:
            self._events.warn_users(claim, news, reason, text)
        return knows

    def _run(self) -> None:
        while self._worker.wait(within_s=LOOK_EVERY_S):
            if not self._worker.pause(GATHER_S):
                return
            try:
                self.look()
                self._complaint = ""
                self._backoff.reset()
            except DracaenaError as error:
                if str(error) != self._complaint:  # before the first reading the same error repeats for minutes
                    log.warning("prepared claims not brought up to date, retrying", error=str(error))
                self._complaint = str(error)
                self._worker.again(self._backoff.next_s())
            except Exception:
                # The thread's outermost loop: a bug must not end it for the life of the process.
                log.exception("look at prepared claims failed")
                self._worker.again(self._backoff.next_s())


def _words(trouble: ClaimTrouble) -> Sequence[tuple[str, str]]:
    """Return what to say, as reason and text; each text says who must act and how. A MIG device that is gone is told
    once, although its claim is also set aside and its device nodes stay held.
    """
    claim, found = trouble.prepared.claim, []
    if trouble.aside_besides is not None:
        found.append((SET_ASIDE, f"no container of claim {claim} can be started: {trouble.aside_besides}"))
    if trouble.moved:
        text = (
            f"the driver renumbered its devices while claim {claim} is prepared: containers that were started before "
            f"may have {'; '.join(trouble.moved)}. Delete the pods of the claim; until then no other claim gets these "
            "nodes"
        )
        found.append((MOVED, text))
    if trouble.vanished:
        text = (
            f"MIG device {', '.join(trouble.vanished)} of claim {claim} was destroyed while in use: the driver was "
            "reloaded, or somebody used `nvidia-smi mig`. Its containers have lost that GPU, and none can start again. "
            "Delete the pods of the claim; until then no other claim gets its place or the device nodes that they hold"
        )
        found.append((VANISHED, text))
    return found
