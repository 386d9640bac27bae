"""Validation of resource.k8s.io/v1 ResourceSlice."""

from __future__ import annotations

from typing import Any

from dracaena.demo.apiserver.fields import IMMUTABLE, invalid
from dracaena.demo.apiserver.validation.findings import causes
from dracaena.demo.apiserver.validation.metadata import check_metadata, check_metadata_update
from dracaena.demo.apiserver.validation.text import Errors
from dracaena.validation.slices import check_slice_spec
from dracaena.validation.syntax import DNS_SUBDOMAIN

Document = dict[str, Any]


def check_slice(resource_slice: Document) -> Errors:
    """A new slice."""
    errors = check_metadata(resource_slice, namespaced=False, names=DNS_SUBDOMAIN)
    return errors + causes(check_slice_spec, resource_slice["spec"], "spec")


def check_slice_update(new: Document, old: Document) -> Errors:
    """An update of a slice: driver, pool name and node name stay."""
    after, before = new["spec"], old["spec"]
    errors = check_metadata_update(new, old) + causes(check_slice_spec, after, "spec")
    if after["pool"]["name"] != before["pool"]["name"]:
        errors.append(invalid("spec.pool.name", after["pool"]["name"], IMMUTABLE))
    return errors + [
        invalid(f"spec.{name}", after.get(name), IMMUTABLE)
        for name in ("driver", "nodeName")
        if after.get(name) != before.get(name)
    ]
