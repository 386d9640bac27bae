"""Documents that a kubelet writes: its node, and the status of a pod. Pure."""

from __future__ import annotations

import platform
from typing import Any


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
