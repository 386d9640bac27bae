"""A Cluster with nothing around it: the test is the watch, and the server that answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import msgspec

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ConsumerReference, ResourceClaim
from dracaena.controller.allocation.result import Allocation, allocated_claim
from dracaena.controller.lifecycle.phases import RecordEvent
from dracaena.controller.state.cluster import ClusterState, Wakers
from dracaena.process.clock import Clock
from support.allocation import DRIVER
from support.clock import FakeClock
from support.reconciling import RULES, no_fault
from support.watched_cluster import WatchedCluster

DECISION = "decision"
"""The id of every decision here: it is told apart by the claim."""

_VERSIONS = count(1_000)


def bare_cluster(
    wake: Callable[[str], None] = lambda key: None,
    *,
    clock: Clock | None = None,
    ask_again: Callable[[str], None] | None = None,
    allowed_drivers: Iterable[str] = (),
    first_fit: bool = False,
    **listeners: Any,
) -> WatchedCluster:
    """Return a cluster; `listeners` are Cluster's own."""
    clock = clock or FakeClock()
    wakers = Wakers(wake, ask_again or wake, lambda key: None, lambda key, delay_s: None, no_fault)
    state = ClusterState(DRIVER, wakers, RULES, clock.monotonic(), allowed_drivers=allowed_drivers, first_fit=first_fit)
    return WatchedCluster(state, clock, **listeners)


def newer(item: ResourceClaim) -> ResourceClaim:
    """Return a claim as a state that is newer than all before."""
    metadata = msgspec.structs.replace(item.metadata, resource_version=str(next(_VERSIONS)))
    return msgspec.structs.replace(item, metadata=metadata)


def show(cluster: WatchedCluster, item: ResourceClaim) -> ResourceClaim:
    """Let the watch show a claim in a new version; return it."""
    shown = newer(item)
    cluster.intake.claim_changed(cluster.claim(item.key), shown)
    return shown


def decide(cluster: WatchedCluster, waiting: Pod, *claims: ResourceClaim, now_s: float = 0.0) -> object:
    """Decide for a pod and its claims, which are those that the cluster knows."""
    return cluster.decide(waiting, claims, decision_id=DECISION, now_s=now_s)


def written(decision: Allocation, *users: Pod, at: str = "2026-01-01T00:00:00Z") -> tuple[ResourceClaim, ...]:
    """Return the claims of a decision as the server stores them, reserved for these pods."""
    return tuple(newer(reserved(allocated_claim(decision, entry, at), *users)) for entry in decision.claims)


def reserved(item: ResourceClaim, *users: Pod) -> ResourceClaim:
    """Return a claim that is reserved for these pods and for nobody else."""
    references = [ConsumerReference("pods", user.metadata.name, user.metadata.uid) for user in users]
    return msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, reserved_for=references))


def write(cluster: WatchedCluster, decision: Allocation, *users: Pod) -> tuple[ResourceClaim, ...]:
    """Write a decision, with an answer to each write; the watch is behind. Return the claims as they are stored."""
    stored = written(decision, *users)
    land(cluster, *stored)
    return stored


def land(cluster: WatchedCluster, *stored: ResourceClaim) -> None:
    """Tell a cluster that claims of its own were allocated, as their writer does."""
    for claim in stored:
        asked = cluster.claim(claim.key)
        assert asked is not None
        assert cluster.send_allocation(asked, DECISION)
        cluster.shown(claim)
    cluster.ended(stored, DECISION, RecordEvent.ANSWERED)


def abandon(cluster: WatchedCluster, *claims: ResourceClaim) -> None:
    """Let a decision end of which nothing was sent."""
    cluster.ended(claims, DECISION, RecordEvent.REFUSED)
