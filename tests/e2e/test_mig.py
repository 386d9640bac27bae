"""GPUs that are cut on demand: recorded ones, on the real control plane and kubelet. The plugin and its journal are
real, and so is what the container gets; the driver's part is a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from dracaena.api.machine import Machine
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from e2e.cluster import Cluster
from e2e.gpu_pods import seen_inside, wait_free
from e2e.gpus import GPU_COUNT, MOST_SLICES
from e2e.installation import DRIVER
from e2e.pods import (
    CLAIMS,
    Pod,
    claim_spec,
    container_id,
    create_pod,
    create_template,
    delete_pod,
    pod_claims,
    wait_event,
    wait_phase,
)
from e2e.waiting import eventually
from support.gpu_lists import flag

MIG_CLASS = f"mig.{DRIVER}"
PLACES = 25
"""Of an A100 or H100, over all profiles."""

PUBLISH_S = 60.0
TOLD_S = 30.0


@dataclass(frozen=True, slots=True)
class Cut:
    """A node whose GPUs are cut on demand."""

    cluster: Cluster
    machine: Machine
    small: str
    """Profile of one slice."""
    large: str
    """Profile of three."""
    wholes: frozenset[int]
    """Numbers of the GPUs that a claim may get whole once no slice is in use."""

    def instances(self) -> list[tuple[str, int]]:
        """Return profile and start of every instance that is there, as the stand-in for the driver has it."""
        folder = self.cluster.installation.plugin_data / "recorded-mig"
        files = [folder / f"{gpu.uuid}.json" for gpu in self.machine.gpus]
        found = [json.loads(path.read_bytes())["instances"] for path in files if path.exists()]
        return sorted((each["profile"], each["start"]) for of_gpu in found for each in of_gpu)


KINDS = {
    "h100-x1": ("1g.10gb", "3g.40gb", frozenset({0})),
    "a100-sxm4-x4": ("1g.5gb", "3g.20gb", frozenset({2, 3})),  # Ampere: 0 and 1 are in MIG mode, and stay in it
}


@pytest.fixture(scope="module", params=KINDS)
def cut(installed: Cluster, request: pytest.FixtureRequest) -> Iterator[Cut]:
    """Give the cluster with a node of such GPUs, and a template for each profile of its kind."""
    name: str = request.param
    small, large, wholes = KINDS[name]
    node = Cut(installed, read_machine(name), small, large, wholes)
    with playing(node, name), templates(node):
        yield node


@contextmanager
def playing(node: Cut, name: str) -> Iterator[None]:
    installation = node.cluster.installation
    node.cluster.gpus.make_capability_nodes(node.machine)
    with installation.plugin.restarted_with(f"--machine={name}", flag("mig")):
        installation.wait_ready()
        eventually(lambda: len(places(node)) >= PLACES, "places are published", within_s=PUBLISH_S)
        yield
    installation.wait_ready()
    eventually(lambda: len(installation.devices()) == GPU_COUNT, "the GPUs of before are back", within_s=PUBLISH_S)


@contextmanager
def templates(node: Cut) -> Iterator[None]:
    api = node.cluster.api
    paths = [create_template(api, "whole", claim_spec())]
    for name, profile in (("small", node.small), ("large", node.large)):
        expression = f'device.attributes["{DRIVER}"].profile == "{profile}"'
        exactly = {"deviceClassName": MIG_CLASS, "selectors": [{"cel": {"expression": expression}}]}
        paths.append(create_template(api, name, {"devices": {"requests": [{"name": "slice", "exactly": exactly}]}}))
    yield
    for path in paths:
        api.delete(path)


def places(node: Cut) -> dict[str, Any]:
    found = node.cluster.installation.devices()
    return {device["name"]: device["attributes"] for device in found if "placementStart" in device["attributes"]}


def start_of(node: Cut, pod: Pod) -> int:
    """The memory slice at which the slice of a pod begins."""
    (claim,) = pod_claims(node.cluster.api, pod).values()
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    return int(places(node)[result["device"]]["placementStart"]["int"])


def run(node: Cut, name: str, template: str) -> Pod:
    pod = Pod(name, templates={"slice": template})
    create_pod(node.cluster.api, pod)
    return pod


def end(node: Cut, pod: Pod) -> None:
    """Delete a pod and wait until nothing of it is left."""
    claims = pod_claims(node.cluster.api, pod)
    delete_pod(node.cluster.api, pod)
    for claim in claims.values():
        wait_free(node.cluster, claim)
    eventually(
        lambda: all(entry["name"] != pod.name for entry in node.cluster.installation.podlist()),
        f"podlist.json forgets {pod.name}",
        within_s=TOLD_S,
    )


def check_all_that_is_told(node: Cut, pod: Pod) -> str:
    """What the container, podlist.json, the annotations and status.devices say of a slice; return its UUID."""
    cluster = node.cluster
    seen = seen_inside(cluster.api, pod)
    assert seen.environment["NVIDIA_VISIBLE_DEVICES"] == "void"
    caps = [path for path in seen.nodes if path.startswith("/dev/nvidia-caps/")]
    assert len(seen.numbers) == 1
    assert len(caps) == 2
    (claim,) = pod_claims(cluster.api, pod).values()
    path = f"{CLAIMS}/{claim['metadata']['name']}"
    (status,) = eventually(
        lambda: cluster.api.get(path)["status"].get("devices"), "status.devices is written", within_s=TOLD_S
    )
    uuid: str = status["data"]["uuid"]
    assert uuid.startswith("MIG-")
    parents = {gpu.uuid: gpu.minor for gpu in node.machine.gpus}
    assert parents[status["data"]["parentUUID"]] in seen.numbers
    listed = [entry["gpu_list"] for entry in cluster.installation.podlist() if entry["name"] == pod.name]
    assert listed == [[uuid]]
    told = eventually(
        lambda: cluster.api.get(pod.path)["metadata"].get("annotations", {}).get(f"{DRIVER}/uuids"),
        "the pod is annotated",
        within_s=TOLD_S,
    )
    assert told == uuid
    return uuid


def test_one_gpu_serves_seven_slices_then_a_large_one_then_a_whole_gpu_is_had(cut: Cut) -> None:
    cluster = cut.cluster
    pods = [run(cut, f"small-{number}", "small") for number in range(MOST_SLICES)]
    uuids = {check_all_that_is_told(cut, pod) for pod in pods}
    assert len(uuids) == MOST_SLICES
    assert sorted(start_of(cut, pod) for pod in pods) == list(range(MOST_SLICES))
    assert cut.instances() == [(cut.small, start) for start in range(MOST_SLICES)]
    containers = [container_id(cluster.api, pod) for pod in pods]

    cluster.installation.plugin.kill()
    cluster.installation.plugin.start(f"--machine={cut.machine.name}", flag("mig"))
    cluster.installation.wait_ready()
    with cluster.kubelet_away():
        pass
    assert [container_id(cluster.api, pod) for pod in pods] == containers
    assert {check_all_that_is_told(cut, pod) for pod in pods} == uuids

    if len(cut.machine.gpus) == 1:
        eighth = run(cut, "small-7", "small")
        wait_event(
            cluster.api, eighth, "WaitingForGPUs", "0/1 nodes fit: 1 without room on a GPU for the requested part"
        )
        end(cut, pods.pop())
        wait_phase(cluster.api, eighth, "Running")
        pods.append(eighth)
    for pod in pods:
        end(cut, pod)
    eventually(lambda: cut.instances() == [], "all instances are destroyed", within_s=TOLD_S)

    large = run(cut, "large", "large")
    assert check_all_that_is_told(cut, large) not in uuids
    assert [profile for profile, _ in cut.instances()] == [cut.large]
    end(cut, large)

    whole = run(cut, "whole", "whole")
    seen = seen_inside(cluster.api, whole)
    assert seen.numbers <= cut.wholes
    assert len(seen.numbers) == 1
    assert cut.instances() == []
    end(cut, whole)
