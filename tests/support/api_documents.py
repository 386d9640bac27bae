"""Small valid objects of the API as plain values, and one way to break them: an edit at a path."""

from __future__ import annotations

import copy
import re
from typing import Any

from dracaena.validation import Finding, Severity, render_path, validate_object

ABSENT: Any = object()
"""As the value of an edit: the field is taken away."""

EXPRESSION = 'device.driver == "gpu.dracaena.dev"'


def claim_spec() -> dict[str, Any]:
    return {
        "devices": {
            "requests": [
                {
                    "name": "gpus",
                    "exactly": {
                        "deviceClassName": "gpu.dracaena.dev",
                        "allocationMode": "ExactCount",
                        "count": 4,
                        "adminAccess": False,
                        "selectors": [{"cel": {"expression": EXPRESSION}}],
                        "tolerations": [{"key": "example.com/t", "operator": "Equal", "value": "x"}],
                        "capacity": {"requests": {"memory": "10Gi"}},
                    },
                },
                {
                    "name": "nic",
                    "firstAvailable": [
                        {"name": "fast", "deviceClassName": "nic.example.com", "count": 1},
                        {"name": "any", "deviceClassName": "nic.example.com", "allocationMode": "All"},
                    ],
                },
            ],
            "constraints": [
                {"requests": ["gpus", "nic/fast"], "matchAttribute": "resource.kubernetes.io/pcieRoot"},
                {"distinctAttribute": "gpu.dracaena.dev/uuid"},
            ],
            "config": [{"requests": ["gpus"], "opaque": {"driver": "gpu.dracaena.dev", "parameters": policy()}}],
        }
    }


def policy(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "gpu.dracaena.dev/v1alpha1", "kind": "TopologyPolicy", **fields}


def _object(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, **fields}


def claim() -> dict[str, Any]:
    return _object("ResourceClaim", "train", spec=claim_spec())


def template() -> dict[str, Any]:
    spec = {
        "metadata": {"labels": {"app": "train"}, "annotations": {"example.com/Note": "any text"}},
        "spec": claim_spec(),
    }
    return _object("ResourceClaimTemplate", "train", spec=spec)


def device_class() -> dict[str, Any]:
    config = [{"opaque": {"driver": "gpu.dracaena.dev", "parameters": policy()}}]
    return _object("DeviceClass", "gpu", spec={"selectors": [{"cel": {"expression": EXPRESSION}}], "config": config})


def pod_spec() -> dict[str, Any]:
    return {
        "resourceClaims": [
            {"name": "gpus", "resourceClaimName": "train"},
            {"name": "nic", "resourceClaimTemplateName": "train"},
        ],
        "initContainers": [{"name": "setup", "image": "i", "resources": {"claims": [{"name": "nic"}]}}],
        "containers": [
            {
                "name": "main",
                "image": "i",
                "resources": {"claims": [{"name": "gpus", "request": "gpus"}, {"name": "nic"}]},
            }
        ],
    }


def pod() -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train"}, "spec": pod_spec()}


def resource_slice() -> dict[str, Any]:
    devices = [
        {
            "name": "gpu-0",
            "attributes": {
                "index": {"int": 0},
                "example.com/fast": {"bool": True},
                "model": {"string": "A100"},
                "driverVersion": {"version": "535.104.5"},
            },
            "capacity": {"memory": {"value": "80Gi"}},
            "taints": [
                {"key": "example.com/t", "value": "true", "effect": "NoSchedule", "timeAdded": "2026-01-31T12:00:00Z"}
            ],
            "bindingConditions": ["Ready"],
            "bindingFailureConditions": ["Failed"],
            "consumesCounters": [{"counterSet": "slots", "counters": {"slices": {"value": "1"}}}],
        },
        {
            "name": "gpu-1",
            "allowMultipleAllocations": True,
            "capacity": {
                "bandwidth": {
                    "value": "10",
                    "requestPolicy": {"default": "1", "validRange": {"min": "1", "max": "9", "step": "2"}},
                },
                "memory": {"value": "10Gi", "requestPolicy": {"default": "2Gi", "validValues": ["1Gi", "2Gi", "5Gi"]}},
            },
        },
    ]
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
    return _object(
        "ResourceSlice",
        "s",
        spec={"driver": "gpu.dracaena.dev", "nodeName": "node-1", "pool": pool, "devices": devices},
    )


def counter_slice() -> dict[str, Any]:
    pool = {"name": "racks/one", "generation": 0, "resourceSliceCount": 2}
    counters = [{"name": "slots", "counters": {"slices": {"value": "7"}, "memory": {"value": "80Gi"}}}]
    spec = {"driver": "gpu.dracaena.dev", "allNodes": True, "pool": pool, "sharedCounters": counters}
    return _object("ResourceSlice", "s", spec=spec)


def node_slice() -> dict[str, Any]:
    expressions = [
        {"key": "zone", "operator": "In", "values": ["a"]},
        {"key": "gpu", "operator": "Exists"},
        {"key": "gpus", "operator": "Gt", "values": ["1"]},
    ]
    fields = [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]
    terms = [{"matchExpressions": expressions, "matchFields": fields}]
    devices = [
        {"name": "a", "allNodes": True},
        {"name": "b", "nodeName": "node-1"},
        {"name": "c", "nodeSelector": {"nodeSelectorTerms": terms}},
    ]
    pool = {"name": "p", "generation": 0, "resourceSliceCount": 1}
    spec = {"driver": "gpu.dracaena.dev", "perDeviceNodeSelection": True, "pool": pool, "devices": devices}
    return _object("ResourceSlice", "s", spec=spec)


def taint_rule() -> dict[str, Any]:
    selector = {"driver": "gpu.dracaena.dev", "pool": "node-1", "device": "gpu-0"}
    taint = {"key": "example.com/t", "value": "x", "effect": "NoExecute", "timeAdded": "2026-01-31T12:00:00Z"}
    return _object("DeviceTaintRule", "r", spec={"deviceSelector": selector, "taint": taint})


BASES = {
    "claim": claim,
    "template": template,
    "class": device_class,
    "pod": pod,
    "slice": resource_slice,
    "counter_slice": counter_slice,
    "node_slice": node_slice,
}
"""Those of which the verdicts of a server were recorded, by name."""


def edited(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy with another value at a path such as `spec.devices.requests[0].name`; a list may grow by one."""
    copied = copy.deepcopy(document)
    *steps, last = _steps(path)
    at: Any = copied
    for step in steps:
        at = at[step]
    if value is ABSENT:
        del at[last]
    elif isinstance(at, list) and last == len(at):
        at.append(value)
    else:
        at[last] = value
    return copied


def _steps(path: str) -> list[str | int]:
    """`a.b[0].c` → a, b, 0, c; a key with dots stands in brackets with quotes."""
    found = re.findall(r'([A-Za-z]\w*)|\[(\d+)\]|\["([^"]*)"\]', path)
    return [int(index) if index else name or key for name, index, key in found]


def errors(document: dict[str, Any], driver: str = "gpu.dracaena.dev") -> list[str]:
    """Return the errors of an object, as text."""
    return [str(finding) for finding in validate_object(document, driver) if finding.severity is Severity.ERROR]


def warnings(document: dict[str, Any], driver: str = "gpu.dracaena.dev") -> list[str]:
    """Return the warnings of an object, as text."""
    return [str(finding) for finding in validate_object(document, driver) if finding.severity is Severity.WARNING]


def paths(findings: tuple[Finding, ...], severity: Severity = Severity.ERROR) -> list[str]:
    """Return where the findings of one severity are."""
    return [render_path(finding.path) for finding in findings if finding.severity is severity]
