from __future__ import annotations

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.device_id import DeviceId
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.events.claim_reports import ClaimReports
from dracaena.controller.events.collision_reports import CollisionReports
from dracaena.controller.lifecycle.claim_record import first_record
from dracaena.controller.lifecycle.phases import NotAllowedError, Phase, RecordEvent
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.state.collisions import Collision
from support.allocation import DRIVER, claim
from support.claim_api import FakeEvents

COLLISION = Collision(is_ours=True, device=DeviceId(DRIVER, "pool", "gpu-0"), rival=claim("other"))


class Bench:
    def __init__(self, *, is_leading: bool) -> None:
        self.events = FakeEvents()
        self.registry = CollectorRegistry()
        metrics = ControllerMetrics(self.registry)
        collisions = CollisionReports(DRIVER, self.events, metrics)
        self.reports = ClaimReports(self.events, metrics, collisions, lambda: is_leading)

    def told(self) -> list[tuple[str, str]]:
        return [(subject, reason) for subject, reason, _ in self.events.seen]


def unreadable() -> ResourceClaim:
    return msgspec.structs.replace(claim("c"), problem="spec: expected an object")


def test_a_leader_reports_a_claim_that_becomes_unreadable_and_a_collision() -> None:
    bench = Bench(is_leading=True)
    bench.reports.changed(unreadable())
    bench.reports.collided(claim("c"), [COLLISION])
    assert bench.told() == [
        ("ResourceClaim default/c", "ClaimUnreadable"),
        ("ResourceClaim default/c", "DeviceCollision"),
        ("ResourceClaim default/other", "DeviceCollision"),
    ]


def test_a_stand_by_reports_neither() -> None:
    bench = Bench(is_leading=False)
    bench.reports.changed(unreadable())
    bench.reports.collided(claim("c"), [COLLISION])
    assert bench.told() == []
    assert bench.registry.get_sample_value("dracaena_controller_collisions_total", {"kind": "own"}) is None


@pytest.mark.parametrize("item", [None, claim("c")], ids=["deleted", "readable"])
def test_a_claim_without_a_problem_is_not_reported(item: ResourceClaim | None) -> None:
    bench = Bench(is_leading=True)
    bench.reports.changed(item)
    assert bench.told() == []


def test_a_fault_is_counted_by_phase_and_event_also_by_a_stand_by() -> None:
    bench = Bench(is_leading=False)
    bench.reports.fault(first_record(claim("c"), 0.0), NotAllowedError(Phase.FREE, RecordEvent.SEND_DROP))
    labels = {"phase": "free", "event": "send drop"}
    assert bench.registry.get_sample_value("dracaena_controller_record_faults_total", labels) == 1
