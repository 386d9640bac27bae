"""Devices in the hands of two claims: nothing in the API prevents it, so it is looked for, counted and named.

A claim that tolerates our taint, and one that also asks for devices of another driver, can be allocated by
kube-scheduler in the moment in which we allocate: 13 of 40 times in a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from dracaena.api.objects import Pod, ResourceClaim
from dracaena.controller.allocation.holdings import assumed_holder, claim_holder
from dracaena.controller.allocation.inventory import Inventory
from dracaena.controller.allocation.structured.slices import DeviceId
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.ports import EventSink
from dracaena.controller.take_back import TakeBack, is_used_by_only, our_decision

EVENT_REASON: Final = "DeviceCollision"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Collision:
    """One device that a claim has, and another one too."""

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
    claim: ResourceClaim, inventory: Inventory, claims: Mapping[str, ResourceClaim]
) -> Iterator[Collision]:
    """Yield the devices of a claim that another one of `claims` (by key) holds too. Shares and admins share.

    What is only assumed is no collision yet.
    """
    allocation = claim.status.allocation
    own_names = (claim_holder(claim), assumed_holder(claim.key, claim.metadata.uid))
    for result in allocation.devices.results if allocation is not None else ():
        if result.admin_access or result.share_id is not None:
            continue
        device = DeviceId(result.driver, result.pool, result.device)
        for name in inventory.holdings.holders(device, but=own_names):
            rival = claims.get(name)
            if rival is not None:
                yield Collision(result.driver == inventory.driver, device, rival)


class Collisions:
    """Tells of collisions, and has ours taken back as long as its pod is not bound.

    `collisions_of` says which devices of a claim somebody else has too. Safe from many threads: it holds no state.
    """

    def __init__(
        self,
        driver: str,
        *,
        collisions_of: Callable[[ResourceClaim], Sequence[Collision]],
        take_back: TakeBack,
        events: EventSink,
        metrics: ControllerMetrics,
    ) -> None:
        self._driver = driver
        self._collisions_of = collisions_of
        self._take_back = take_back
        self._events = events
        self._metrics = metrics

    def seen(self, claim: ResourceClaim, collisions: Sequence[Collision]) -> None:
        """An allocation was shown with devices that others have: count it, and write Events on both claims."""
        for collision in collisions:
            self._metrics.collisions.labels(collision.kind).inc()
            log.error(
                "one device is allocated to two claims",
                device=collision.name,
                claim=claim.key,
                other=collision.rival.key,
            )
            for subject, other in ((claim, collision.rival), (collision.rival, claim)):
                # Who reads Events of one namespace need not know what there is in another. The log names both.
                is_near = other.metadata.namespace == subject.metadata.namespace
                named = f"claim {other.key}" if is_near else "a claim of another namespace"
                text = (
                    f"device {collision.name} is allocated to {named} too. A claim that tolerates the taint "
                    f"of {self._driver}, or asks for devices of another driver as well, can be allocated by "
                    "kube-scheduler at the same moment: the one of ours is taken back unless its pod is bound already; "
                    "then one of the pods has to be deleted"
                )
                self._events.record(subject, "Warning", EVENT_REASON, text)

    def resolve(self, pod: Pod, claims: Sequence[ResourceClaim]) -> bool:
        """Take back what a pod got from us that somebody else has too; return whether there is something to take back.

        A pod that is bound keeps what it has: its containers may be using it. Of two allocations of ours the later
        one gives way.
        """
        if pod.spec.node_name:
            return False
        ours = [claim for claim in claims if is_used_by_only(claim, pod) and self._is_to_give_way(claim)]
        if not self._take_back.begin(pod, ours, "collision"):
            return False
        log.warning("allocation collides, taking it back", claims=[claim.key for claim in ours])
        return True

    def _is_to_give_way(self, claim: ResourceClaim) -> bool:
        rivals = [collision.rival for collision in self._collisions_of(claim)]
        if not rivals or our_decision(claim, self._driver) is None:
            return False
        return any(our_decision(rival, self._driver) is None or _age(rival) < _age(claim) for rival in rivals)


def _age(claim: ResourceClaim) -> tuple[str, str]:
    allocation = claim.status.allocation
    return (allocation.allocation_timestamp or "" if allocation is not None else "", claim.metadata.uid)
