"""Validation of resource.k8s.io/v1 ResourceClaim (without status), ResourceClaimTemplate and DeviceClass."""

from __future__ import annotations

from functools import partial
from typing import Any

from dracaena.demo.apiserver.fields import IMMUTABLE, forbidden, invalid
from dracaena.demo.apiserver.validation.findings import NO_DRIVER, causes
from dracaena.demo.apiserver.validation.metadata import check_annotations, check_metadata, check_metadata_update
from dracaena.demo.apiserver.validation.text import Errors, check_labels
from dracaena.validation.claims import check_claim_spec
from dracaena.validation.classes import check_class_spec
from dracaena.validation.syntax import DNS_SUBDOMAIN

Document = dict[str, Any]

_check_spec = partial(check_claim_spec, driver=NO_DRIVER)


def check_claim(claim: Document) -> Errors:
    """A new claim."""
    return check_metadata(claim, namespaced=True, names=DNS_SUBDOMAIN) + causes(_check_spec, claim["spec"], "spec")


def check_claim_update(new: Document, old: Document) -> Errors:
    """An update of a claim itself, not of its status."""
    errors = check_metadata(new, namespaced=True, names=DNS_SUBDOMAIN) + check_metadata_update(new, old)
    return errors + _check_same_spec(new, old)


def check_template(template: Document) -> Errors:
    """A new claim template."""
    errors = check_metadata(template, namespaced=True, names=DNS_SUBDOMAIN)
    metadata = template["spec"]["metadata"]
    errors += check_labels("spec.metadata.labels", metadata.get("labels"))
    errors += check_annotations(metadata, "spec.metadata.annotations")
    errors += [
        forbidden(f"spec.metadata.{name}", "cannot be set")
        for name in metadata
        if name not in ("labels", "annotations")
    ]
    return errors + causes(_check_spec, template["spec"]["spec"], "spec.spec")


def check_template_update(new: Document, old: Document) -> Errors:
    """An update of a claim template."""
    return check_template(new) + check_metadata_update(new, old) + _check_same_spec(new, old)


def _check_same_spec(new: Document, old: Document) -> Errors:
    return [] if new["spec"] == old["spec"] else [invalid("spec", new["spec"], IMMUTABLE)]


def check_class(device_class: Document) -> Errors:
    """A new device class."""
    errors = check_metadata(device_class, namespaced=False, names=DNS_SUBDOMAIN)
    return errors + causes(partial(check_class_spec, driver=NO_DRIVER), device_class["spec"], "spec")


def check_class_update(new: Document, old: Document) -> Errors:
    """An update of a device class."""
    return check_metadata_update(new, old) + check_class(new)
