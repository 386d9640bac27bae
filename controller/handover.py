"""From stand-by to leader, in the only safe order.

All truth is in the API, so a new leader reads it again, and claims last of all:

1. every watched resource has been listed once;
2. this process leads, and no write of an earlier leader can land any more (leadership.wait_to_begin);
3. only then are all claims listed. The watch may lag by any amount of time, and claims alone tell who has which device:
   the last writes of an earlier leader would be missing, and its devices would be given away again;
4. what an earlier leader did to claims is treated as unknown (Cluster.begin);
5. only then is anything queued. A stand-by queues nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from dracaena.controller.cluster import Cluster
from dracaena.controller.workqueue import WorkQueue

LOOK_S: Final = 1.0
"""How often a wait checks whether to stop, so a stop takes no longer than this."""

_CLAIM: Final = "resourceclaim "
"""Prefix of claims' keys in the queue; a pod's key contains no space."""

CLAIMS_TURN: Final = (float("-inf"),)
"""Claims come before all waiting pods, but not with the very first turn (), whose keys never rest."""


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
    """Tells when this process leads."""

    def wait_to_begin(self, timeout_s: float) -> bool:
        """Wait until this process leads and no write of an earlier leader can land; return whether both hold."""
        ...


class Work:
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
        """Queue a pod for a decision. A stand-by decides nothing: its queue would grow with every pod that comes."""
        if self.is_open:
            self._queue.add(key)

    def ask_pod_again(self, key: str) -> None:
        """Have a pod decided for that fitted nowhere, and may fit now."""
        if self.is_open:
            self._queue.add_again(key)

    def add_claim(self, key: str) -> None:
        """Queue a claim for tending."""
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
    """Take steps 1 to 3; return False when the process must stop. `leadership` is None where there is no election
    because this process is the only one. `seen_once` is called after step 1."""
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
    """Return the key of a claim in the queue."""
    return _CLAIM + claim_key


def claim_of_work(key: str) -> str | None:
    """Return the claim that a key in the queue stands for, None when it stands for a pod."""
    return key.removeprefix(_CLAIM) if key.startswith(_CLAIM) else None


def _until(wait: Callable[[float], bool], stopping: Callable[[], bool]) -> bool:
    while not wait(LOOK_S):
        if stopping():
            return False
    return True
