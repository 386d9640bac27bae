"""Validation of resource.k8s.io/v1, except for the status of claims, by the rules of ``dracaena validate``."""

from __future__ import annotations

from functools import partial
from typing import Any

from dracaena.demo.apiserver.fields import forbidden
from dracaena.demo.apiserver.validation.findings import NO_DRIVER, causes
from dracaena.demo.apiserver.validation.metadata import check_annotations
from dracaena.demo.apiserver.validation.text import Errors, check_labels
from dracaena.validation.claims import check_claim_spec
from dracaena.validation.classes import check_class_spec
from dracaena.validation.slices import check_slice_spec

Document = dict[str, Any]

_check_spec = partial(check_claim_spec, driver=NO_DRIVER)
_check_class_spec = partial(check_class_spec, driver=NO_DRIVER)


def check_claim(claim: Document) -> Errors:
    """A claim, new or changed."""
    return causes(_check_spec, claim["spec"], "spec")


def check_template(template: Document) -> Errors:
    """A claim template, new or changed."""
    metadata = template["spec"]["metadata"]
    errors = check_labels("spec.metadata.labels", metadata.get("labels"))
    errors += check_annotations(metadata, "spec.metadata.annotations")
    errors += [
        forbidden(f"spec.metadata.{name}", "cannot be set")
        for name in metadata
        if name not in ("labels", "annotations")
    ]
    return errors + causes(_check_spec, template["spec"]["spec"], "spec.spec")


def check_class(device_class: Document) -> Errors:
    """A device class, new or changed."""
    return causes(_check_class_spec, device_class["spec"], "spec")


def check_slice(resource_slice: Document) -> Errors:
    """A slice, new or changed."""
    return causes(check_slice_spec, resource_slice["spec"], "spec")
