"""A healthy installation as `dracaena doctor` reads it: the chart as it is rendered by default, with what a cluster
adds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from dracaena.api.names import taint_key
from dracaena.api.resource_objects import ResourceSlice
from dracaena.cli.installation.control_plane import NEEDED, RIGHTS
from dracaena.cli.installation.snapshot import Listing, Snapshot
from dracaena.cli.installation_reader import READS
from support.allocation import DRIVER

CHART: Final = Path(__file__).resolve().parents[1] / "unit" / "chart" / "golden" / "default.yaml"
NOW: Final = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)
VERSION: Final = "0.1.0"
NODES: Final = ("worker-1", "worker-2")


def rendered() -> list[Any]:
    documents = yaml.load_all(CHART.read_text(encoding="utf-8"), yaml.CSafeLoader)
    hook = "helm.sh/hook"
    return [one for one in documents if one and hook not in (one["metadata"].get("annotations") or {})]


def node(name: str) -> dict[str, Any]:
    labels = {"nvidia.com/gpu.present": "true", "kubernetes.io/os": "linux"}
    info = {"kubeletVersion": "v1.37.0", "containerRuntimeVersion": "containerd://2.2.0"}
    status = {"capacity": {"cpu": "64"}, "allocatable": {"cpu": "64"}, "nodeInfo": info}
    return {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status}


def pod(workload: dict[str, Any], name: str, node_name: str) -> dict[str, Any]:
    template = workload["spec"]["template"]
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    metadata = {"name": name, "namespace": "gpu-system", "labels": dict(template["metadata"]["labels"])}
    return {"metadata": metadata, "spec": {**template["spec"], "nodeName": node_name}, "status": ready}


def page(name: str) -> ResourceSlice:
    key = taint_key(DRIVER)
    devices = [
        {"name": f"gpu-{number}", "taints": [{"key": key, "value": "true", "effect": "NoSchedule"}]}
        for number in range(4)
    ]
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
    return msgspec.convert({"metadata": {"name": f"{name}-0"}, "spec": spec}, ResourceSlice)


def documents() -> dict[str, list[Any]]:
    """Return what is read of each kind."""
    found: dict[str, list[Any]] = {kind: [] for kind in READS}
    for one in rendered():
        plural = one["kind"].lower()
        plural = f"{plural[:-1]}ies" if plural.endswith("policy") else plural + ("es" if plural.endswith("s") else "s")
        if plural in found:
            found[plural].append(one)
    (deployment,), (daemon_set,) = found["deployments"], found["daemonsets"]
    deployment["status"] = {"readyReplicas": deployment["spec"]["replicas"]}
    daemon_set["status"] = {"desiredNumberScheduled": len(NODES), "numberReady": len(NODES)}
    found["pods"] = [
        *(pod(deployment, f"controller-{number}", "control-plane") for number in range(2)),
        *(pod(daemon_set, f"plugin-{name}", name) for name in NODES),
    ]
    found["nodes"] = [*map(node, NODES), {"metadata": {"name": "control-plane"}}]
    found["namespaces"] = [
        {"metadata": {"name": "gpu-system", "labels": {"pod-security.kubernetes.io/enforce": "privileged"}}},
        {
            "metadata": {
                "name": "research",
                "labels": {f"{DRIVER}/rewrite": "true", f"{DRIVER}/gate": "true"},
                "annotations": {f"{DRIVER}/quota": '{"gpus": 8}'},
            }
        },
    ]
    lease = {"holderIdentity": "controller-0", "renewTime": "2026-11-25T11:59:58.000000Z", "leaseDurationSeconds": 30}
    found["leases"] = [{"metadata": {"name": f"controller.{DRIVER}", "namespace": "gpu-system"}, "spec": lease}]
    return found


def healthy() -> Snapshot:
    return Snapshot(
        DRIVER,
        VERSION,
        NOW,
        server_version="1.37",
        resources={group: frozenset(needed) for group, needed in NEEDED.items()},
        kinds={kind: Listing(tuple(found)) for kind, found in documents().items()},
        slices=tuple(map(page, NODES)),
        rights={right: True for needed in RIGHTS.values() for right in needed},
    )


def changed(snapshot: Snapshot, kind: str, change: Callable[[list[Any]], Any]) -> Snapshot:
    """Return a snapshot after a change to a copy of the objects of a kind."""
    found = copy.deepcopy(list(snapshot.kinds[kind].objects))
    change(found)
    return replace(snapshot, kinds={**snapshot.kinds, kind: Listing(tuple(found))})


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield every value in a document with its path, the document itself last."""
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, one in steps:
        yield from places(one, (*path, step))
    yield path, value
