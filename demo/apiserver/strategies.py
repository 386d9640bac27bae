"""What is specific to each kind when it is written: parts that a client cannot set, checks, grace of deletion.

A strategy has only functions. They take canonical documents and return new ones; nothing here touches storage: the
labels of the object's namespace come from the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dracaena.api.quantity import read_quantity
from dracaena.demo.apiserver.decode import zero
from dracaena.demo.apiserver.fields import IMMUTABLE, FieldError, forbidden, invalid
from dracaena.demo.apiserver.meta import bumped, with_metadata
from dracaena.demo.apiserver.schema import structs
from dracaena.demo.apiserver.times import write_time
from dracaena.demo.apiserver.validation import claim_status, claims, cluster, deployments, pods, workloads
from dracaena.validation.pod_templates import value_at
from dracaena.validation.syntax import DNS_LABEL, DNS_SUBDOMAIN, Syntax

Document = dict[str, Any]
Labels = Mapping[str, str]
Errors = list[FieldError]

_ADMIN_LABEL: Final = "resource.kubernetes.io/admin-access"
PATH_SEGMENT: Final = Syntax(
    "one segment of a path",
    "a text without '/' and '%', and not '.' or '..'",
    lambda text: text not in (".", "..") and not {"/", "%"} & {*text},
)
"""What every name must be, whatever its kind."""


def _as_sent(new: Document, _: object) -> Document:
    return new


def _changed(new: Document, old: Document) -> Document:
    """The status stays. A new spec is a new generation, of kinds that count them."""
    kept = new | ({"status": old["status"]} if "status" in old else {})
    return bumped(kept, old) if "generation" in old["metadata"] and new["spec"] != old["spec"] else kept


def _keep_spec(new: Document, old: Document) -> Document:
    return new | {"spec": old["spec"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """One way to update an object: the main resource or a sub-resource.

    `prepare` gets (new, old) and restores what this update cannot change.
    """

    prepare: Callable[[Document, Document], Document] = _keep_spec
    check: Callable[[Document, Document], Errors] = lambda _new, _old: []
    check_namespace: Callable[[Document, Document, Labels], Errors] = lambda _new, _old, _labels: []


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """The rules of one kind."""

    names: Syntax = DNS_SUBDOMAIN
    """What its names are like."""
    prepare_create: Callable[[Document, datetime], Document] = _as_sent
    prepare: Callable[[Document, Document], Document] = _changed
    """Restores what an update of the object itself cannot change."""
    check: Callable[[Document], Errors]
    """Of a new object, and of a changed one."""
    check_namespace: Callable[[Document, Labels], Errors] = lambda _new, _labels: []
    """Of a new object, by the labels of its namespace."""
    check_update: Callable[[Document, Document], Errors] = lambda _new, _old: []
    """What else an update of the object itself must not do."""
    fixed: tuple[str, ...] = ()
    """Fields that no update changes."""
    status: Door | None = None
    finalize: Door | None = None
    warn: Callable[[Document], list[str]] = lambda _: []
    grace_s: Callable[[Document, Document], int] | None = None
    """Seconds of grace for a deletion that begins now; None: the kind is deleted at once."""
    creates_on_put: bool = False
    unconditional: bool = True
    """Whether a PUT without resourceVersion is accepted."""

    def door(self, subresource: str) -> Door:
        """The way to update a sub-resource ("" is the main resource)."""
        if subresource in ("", "scale"):
            return Door(prepare=self.prepare, check=self._check_change)
        door = {"status": self.status, "finalize": self.finalize}[subresource]
        assert door is not None, subresource
        return door

    def _check_change(self, new: Document, old: Document) -> Errors:
        values = {path: [value_at(one, tuple(path.split("."))) for one in (new, old)] for path in self.fixed}
        fixed = [invalid(path, now, IMMUTABLE) for path, (now, then) in values.items() if now != then]
        return [*self.check(new), *fixed, *self.check_update(new, old)]


# ---- Pod


def _new_pod(pod: Document, now: datetime) -> Document:
    status: Document = {"phase": "Pending", "qosClass": _qos_class(pod["spec"])}
    if pod["spec"].get("schedulingGates"):
        gated = {
            "type": "PodScheduled",
            "status": "False",
            "lastProbeTime": None,
            "lastTransitionTime": write_time(now),
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }
        status = {"phase": "Pending", "conditions": [gated], "qosClass": status["qosClass"]}
    return with_metadata(pod | {"status": status}, generation=1)


def _qos_class(spec: Document) -> str:
    """Guaranteed, Burstable or BestEffort, by cpu and memory of all containers."""
    containers = [*(spec["containers"] or ()), *(spec.get("initContainers") or ())]
    asked = False
    guaranteed = bool(containers)
    for container in containers:
        resources = container["resources"]
        requests, limits = _compute(resources.get("requests")), _compute(resources.get("limits"))
        asked = asked or bool(requests or limits)
        guaranteed = guaranteed and set(limits) == {"cpu", "memory"} and requests == limits
    if not asked:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _compute(amounts: Document | None) -> Document:
    read = {
        name: read_quantity((amounts or {})[name]).quantity for name in ("cpu", "memory") if name in (amounts or {})
    }
    return {name: amount for name, amount in read.items() if amount.nano > 0}


def _pod_status(new: Document, old: Document) -> Document:
    status = new["status"] | {"qosClass": new["status"].get("qosClass") or old["status"].get("qosClass", "")}
    return with_metadata(
        new | {"spec": old["spec"], "status": status},
        ownerReferences=old["metadata"].get("ownerReferences"),
        deletionTimestamp=old["metadata"].get("deletionTimestamp"),
    )


def _pod_grace_s(pod: Document, options: Document) -> int:
    asked = options.get("gracePeriodSeconds")
    period = asked if asked is not None else pod["spec"].get("terminationGracePeriodSeconds", 0)
    if not pod["spec"].get("nodeName") or pod["status"].get("phase") in ("Failed", "Succeeded"):
        return 0
    return 1 if period < 0 else int(period)


def _name_warnings(document: Document) -> list[str]:
    """The name of a pod, and of a job, becomes part of a host name."""
    if DNS_LABEL.holds(document["metadata"]["name"]):
        return []
    why = "this is used in hostnames of pods, which can result in surprising behavior"
    return [f"metadata.name: {why}; a DNS label is recommended: {DNS_LABEL.expected}"]


POD: Final = Strategy(
    prepare_create=_new_pod,
    check=pods.check_pod,
    check_update=pods.check_pod_update,
    warn=_name_warnings,
    grace_s=_pod_grace_s,
    status=Door(prepare=_pod_status, check=pods.check_pod_status),
)


# ---- Node, Namespace, Event, Lease


NODE: Final = Strategy(check=cluster.check_node, status=Door(check=lambda new, _: cluster.check_node(new)))


def _new_namespace(namespace: Document, _: datetime) -> Document:
    finalizers = namespace["spec"].get("finalizers") or []
    if "kubernetes" not in finalizers:
        finalizers = [*finalizers, "kubernetes"]
    return namespace | {"spec": {"finalizers": finalizers}, "status": {"phase": "Active"}}


def _changed_namespace(new: Document, old: Document) -> Document:
    return new | {"spec": old["spec"], "status": old["status"]}


NAMESPACE: Final = Strategy(
    names=DNS_LABEL,
    prepare_create=_new_namespace,
    prepare=_changed_namespace,
    check=cluster.check_namespace,
    status=Door(),
    finalize=Door(prepare=_changed),
)
EVENT: Final = Strategy(names=PATH_SEGMENT, check=cluster.check_event, creates_on_put=True)
LEASE: Final = Strategy(check=cluster.check_lease, creates_on_put=True, unconditional=False)


# ---- Deployment, ReplicaSet, StatefulSet


def _new_workload(new: Document, _: datetime) -> Document:
    return with_metadata(new | {"status": zero(structs()[f"{new['kind']}Status"])}, generation=1)


def _changed_deployment(new: Document, old: Document) -> Document:
    """Annotations also count as a change: a deployment passes them on to its replica sets."""
    changed = _changed(new, old)
    is_counted = changed["metadata"]["generation"] != old["metadata"]["generation"]
    is_same = new["metadata"].get("annotations") == old["metadata"].get("annotations")
    return changed if is_counted or is_same else bumped(changed, old)


DEPLOYMENT: Final = Strategy(
    prepare_create=_new_workload,
    prepare=_changed_deployment,
    check=deployments.check_deployment,
    fixed=("spec.selector",),
    status=Door(check=deployments.check_deployment_status),
)
REPLICA_SET: Final = Strategy(
    prepare_create=_new_workload,
    check=deployments.check_replica_set,
    fixed=("spec.selector",),
    status=Door(check=deployments.check_counts),
)
STATEFUL_SET: Final = Strategy(
    prepare_create=_new_workload,
    check=deployments.check_stateful_set,
    fixed=("spec.selector", "spec.serviceName", "spec.podManagementPolicy"),
    status=Door(check=deployments.check_counts),
)


# ---- Job


def _new_job(job: Document, _: datetime) -> Document:
    """A job's pods are labelled with its name and UID; it selects them by UID."""
    metadata, spec, template = job["metadata"], job["spec"], job["spec"]["template"]
    given, selector = template["metadata"].get("labels") or {}, spec.get("selector") or {}
    labels = workloads.job_labels(metadata["name"], metadata["uid"]) | given
    matched = {workloads.CONTROLLER_UID: metadata["uid"]} | (selector.get("matchLabels") or {})
    # Labels that default to the template's are in Go the same map.
    own = labels if metadata.get("labels") is template["metadata"].get("labels") else metadata["labels"]
    spec |= {
        "template": with_metadata(template, labels=labels),
        "selector": selector | {"matchLabels": matched},
    }
    return with_metadata(job | {"spec": spec, "status": {}}, generation=1, labels=own)


JOB: Final = Strategy(
    prepare_create=_new_job,
    check=workloads.check_job,
    fixed=("spec.completions", "spec.selector", "spec.template", "spec.completionMode"),
    warn=_name_warnings,
    status=Door(check=workloads.check_job_status),
)


# ---- resource.k8s.io


def _admin_denied(path: str, labels: Labels) -> Errors:
    if labels.get(_ADMIN_LABEL) == "true":
        return []
    return [
        forbidden(
            path, f"admin access to devices requires the `{_ADMIN_LABEL}: true` label on the containing namespace"
        )
    ]


def _admin_in_spec(spec: Document, labels: Labels) -> Errors:
    for i, request in enumerate(spec["devices"]["requests"] or ()):
        if (request.get("exactly") or {}).get("adminAccess"):
            return _admin_denied(f"spec.devices.requests[{i}].adminAccess", labels)
    return []


def _admin_result(status: Document) -> int | None:
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    return next((i for i, result in enumerate(results) if result.get("adminAccess")), None)


def _admin_in_status(new: Document, old: Document, labels: Labels) -> Errors:
    at = _admin_result(new["status"])
    if at is None or _admin_result(old["status"]) is not None:
        return []
    return _admin_denied(f"status.allocation.devices.results[{at}].adminAccess", labels)


def _new_claim(claim: Document, _: datetime) -> Document:
    return claim | {"status": {}}


def _claim_status(new: Document, old: Document) -> Document:
    """Metadata and spec stay; entries of ``status.devices`` for released devices are removed."""
    before, after = old["metadata"], new["metadata"]
    kept = with_metadata(
        new | {"spec": old["spec"]},
        labels=before.get("labels"),
        annotations=before.get("annotations"),
        finalizers=before.get("finalizers"),
        ownerReferences=before.get("ownerReferences"),
        generateName=after.get("generateName"),
        deletionTimestamp=before.get("deletionTimestamp"),
    )
    status = dict(kept["status"])
    freed = _allocated(old["status"]) - _allocated(status)
    devices = [one for one in status.get("devices") or () if claim_status.device_identity(one) not in freed]
    status.pop("devices", None)
    return kept | {"status": status | ({"devices": devices} if devices else {})}


def _allocated(status: Document) -> set[str]:
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    return {claim_status.device_identity(result) for result in results}


RESOURCE_CLAIM: Final = Strategy(
    prepare_create=_new_claim,
    check=claims.check_claim,
    check_namespace=lambda new, labels: _admin_in_spec(new["spec"], labels),
    fixed=("spec",),
    status=Door(prepare=_claim_status, check=claim_status.check_claim_status, check_namespace=_admin_in_status),
)
RESOURCE_CLAIM_TEMPLATE: Final = Strategy(
    check=claims.check_template,
    check_namespace=lambda new, labels: _admin_in_spec(new["spec"]["spec"], labels),
    fixed=("spec",),
)


def _first_generation(new: Document, _: datetime) -> Document:
    return with_metadata(new, generation=1)


DEVICE_CLASS: Final = Strategy(prepare_create=_first_generation, check=claims.check_class)


def _slice_warnings(resource_slice: Document) -> list[str]:
    driver = resource_slice["spec"]["driver"]
    if driver == driver.lower():
        return []
    return [f'spec.driver: driver names should be lowercase; "{driver}" contains uppercase characters']


RESOURCE_SLICE: Final = Strategy(
    prepare_create=_first_generation,
    check=claims.check_slice,
    fixed=("spec.pool.name", "spec.driver", "spec.nodeName"),
    warn=_slice_warnings,
)
