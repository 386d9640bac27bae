"""How far a pod that asks for devices has come, in a word and for people."""

from __future__ import annotations

from typing import Final

from dracaena.api.objects import Pod

POD_STATES: Final = {
    "running": "runs",
    "ended": "has ended, its claims are free or will be",
    "deleting": "is being deleted",
    "bound": "has its GPUs and is starting",
    "allocated": "has its GPUs and is not bound yet",
    "waiting": "waits",
    "no-claims": "asks for nothing that Dracaena gives",
}
"""State → what is said about the pod."""


def pod_state(pod: Pod, *, allocated: bool) -> str:
    """Return the state of a pod; `allocated`: whether all its claims are allocated."""
    if pod.status.phase in ("Succeeded", "Failed"):
        return "ended"
    if pod.metadata.deletion_timestamp is not None:
        return "deleting"
    if not pod.spec.resource_claims:
        return "no-claims"
    if pod.status.phase == "Running":
        return "running"
    if allocated:
        return "bound" if pod.spec.node_name else "allocated"
    return "waiting"
