"""The values that decoding fills in where a client gave none, as the API's own defaulting does.

Each function gets a fresh canonical document and may change it in place.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from dracaena.demo.apiserver.times import write_time
from dracaena.demo.apiserver.version import NEWEST

Document = dict[str, Any]

_POD_SPEC: Final[Document] = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
}
_JOB_SPEC: Final[Document] = {
    "parallelism": 1,
    "backoffLimit": 6,
    "completionMode": "NonIndexed",
    "suspend": False,
    "podReplacementPolicy": "TerminatingOrFailed",
    "manualSelector": False,
}


def _pod(pod: Document, _: datetime) -> None:
    spec = pod["spec"]
    _pod_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    for container in [*(spec["containers"] or ()), *(spec.get("initContainers") or ())]:
        _requests_of_limits(container["resources"])
    _pod_status(pod["status"])


def _pod_spec(spec: Document) -> None:
    """The part of the defaults that pod templates also have."""
    for name, value in _POD_SPEC.items():
        spec.setdefault(name, value)
    spec.setdefault("securityContext", {})
    for name in ("serviceAccount", "serviceAccountName"):
        other = "serviceAccountName" if name == "serviceAccount" else "serviceAccount"
        if name in spec:
            spec.setdefault(other, spec[name])
    for container in [*(spec["containers"] or ()), *(spec.get("initContainers") or ())]:
        _container(container)


def _container(container: Document) -> None:
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("imagePullPolicy", "Always" if _is_latest(container.get("image", "")) else "IfNotPresent")


def _requests_of_limits(resources: Document) -> None:
    if "limits" in resources:
        requests = resources.get("requests") or {}
        for name, amount in resources["limits"].items():
            requests.setdefault(name, amount)
        resources["requests"] = {name: requests[name] for name in sorted(requests)}


def _is_latest(image: str) -> bool:
    if "@" in image:
        return False
    last = image.rsplit("/", 1)[-1]
    return ":" not in last or last.endswith(":latest")


def _pod_status(status: Document) -> None:
    if "podIPs" not in status and status.get("podIP"):
        status["podIPs"] = [{"ip": status["podIP"]}]


def _node(node: Document, _: datetime) -> None:
    status = node["status"]
    if "capacity" in status:
        allocatable = status.setdefault("allocatable", {})
        for name, amount in status["capacity"].items():
            allocatable.setdefault(name, amount)


def _namespace(namespace: Document, _: datetime) -> None:
    name = namespace["metadata"].get("name")
    if name:
        labels = namespace["metadata"].setdefault("labels", {})
        labels.setdefault("kubernetes.io/metadata.name", name)
    namespace["status"].setdefault("phase", "Active")


def _deployment(deployment: Document, _: datetime) -> None:
    spec = deployment["spec"]
    spec.setdefault("replicas", 1)
    strategy = spec["strategy"]
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        steps = strategy.setdefault("rollingUpdate", {})
        for name in ("maxUnavailable", "maxSurge"):
            steps.setdefault(name, "25%")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    _pod_spec(spec["template"]["spec"])


def _replica_set(replica_set: Document, _: datetime) -> None:
    spec = replica_set["spec"]
    spec.setdefault("replicas", 1)
    _pod_spec(spec["template"]["spec"])


def _stateful_set(stateful_set: Document, _: datetime) -> None:
    spec = stateful_set["spec"]
    spec.setdefault("podManagementPolicy", "OrderedReady")
    strategy = spec["updateStrategy"]
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        strategy.setdefault("rollingUpdate", {}).setdefault("partition", 0)
    retained = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    for name in ("whenDeleted", "whenScaled"):
        retained.setdefault(name, "Retain")
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    _pod_spec(spec["template"]["spec"])


def _job(job: Document, _: datetime) -> None:
    spec = job["spec"]
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    for name, value in _JOB_SPEC.items():
        spec.setdefault(name, value)
    labels = spec["template"]["metadata"].get("labels")
    if labels and not job["metadata"].get("labels"):
        job["metadata"]["labels"] = labels
    _pod_spec(spec["template"]["spec"])


def _claim(claim: Document, _: datetime) -> None:
    _claim_spec(claim["spec"])


def _template(template: Document, _: datetime) -> None:
    _claim_spec(template["spec"]["spec"])


def _claim_spec(spec: Document) -> None:
    for request in spec["devices"]["requests"] or ():
        for exact in [request.get("exactly"), *(request.get("firstAvailable") or ())]:
            if exact is None:
                continue
            exact.setdefault("allocationMode", "ExactCount")
            if exact["allocationMode"] == "ExactCount":
                exact.setdefault("count", 1)


def _slice(resource_slice: Document, now: datetime) -> None:
    for device in resource_slice["spec"].get("devices") or ():
        for taint in device.get("taints") or ():
            taint.setdefault("timeAdded", write_time(now))


_BY_KIND: Final[dict[str, Callable[[Document, datetime], None]]] = {
    "Pod": _pod,
    "Node": _node,
    "Namespace": _namespace,
    "Deployment": _deployment,
    "ReplicaSet": _replica_set,
    "StatefulSet": _stateful_set,
    "Job": _job,
    "ResourceClaim": _claim,
    "ResourceClaimTemplate": _template,
    "ResourceSlice": _slice,
}


def fill(kind: str, document: Document, now: datetime, version: str) -> None:
    """Fill in the defaults of `kind` in a version of Kubernetes."""
    fill_one = _BY_KIND.get(kind)
    if fill_one:
        fill_one(document, now)
    if kind == "StatefulSet" and version == NEWEST:
        document["spec"]["updateStrategy"].get("rollingUpdate", {}).setdefault("maxUnavailable", 1)
