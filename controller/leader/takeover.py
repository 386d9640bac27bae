"""How a stand-by takes over as leader, in the only safe order.

The API holds all state, so a new leader reads it again, the claims last:

1. every watched resource has been listed once;
2. this process leads, and no write of an earlier leader can land any more (Leadership.wait_to_begin);
3. only then are all claims listed. The watch may lag by any amount of time, and only claims say who has which device:
  without this list the last writes of an earlier leader could be missing, and their devices would be allocated twice;
4. what an earlier leader did to claims is treated as unknown (Cluster.begin);
5. only then is anything queued. A stand-by queues nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from dracaena.controller.queue.work import LeaderQueue
from dracaena.controller.state.cluster import Cluster

LOOK_S: Final = 1.0
"""How often a wait checks whether to stop, so a stop takes no longer than this."""


class SeenOnce(Protocol):
    """A cache that fills."""

    def wait_synced(self, timeout_s: float) -> bool:
        """Wait for the first list; return whether it is there."""
        ...


class Relisted(Protocol):
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


def wait_to_lead(
    caches: Sequence[SeenOnce],
    leadership: Turn | None,
    claims: Relisted,
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


def begin(cluster: Cluster, work: LeaderQueue) -> None:
    """Take steps 4 and 5."""
    cluster.begin()
    work.open()
    for key in cluster.to_be_tended():
        work.add_claim(key)
    for key in cluster.pods_with_claims():
        work.add_pod(key)


def _until(wait: Callable[[float], bool], stopping: Callable[[], bool]) -> bool:
    while not wait(LOOK_S):
        if stopping():
            return False
    return True
