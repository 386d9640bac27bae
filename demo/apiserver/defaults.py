"""The values that are filled in where a client gave none and that depend on others. Plain ones are in the tables of
fields.

Each function gets a fresh canonical document, which it may change in place, the time, and a version of Kubernetes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from dracaena.demo.apiserver.times import write_time
from dracaena.demo.apiserver.version import NEWEST

Document = dict[str, Any]


def pod_defaults(pod: Document, *_: object) -> None:
    """Fill in a new pod."""
    spec, status = pod["spec"], pod["status"]
    _pod_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    for container in _containers(spec):
        _requests_of_limits(container["resources"])
    if "podIPs" not in status and status.get("podIP"):
        status["podIPs"] = [{"ip": status["podIP"]}]


def _pod_spec(spec: Document) -> None:
    """The part that pod templates also have."""
    names = ("serviceAccount", "serviceAccountName")
    account = next((spec[name] for name in names if name in spec), None)
    if account is not None:
        spec |= {name: spec.get(name, account) for name in names}
    for container in _containers(spec):
        pulled = "Always" if _is_latest(container.get("image", "")) else "IfNotPresent"
        container.setdefault("imagePullPolicy", pulled)


def _containers(spec: Document) -> list[Document]:
    return [*(spec["containers"] or ()), *(spec.get("initContainers") or ())]


def _requests_of_limits(resources: Document) -> None:
    if "limits" in resources:
        requests = resources["limits"] | (resources.get("requests") or {})
        resources["requests"] = {name: requests[name] for name in sorted(requests)}


def _is_latest(image: str) -> bool:
    last = image.rsplit("/", 1)[-1]
    return "@" not in image and (":" not in last or last.endswith(":latest"))


def node_defaults(node: Document, *_: object) -> None:
    """Fill in a new node."""
    status = node["status"]
    if "capacity" in status:
        status["allocatable"] = status["capacity"] | status.get("allocatable", {})


def namespace_defaults(namespace: Document, *_: object) -> None:
    """Fill in a new namespace."""
    name = namespace["metadata"].get("name")
    if name:
        namespace["metadata"].setdefault("labels", {}).setdefault("kubernetes.io/metadata.name", name)


def workload_defaults(workload: Document, *_: object) -> None:
    """Fill in a new replica set, and what deployments and stateful sets also have."""
    _pod_spec(workload["spec"]["template"]["spec"])


def deployment_defaults(deployment: Document, *_: object) -> None:
    """Fill in a new deployment."""
    workload_defaults(deployment)
    strategy = deployment["spec"]["strategy"]
    if strategy["type"] == "RollingUpdate":
        strategy["rollingUpdate"] = {"maxUnavailable": "25%", "maxSurge": "25%"} | strategy.get("rollingUpdate", {})


def stateful_set_defaults(stateful_set: Document, _: datetime, version: str) -> None:
    """Fill in a new stateful set."""
    workload_defaults(stateful_set)
    strategy = stateful_set["spec"]["updateStrategy"]
    if strategy["type"] == "RollingUpdate":
        most = {"maxUnavailable": 1} if version == NEWEST else {}
        strategy["rollingUpdate"] = {"partition": 0} | most | strategy.get("rollingUpdate", {})


def job_defaults(job: Document, *_: object) -> None:
    """Fill in a new job. One that says only how many pods run at a time is a queue, which has no number of ends."""
    spec = job["spec"]
    if "parallelism" not in spec:
        spec |= {"parallelism": 1, "completions": spec.get("completions", 1)}
    labels = spec["template"]["metadata"].get("labels")
    if labels and not job["metadata"].get("labels"):
        job["metadata"]["labels"] = labels
    workload_defaults(job)


def claim_defaults(claim: Document, *_: object) -> None:
    """Fill in a new claim."""
    _claim_spec(claim["spec"])


def template_defaults(template: Document, *_: object) -> None:
    """Fill in a new template."""
    _claim_spec(template["spec"]["spec"])


def _claim_spec(spec: Document) -> None:
    for request in spec["devices"]["requests"] or ():
        for exact in filter(None, [request.get("exactly"), *(request.get("firstAvailable") or ())]):
            if exact["allocationMode"] == "ExactCount":
                exact.setdefault("count", 1)


def slice_defaults(resource_slice: Document, now: datetime, _: str) -> None:
    """Fill in a new slice."""
    for device in resource_slice["spec"].get("devices") or ():
        for taint in device.get("taints") or ():
            taint.setdefault("timeAdded", write_time(now))
