"""Counts and reports devices that two claims hold (state.collisions)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog

from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.ports import EventSink
from dracaena.controller.state.collisions import Collision

EVENT_REASON: Final = "DeviceCollision"

log = structlog.get_logger()


class CollisionReports:
    """Reports collisions. Holds no state, so it is safe to use from many threads."""

    def __init__(self, driver: str, events: EventSink, metrics: ControllerMetrics) -> None:
        self._driver = driver
        self._events = events
        self._metrics = metrics

    def seen(self, claim: ResourceClaim, collisions: Sequence[Collision]) -> None:
        """Count an allocation whose devices others hold too, and write Events on both claims."""
        for collision in collisions:
            self._metrics.faults.collisions.labels(collision.kind).inc()
            log.error(
                "one device is allocated to two claims",
                device=collision.name,
                claim=claim.key,
                other=collision.rival.key,
            )
            for subject, other in ((claim, collision.rival), (collision.rival, claim)):
                # Readers of one namespace's Events need not know what another namespace has. The log names both.
                is_near = other.metadata.namespace == subject.metadata.namespace
                named = f"claim {other.key}" if is_near else "a claim of another namespace"
                text = (
                    f"device {collision.name} is allocated to {named} too. A claim that tolerates the taint "
                    f"of {self._driver}, or asks for devices of another driver as well, can be allocated by "
                    "kube-scheduler at the same moment: the one of ours is taken back unless its pod is bound already; "
                    "then one of the pods has to be deleted"
                )
                self._events.record(subject, "Warning", EVENT_REASON, text)
