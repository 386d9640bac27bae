"""What nobody tells the plugin to take back: kubelet tells it late, or has forgotten it altogether."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster import Cluster
from e2e.gpu_pods import claimed, delete_gpu_pod, seen_inside, traces
from e2e.gpus import GPU_COUNT
from e2e.installation import DRIVER
from e2e.node import CDI_ROOT
from e2e.pods import CLAIMS, Pod, claim_spec, create_claim, create_pod, pod_claims
from e2e.waiting import eventually

LATE_S = 90.0
"""kubelet looks again at what it could not unprepare each minute, at a pod after its sync period; the rest is for a
loaded machine."""

SWEPT_S = 30.0
"""The first sweep comes with the plugin's first list of pods."""

STRAY = "5f0c7a52-0000-4000-8000-000000000000"
"""UID of a claim that there never was."""


@pytest.fixture
def pod(installed: Cluster) -> Iterator[Pod]:
    """A pod with all GPUs by a claim of its own name."""
    path = create_claim(installed.api, "forced", claim_spec(GPU_COUNT))
    pod = Pod("forced", claims={"gpus": "forced"})
    create_pod(installed.api, pod)
    assert len(seen_inside(installed.api, pod).usable) == GPU_COUNT
    yield pod
    installed.api.delete(path)


def remove_by_force(cluster: Cluster, pod: Pod) -> None:
    """Delete a pod and its claim from the API, whatever still runs or is held."""
    cluster.api.delete(pod.path, grace_s=0)
    eventually(lambda: cluster.api.find(pod.path) is None, "the pod is gone from the API", within_s=LATE_S)
    path = f"{CLAIMS}/{pod.name}"
    cluster.api.delete(path)
    if cluster.api.find(path) is not None:
        cluster.api.send("PATCH", path, {"metadata": {"finalizers": None}}, "application/merge-patch+json")
    eventually(lambda: cluster.api.find(path) is None, "the claim is gone from the API", within_s=LATE_S)


def uses_all_gpus(cluster: Cluster, name: str) -> None:
    """Run a pod with all GPUs: none is held any more."""
    path = create_claim(cluster.api, name, claim_spec(GPU_COUNT))
    pod = Pod(name, claims={"gpus": name})
    create_pod(cluster.api, pod)
    assert len(seen_inside(cluster.api, pod).usable) == GPU_COUNT == len(claimed(cluster, pod))
    delete_gpu_pod(cluster, pod)
    cluster.api.delete(path)


def test_a_claim_deleted_by_force_while_the_plugin_was_away_is_unprepared_by_what_kubelet_kept(
    installed: Cluster, pod: Pod
) -> None:
    uid = pod_claims(installed.api, pod)["gpus"]["metadata"]["uid"]
    installed.installation.plugin.kill()
    remove_by_force(installed, pod)
    assert traces(installed, uid)
    installed.installation.plugin.start()
    installed.installation.wait_ready()
    eventually(lambda: not traces(installed, uid), "the node forgets the claim", within_s=LATE_S)
    assert installed.installation.podlist() == []
    uses_all_gpus(installed, "after-force")


def test_what_kubelet_has_forgotten_is_swept_at_the_start_in_the_next_boot(installed: Cluster, pod: Pod) -> None:
    """kubelet lost its own checkpoint (a new disk) and the claim is gone: nobody will ever unprepare it."""
    uid = pod_claims(installed.api, pod)["gpus"]["metadata"]["uid"]
    installed.installation.plugin.kill()
    installed.node.power_off()
    remove_by_force(installed, pod)
    state = installed.node.kubelet_root / "dra_manager_state"
    assert uid in state.read_text(encoding="utf-8")
    state.unlink()
    CDI_ROOT.mkdir(parents=True, exist_ok=True)
    stray = CDI_ROOT / f"{DRIVER}-claim_{STRAY}.json"
    stray.write_text('{"cdiVersion": "0.6.0", "kind": "gpu.dracaena.dev/claim", "devices": []}', encoding="utf-8")
    others = CDI_ROOT / "vendor.example-thing.json"
    others.write_text("{}", encoding="utf-8")
    with installed.installation.published_anew():
        installed.node.power_on()
        assert traces(installed, uid)
        installed.installation.plugin.start()
    installed.installation.wait_ready()
    installed.wait_node_ready()
    eventually(lambda: not traces(installed, uid), "the node forgets the claim", within_s=SWEPT_S)
    eventually(lambda: not stray.exists(), "the CDI spec without a claim goes", within_s=SWEPT_S)
    assert others.exists()
    others.unlink()
    uses_all_gpus(installed, "after-sweep")
