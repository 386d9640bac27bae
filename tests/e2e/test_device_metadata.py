"""Device metadata: a container reads which GPUs it has from files, where KEP-5304 says they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import Cluster
from e2e.exporting import process_of
from e2e.gpu_pods import delete_gpu_pod, delete_gpu_pods, gpu_numbers, seen_inside
from e2e.installation import DRIVER
from e2e.pods import Pod, claim_spec, create_claim, create_pod, create_template, pod_claims

FOLDER = "var/run/kubernetes.io/dra-device-attributes"
FILE = f"{DRIVER}-metadata.json"


@pytest.fixture(scope="module", autouse=True)
def metadata(installed: Cluster) -> Iterator[None]:
    """Run the plugin with the setting on."""
    with installed.installation.plugin.restarted_with("--device-metadata=true"):
        installed.installation.wait_ready()
        yield
    installed.installation.wait_ready()


def seen_file(cluster: Cluster, pod: Pod, path: str) -> tuple[dict[str, Any], bool]:
    """Return the newest object of a file as the container has it, and whether the container could write it."""
    process = Path("/proc") / str(process_of(cluster, pod))
    newest, _ = json.JSONDecoder().raw_decode((process / "root" / path).read_text(encoding="utf-8"))
    mounts = [line.split() for line in (process / "mountinfo").read_text(encoding="utf-8").splitlines()]
    (options,) = [fields[5].split(",") for fields in mounts if fields[4] == f"/{path}"]
    return newest, "rw" in options


def test_a_container_finds_its_gpus_by_the_name_that_its_pod_gives_them(installed: Cluster) -> None:
    api = installed.api
    template = create_template(api, "metadata-two", claim_spec(2))
    pod = Pod("with-metadata", templates={"mine": "metadata-two"})
    create_pod(api, pod)
    usable = seen_inside(api, pod).usable
    found, writable = seen_file(installed, pod, f"{FOLDER}/resourceclaimtemplates/mine/gpus/{FILE}")
    claim = pod_claims(api, pod)["mine"]["metadata"]
    assert (found["apiVersion"], found["kind"]) == ("metadata.resource.k8s.io/v1beta1", "DeviceMetadata")
    assert (found["metadata"]["uid"], found["podClaimName"]) == (claim["uid"], "mine")
    (request,) = found["requests"]
    uuids = [device["attributes"]["uuid"]["string"] for device in request["devices"]]
    assert (request["name"], gpu_numbers(installed).of_uuids(uuids), writable) == ("gpus", usable, False)
    delete_gpu_pod(installed, pod)
    assert not list(installed.installation.plugin_data.rglob("metadata.json"))
    api.delete(template)


def test_two_pods_of_one_claim_find_the_same_by_its_name(installed: Cluster) -> None:
    api = installed.api
    path = create_claim(api, "metadata-shared", claim_spec(1))
    pods = [Pod(f"shared-{number}", claims={"any": "metadata-shared"}) for number in range(2)]
    for pod in pods:
        create_pod(api, pod)
    for pod in pods:
        usable = seen_inside(api, pod).usable
        found, _ = seen_file(installed, pod, f"{FOLDER}/resourceclaims/metadata-shared/gpus/{FILE}")
        uuids = [device["attributes"]["uuid"]["string"] for device in found["requests"][0]["devices"]]
        assert gpu_numbers(installed).of_uuids(uuids) == usable
        assert "podClaimName" not in found
    delete_gpu_pods(installed, pods)
    api.delete(path)
