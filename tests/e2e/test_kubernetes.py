"""The ground itself, before anything of ours is on it."""

from __future__ import annotations

import json

from e2e.cluster import NODE_NAME, Cluster
from e2e.kubernetes import RELEASE
from e2e.pods import Pod, create_pod, wait_log


def test_control_plane_is_the_version_that_was_built(cluster: Cluster) -> None:
    assert cluster.api.get("/version")["gitVersion"] == RELEASE


def test_node_is_ready_with_the_container_runtime(cluster: Cluster) -> None:
    info = cluster.api.get(f"/api/v1/nodes/{NODE_NAME}")["status"]["nodeInfo"]
    assert info["containerRuntimeVersion"] == "containerd://2.2.9"
    assert info["kubeletVersion"] == RELEASE


def test_plain_pod_runs_and_prints(cluster: Cluster) -> None:
    pod = Pod("plain", environment={"GREETING": "hello"})
    create_pod(cluster.api, pod)
    seen = json.loads(wait_log(cluster.api, pod))
    assert seen["env"]["GREETING"] == "hello"
    assert seen["devices"] == []
    assert seen["usable"] == []
