"""What happens to pods and their GPUs when each part ends and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e.cluster import Cluster
from e2e.gpu_pods import annotated, claimed, delete_gpu_pod, listed, seen_inside, traces
from e2e.gpus import GPU_COUNT
from e2e.installation import DRIVER
from e2e.pods import (
    Pod,
    claim_spec,
    container_id,
    create_pod,
    create_template,
    pod_claims,
    wait_new_container,
    wait_phase,
)
from e2e.waiting import eventually

SYNC_S = 60.0
"""kubelet looks again at a pod whose claims could not be prepared after its sync period, here 10 to 15 s."""

WIPE_S = 45.0
"""kubelet deletes the slices of a driver 30 s after it lost it."""


@pytest.fixture(scope="module", autouse=True)
def templates(installed: Cluster) -> Iterator[None]:
    counts = (1, 2, GPU_COUNT)
    paths = [create_template(installed.api, f"restart-{count}", claim_spec(count)) for count in counts]
    yield
    for path in paths:
        installed.api.delete(path)


def gpu_pod(name: str, count: int = 2, restart_policy: str = "Never") -> Pod:
    return Pod(name, templates={"gpus": f"restart-{count}"}, restart_policy=restart_policy)


@contextmanager
def undisturbed(cluster: Cluster, name: str) -> Iterator[None]:
    """A pod runs through the block in the same container, with the same GPUs, and everything about it stays true.

    After the block a new pod gets GPUs, and both leave nothing behind.
    """
    pod = gpu_pod(f"{name}-before")
    create_pod(cluster.api, pod)
    numbers = seen_inside(cluster.api, pod).numbers
    container = container_id(cluster.api, pod)
    yield
    after = gpu_pod(f"{name}-after")
    create_pod(cluster.api, after)
    assert len(seen_inside(cluster.api, after).numbers) == 2
    assert wait_phase(cluster.api, pod, "Running")
    assert container_id(cluster.api, pod) == container
    assert claimed(cluster, pod) == listed(cluster, pod) == annotated(cluster, pod) == numbers
    assert not claimed(cluster, after) & numbers
    for one in (after, pod):
        delete_gpu_pod(cluster, one)


def test_force_deleted_pod_frees_its_gpus_for_the_next(installed: Cluster) -> None:
    first, second = gpu_pod("forced", GPU_COUNT), gpu_pod("next", GPU_COUNT)
    create_pod(installed.api, first)
    seen_inside(installed.api, first)
    claim = pod_claims(installed.api, first)["gpus"]
    delete_gpu_pod(installed, first, grace_s=0)
    assert traces(installed, claim["metadata"]["uid"]) == []
    create_pod(installed.api, second)
    assert len(seen_inside(installed.api, second).numbers) == GPU_COUNT
    delete_gpu_pod(installed, second)


def test_kubelet_restart(installed: Cluster) -> None:
    """kubelet deletes all ResourceSlices of its node when it starts; the plugin publishes them anew."""
    with undisturbed(installed, "kubelet"):
        with installed.kubelet_away():
            pass


def test_plugin_restart(installed: Cluster) -> None:
    with undisturbed(installed, "plugin"):
        installed.installation.plugin.stop()
        installed.installation.plugin.start()
        installed.installation.wait_ready()


def test_plugin_killed(installed: Cluster) -> None:
    with undisturbed(installed, "plugin-killed"):
        installed.installation.plugin.kill()
        installed.installation.plugin.start()
        installed.installation.wait_ready()


def test_controller_killed(installed: Cluster) -> None:
    with undisturbed(installed, "controller"):
        installed.installation.controller.kill()
        installed.installation.controller.start()
        installed.installation.wait_ready()


def test_containerd_restart(installed: Cluster) -> None:
    with undisturbed(installed, "containerd"):
        installed.node.containerd.stop()
        installed.node.start_containerd()
        installed.wait_node_ready()


def test_claims_of_a_pod_that_went_while_the_plugin_was_away_are_cleaned_up(installed: Cluster) -> None:
    """kubelet keeps the pod until its claims are unprepared; after 30 s it deletes the slices of the lost driver."""
    pod = gpu_pod("orphan")
    create_pod(installed.api, pod)
    seen_inside(installed.api, pod)
    claim = pod_claims(installed.api, pod)["gpus"]
    installed.installation.plugin.kill()
    installed.api.delete(pod.path, grace_s=1)
    eventually(lambda: not installed.installation.slices(), "kubelet deletes the slices", within_s=WIPE_S)
    assert traces(installed, claim["metadata"]["uid"])
    installed.installation.plugin.start()
    installed.installation.wait_ready()
    eventually(lambda: installed.api.find(pod.path) is None, "the pod goes", within_s=SYNC_S)
    eventually(lambda: not traces(installed, claim["metadata"]["uid"]), "its claim is forgotten", within_s=SYNC_S)
    assert installed.installation.podlist() == []


def test_node_restart_gives_a_pod_its_gpus_again(installed: Cluster) -> None:
    """CDI specs and containers are lost with the boot; claims, checkpoints and pods are not."""
    pod = gpu_pod("rebooted", restart_policy="Always")
    create_pod(installed.api, pod)
    numbers = seen_inside(installed.api, pod).numbers
    container = container_id(installed.api, pod)
    claim = pod_claims(installed.api, pod)["gpus"]
    installed.restart_node()
    wait_new_container(installed.api, pod, container)
    assert seen_inside(installed.api, pod).numbers == numbers
    # Until the plugin has seen, too, that a new container runs, the pod has one that ended: nothing is listed for it.
    eventually(lambda: listed(installed, pod) == numbers, "the pod is listed again", within_s=SYNC_S)
    assert claimed(installed, pod) == annotated(installed, pod) == numbers
    spec = f"{DRIVER}-claim_{claim['metadata']['uid']}.json"
    assert [path.name for path in installed.installation.cdi_specs()] == [spec]
    delete_gpu_pod(installed, pod)
