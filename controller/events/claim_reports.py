"""Reports what is wrong with single claims: to users, in metrics and in the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.events.collision_reports import CollisionReports
from dracaena.controller.lifecycle.claim_record import ClaimRecord
from dracaena.controller.lifecycle.phases import NotAllowedError
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.ports import EventSink
from dracaena.controller.state.collisions import Collision

log = structlog.get_logger()


class ClaimReports:
    """Holds no state, so it is safe to use from many threads. A stand-by does not report what the leader reports:
    `is_leading` says which one this process is, and a new leader starts by reporting what there is."""

    def __init__(
        self,
        events: EventSink,
        metrics: ControllerMetrics,
        collisions: CollisionReports,
        is_leading: Callable[[], bool],
    ) -> None:
        self._events = events
        self._metrics = metrics
        self._collisions = collisions
        self._is_leading = is_leading

    def changed(self, claim: ResourceClaim | None) -> None:
        """Report a claim whose new state cannot be read."""
        if claim is not None and self._is_leading():
            self.unreadable(claim)

    def unreadable(self, claim: ResourceClaim) -> None:
        """Tell users about a claim if it cannot be read."""
        if claim.problem:
            text = f"Dracaena cannot read this claim and leaves it alone; it keeps what it holds: {claim.problem}"
            self._events.record(claim, "Warning", "ClaimUnreadable", text)

    def collided(self, claim: ResourceClaim, collisions: Sequence[Collision]) -> None:
        """Report devices of a claim that other claims hold too."""
        if self._is_leading():
            self._collisions.seen(claim, collisions)

    def fault(self, record: ClaimRecord, error: NotAllowedError) -> None:
        """Report a fault of ours. The step is not taken, and the claim keeps its devices until the server shows
        something new."""
        self._metrics.faults.records.labels(error.phase.value, error.event.value).inc()
        log.error("impossible event in a claim's record", claim=record.key, claim_uid=record.uid, error=str(error))
