"""Documents that a kubelet writes: its node, and the status of a pod. Pure."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from typing import Any, Final

BRIEF_S = 3.0
"""How long a command of unknown duration runs: long enough to be seen running."""

_SLEEP_TIME: Final = re.compile(r"(\d+\.?\d*|\.\d+|(?i:inf|infinity))([smhd]?)", re.ASCII)
"""An argument of GNU's sleep: a decimal number, and its unit."""

_UNIT_S: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def node_document(name: str, labels: dict[str, str], now: str) -> dict[str, Any]:
    """Return the Node to register: ready, with room for more pods than the demo has."""
    room = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **labels}},
        "status": {
            "capacity": room,
            "allocatable": room,
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "message": "the kubelet stand-in is running",
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": now,
                }
            ],
            "addresses": [{"type": "Hostname", "address": name}],
            "nodeInfo": {
                "machineID": "",
                "systemUUID": "",
                "bootID": "",
                "kernelVersion": platform.release(),
                "osImage": "Dracaena demo",
                "containerRuntimeVersion": "none://0",
                "kubeletVersion": "v1.36.0-dracaena-demo",
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
        },
    }


def running_status(spec: dict[str, Any], status: dict[str, Any], now: str) -> dict[str, Any]:
    """Return the status patch of a pod all of whose containers run; conditions of others are kept."""
    done = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
    kept = [condition for condition in status.get("conditions", ()) if condition["type"] not in done]
    fresh = [{"type": name, "status": "True", "lastTransitionTime": now} for name in done]
    patch: dict[str, Any] = {
        "phase": "Running",
        "conditions": [*kept, *fresh],
        "startTime": status.get("startTime") or now,
        "containerStatuses": [_running(container, now) for container in spec.get("containers", ())],
    }
    if spec.get("initContainers"):
        patch["initContainerStatuses"] = [_completed(container, now) for container in spec["initContainers"]]
    return patch


def ended_status(spec: dict[str, Any], status: dict[str, Any], now: str) -> dict[str, Any]:
    """Return the status patch of a pod all of whose containers have succeeded."""
    kept = [one for one in status.get("conditions", ()) if one["type"] not in ("Ready", "ContainersReady")]
    over = {"status": "False", "reason": "PodCompleted", "lastTransitionTime": now}
    began = {one["name"]: one["state"].get("running", {}).get("startedAt") for one in status["containerStatuses"]}
    ended = {"exitCode": 0, "reason": "Completed", "finishedAt": now}
    return {
        "phase": "Succeeded",
        "conditions": [*kept, *({"type": name} | over for name in ("Ready", "ContainersReady"))],
        "containerStatuses": [
            _container(one)
            | {"ready": False, "started": False}
            | {"state": {"terminated": ended | {"startedAt": began.get(one["name"]) or now}}}
            for one in spec.get("containers", ())
        ],
    }


def lasts_s(spec: dict[str, Any], *, of_job: bool = False) -> float | None:
    """Return how long the containers of a pod run, in seconds, or None for a pod that runs until it is deleted.

    No container runs here. Still, `sleep 60` lasts 60 s, `sleep 1m 30s` 90 s, `sleep infinity` forever, and any other
    command BRIEF_S, unless restartPolicy is Always. An image's own program runs until the pod is deleted, except in a
    Job, whose pods are meant to end. All of them succeed.
    """
    if spec.get("restartPolicy", "Always") == "Always":
        return None
    longest_s = max((_container_lasts_s(one, of_job=of_job) for one in spec.get("containers", ())), default=BRIEF_S)
    return None if longest_s == float("inf") else longest_s


def _container_lasts_s(container: dict[str, Any], *, of_job: bool) -> float:
    program, *arguments = [*container.get("command", ()), *container.get("args", ())] or [""]
    if program.rpartition("/")[2] == "sleep":
        return _sleep_s(arguments)
    return BRIEF_S if program or of_job else float("inf")


def _sleep_s(arguments: Sequence[str]) -> float:
    """Add up arguments as `sleep` does. An argument that it cannot read ends it soon."""
    times = [_SLEEP_TIME.fullmatch(one) for one in arguments]
    if not times or None in times:
        return BRIEF_S
    return sum(float(time[1]) * _UNIT_S[time[2]] for time in times if time is not None)


def _running(container: dict[str, Any], now: str) -> dict[str, Any]:
    return _container(container) | {
        "ready": True,
        "started": True,
        "state": {"running": {"startedAt": now}},
    }


def _completed(container: dict[str, Any], now: str) -> dict[str, Any]:
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
    return _container(container) | {"ready": True, "started": False, "state": {"terminated": ended}}


def _container(container: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "restartCount": 0,
    }
