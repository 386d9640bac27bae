"""What a pod with GPUs shows at each place where it can be seen, in one form: GPU numbers of the stand-in machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from e2e.api import Api
from e2e.cluster import Cluster
from e2e.gpus import CONTROL_MINORS, GPU_COUNT
from e2e.installation import DRIVER
from e2e.pods import CLAIMS, Pod, claims_of, pod_claims, wait_gone, wait_log
from e2e.waiting import eventually

FREED_S = 20.0
"""From a pod's end until its devices are free for others: 2 s for kube-controller-manager, as long for kubelet."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a container prints."""

    environment: dict[str, str]
    nodes: tuple[str, ...]
    """Paths of the device nodes."""
    numbers: frozenset[int]
    """Of the GPUs whose device node is there."""
    usable: frozenset[int]
    """Of the GPUs that the kernel lets this container open, whatever node it makes for itself."""
    majors: frozenset[int]
    libraries: dict[str, str]
    """Path → last line of what is mounted there."""


def seen_inside(api: Api, pod: Pod) -> Seen:
    """Wait until a pod prints what it has."""
    printed = json.loads(wait_log(api, pod))
    names = {f"/dev/nvidia{number}": number for number in range(GPU_COUNT)}
    paths = [node["path"] for node in printed["devices"]]
    return Seen(
        environment=printed["env"],
        nodes=tuple(paths),
        numbers=frozenset(names[path] for path in paths if path in names),
        usable=frozenset(printed["usable"]) - set(CONTROL_MINORS.values()),
        majors=frozenset(node["major"] for node in printed["devices"]),
        libraries={path: content.splitlines()[-1] for path, content in printed["libraries"].items()},
    )


class GpuNumbers:
    """Device names and UUIDs as they are published → numbers of the stand-in machine."""

    def __init__(self, slices: Iterable[Any]) -> None:
        devices = [device for one in slices for device in one["spec"]["devices"]]
        self._by_device = {d["name"]: int(d["attributes"]["index"]["int"]) for d in devices}
        self._by_uuid = {d["attributes"]["uuid"]["string"]: int(d["attributes"]["index"]["int"]) for d in devices}

    def of_claim(self, claim: Any) -> frozenset[int]:
        """Return what a claim has got, nothing while it is not allocated."""
        results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        return frozenset(self._by_device[result["device"]] for result in results if result["driver"] == DRIVER)

    def of_uuids(self, uuids: Iterable[str]) -> frozenset[int]:
        """Return the numbers of GPUs that somebody names by UUID."""
        return frozenset(self._by_uuid[uuid] for uuid in uuids)


def gpu_numbers(cluster: Cluster) -> GpuNumbers:
    """Read them from the published devices."""
    return GpuNumbers(cluster.installation.slices())


def claimed(cluster: Cluster, pod: Pod) -> frozenset[int]:
    """Return the GPUs of all claims of a pod."""
    numbers = gpu_numbers(cluster)
    return frozenset().union(*(numbers.of_claim(claim) for claim in pod_claims(cluster.api, pod).values()))


def annotated(cluster: Cluster, pod: Pod) -> frozenset[int]:
    """Wait until a pod's annotations name its devices; both must say the same."""

    def look() -> dict[str, str] | None:
        annotations: dict[str, str] = cluster.api.get(pod.path)["metadata"].get("annotations", {})
        return annotations if f"{DRIVER}/uuids" in annotations else None

    annotations = eventually(look, f"pod {pod.name} is annotated", within_s=FREED_S)
    uuids = annotations[f"{DRIVER}/uuids"].split(",")
    by_container = json.loads(annotations[f"{DRIVER}/devices"])
    assert sorted(uuid for grants in by_container.values() for grant in grants for uuid in grant["uuids"]) == sorted(
        uuids
    )
    return gpu_numbers(cluster).of_uuids(uuids)


def listed(cluster: Cluster, pod: Pod) -> frozenset[int]:
    """Return the GPUs of a pod in podlist.json, nothing when it is not in there."""
    entries = [entry for entry in cluster.installation.podlist() if entry["name"] == pod.name]
    return gpu_numbers(cluster).of_uuids(uuid for entry in entries for uuid in entry["gpu_list"])


def delete_gpu_pod(cluster: Cluster, pod: Pod, *, grace_s: int | None = None) -> None:
    """Delete a pod and wait until nothing of it is left: claims made for it, CDI specs, checkpoints, podlist entry."""
    delete_gpu_pods(cluster, [pod], grace_s=grace_s)


def delete_gpu_pods(cluster: Cluster, pods: Sequence[Pod], *, grace_s: int | None = None) -> None:
    """The same for several pods that may share claims: those are freed when the last pod is gone."""
    found = [one for pod in pods if (one := cluster.api.find(pod.path)) is not None]
    claims = [claim for one in found for claim in claims_of(cluster.api, one).values()]
    for pod in pods:
        cluster.api.delete(pod.path, grace_s=grace_s)
    for pod in pods:
        wait_gone(cluster.api, pod)
    for claim in claims:
        wait_free(cluster, claim)
    for pod in pods:
        eventually(partial(_is_forgotten, cluster, pod), f"podlist.json forgets {pod.name}", within_s=FREED_S)


def _is_forgotten(cluster: Cluster, pod: Pod) -> bool:
    return all(entry["name"] != pod.name for entry in cluster.installation.podlist())


def wait_free(cluster: Cluster, claim: Any) -> None:
    """Wait until a claim holds nothing any more, in the API and on the node."""
    name, uid = claim["metadata"]["name"], claim["metadata"]["uid"]

    def free() -> bool:
        found = cluster.api.find(f"{CLAIMS}/{name}")
        return found is None or found["metadata"]["uid"] != uid or "allocation" not in found.get("status", {})

    eventually(free, f"claim {name} is freed", within_s=FREED_S)
    eventually(lambda: not traces(cluster, uid), f"the node forgets claim {name}", within_s=FREED_S)


def traces(cluster: Cluster, claim_uid: str) -> list[str]:
    """Return the files and folders on the node that hold something about a claim. They may go meanwhile."""
    specs = [str(path) for path in cluster.installation.cdi_specs() if claim_uid in path.name]
    checkpoints = [
        os.path.join(folder, name)
        for folder, folders, files in os.walk(cluster.installation.plugin_data)
        for name in (*folders, *files)
        if claim_uid in name
    ]
    return [*specs, *sorted(checkpoints)]
