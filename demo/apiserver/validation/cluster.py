"""Validation of core/v1 Node, Namespace and Event and of coordination.k8s.io/v1 Lease."""

from __future__ import annotations

from typing import Any

from dracaena.api.quantity import read_quantity
from dracaena.demo.apiserver.errors import not_implemented
from dracaena.demo.apiserver.fields import duplicate, invalid
from dracaena.demo.apiserver.validation.selectors import check_taints
from dracaena.demo.apiserver.validation.text import Errors, check
from dracaena.validation.syntax import LABEL_KEY

Document = dict[str, Any]


def check_node(node: Document) -> Errors:
    """A node, new or changed. Kubernetes reports taints under ``metadata.taints``; so do we."""
    errors = check_taints(node["spec"].get("taints") or []) + _check_node_amounts(node["status"])
    addresses = node["status"].get("addresses") or []
    return errors + [
        duplicate(f"status.addresses[{i}]", address) for i, address in enumerate(addresses) if address in addresses[:i]
    ]


def _check_node_amounts(status: Document) -> Errors:
    errors: Errors = []
    for part in ("capacity", "allocatable"):
        for name, text in (status.get(part) or {}).items():
            if read_quantity(text).quantity.nano < 0:
                errors.append(invalid(f"status.{part}.{name}", text, "must be greater than or equal to 0"))
    return errors


def check_namespace(namespace: Document) -> Errors:
    """A namespace, new or changed."""
    finalizers = namespace["spec"].get("finalizers") or ()
    return [error for name in finalizers for error in check("spec.finalizers", name, LABEL_KEY)]


def check_event(event: Document) -> Errors:
    """An event, new or changed."""
    if event.get("eventTime") is not None:
        raise not_implemented('the field "eventTime" of Event')
    namespace, about = event["metadata"].get("namespace", ""), event["involvedObject"].get("namespace", "")
    if namespace in ({about} if about else {"", "default"}):
        return []
    return [invalid("involvedObject.namespace", about, "does not match event.namespace")]


def check_lease(lease: Document) -> Errors:
    """A lease, new or changed."""
    duration, transitions = lease["spec"].get("leaseDurationSeconds"), lease["spec"].get("leaseTransitions")
    errors: Errors = []
    if duration is not None and duration <= 0:
        errors.append(invalid("spec.leaseDurationSeconds", duration, "must be greater than 0"))
    if transitions is not None and transitions < 0:
        errors.append(invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0"))
    return errors
