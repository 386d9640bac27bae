"""What the real API server makes of our ResourceSlices."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from e2e.cluster import NODE_NAME, Cluster
from e2e.gpus import DRIVER_VERSION
from e2e.kubernetes import IS_1_36
from e2e.waiting import eventually

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
MAX_STRING_BYTES = 64

EXPECTED_GATES = {
    "DRADeviceTaints": True,
    "DRAConsumableCapacity": True,
    "DRAPartitionableDevices": True,
    "DRADeviceBindingConditions": True,
    "DRAResourceClaimDeviceStatus": True,
    "DRAResourceClaimGranularStatusAuthorization": True,
    "DRAExtendedResource": True,
    "ResourceHealthStatus": True,
    "DRADeviceTaintRules": not IS_1_36,
    "DRAListTypeAttributes": False,
    "DRAWorkloadResourceClaims": False,
}
"""Defaults of this release that the design counts on."""

REPUBLISH_S = 60.0
"""The plugin waits for more changes before it writes; a slice that somebody deleted is back well within a minute."""


def test_feature_gates_are_as_the_design_expects(cluster: Cluster) -> None:
    lines = cluster.api.send("GET", "/metrics").text.splitlines()
    seen = {}
    for line in lines:
        if line.startswith("kubernetes_feature_enabled{"):
            name = line.partition('name="')[2].partition('"')[0]
            seen[name] = line.rpartition(" ")[2] == "1"
    assert {name: seen.get(name) for name in EXPECTED_GATES} == EXPECTED_GATES


def test_vendor_version_is_published_as_semver_with_its_text_beside_it(installed: Cluster) -> None:
    for device in installed.installation.devices():
        assert device["attributes"]["driverVersion"] == {"version": "535.104.5"}
        assert device["attributes"]["driverVersionText"] == {"string": DRIVER_VERSION}


@pytest.mark.parametrize(
    "value",
    [
        {"version": DRIVER_VERSION},
        {"string": "x" * (MAX_STRING_BYTES + 1)},
        {"string": "é" * (MAX_STRING_BYTES // 2 + 1)},
    ],
    ids=["version that is not SemVer", "65 bytes", "66 bytes in 33 characters"],
)
def test_one_bad_value_refuses_the_whole_slice(installed: Cluster, value: dict[str, str]) -> None:
    """Why a bad value must drop itself, never the slice."""
    body = copy_of_a_slice(installed)
    assert installed.api.send("POST", f"{SLICES}?dryRun=All", body).status == 201
    body["spec"]["devices"][0]["attributes"]["bad"] = value
    answer = installed.api.send("POST", f"{SLICES}?dryRun=All", body)
    assert answer.status == 422
    assert "attributes[bad]" in answer.message


def test_slice_that_somebody_deleted_is_published_again(installed: Cluster) -> None:
    (before,) = installed.installation.slices()
    installed.api.delete(f"{SLICES}/{before['metadata']['name']}")
    (after,) = eventually(installed.installation.slices, "the devices are published again", within_s=REPUBLISH_S)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["spec"]["devices"] == before["spec"]["devices"] or without_times(after) == without_times(before)


def test_slice_belongs_to_its_node(installed: Cluster) -> None:
    (found,) = installed.installation.slices()
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Node", NODE_NAME)
    assert owner["uid"] == installed.api.get(f"/api/v1/nodes/{NODE_NAME}")["metadata"]["uid"]


def copy_of_a_slice(cluster: Cluster) -> dict[str, Any]:
    """Return what the plugin published, as the body of a creation in another pool."""
    spec = copy.deepcopy(cluster.installation.slices()[0]["spec"])
    spec["pool"]["name"] = "copy"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"generateName": "copy-"},
        "spec": spec,
    }


def without_times(document: Any) -> Any:
    """Return a slice's devices without the times that the server puts on their taints."""
    devices = copy.deepcopy(document["spec"]["devices"])
    for device in devices:
        for taint in device.get("taints", ()):
            taint.pop("timeAdded", None)
    return devices
