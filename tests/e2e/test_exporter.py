"""Whose series the exporter's are, on a real kubelet, while pods and their containers come, restart and go.

NVML is a stand-in that plays the node's machine; what it says of processes are the real ones of the containers.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from e2e.cluster import Cluster
from e2e.exporting import TOLD_S, NodeExporter, node_exporter, process_of
from e2e.gpu_pods import delete_gpu_pod, gpu_numbers, seen_inside
from e2e.gpus import GPU_COUNT, MOST_SLICES
from e2e.pods import Pod, create_claim, create_pod, pod_claims, wait_phase, wait_printed
from e2e.test_mig import Cut, playing, run, templates
from e2e.test_mig import end as end_slice
from e2e.test_node_observation import container, requests, uuids_by_request
from e2e.test_sharing import BEST_EFFORT, ask, one_shared_gpu
from e2e.test_sharing import end as end_shares
from e2e.waiting import eventually
from support.exporting_node import Scrape

TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"
"""A field of every GPU, in MIG mode or not."""
USED = "DCGM_FI_DEV_FB_USED"
"""A field that MIG devices have too."""

RESTART_S = 60.0
PUBLISH_S = 60.0
MIB = 1 << 20

ITS_OWN: tuple[list[float], list[float], list[float]] = ([700 * MIB], [300 * MIB], [0] * 3)
"""Of a GPU of one container all is its own; of one that two containers have, processes tell only the pod."""


@pytest.fixture
def exporter(installed: Cluster) -> Iterator[NodeExporter]:
    """Give an exporter on the node as it is by default: eight whole GPUs."""
    with node_exporter(installed, read_machine(str(installed.gpus.machine))) as made:
        yield made


def restarts(cluster: Cluster, pod: Pod, name: str) -> int:
    """Return how often a container that runs now was restarted, -1 while it does not run."""
    (status,) = (one for one in cluster.api.get(pod.path)["status"]["containerStatuses"] if one["name"] == name)
    return int(status["restartCount"]) if "running" in status["state"] else -1


def test_series_of_whole_gpus_follow_their_pod_from_its_init_container_to_its_end(
    installed: Cluster, exporter: NodeExporter
) -> None:
    path = create_claim(installed.api, "stages", requests(small=1, large=2))
    spec = {
        "initContainers": [container("prepare", ("stages", "small"))],
        "containers": [container("main", ("stages", "")), container("helper", ("stages", "large"))],
    }
    pod = Pod("stages", claims={"stages": "stages"}, restart_policy="Always", more=spec)
    exporter.wait_owners({}, "nobody has a GPU before")
    create_pod(installed.api, pod)
    (given,) = (uuids_by_request(installed, claim) for claim in allocated(installed, pod))
    (small,), large = given["small"], given["large"]

    wait_printed(installed.api, pod, "prepare")  # it ends well only once it waits for the signal
    scrape = exporter.wait_owners({small: {"stages/prepare"}}, "only the init container has its GPU")
    assert scrape.owners(TEMPERATURE) == [*["-"] * (GPU_COUNT - 1), "default/stages/prepare"]
    assert scrape.owners(TEMPERATURE, UUID=small) == ["default/stages/prepare"]

    os.kill(process_of(installed, pod, "prepare"), signal.SIGTERM)  # the probe ends well
    for name in ("main", "helper"):
        process_of(installed, pod, name)
    both = {"stages/main", "stages/helper"}
    expected = {small: {"stages/main"}, **dict.fromkeys(large, both)}
    scrape = exporter.wait_owners(expected, "the containers have their GPUs")
    assert scrape.owners(TEMPERATURE, UUID=small) == ["default/stages/main"]
    for uuid in large:
        assert scrape.owners(TEMPERATURE, UUID=uuid) == ["-"], "what the GPU does is of both, so of none"
    (one,) = gpu_numbers(installed).of_uuids([small])
    other = min(gpu_numbers(installed).of_uuids(large))
    exporter.use(pod, exporter.nvml.activity[one], "main", 700)
    exporter.use(pod, exporter.nvml.activity[other], "helper", 300)
    check_use(exporter, pod, small, large)

    before = process_of(installed, pod, "main")
    os.kill(before, signal.SIGKILL)
    eventually(lambda: restarts(installed, pod, "main") == 1, "the container is restarted", within_s=RESTART_S)
    scrape = exporter.wait_owners(expected, "the restarted container has its GPUs")
    assert scrape.values("dracaena_gpu_container_memory_used_bytes", uuid=small) == [0], "its process is gone"
    exporter.nvml.activity[one].processes.clear()
    exporter.use(pod, exporter.nvml.activity[one], "main", 700)
    assert process_of(installed, pod, "main") != before
    # The plugin may see only now that the first container had ended, and list the pod without it for a moment.
    again = lambda: use(exporter.scrape(), pod, small, large) == ITS_OWN  # noqa: E731
    eventually(again, "what the restarted container uses is its own", within_s=TOLD_S)

    with installed.kubelet_away():
        exporter.wait_owners(expected, "nothing changes while kubelet is away")
        check_use(exporter, pod, small, large)
    check_use(exporter, pod, small, large)
    exporter.wait_owners(expected, "nothing changes when kubelet is back")

    delete_gpu_pod(installed, pod)
    scrape = exporter.wait_owners({}, "nobody has a GPU after")
    assert scrape.owners(TEMPERATURE) == ["-"] * GPU_COUNT
    installed.api.delete(path)


def allocated(cluster: Cluster, pod: Pod) -> list[Any]:
    """Wait until all claims of a pod are allocated, and return them."""

    def look() -> list[Any]:
        claims = list(pod_claims(cluster.api, pod).values())
        return claims if all("allocation" in claim.get("status", {}) for claim in claims) else []

    return eventually(look, f"the claims of {pod.name} are allocated", within_s=RESTART_S)


def check_use(exporter: NodeExporter, pod: Pod, small: str, large: list[str]) -> None:
    assert use(exporter.scrape(), pod, small, large) == ITS_OWN


def use(scrape: Scrape, pod: Pod, small: str, large: list[str]) -> tuple[list[float], list[float], list[float]]:
    """Return the memory that container main uses of the GPU that it has alone, that the pod uses of those that two
    containers have, and the numbers of other processes."""
    told = "dracaena_gpu_container_memory_used_bytes"
    return (
        scrape.values(told, uuid=small, pod=pod.name, container="main"),
        [value for uuid in large for value in scrape.values(told, uuid=uuid, pod=pod.name, container="")],
        [n for uuid in (small, *large) for n in scrape.values("dracaena_gpu_other_processes", uuid=uuid)],
    )


def test_a_pod_that_has_ended_and_is_still_there_has_no_series(installed: Cluster, exporter: NodeExporter) -> None:
    path = create_claim(installed.api, "ended", requests(gpus=1))
    pod = Pod("ended", claims={"ended": "ended"}, more={"containers": [container("main", ("ended", ""))]})
    create_pod(installed.api, pod)
    (claim,) = allocated(installed, pod)
    (uuid,) = uuids_by_request(installed, claim)["gpus"]
    wait_printed(installed.api, pod, "main")
    exporter.wait_owners({uuid: {"ended/main"}}, "it has its GPU while it runs")
    os.kill(process_of(installed, pod), signal.SIGTERM)
    wait_phase(installed.api, pod, "Succeeded")
    scrape = exporter.wait_owners({}, "it has no GPU once it has ended")
    assert scrape.owners(TEMPERATURE) == ["-"] * GPU_COUNT
    delete_gpu_pod(installed, pod)
    installed.api.delete(path)


def test_series_of_mig_devices_follow_their_pods(installed: Cluster) -> None:
    """The plugin cuts a recorded GPU, and the exporter's stand-in has the parts that it cut."""
    node = Cut(installed, read_machine("h100-x1"), "1g.10gb", "3g.40gb", frozenset({0}))
    with playing(node, "h100-x1"), templates(node), node_exporter(installed, node.machine) as exporter:
        (whole,) = (gpu.uuid for gpu in node.machine.gpus)
        pods = [run(node, name, "small") for name in ("slice-a", "slice-b")]
        for pod in pods:
            assert len(seen_inside(installed.api, pod).numbers) == 1
        (a,), (b,) = (uuids_in_podlist(installed, pod) for pod in pods)
        expected = {a: {"slice-a/main"}, b: {"slice-b/main"}}
        exporter.wait_owners(expected, "each has its slice")
        exporter.use(pods[0], exporter.nvml.mig_activity[a], memory_mib=700)
        check_slices(exporter, whole, {a: "slice-a", b: "slice-b"})

        with installed.kubelet_away():
            exporter.wait_owners(expected, "nothing changes while kubelet is away")
        exporter.wait_owners(expected, "nothing changes when kubelet is back")
        check_slices(exporter, whole, {a: "slice-a", b: "slice-b"})

        end_slice(node, pods[0])
        scrape = exporter.wait_owners({b: {"slice-b/main"}}, "the other has its slice")
        assert scrape.values("dracaena_gpu_container_memory_used_bytes", pod="slice-a") == []
        check_slices(exporter, whole, {b: "slice-b"})
        end_slice(node, pods[1])
        exporter.wait_owners({}, "nobody has a slice")


def uuids_in_podlist(cluster: Cluster, pod: Pod) -> list[str]:
    def look() -> list[str]:
        return [u for entry in cluster.installation.podlist() if entry["name"] == pod.name for u in entry["gpu_list"]]

    return eventually(look, f"{pod.name} is in podlist.json", within_s=PUBLISH_S)


def check_slices(exporter: NodeExporter, whole: str, pods: dict[str, str]) -> None:
    """Each MIG device carries its own container beside the labels of its GPU, which carries none."""
    scrape = exporter.scrape()
    assert scrape.owners(TEMPERATURE, UUID=whole) == ["-"]
    parts = [labels for labels, _ in scrape.samples[USED] if "GPU_I_ID" in labels]
    assert sorted(labels["pod"] for labels in parts) == sorted(pods.values())
    assert {(labels["UUID"], labels["GPU_I_PROFILE"], labels["container"]) for labels in parts} == {
        (whole, "1g.10gb", "main")
    }
    assert len({labels["GPU_I_ID"] for labels in parts}) == len(pods) < MOST_SLICES
    for uuid, pod in pods.items():
        assert scrape.value("dracaena_gpu_allocation_info", uuid=uuid, parent_uuid=whole, pod=pod) == 1
    expected = [700 * MIB] if "slice-a" in pods.values() else []
    assert scrape.values("dracaena_gpu_container_memory_used_bytes", pod="slice-a", container="main") == expected


def test_series_of_shares_are_told_apart_by_their_processes(installed: Cluster) -> None:
    with one_shared_gpu(installed), node_exporter(installed, read_machine(str(installed.gpus.machine))) as exporter:
        follow_shares(installed, exporter)


def follow_shares(cluster: Cluster, exporter: NodeExporter) -> None:
    uuid, activity = exporter.machine.gpus[0].uuid, exporter.nvml.activity[0]
    left = ask(cluster, "left", BEST_EFFORT, memory="6Gi", cores="30")
    right = ask(cluster, "right", BEST_EFFORT, memory="4Gi")
    for pod in (left, right):
        assert seen_inside(cluster.api, pod).numbers == {0}
    expected = {uuid: {"left/main", "right/main"}}
    exporter.wait_owners(expected, "both have their share")
    activity.memory_used_mib = 1100
    exporter.use(left, activity, memory_mib=700)
    exporter.use(right, activity, memory_mib=300)

    def check_both() -> None:
        scrape = exporter.scrape()
        assert scrape.owners(TEMPERATURE, UUID=uuid) == ["-"]
        assert scrape.owners(USED, UUID=uuid) == ["-"]
        for pod, mib in (("left", 700), ("right", 300)):
            assert scrape.values("dracaena_gpu_container_memory_used_bytes", pod=pod) == [mib * MIB]
        assert scrape.values("dracaena_gpu_share_memory_bytes", uuid=uuid, pod="left") == [6 << 30]
        assert scrape.values("dracaena_gpu_share_memory_bytes", uuid=uuid, pod="right") == [4 << 30]
        assert scrape.values("dracaena_gpu_share_cores_ratio", uuid=uuid) == [0.3]

    check_both()
    with cluster.kubelet_away():
        exporter.wait_owners(expected, "nothing changes while kubelet is away")
    exporter.wait_owners(expected, "nothing changes when kubelet is back")
    check_both()

    end_shares(cluster, left)
    scrape = exporter.wait_owners({uuid: {"right/main"}}, "the other has its share")
    assert scrape.values("dracaena_gpu_container_memory_used_bytes", pod="left") == []
    assert scrape.values("dracaena_gpu_share_memory_bytes", uuid=uuid) == [4 << 30]
    end_shares(cluster, right)
    exporter.wait_owners({}, "nobody has a share")
