"""The columns of each kind, and the cells of one object. Columns with priority 1 are those of ``-o wide``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dracaena.api.objects import ENDED
from dracaena.demo.apiserver.tables.ages import UNKNOWN, age
from dracaena.demo.apiserver.times import read_time

Document = dict[str, Any]
Cells = list[Any]

_NONE: Final = "<none>"
_GATED: Final = "SchedulingGated"
_ROLE: Final = "node-role.kubernetes.io/"
_OLD_ROLE: Final = "kubernetes.io/role"


@dataclass(frozen=True, slots=True)
class Column:
    """One column, with fields in the order of the API. `format` is ``name`` if the cell names the object."""

    name: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class TableKind:
    """The columns of a kind, the cells of an object at some time, and what else is in a row."""

    columns: tuple[Column, ...]
    cells: Callable[[Document, datetime], Cells]
    conditions: Callable[[Document], list[Document]] = lambda _: []


_NAME: Final = Column("Name", format="name")
_AGE: Final = Column("Age")


def _plain(*names: str) -> tuple[Column, ...]:
    return (_NAME, *(Column(name) for name in names))


def _wide(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, priority=1) for name in names)


def _name(document: Document) -> str:
    return str(document["metadata"]["name"])


def _created(document: Document, now: datetime) -> str:
    return age(document["metadata"].get("creationTimestamp"), now)


def _name_and_age(document: Document, now: datetime) -> Cells:
    return [_name(document), _created(document, now)]


# ---- core


def _pod(pod: Document, now: datetime) -> Cells:
    status, containers = pod["status"], pod["status"].get("containerStatuses") or ()
    ready = f"{sum(one['ready'] for one in containers)}/{len(pod['spec']['containers'] or ())}"
    restarts = str(sum(one["restartCount"] for one in containers))
    addresses = status.get("podIPs") or [{"ip": ""}]
    wide = (addresses[0]["ip"], pod["spec"].get("nodeName"), status.get("nominatedNodeName"))
    # Readiness gates are refused by this server.
    return [_name(pod), ready, _pod_state(pod), restarts, _created(pod, now), *(x or _NONE for x in wide), _NONE]


def _pod_state(pod: Document) -> str:
    """One word, as far as the stand-ins write what it tells; of other states the reason or the phase."""
    status = pod["status"]
    if "deletionTimestamp" in pod["metadata"] and status.get("phase") not in ENDED:
        return "Terminating"
    if any(one["type"] == "PodScheduled" and one.get("reason") == _GATED for one in status.get("conditions") or ()):
        return _GATED
    for one in status.get("containerStatuses") or ():
        ended_or_waits = one["state"].get("waiting") or one["state"].get("terminated") or {}
        if ended_or_waits.get("reason"):
            return str(ended_or_waits["reason"])
    return str(status.get("reason") or status.get("phase", ""))


def _pod_conditions(pod: Document) -> list[Document]:
    messages = {"Succeeded": "The pod has completed successfully.", "Failed": "The pod failed."}
    phase = pod["status"].get("phase")
    if phase not in messages:
        return []
    return [{"type": "Completed", "status": "True", "reason": phase, "message": messages[phase]}]


def _node(node: Document, now: datetime) -> Cells:
    status, info = node["status"], node["status"]["nodeInfo"]
    kernel = info["kernelVersion"] or UNKNOWN
    return [
        _name(node),
        _node_state(node),
        ",".join(_roles(node)) or _NONE,
        _created(node, now),
        info["kubeletVersion"],
        _address(status, "InternalIP"),
        _address(status, "ExternalIP"),
        info["osImage"] or UNKNOWN,
        f"{kernel} ({info['architecture']})" if info["architecture"] else kernel,
        info["containerRuntimeVersion"] or UNKNOWN,
    ]


def _node_state(node: Document) -> str:
    ready = [one for one in node["status"].get("conditions") or () if one["type"] == "Ready"]
    states = ["Unknown"] if not ready else ["Ready" if ready[-1]["status"] == "True" else "NotReady"]
    return ",".join([*states, "SchedulingDisabled"] if node["spec"].get("unschedulable") else states)


def _roles(node: Document) -> list[str]:
    labels = node["metadata"].get("labels") or {}
    named = {key.removeprefix(_ROLE) for key in labels if key.startswith(_ROLE)} | {labels.get(_OLD_ROLE, "")}
    return sorted(named - {""})


def _address(status: Document, kind: str) -> str:
    found = (one["address"] for one in status.get("addresses") or () if one["type"] == kind)
    return next(found, _NONE)


def _namespace(namespace: Document, now: datetime) -> Cells:
    return [_name(namespace), namespace["status"].get("phase", ""), _created(namespace, now)]


def _event(event: Document, now: datetime) -> Cells:
    about, source = event["involvedObject"], event["source"]
    first = age(event.get("firstTimestamp"), now)
    last = age(event["lastTimestamp"], now) if event.get("lastTimestamp") else first
    component = source.get("component") or event["reportingComponent"]
    host = source.get("host") or event["reportingInstance"]
    return [
        last,
        event.get("type", ""),
        event.get("reason", ""),
        "/".join(part for part in (about.get("kind", "").lower(), about.get("name")) if part),
        about.get("fieldPath", ""),
        f"{component}, {host}" if host else component,
        event.get("message", "").strip(),
        first,
        event.get("count") or 1,
        _name(event),
    ]


# ---- coordination.k8s.io and resource.k8s.io


def _lease(lease: Document, now: datetime) -> Cells:
    return [_name(lease), lease["spec"].get("holderIdentity", ""), _created(lease, now)]


def _claim(claim: Document, now: datetime) -> Cells:
    is_deleted, status = "deletionTimestamp" in claim["metadata"], claim["status"]
    if "allocation" in status:
        states = ["allocated", "reserved"] if status.get("reservedFor") else ["allocated"]
    else:
        states = [] if is_deleted else ["pending"]
    return [_name(claim), ",".join(["deleted", *states] if is_deleted else states), _created(claim, now)]


def _slice(resource_slice: Document, now: datetime) -> Cells:
    spec = resource_slice["spec"]
    places = (spec.get("nodeName", ""), spec["driver"], spec["pool"]["name"])
    return [_name(resource_slice), *places, _created(resource_slice, now)]


# ---- apps and batch


def _deployment(deployment: Document, now: datetime) -> Cells:
    spec, status = deployment["spec"], deployment["status"]
    return [
        _name(deployment),
        f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        _created(deployment, now),
        *_template(spec),
    ]


def _replica_set(replica_set: Document, now: datetime) -> Cells:
    spec, status = replica_set["spec"], replica_set["status"]
    counts = (spec.get("replicas", 0), status["replicas"], status.get("readyReplicas", 0))
    return [_name(replica_set), *counts, _created(replica_set, now), *_template(spec)]


def _stateful_set(stateful_set: Document, now: datetime) -> Cells:
    spec, status = stateful_set["spec"], stateful_set["status"]
    ready = f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}"
    return [_name(stateful_set), ready, _created(stateful_set, now), *_template(spec)[:2]]


def _job(job: Document, now: datetime) -> Cells:
    spec, status = job["spec"], job["status"]
    wanted, parallelism = spec.get("completions"), spec.get("parallelism", 0)
    of = f"1 of {parallelism}" if parallelism > 1 else "1"
    began, ended = status.get("startTime"), status.get("completionTime")
    lasted = age(began, read_time(ended) if ended else now) if began else ""
    return [
        _name(job),
        _job_state(job),
        f"{status.get('succeeded', 0)}/{of if wanted is None else wanted}",
        lasted,
        _created(job, now),
        *_template(spec),
    ]


def _job_state(job: Document) -> str:
    """The most telling of the conditions that are true."""
    true = {one["type"] for one in job["status"].get("conditions") or () if one["status"] == "True"}
    deleted = {"Terminating"} if "deletionTimestamp" in job["metadata"] else set()
    states = {"Complete": "Complete", "Failed": "Failed", "Terminating": "Terminating", "Suspended": "Suspended"}
    states |= {name: name for name in ("FailureTarget", "SuccessCriteriaMet")}
    return next((state for kind, state in states.items() if kind in true | deleted), "Running")


def _template(spec: Document) -> Cells:
    """Names and images of the containers, and the selector of the pods."""
    containers = spec["template"]["spec"]["containers"] or ()
    names = ",".join(one["name"] for one in containers)
    images = ",".join(one.get("image", "") for one in containers)
    return [names, images, selector_text(spec.get("selector")) or _NONE]


def selector_text(selector: Document | None) -> str:
    """A label selector as it is written on a command line; empty for none."""
    if not selector:
        return ""
    parts = {key: f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()}
    for one in selector.get("matchExpressions") or ():
        values = f"({','.join(sorted(one.get('values') or ()))})"
        key = one["key"]
        forms = {"In": f"{key} in {values}", "NotIn": f"{key} notin {values}", "Exists": key, "DoesNotExist": f"!{key}"}
        parts[key] = f"{parts[key]},{forms[one['operator']]}" if key in parts else forms[one["operator"]]
    return ",".join(parts[key] for key in sorted(parts))


POD: Final = TableKind(
    (
        *_plain("Ready", "Status", "Restarts"),
        _AGE,
        *_wide("IP", "Node", "Nominated Node", "Readiness Gates"),
    ),
    _pod,
    _pod_conditions,
)
NODE: Final = TableKind(
    (
        *_plain("Status", "Roles"),
        _AGE,
        Column("Version"),
        *_wide("Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime"),
    ),
    _node,
)
NAMESPACE: Final = TableKind((*_plain("Status"), _AGE), _namespace)
EVENT: Final = TableKind(
    (
        *(Column(name) for name in ("Last Seen", "Type", "Reason", "Object")),
        *_wide("Subobject", "Source"),
        Column("Message"),
        *_wide("First Seen", "Count"),
        Column("Name", format="name", priority=1),
    ),
    _event,
)
LEASE: Final = TableKind((*_plain("Holder"), _AGE), _lease)
DEPLOYMENT: Final = TableKind(
    (*_plain("Ready", "Up-to-date", "Available"), _AGE, *_wide("Containers", "Images", "Selector")), _deployment
)
REPLICA_SET: Final = TableKind(
    (
        _NAME,
        *(Column(name, "integer") for name in ("Desired", "Current", "Ready")),
        _AGE,
        *_wide("Containers", "Images", "Selector"),
    ),
    _replica_set,
)
STATEFUL_SET: Final = TableKind((*_plain("Ready"), _AGE, *_wide("Containers", "Images")), _stateful_set)
JOB: Final = TableKind(
    (*_plain("Status", "Completions", "Duration"), _AGE, *_wide("Containers", "Images", "Selector")), _job
)
RESOURCE_CLAIM: Final = TableKind((*_plain("State"), _AGE), _claim)
RESOURCE_SLICE: Final = TableKind((*_plain("Node", "Driver", "Pool"), _AGE), _slice)
PLAIN: Final = TableKind((_NAME, _AGE), _name_and_age)
"""Of kinds without columns of their own."""
