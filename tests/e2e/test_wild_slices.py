"""No machine, however odd its reports, makes the real API server refuse a slice or drop a value of it."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from dracaena.api.machine import Machine
from e2e.cluster import NODE_NAME, Cluster
from e2e.test_slices import SLICES
from support.wild_machines import slice_bodies, wild_machines, without_times

DRIVER = "gpu.dracaena.dev"


@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(machine=wild_machines())
def test_random_machines_are_stored_as_they_are_sent(cluster: Cluster, machine: Machine) -> None:
    for body in slice_bodies(machine, driver=DRIVER, node_name=NODE_NAME):
        answer = cluster.api.send("POST", f"{SLICES}?dryRun=All", body)
        assert answer.status == 201, answer.message
        stored = answer.document["spec"].get("devices", [])
        assert without_times(stored) == without_times(body["spec"]["devices"])
