"""What the leading process puts into its work queue: pods to decide for, and claims to tend."""

from __future__ import annotations

import threading
from typing import Final

from dracaena.api.objects import Pod
from dracaena.controller.allocation.walk.pod_demand import turn
from dracaena.controller.queue.lanes import Turn
from dracaena.controller.queue.workqueue import WorkQueue

_CLAIM: Final = "resourceclaim "
"""Prefix of claims' keys in the queue; a pod's key contains no space."""

BOUND_TURN: Final = (float("-inf"), 0)
CLAIMS_TURN: Final = (float("-inf"), 1)
"""Pods on a node come before claims, and claims before all waiting pods; but not with the very first turn (), whose
keys never rest and are never put behind others: any user may make pods on a node, and change a claim."""


class LeaderQueue:
    """The queue of the leading process. It accepts nothing before open(). Safe to use from many threads."""

    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue
        self._opened = threading.Event()

    @property
    def is_open(self) -> bool:
        """Whether work is accepted."""
        return self._opened.is_set()

    def open(self) -> None:
        """Accept work from now on."""
        self._opened.set()

    def add_pod(self, key: str) -> None:
        """Queue a pod for a decision. A stand-by decides nothing: its queue would grow with every new pod."""
        if self.is_open:
            self._queue.add(key)

    def ask_pod_again(self, key: str) -> None:
        """Queue a pod that fitted nowhere and may fit now."""
        if self.is_open:
            self._queue.add_again(key)

    def add_claim(self, key: str) -> None:
        """Queue a claim for tending."""
        if self.is_open:
            self._queue.add(claim_work(key))

    def add_claim_again(self, key: str, delay_s: float) -> None:
        """Queue a claim whose many pods need a decision. Without a delay its turn comes again only after theirs."""
        if not self.is_open:
            return
        if delay_s > 0.0:
            self._queue.add_after(claim_work(key), delay_s)
        else:
            self._queue.add_again(claim_work(key))


def claim_work(claim_key: str) -> str:
    """Return the key of a claim in the queue."""
    return _CLAIM + claim_key


def claim_of_work(key: str) -> str | None:
    """Return the claim that a key in the queue stands for; None when it stands for a pod."""
    return key.removeprefix(_CLAIM) if key.startswith(_CLAIM) else None


def turn_of(key: str, pod: Pod | None) -> Turn:
    """Return the turn of a key in the queue; `pod` is the pod that it stands for, None when there is none.

    A pod that is gone comes first: it may have devices to give back. Then a pod on a node: it waits only for its
    claims, and if it had them before, no other pod must get its devices. Then come the claims.
    """
    if claim_of_work(key) is not None:
        return CLAIMS_TURN
    if pod is None:
        return ()
    return BOUND_TURN if pod.spec.node_name else turn(pod)
