"""The values that decoding fills in where a client gave none, as the API's own defaulting does.

Each function gets a fresh canonical document, which it may change in place, the time, and a version of Kubernetes.
"""

from __future__ import annotations

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


def pod_defaults(pod: Document, *_: object) -> None:
    """Fill in a new pod."""
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


def node_defaults(node: Document, *_: object) -> None:
    """Fill in a new node."""
    status = node["status"]
    if "capacity" in status:
        allocatable = status.setdefault("allocatable", {})
        for name, amount in status["capacity"].items():
            allocatable.setdefault(name, amount)


def namespace_defaults(namespace: Document, *_: object) -> None:
    """Fill in a new namespace."""
    name = namespace["metadata"].get("name")
    if name:
        labels = namespace["metadata"].setdefault("labels", {})
        labels.setdefault("kubernetes.io/metadata.name", name)
    namespace["status"].setdefault("phase", "Active")


def deployment_defaults(deployment: Document, *_: object) -> None:
    """Fill in a new deployment."""
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


def replica_set_defaults(replica_set: Document, *_: object) -> None:
    """Fill in a new replica set."""
    spec = replica_set["spec"]
    spec.setdefault("replicas", 1)
    _pod_spec(spec["template"]["spec"])


def stateful_set_defaults(stateful_set: Document, _: datetime, version: str) -> None:
    """Fill in a new stateful set."""
    spec = stateful_set["spec"]
    spec.setdefault("podManagementPolicy", "OrderedReady")
    strategy = spec["updateStrategy"]
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        steps = strategy.setdefault("rollingUpdate", {})
        steps.setdefault("partition", 0)
        if version == NEWEST:
            steps.setdefault("maxUnavailable", 1)
    retained = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    for name in ("whenDeleted", "whenScaled"):
        retained.setdefault(name, "Retain")
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    _pod_spec(spec["template"]["spec"])


def job_defaults(job: Document, *_: object) -> None:
    """Fill in a new job."""
    spec = job["spec"]
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    for name, value in _JOB_SPEC.items():
        spec.setdefault(name, value)
    labels = spec["template"]["metadata"].get("labels")
    if labels and not job["metadata"].get("labels"):
        job["metadata"]["labels"] = labels
    _pod_spec(spec["template"]["spec"])


def claim_defaults(claim: Document, *_: object) -> None:
    """Fill in a new claim."""
    _claim_spec(claim["spec"])


def template_defaults(template: Document, *_: object) -> None:
    """Fill in a new template."""
    _claim_spec(template["spec"]["spec"])


def _claim_spec(spec: Document) -> None:
    for request in spec["devices"]["requests"] or ():
        for exact in [request.get("exactly"), *(request.get("firstAvailable") or ())]:
            if exact is None:
                continue
            exact.setdefault("allocationMode", "ExactCount")
            if exact["allocationMode"] == "ExactCount":
                exact.setdefault("count", 1)


def slice_defaults(resource_slice: Document, now: datetime, _: str) -> None:
    """Fill in a new slice."""
    for device in resource_slice["spec"].get("devices") or ():
        for taint in device.get("taints") or ():
            taint.setdefault("timeAdded", write_time(now))
