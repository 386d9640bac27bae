"""Who has what, told at every place at once: podlist.json, annotations, status.devices, metadata, the kernel."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import NODE_NAME, Cluster
from e2e.exporting import process_of
from e2e.gpu_pods import claimed, delete_gpu_pod, delete_gpu_pods, gpu_numbers, seen_inside
from e2e.gpus import GPU_COUNT
from e2e.images import PROBE_IMAGE
from e2e.installation import DRIVER
from e2e.pods import DEVICE_CLASS, NAMESPACE, Pod, create_claim, create_pod, pod_claims, wait_phase, wait_printed
from e2e.waiting import eventually

TOLD_S = 20.0
"""Annotations and status.devices follow within a second."""

METADATA = Path("/var/run/kubernetes.io/dra-device-attributes")
"""Where a container finds the metadata of its devices (KEP-5304)."""

ADMIN_ACCESS = "resource.kubernetes.io/admin-access"


def container(name: str, *claims: tuple[str, str], command: str = "show-and-wait") -> dict[str, Any]:
    """Return a container that uses claims, each with the request that it is limited to."""
    uses = [{"name": claim, **({"request": request} if request else {})} for claim, request in claims]
    image = {"image": PROBE_IMAGE, "imagePullPolicy": "Never", "args": [command]}
    return {"name": name, **image, "resources": {"claims": uses}}


def requests(**counts: int) -> dict[str, Any]:
    """Return the spec of a claim with some requests."""
    exactly = {name: {"deviceClassName": DEVICE_CLASS, "count": count} for name, count in counts.items()}
    return {"devices": {"requests": [{"name": name, "exactly": one} for name, one in exactly.items()]}}


def entries(cluster: Cluster) -> dict[tuple[str, str], dict[str, Any]]:
    """Return podlist.json by pod and container."""
    return {(entry["name"], entry["container"]): entry for entry in cluster.installation.podlist()}


def uuids_by_request(cluster: Cluster, claim: Any) -> Mapping[str, list[str]]:
    """Return the UUIDs that a claim gives to each request, in the order of its allocation."""
    devices = {d["name"]: d["attributes"]["uuid"]["string"] for d in cluster.installation.devices()}
    given: dict[str, list[str]] = {}
    for result in claim["status"]["allocation"]["devices"]["results"]:
        given.setdefault(result["request"], []).append(devices[result["device"]])
    return given


def test_each_container_is_listed_with_what_the_kernel_lets_it_use(installed: Cluster) -> None:
    """Init container, request filter, two claims in one container, a claim of two pods, one of them later."""
    paths = [create_claim(installed.api, "mine", requests(small=1, large=2))]
    paths += [create_claim(installed.api, "ours", requests(gpus=1))]
    containers = [container("main", ("mine", ""), ("ours", "")), container("helper", ("mine", "large"))]
    spec = {"containers": containers, "initContainers": [container("prepare", ("mine", "small"), command="show")]}
    pod = Pod("many", claims={"mine": "mine", "ours": "ours"}, more=spec)
    create_pod(installed.api, pod)
    wait_phase(installed.api, pod, "Running")
    later = Pod("later", claims={"ours": "ours"})
    create_pod(installed.api, later)
    seen_inside(installed.api, later)
    claims = pod_claims(installed.api, pod)
    mine, ours = (uuids_by_request(installed, claims[name]) for name in ("mine", "ours"))
    expected = {
        ("later", "main"): ours["gpus"],
        ("many", "helper"): mine["large"],
        ("many", "main"): [*mine["small"], *mine["large"], *ours["gpus"]],
    }
    eventually(lambda: set(entries(installed)) == set(expected), "all that run are listed", within_s=TOLD_S)
    listed = entries(installed)
    assert {key: entry["gpu_list"] for key, entry in listed.items()} == expected
    assert list(listed) == sorted(expected)
    uids = {"mine": claims["mine"]["metadata"]["uid"], "ours": claims["ours"]["metadata"]["uid"]}
    (entry,) = [entry for key, entry in listed.items() if key == ("many", "main")]
    assert entry == {
        "name": "many",
        "namespace": NAMESPACE,
        "container": "main",
        "gpu_list": expected["many", "main"],
        "uid": installed.api.get(pod.path)["metadata"]["uid"],
        "claims": sorted(uids.values()),
    }
    print(installed.installation.podlist_path.read_text(encoding="utf-8"))  # noqa: T201 - `-rP` shows a real file
    granted_to = {name: uuids for (owner, name), uuids in expected.items() if owner == "many"}
    granted_to["prepare"] = mine["small"]  # it has ended and is listed no more
    for name in ("main", "helper", "prepare"):
        printed = json.loads(wait_printed(installed.api, pod, name))
        usable = frozenset(printed["usable"]) & set(range(GPU_COUNT))
        assert usable == gpu_numbers(installed).of_uuids(granted_to[name]), name
    told = eventually(
        lambda: installed.api.get(pod.path)["metadata"].get("annotations", {}).get(f"{DRIVER}/devices"),
        "the pod is annotated",
        within_s=TOLD_S,
    )
    granted = json.loads(told)
    assert {name: [u for grant in grants for u in grant["uuids"]] for name, grants in granted.items()} == granted_to
    delete_gpu_pods(installed, [pod, later])
    for path in paths:
        installed.api.delete(path)


def test_the_claim_says_which_gpus_it_has_and_other_drivers_entries_stay(installed: Cluster) -> None:
    path = create_claim(installed.api, "told", requests(gpus=2))
    pod = Pod("told", claims={"gpus": "told"})
    create_pod(installed.api, pod)
    seen_inside(installed.api, pod)
    devices = eventually(
        lambda: installed.api.get(path)["status"].get("devices"), "status.devices is written", within_s=TOLD_S
    )
    given = uuids_by_request(installed, installed.api.get(path))["gpus"]
    assert [(d["driver"], d["pool"]) for d in devices] == [(DRIVER, NODE_NAME)] * 2
    assert sorted(d["data"]["uuid"] for d in devices) == sorted(given)
    by_uuid = {d["attributes"]["uuid"]["string"]: d for d in installed.installation.devices()}
    bus_ids = {d["data"]["uuid"]: d["data"].get("pciBusID") for d in devices}
    published = {uuid: by_uuid[uuid]["attributes"].get("resource.kubernetes.io/pciBusID", {}) for uuid in given}
    assert bus_ids == {uuid: attribute.get("string") for uuid, attribute in published.items()}
    delete_gpu_pod(installed, pod)
    installed.api.delete(path)


@pytest.fixture
def admin_namespace(installed: Cluster) -> Iterator[None]:
    """Allow claims with admin access in the namespace of the tests."""
    path = f"/api/v1/namespaces/{NAMESPACE}"
    installed.api.patch(path, {"metadata": {"labels": {ADMIN_ACCESS: "true"}}})
    yield
    installed.api.patch(path, {"metadata": {"labels": {ADMIN_ACCESS: None}}})


@pytest.mark.usefixtures("admin_namespace")
def test_a_monitor_with_admin_access_is_not_listed_and_the_user_beside_it_is(installed: Cluster) -> None:
    everything = {"deviceClassName": DEVICE_CLASS, "allocationMode": "All", "adminAccess": True}
    watching = {"devices": {"requests": [{"name": "all", "exactly": everything}]}}
    paths = [create_claim(installed.api, "used", requests(gpus=2)), create_claim(installed.api, "watching", watching)]
    user, monitor = (Pod(name, claims={"gpus": name}) for name in ("used", "watching"))
    for pod in (user, monitor):
        create_pod(installed.api, pod)
    numbers = seen_inside(installed.api, user).usable
    assert len(numbers) == 2
    assert seen_inside(installed.api, monitor).usable == frozenset(range(GPU_COUNT))
    assert len(claimed(installed, monitor)) == GPU_COUNT
    assert set(entries(installed)) == {("used", "main")}
    assert f"{DRIVER}/uuids" not in installed.api.get(monitor.path)["metadata"].get("annotations", {})
    for pod in (monitor, user):
        delete_gpu_pod(installed, pod)
    for path in paths:
        installed.api.delete(path)


def inside(cluster: Cluster, pod: Pod) -> Path:
    """Return the root of a pod's container as the processes in it see it."""
    return Path("/proc") / str(process_of(cluster, pod)) / "root"


def test_a_container_finds_the_metadata_of_its_devices(installed: Cluster) -> None:
    """Behind a setting (KEP-5304). Nothing of it is left behind, also when the setting is off again by then."""
    path = create_claim(installed.api, "described", requests(small=1, large=2))
    pod = Pod("described", claims={"gpus": "described"})
    with installed.installation.plugin.restarted_with("--device-metadata=true"):
        installed.installation.wait_ready()
        create_pod(installed.api, pod)
        seen_inside(installed.api, pod)
        given = uuids_by_request(installed, installed.api.get(path))
        root = inside(installed, pod)
        for request, uuids in given.items():
            folder = METADATA / "resourceclaims" / "described" / request
            text = (root / str(folder / f"{DRIVER}-metadata.json").lstrip("/")).read_text(encoding="utf-8")
            document, _ = json.JSONDecoder().raw_decode(text)
            assert document["kind"] == "DeviceMetadata"
            assert document["metadata"]["name"] == "described"
            (told,) = document["requests"]
            assert [d["attributes"]["uuid"]["string"] for d in told["devices"]] == uuids
    installed.installation.wait_ready()
    uid = installed.api.get(path)["metadata"]["uid"]
    delete_gpu_pod(installed, pod)
    assert not [p for p in Path("/var/run/cdi").glob("*") if uid in p.name]
    assert not list((installed.installation.plugin_data / "dra-device-metadata").glob("*"))
    installed.api.delete(path)
