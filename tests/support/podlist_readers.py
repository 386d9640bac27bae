"""Readers of podlist.json as others would write them, from the form that the DCGM proposal describes.

They know four keys and ignore all others, take any text for a device, and keep one container for each: the proposal's
map is device -> PodInfo. Whether the first or the last one stays is not said there, so both are here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ListedPod:
    """PodInfo of the proposal."""

    name: str
    namespace: str
    container: str
    gpu_list: tuple[str, ...]


def list_pods(path: Path) -> list[ListedPod]:
    """Read the file as encoding/json of Go would: unknown keys are ignored."""
    return [
        ListedPod(each["name"], each["namespace"], each["container"], tuple(each["gpu_list"]))
        for each in json.loads(path.read_text())
    ]


def device_to_last_pod(pods: Sequence[ListedPod]) -> dict[str, ListedPod]:
    return {device: pod for pod in pods for device in pod.gpu_list}


def device_to_first_pod(pods: Sequence[ListedPod]) -> dict[str, ListedPod]:
    return device_to_last_pod(list(reversed(pods)))
