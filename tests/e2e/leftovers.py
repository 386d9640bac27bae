"""Brings the cluster back to where every test begins, so that one failure stays one failure."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from e2e.api import Api, ApiError
from e2e.cluster import NODE_NAME, Cluster
from e2e.pods import CLAIMS, PODS
from e2e.waiting import eventually

GONE_S = 60.0
"""kubelet looks again at a pod that it could not clean up after its sync period, here 10 to 15 s."""


def restore(cluster: Cluster) -> None:
    """Start what a test has left ended, open the node, and remove pods and claims. A good test left none."""
    for program in cluster.programs:
        if program.was_started and not program.is_running:
            program.start()
    api = cluster.api
    if api.get(f"/api/v1/nodes/{NODE_NAME}")["spec"].get("unschedulable"):
        api.patch(f"/api/v1/nodes/{NODE_NAME}", {"spec": {"unschedulable": None}})
    for pod in api.items(PODS):
        api.delete(f"{PODS}/{pod['metadata']['name']}", grace_s=0)
    eventually(lambda: not api.items(PODS), "all pods are gone", within_s=GONE_S)
    for claim in api.items(CLAIMS):
        _remove(api, claim)
    eventually(lambda: not api.items(CLAIMS), "all claims are gone", within_s=GONE_S)


def _remove(api: Api, claim: Any) -> None:
    """Delete a claim; one that was allocated and never reserved is freed by nobody else."""
    path = f"{CLAIMS}/{claim['metadata']['name']}"
    api.delete(path)
    status = claim.get("status", {})
    if "allocation" in status and not status.get("reservedFor"):
        with suppress(ApiError):  # it can go at any time
            api.patch(f"{path}/status", {"status": {"allocation": None}})
            api.patch(path, {"metadata": {"finalizers": None}})
