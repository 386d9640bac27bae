"""Claims that ask for a device of another driver beside ours: kube-scheduler owns those, so it is off by default."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from e2e.installation import DRIVER
from e2e.made_up import FINALIZER, FOUR, MadeUpCluster
from e2e.pods import CLAIMS, DEVICE_CLASS, Pod, create_claim, create_pod, wait_event
from e2e.waiting import eventually, never
from support.write_proxy import Write

NIC_DRIVER = "nic.example.com"
NIC_CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
NO_LONG_BINDS = "--longest-bind-s=1"
"""Without kube-scheduler nobody says that a pod is not being bound: then time has to tell."""

ALLOWED = f"--allowed-drivers={NIC_DRIVER}"

QUIET_S = 1.5

BOTH = {
    "devices": {
        "requests": [
            {"name": "gpu", "exactly": {"deviceClassName": DEVICE_CLASS, "count": 2}},
            {"name": "nic", "exactly": {"deviceClassName": NIC_DRIVER}},
        ]
    }
}
ONE_NIC = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": NIC_DRIVER}}]}}


@pytest.fixture(autouse=True)
def nics(made_up: MadeUpCluster) -> Iterator[None]:
    """One node with GPUs and two NICs of a driver that knows nothing of ours."""
    made_up.add_node("a", FOUR)
    pool = {"name": "a", "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"nic-{number}"} for number in range(2)]
    made_up.publish("nics-a", {"driver": NIC_DRIVER, "nodeName": "a", "pool": pool, "devices": devices})
    selector = {"cel": {"expression": f'device.driver == "{NIC_DRIVER}"'}}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
    spec = {"selectors": [selector]}
    made_up.api.create(NIC_CLASSES, {**kind, "metadata": {"name": NIC_DRIVER}, "spec": spec})
    yield
    made_up.api.delete(f"{NIC_CLASSES}/{NIC_DRIVER}")


def given(claim: Any) -> list[tuple[str, str]]:
    """Return (driver, device) of an allocation."""
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    return sorted((result["driver"], result["device"]) for result in results)


def make(cluster: MadeUpCluster, name: str, spec: dict[str, Any]) -> Pod:
    """Make a claim and its pod."""
    create_claim(cluster.api, name, spec)
    pod = Pod(name, claims={"devices": name})
    create_pod(cluster.api, pod)
    return pod


def test_a_claim_for_devices_of_two_drivers_waits_and_is_told_of_a_better_way(made_up: MadeUpCluster) -> None:
    pod = make(made_up, "both", BOTH)
    assert "claim" in wait_event(made_up.api, pod, "WaitingForGPUs", NIC_DRIVER)
    never(lambda: given(made_up.api.get(f"{CLAIMS}/both")), "it is allocated", for_s=QUIET_S)
    made_up.api.delete(pod.path, grace_s=0)
    # Two claims are the better way: each driver's own allocator gives its own.
    create_claim(made_up.api, "nic", ONE_NIC)
    gpus = {"devices": {"requests": BOTH["devices"]["requests"][:1]}}
    create_claim(made_up.api, "gpus", gpus)
    two = Pod("two", claims={"gpus": "gpus", "nic": "nic"})
    create_pod(made_up.api, two)
    assert made_up.wait_bound(two) == "a"
    made_up.check()


def test_a_driver_that_is_allowed_is_allocated_with_ours(made_up: MadeUpCluster) -> None:
    with made_up.controller_with(ALLOWED):
        assert made_up.wait_bound(make(made_up, "both", BOTH)) == "a"
        drivers = [driver for driver, _ in given(made_up.api.get(f"{CLAIMS}/both"))]
        assert drivers == [DRIVER, DRIVER, NIC_DRIVER]
        assert made_up.wait_bound(make(made_up, "scheduler-s", ONE_NIC)) == "a"
        nics = [
            device for claim in made_up.api.items(CLAIMS) for driver, device in given(claim) if driver == NIC_DRIVER
        ]
        assert sorted(nics) == ["nic-0", "nic-1"]
        made_up.check()


def test_a_device_that_the_scheduler_took_at_the_same_moment_is_given_back(made_up: MadeUpCluster) -> None:
    """The pod gets the other NIC; both claims are told."""
    create_claim(made_up.api, "theirs", ONE_NIC)

    def take(write: Write) -> None:
        results = (write.body.get("status", {}).get("allocation") or {}).get("devices", {}).get("results", ())
        nic = next((result["device"] for result in results if result["driver"] == NIC_DRIVER), None)
        if nic is not None and not given(made_up.api.get(f"{CLAIMS}/theirs")):
            allocate_nic(made_up, "theirs", nic)

    with made_up.controller_with(ALLOWED, NO_LONG_BINDS), made_up.without_scheduler():
        made_up.proxy.before = take
        pod = make(made_up, "ours", BOTH)
        wait_event(made_up.api, pod, "GPUsAllocated", "")
        taken = eventually(lambda: given(made_up.api.get(f"{CLAIMS}/theirs")), "it is taken", within_s=10.0)
        eventually(
            lambda: (mine := given(made_up.api.get(f"{CLAIMS}/ours"))) and mine[-1] != taken[0],
            "ours has the other one",
            within_s=20.0,
        )
    assert made_up.wait_bound(pod) == "a"


def allocate_nic(cluster: MadeUpCluster, claim: str, device: str) -> None:
    """Allocate as kube-scheduler does."""
    path = f"{CLAIMS}/{claim}"
    cluster.api.patch(path, {"metadata": {"finalizers": [FINALIZER]}})
    result = {"request": "nic", "driver": NIC_DRIVER, "pool": "a", "device": device}
    cluster.api.patch(f"{path}/status", {"status": {"allocation": {"devices": {"results": [result]}}}})
