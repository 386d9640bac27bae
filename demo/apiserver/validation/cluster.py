"""Validation of core/v1 Node, Namespace and Event and of coordination.k8s.io/v1 Lease."""

from __future__ import annotations

import ipaddress
from typing import Any

from dracaena.api import limits
from dracaena.api.quantity import read_quantity
from dracaena.demo.apiserver.errors import not_implemented
from dracaena.demo.apiserver.fields import duplicate, forbidden, invalid, required
from dracaena.demo.apiserver.validation.metadata import check_metadata, check_metadata_update
from dracaena.demo.apiserver.validation.selectors import check_taints
from dracaena.demo.apiserver.validation.text import Errors, check
from dracaena.validation.syntax import DNS_LABEL, DNS_SUBDOMAIN, LABEL_KEY

Document = dict[str, Any]


def check_node(node: Document) -> Errors:
    """A new node. Kubernetes reports taints under ``metadata.taints``; so do we."""
    errors = check_metadata(node, namespaced=False, names=DNS_SUBDOMAIN)
    errors += check_taints(node["spec"].get("taints") or [])
    errors += _check_node_amounts(node["status"])
    for i, text in enumerate(node["spec"].get("podCIDRs") or ()):
        try:
            ipaddress.ip_network(text)
        except ValueError:
            errors.append(
                invalid(f"spec.podCIDRs[{i}]", text, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)")
            )
    return errors


def _check_node_amounts(status: Document) -> Errors:
    errors: Errors = []
    for part in ("capacity", "allocatable"):
        for name, text in (status.get(part) or {}).items():
            if read_quantity(text).quantity.nano < 0:
                errors.append(invalid(f"status.{part}.{name}", text, "must be greater than or equal to 0"))
    return errors


def check_node_update(new: Document, old: Document) -> Errors:
    """An update of a node or of its status."""
    errors = check_node(new) + check_metadata_update(new, old) + _check_node_amounts(new["status"])
    seen: list[Document] = []
    for i, address in enumerate(new["status"].get("addresses") or ()):
        if address in seen:
            errors.append(duplicate(f"status.addresses[{i}]", address))
        seen.append(address)
    then, now = old["spec"], new["spec"]
    if then.get("podCIDRs") and then["podCIDRs"] != now.get("podCIDRs"):
        errors.append(forbidden("spec.podCIDRs", 'node updates may not change podCIDR except from "" to valid'))
    if then.get("providerID") and then["providerID"] != now.get("providerID"):
        errors.append(forbidden("spec.providerID", 'node updates may not change providerID except from "" to valid'))
    return errors + check_taints(now.get("taints") or [])


def check_namespace(namespace: Document) -> Errors:
    """A new namespace."""
    errors = check_metadata(namespace, namespaced=False, names=DNS_LABEL)
    for name in namespace["spec"].get("finalizers") or ():
        errors += check("spec.finalizers", name, LABEL_KEY)
    return errors


def check_namespace_update(new: Document, old: Document) -> Errors:
    """An update of a namespace."""
    return check_metadata_update(new, old)


def check_event(event: Document) -> Errors:
    """An event, new or changed: the rules of the core/v1 endpoint."""
    errors: Errors = []
    namespace, about = event["metadata"].get("namespace", ""), event["involvedObject"].get("namespace", "")
    path = "involvedObject.namespace"
    if event.get("eventTime") is None:
        if namespace not in ({about} if about else {"", "default"}):
            errors.append(invalid(path, about, "does not match event.namespace"))
        return errors
    if not about and namespace not in ("default", "kube-system"):
        errors.append(invalid(path, about, "does not match event.namespace"))
    reporter, instance = event["reportingComponent"], event["reportingInstance"]
    if not reporter:
        errors.append(required("reportingComponent"))
    errors += check("reportingComponent", reporter, LABEL_KEY)
    if not instance:
        errors.append(required("reportingInstance"))
    errors += _at_most("reportingInstance", instance, limits.EVENT_REPORTING_INSTANCE_BYTES)
    if not event.get("action"):
        errors.append(required("action"))
    errors += _at_most("action", event.get("action", ""), limits.EVENT_ACTION_BYTES)
    if not event.get("reason"):
        errors.append(required("reason"))
    errors += _at_most("reason", event.get("reason", ""), limits.EVENT_REASON_BYTES)
    if len(event.get("message", "").encode()) > limits.EVENT_NOTE_BYTES:
        errors.append(invalid("message", "", f"can have at most {limits.EVENT_NOTE_BYTES} bytes"))
    return errors


def _at_most(path: str, text: str, limit: int) -> Errors:
    return [invalid(path, "", f"can have at most {limit} characters")] if len(text) > limit else []


def check_lease(lease: Document) -> Errors:
    """A lease, new or changed."""
    spec = lease["spec"]
    if "strategy" in spec:
        raise not_implemented('the field "spec.strategy" of Lease (coordinated leader election)')
    errors = check_metadata(lease, namespaced=True, names=DNS_SUBDOMAIN)
    duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if duration is not None and duration <= 0:
        errors.append(invalid("spec.leaseDurationSeconds", duration, "must be greater than 0"))
    if transitions is not None and transitions < 0:
        errors.append(invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0"))
    if spec.get("preferredHolder"):
        errors.append(forbidden("spec.preferredHolder", "may only be specified if `strategy` is defined"))
    return errors
