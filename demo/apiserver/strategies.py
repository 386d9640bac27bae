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
from dracaena.demo.apiserver.fields import FieldError, forbidden
from dracaena.demo.apiserver.meta import bumped, with_metadata
from dracaena.demo.apiserver.schema import structs
from dracaena.demo.apiserver.times import write_time
from dracaena.demo.apiserver.validation import claim_status, claims, cluster, deployments, pods, slices, workloads
from dracaena.validation.syntax import DNS_LABEL

Document = dict[str, Any]
Labels = Mapping[str, str]
Errors = list[FieldError]

_ADMIN_LABEL: Final = "resource.kubernetes.io/admin-access"


def _as_sent(new: Document, _: object) -> Document:
    return new


def _no_warnings(_: Document) -> list[str]:
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """One way to update an object: the main resource or a sub-resource.

    `prepare` gets (new, old) and restores what this update cannot change.
    """

    prepare: Callable[[Document, Document], Document]
    check: Callable[[Document, Document], Errors]
    check_namespace: Callable[[Document, Document, Labels], Errors] = lambda _new, _old, _labels: []
    unconditional: bool = True  # a PUT without resourceVersion is accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """The rules of one kind."""

    prepare_create: Callable[[Document, datetime], Document] = _as_sent
    check_create: Callable[[Document], Errors]
    check_create_namespace: Callable[[Document, Labels], Errors] = lambda _new, _labels: []
    main: Door
    status: Door | None = None
    finalize: Door | None = None
    scale: Door | None = None
    warn: Callable[[Document], list[str]] = _no_warnings
    # Seconds of grace for a deletion that begins now; None: the kind is deleted at once.
    grace_s: Callable[[Document, Document], int] | None = None
    creates_on_put: bool = False

    def door(self, subresource: str) -> Door:
        """The way to update a sub-resource ("" is the main resource)."""
        door = {"": self.main, "status": self.status, "finalize": self.finalize, "scale": self.scale}[subresource]
        assert door is not None, subresource
        return door


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


def _changed_pod(new: Document, old: Document) -> Document:
    kept = new | {"status": old["status"]}
    return bumped(kept, old) if new["spec"] != old["spec"] else kept


def _pod_status(new: Document, old: Document) -> Document:
    status = dict(new["status"])
    if not status.get("qosClass"):
        status["qosClass"] = old["status"].get("qosClass", "")
    if not status.get("observedGeneration") and old["status"].get("observedGeneration"):
        status["observedGeneration"] = old["status"]["observedGeneration"]
    kept = new | {"spec": old["spec"], "status": _with_observed(status, old["status"])}
    return with_metadata(
        kept,
        ownerReferences=old["metadata"].get("ownerReferences"),
        deletionTimestamp=old["metadata"].get("deletionTimestamp"),
    )


def _with_observed(status: Document, old: Document) -> Document:
    """Keep ``observedGeneration`` of a condition if the client does not know it."""
    known = {one["type"]: one.get("observedGeneration") for one in old.get("conditions") or ()}
    conditions = [
        one | {"observedGeneration": known[one["type"]]}
        if not one.get("observedGeneration") and known.get(one["type"])
        else one
        for one in status.get("conditions") or ()
    ]
    return status | {"conditions": conditions} if conditions else status


def _pod_grace_s(pod: Document, options: Document) -> int:
    asked = options.get("gracePeriodSeconds")
    period = asked if asked is not None else pod["spec"].get("terminationGracePeriodSeconds", 0)
    if not pod["spec"].get("nodeName") or pod["status"].get("phase") in ("Failed", "Succeeded"):
        return 0
    return 1 if period < 0 else int(period)


def _pod_warnings(pod: Document) -> list[str]:
    if DNS_LABEL.holds(pod["metadata"]["name"]):
        return []
    why = "this is used in the Pod's hostname, which can result in surprising behavior"
    return [f"metadata.name: {why}; a DNS label is recommended: {DNS_LABEL.expected}"]


POD: Final = Strategy(
    prepare_create=_new_pod,
    check_create=pods.check_pod,
    warn=_pod_warnings,
    grace_s=_pod_grace_s,
    main=Door(prepare=_changed_pod, check=pods.check_pod_update),
    status=Door(
        prepare=_pod_status,
        check=pods.check_pod_status,
    ),
)


# ---- Node, Namespace, Event, Lease


def _keep_status(new: Document, old: Document) -> Document:
    return new | {"status": old["status"]}


def _keep_spec(new: Document, old: Document) -> Document:
    return new | {"spec": old["spec"]}


NODE: Final = Strategy(
    check_create=cluster.check_node,
    main=Door(prepare=_keep_status, check=cluster.check_node_update),
    status=Door(prepare=_keep_spec, check=cluster.check_node_update),
)


def _new_namespace(namespace: Document, _: datetime) -> Document:
    finalizers = namespace["spec"].get("finalizers") or []
    if "kubernetes" not in finalizers:
        finalizers = [*finalizers, "kubernetes"]
    return namespace | {"spec": {"finalizers": finalizers}, "status": {"phase": "Active"}}


def _changed_namespace(new: Document, old: Document) -> Document:
    return new | {"spec": old["spec"], "status": old["status"]}


NAMESPACE: Final = Strategy(
    prepare_create=_new_namespace,
    check_create=cluster.check_namespace,
    main=Door(prepare=_changed_namespace, check=cluster.check_namespace_update),
    status=Door(prepare=_keep_spec, check=cluster.check_namespace_update),
    finalize=Door(prepare=_keep_status, check=cluster.check_namespace_update),
)
EVENT: Final = Strategy(
    check_create=cluster.check_event,
    creates_on_put=True,
    main=Door(prepare=_as_sent, check=lambda new, _: cluster.check_event(new)),
)
LEASE: Final = Strategy(
    check_create=cluster.check_lease,
    creates_on_put=True,
    main=Door(prepare=_as_sent, check=lambda new, _: cluster.check_lease(new), unconditional=False),
)


# ---- Deployment, ReplicaSet, StatefulSet


def _new_workload(new: Document, _: datetime) -> Document:
    return with_metadata(new | {"status": zero(structs()[f"{new['kind']}Status"])}, generation=1)


def _changed_deployment(new: Document, old: Document) -> Document:
    """Annotations also count as a change: a deployment passes them on to its replica sets."""
    kept = new | {"status": old["status"]}
    told = new["metadata"].get("annotations") != old["metadata"].get("annotations")
    return bumped(kept, old) if told or new["spec"] != old["spec"] else kept


def _changed_workload(new: Document, old: Document) -> Document:
    kept = new | {"status": old["status"]}
    return bumped(kept, old) if new["spec"] != old["spec"] else kept


DEPLOYMENT: Final = Strategy(
    prepare_create=_new_workload,
    check_create=deployments.check_deployment,
    main=Door(prepare=_changed_deployment, check=deployments.check_deployment_update),
    status=Door(prepare=_keep_spec, check=deployments.check_deployment_status),
    scale=Door(prepare=_changed_deployment, check=deployments.check_deployment_update),
)
REPLICA_SET: Final = Strategy(
    prepare_create=_new_workload,
    check_create=deployments.check_replica_set,
    main=Door(prepare=_changed_workload, check=deployments.check_replica_set_update),
    status=Door(prepare=_keep_spec, check=deployments.check_replica_set_status),
    scale=Door(prepare=_changed_workload, check=deployments.check_replica_set_update),
)
STATEFUL_SET: Final = Strategy(
    prepare_create=_new_workload,
    check_create=deployments.check_stateful_set,
    main=Door(prepare=_changed_workload, check=deployments.check_stateful_set_update),
    status=Door(prepare=_keep_spec, check=deployments.check_stateful_set_status),
    scale=Door(prepare=_changed_workload, check=deployments.check_stateful_set_update),
)


# ---- Job


def _new_job(job: Document, _: datetime) -> Document:
    """A job's pods are labelled with its name and UID; it selects them by UID, unless the client chose a selector."""
    spec, template = job["spec"], job["spec"]["template"]
    if not spec["manualSelector"]:
        metadata = job["metadata"]
        given, selector = template["metadata"].get("labels") or {}, spec.get("selector") or {}
        labels = workloads.job_labels(metadata["name"], metadata["uid"]) | given
        matched = {workloads.CONTROLLER_UID: metadata["uid"]} | (selector.get("matchLabels") or {})
        template = with_metadata(template, labels={key: labels[key] for key in sorted(labels)})
        spec = spec | {"selector": selector | {"matchLabels": {key: matched[key] for key in sorted(matched)}}}
    # Labels that default to the template's are in Go the same map.
    is_shared = job["metadata"].get("labels") is job["spec"]["template"]["metadata"].get("labels")
    labels = (template if is_shared else job)["metadata"].get("labels")
    return with_metadata(job | {"spec": spec | {"template": template}, "status": {}}, generation=1, labels=labels)


JOB: Final = Strategy(
    prepare_create=_new_job,
    check_create=workloads.check_job,
    warn=workloads.job_warnings,
    main=Door(prepare=_changed_workload, check=workloads.check_job_update),
    status=Door(prepare=_keep_spec, check=workloads.check_job_status),
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
    check_create=claims.check_claim,
    check_create_namespace=lambda new, labels: _admin_in_spec(new["spec"], labels),
    main=Door(prepare=_keep_status, check=claims.check_claim_update),
    status=Door(
        prepare=_claim_status,
        check=claim_status.check_claim_status,
        check_namespace=_admin_in_status,
    ),
)
RESOURCE_CLAIM_TEMPLATE: Final = Strategy(
    check_create=claims.check_template,
    check_create_namespace=lambda new, labels: _admin_in_spec(new["spec"]["spec"], labels),
    main=Door(prepare=_as_sent, check=claims.check_template_update),
)


def _first_generation(new: Document, _: datetime) -> Document:
    return with_metadata(new, generation=1)


def _bump_on_spec(new: Document, old: Document) -> Document:
    return bumped(new, old) if new["spec"] != old["spec"] else new


DEVICE_CLASS: Final = Strategy(
    prepare_create=_first_generation,
    check_create=claims.check_class,
    main=Door(prepare=_bump_on_spec, check=claims.check_class_update),
)


def _slice_warnings(resource_slice: Document) -> list[str]:
    driver = resource_slice["spec"]["driver"]
    if driver == driver.lower():
        return []
    return [f'spec.driver: driver names should be lowercase; "{driver}" contains uppercase characters']


RESOURCE_SLICE: Final = Strategy(
    prepare_create=_first_generation,
    check_create=slices.check_slice,
    warn=_slice_warnings,
    main=Door(prepare=_bump_on_spec, check=slices.check_slice_update),
)
