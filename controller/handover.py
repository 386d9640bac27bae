"""From stand-by to leader, in the one order that is safe.

All truth is in the API, so a new leader reads it anew, and it reads it last:

1. everything that is watched was seen once;
2. this process leads, and no write of an earlier leader can land any more (leadership.wait_to_begin);
3. only then all claims are listed. The watch may be behind by any time, and of all that is watched claims alone tell
   who has which device: what an earlier leader wrote last would be missing, and its devices be given away again;
4. what an earlier leader did to claims is treated as unknown (Cluster.begin);
5. only then anything is queued. A stand-by queues nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from dracaena.controller.cluster import Cluster
from dracaena.controller.workqueue import WorkQueue

LOOK_S: Final = 1.0
"""How often a wait looks whether it is to end: a stop takes no longer."""

_CLAIM: Final = "resourceclaim "
"""Prefix of claims' keys in the queue; a pod's key contains no space."""

CLAIMS_TURN: Final = (float("-inf"),)
"""Claims come before all pods that wait, but not with the very first turn (): its keys do not rest."""


class SeenOnce(Protocol):
    """A cache that fills."""

    def wait_synced(self, timeout_s: float) -> bool:
        """Wait for the first list; return whether it is there."""
        ...


class ListedAnew(Protocol):
    """The cache of claims."""

    def begin_list(self) -> None:
        """Have all objects listed as the server has them after this call."""
        ...

    def wait_listed(self, timeout_s: float) -> bool:
        """Wait until they are taken in; return whether they are."""
        ...


class Turn(Protocol):
    """Says when this process leads."""

    def wait_to_begin(self, timeout_s: float) -> bool:
        """Wait until this process leads and no write of an earlier leader can land; return whether both hold."""
        ...


class Work:
    """The queue of a process that leads. Until open() it accepts nothing. Safe from many threads."""

    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue
        self._opened = threading.Event()

    @property
    def is_open(self) -> bool:
        """Whether this process works on what it is told."""
        return self._opened.is_set()

    def open(self) -> None:
        """Take work from now on."""
        self._opened.set()

    def add_pod(self, key: str) -> None:
        """Have a pod decided for. A stand-by decides nothing: its queue would grow with every pod there ever was."""
        if self.is_open:
            self._queue.add(key)

    def add_claim(self, key: str) -> None:
        """Have a claim tended."""
        if self.is_open:
            self._queue.add(claim_work(key))


def wait_to_lead(
    caches: Sequence[SeenOnce],
    leadership: Turn | None,
    claims: ListedAnew,
    *,
    stopping: Callable[[], bool],
    seen_once: Callable[[], None] = lambda: None,
) -> bool:
    """Wait for steps 1 to 3; return False when the process is to stop. `leadership` is None where there is no
    election and this process is the only one. `seen_once` is called after step 1."""
    for cache in caches:
        if not _until(cache.wait_synced, stopping):
            return False
    seen_once()
    if leadership is None:
        return True
    if not _until(leadership.wait_to_begin, stopping):
        return False
    claims.begin_list()
    return _until(claims.wait_listed, stopping)


def begin(cluster: Cluster, work: Work) -> None:
    """Take steps 4 and 5."""
    cluster.begin()
    work.open()
    for key in cluster.to_be_tended():
        work.add_claim(key)
    for key in cluster.pods_with_claims():
        work.add_pod(key)


def claim_work(claim_key: str) -> str:
    """Return what stands in the queue for a claim."""
    return _CLAIM + claim_key


def claim_of_work(key: str) -> str | None:
    """Return the key of the claim that stands in the queue under this one, None for that of a pod."""
    return key.removeprefix(_CLAIM) if key.startswith(_CLAIM) else None


def _until(wait: Callable[[float], bool], stopping: Callable[[], bool]) -> bool:
    while not wait(LOOK_S):
        if stopping():
            return False
    return True
