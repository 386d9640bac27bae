"""Devices that two claims hold: nothing in the API prevents it, so we look for it, count it and name it.

A claim that tolerates our taint, and one that also asks for devices of another driver, can be allocated by
kube-scheduler at the same moment as by us: 13 of 40 times in a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from dracaena.api.objects import ResourceClaim
from dracaena.controller.allocation.legal.read.slices import DeviceId
from dracaena.controller.allocation.state.holdings import claim_holder
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.ports import EventSink

EVENT_REASON: Final = "DeviceCollision"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Collision:
    """One device that two claims hold."""

    is_ours: bool
    """Whether it is a device of our driver."""
    device: DeviceId
    rival: ResourceClaim
    """The other claim."""

    @property
    def kind(self) -> str:
        """Label of the metric."""
        return "own" if self.is_ours else "other"

    @property
    def name(self) -> str:
        """The device as a user reads it."""
        return f"{self.device.driver}/{self.device.pool}/{self.device.device}"


def find_collisions(
    claim: ResourceClaim, inventory: Inventory, rival: Callable[[str], ResourceClaim | None]
) -> Iterator[Collision]:
    """Yield the devices of a claim that the server shows in another claim too. Shares and admin access do not count.

    `rival` returns the other claim by its key.
    """
    allocation = claim.status.allocation
    for result in allocation.devices.results if allocation is not None else ():
        if result.admin_access or result.share_id is not None:
            continue
        device = DeviceId(result.driver, result.pool, result.device)
        for name in inventory.holdings.holders(device, but=(claim_holder(claim),)):
            other = rival(name)
            if other is not None and _shows(other, device):
                yield Collision(result.driver == inventory.driver, device, other)


def _shows(claim: ResourceClaim, device: DeviceId) -> bool:
    """Whether the server shows a device in a claim. What is only decided for a claim, or rests, is no collision."""
    results = claim.status.allocation.devices.results if claim.status.allocation is not None else ()
    return any(DeviceId(result.driver, result.pool, result.device) == device for result in results)


class Collisions:
    """Reports collisions. Holds no state, so it is safe to use from many threads."""

    def __init__(self, driver: str, events: EventSink, metrics: ControllerMetrics) -> None:
        self._driver = driver
        self._events = events
        self._metrics = metrics

    def seen(self, claim: ResourceClaim, collisions: Sequence[Collision]) -> None:
        """Count an allocation whose devices others hold too, and write Events on both claims."""
        for collision in collisions:
            self._metrics.collisions.labels(collision.kind).inc()
            log.error(
                "one device is allocated to two claims",
                device=collision.name,
                claim=claim.key,
                other=collision.rival.key,
            )
            for subject, other in ((claim, collision.rival), (collision.rival, claim)):
                # Whoever reads the Events of one namespace need not know what another one has. The log names both.
                is_near = other.metadata.namespace == subject.metadata.namespace
                named = f"claim {other.key}" if is_near else "a claim of another namespace"
                text = (
                    f"device {collision.name} is allocated to {named} too. A claim that tolerates the taint "
                    f"of {self._driver}, or asks for devices of another driver as well, can be allocated by "
                    "kube-scheduler at the same moment: the one of ours is taken back unless its pod is bound already; "
                    "then one of the pods has to be deleted"
                )
                self._events.record(subject, "Warning", EVENT_REASON, text)
