"""A snapshot and its findings as files that can be sent to others.

Nothing goes in because nobody thought of it: only the fields that are listed here do, and of them only numbers and
plain names (of objects, versions, images, times). Texts that somebody wrote, such as messages, environment and
annotations, do not go in at all; Secrets and ConfigMaps are not even read.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from dracaena.cli.installation.snapshot import Document, Finding, Name, Quote, Snapshot, labels, listed, name_of

LEFT_OUT: Final = "(left out)"
"""In place of a text that is no plain name."""

_PLAIN: Final = re.compile(
    r"[a-z0-9][a-z0-9._/:@+-]{0,252}"  # names, versions, images, quantities without a suffix
    r"|[A-Z][A-Za-z]{0,63}"  # reasons, phases, kinds
    r"|[a-z0-9.-]{1,80}\.[a-z]{2,12}/[A-Za-z0-9._-]{1,63}"  # keys of labels and taints
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,18}Z",
    re.ASCII,
)

Shape = Any
"""What is kept of a value: `...` a plain one, a list of one shape each item, a dict of shapes these fields."""

_CONDITIONS: Final[Shape] = [{"type": ..., "status": ..., "reason": ..., "lastTransitionTime": ...}]
_SUBJECT: Final[Shape] = {"kind": ..., "namespace": ..., "name": ...}
_NAMED: Final = {"name": ..., "namespace": ..., "generation": ..., "creationTimestamp": ..., "deletionTimestamp": ...}
_CONTAINERS: Final[Shape] = [{"name": ..., "image": ...}]
_WORKLOAD: Final[Shape] = {
    "spec": {"replicas": ..., "template": {"spec": {"containers": _CONTAINERS}}},
    "status": {
        **dict.fromkeys(("replicas", "readyReplicas", "updatedReplicas", "observedGeneration"), ...),
        **dict.fromkeys(("desiredNumberScheduled", "numberReady", "updatedNumberScheduled", "numberMisscheduled"), ...),
        "conditions": _CONDITIONS,
    },
}
_ENDED: Final[Shape] = {"terminated": {"reason": ..., "exitCode": ...}, "waiting": {"reason": ...}}
_STATUSES: Final[Shape] = [{"name": ..., "ready": ..., "restartCount": ..., "state": _ENDED, "lastState": _ENDED}]
_POLICY: Final[Shape] = {"spec": {"failurePolicy": ..., "policyName": ...}, "status": {"observedGeneration": ...}}
_NODE: Final = ("kubeletVersion", "containerRuntimeVersion", "kernelVersion", "operatingSystem", "architecture")

KEPT: Final[Mapping[str, Shape]] = {
    "clusterrolebindings": {"roleRef": {"name": ...}, "subjects": [_SUBJECT]},
    "clusterroles": {},
    "daemonsets": _WORKLOAD,
    "deployments": _WORKLOAD,
    "deviceclasses": {"spec": {"extendedResourceName": ...}},
    "devicetaintrules": {"spec": {"taint": {"key": ..., "effect": ...}}},
    "events": {
        "involvedObject": _SUBJECT,
        **dict.fromkeys(("type", "reason", "count", "firstTimestamp", "lastTimestamp"), ...),
    },
    "leases": {"spec": dict.fromkeys(("holderIdentity", "renewTime", "leaseTransitions", "leaseDurationSeconds"), ...)},
    "mutatingadmissionpolicies": _POLICY,
    "mutatingadmissionpolicybindings": _POLICY,
    "namespaces": {"status": {"phase": ...}},
    "nodes": {
        "spec": {"unschedulable": ..., "taints": [{"key": ..., "effect": ...}]},
        "status": {"nodeInfo": dict.fromkeys(_NODE, ...), "conditions": _CONDITIONS},
    },
    "pods": {
        "spec": {"nodeName": ..., "containers": _CONTAINERS},
        "status": {"phase": ..., "reason": ..., "conditions": _CONDITIONS, "containerStatuses": _STATUSES},
    },
    "resourceslices": {"spec": {"driver": ..., "nodeName": ...}},
    "topologies": {"spec": {"levels": [{"nodeLabel": ...}]}},
    "validatingadmissionpolicies": _POLICY,
    "validatingadmissionpolicybindings": _POLICY,
}
"""Resource → what is kept of each object, besides its name and labels of ours."""

_LABELS: Final = ("app.kubernetes.io/", "helm.sh/", "nvidia.com/gpu.", "pod-security.kubernetes.io/", "feature.node.")
"""How keys of labels begin that are kept, besides those of the driver."""


def files(snapshot: Snapshot, findings: Iterable[Finding]) -> dict[str, bytes]:
    """Return the files of a bundle by name: the findings, what is known of the server, one file for each kind."""
    about = {
        "command": snapshot.command_version,
        "driver": snapshot.driver,
        "server": snapshot.server_version,
        "time": snapshot.now.isoformat(timespec="seconds"),
        "served": {key: sorted(map(_plain, names or ())) for key, names in sorted(snapshot.resources.items())},
        "unread": sorted(kind for kind, found in snapshot.kinds.items() if found.why_unread),
    }
    every = {
        "about.json": about,
        "findings.json": [_finding(one) for one in findings],
        "pools.json": list(_pools(snapshot)),
        **{f"{kind}.json": _objects(snapshot, kind) for kind in KEPT if snapshot.objects(kind)},
    }
    return {name: json.dumps(value, indent=1).encode() for name, value in every.items()}


def _finding(finding: Finding) -> dict[str, str]:
    text = finding.words.format(*(listed(_plain_name(name)) for name in finding.names))
    return {"check": finding.check, "state": finding.state.value, "text": text}


def _plain_name(name: Name) -> Name:
    if isinstance(name, Quote):
        return LEFT_OUT
    return str(_plain(name)) if isinstance(name, str) else tuple(str(_plain(one)) for one in name)


def _objects(snapshot: Snapshot, kind: str) -> list[Any]:
    driver = snapshot.driver
    return [_object(one, KEPT[kind], driver) for one in snapshot.objects(kind) if _concerns_us(one, kind, driver)]


def _concerns_us(document: Document, kind: str, driver: str) -> bool:
    """Whether an object is in a bundle: of kinds that are the whole cluster's only those of the driver."""
    if kind == "namespaces":
        return any(key.startswith((f"{driver}/", "pod-security.")) for key in labels(document))
    return not kind.endswith(("policies", "policybindings", "classes")) or name_of(document).endswith(driver)


def _object(document: Document, shape: Shape, driver: str) -> Any:
    kept = {"metadata": _cut(document.get("metadata"), _NAMED), **_cut(document, shape)}
    ours = {key: one for key, one in labels(document).items() if key.startswith((*_LABELS, f"{driver}/"))}
    kept["metadata"]["labels"] = {str(_plain(key)): _plain(one) for key, one in sorted(ours.items())}
    return kept


def _cut(value: Any, shape: Shape) -> Any:
    """Return what a shape keeps of a value."""
    if shape is ...:
        return _plain(value)
    if isinstance(shape, list):
        return [_cut(one, shape[0]) for one in value] if isinstance(value, list) else []
    if not isinstance(value, Mapping):
        return {}
    return {key: _cut(value[key], inner) for key, inner in shape.items() if value.get(key) is not None}


def _plain(value: Any) -> Any:
    """Return a number, a truth value or a plain name as it is."""
    if isinstance(value, int) or (isinstance(value, str) and _PLAIN.fullmatch(value)):
        return value
    return LEFT_OUT


def _pools(snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    """Yield a summary of each slice of the driver."""
    for one in snapshot.slices:
        devices = one.spec.devices
        pool = one.spec.pool
        taints = Counter((taint.key, taint.effect) for device in devices for taint in device.taints)
        yield {
            "node": _plain(one.spec.node_name),
            "pool": _plain(pool.name),
            "generation": pool.generation,
            "slices": pool.resource_slice_count,
            "devices": len(devices),
            "taints": [
                {"key": _plain(key), "effect": _plain(effect), "devices": count}
                for (key, effect), count in sorted(taints.items())
            ],
        }
