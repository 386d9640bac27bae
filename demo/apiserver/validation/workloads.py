"""Validation of batch/v1 Job, and of pod templates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from dracaena.demo.apiserver.errors import not_implemented
from dracaena.demo.apiserver.fields import invalid, not_supported, required
from dracaena.demo.apiserver.selectors import label_selector_matches
from dracaena.demo.apiserver.validation.metadata import check_annotations
from dracaena.demo.apiserver.validation.pods import check_pod_spec
from dracaena.demo.apiserver.validation.selectors import check_label_selector
from dracaena.demo.apiserver.validation.text import Errors, check_labels

Document = dict[str, Any]

CONTROLLER_UID: Final = "batch.kubernetes.io/controller-uid"
_COUNTS: Final = ("parallelism", "completions", "backoffLimit", "ttlSecondsAfterFinished")
_COMPLETION_MODES: Final = ("NonIndexed", "Indexed")
_REPLACEMENT_POLICIES: Final = ("Failed", "TerminatingOrFailed")


def job_labels(name: str, uid: str) -> dict[str, str]:
    """The labels of a job's pods, in their old and in their present form."""
    own = {"controller-uid": uid, "job-name": name}
    return own | {f"batch.kubernetes.io/{key}": value for key, value in own.items()}


def check_template(template: Document, path: str) -> Errors:
    """A pod template."""
    metadata = template["metadata"]
    errors = check_labels(f"{path}.labels", metadata.get("labels")) + check_annotations(metadata, f"{path}.annotations")
    return errors + [replace(error, field=f"{path}.{error.field}") for error in check_pod_spec(template["spec"])]


def check_job(job: Document) -> Errors:
    """A job, new or changed."""
    for name, value in (("completionMode", "Indexed"), ("manualSelector", True)):
        if job["spec"].get(name) == value:
            raise not_implemented(f'the value {value} of the field "spec.{name}" of Job')
    return _check_generated_labels(job) + _check_job_spec(job["spec"])


def _check_generated_labels(job: Document) -> Errors:
    given = job["spec"]["template"]["metadata"].get("labels") or {}
    expected = job_labels(job["metadata"]["name"], job["metadata"]["uid"])
    path = "spec.template.metadata.labels"
    errors = [
        invalid(path, given, f"must be '{value}'") if key in given else required(path, f"must be '{value}'")
        for key, value in expected.items()
        if given.get(key) != value
    ]
    if not label_selector_matches(job["spec"]["selector"], expected):
        errors.append(invalid("spec.selector", job["spec"]["selector"], "`selector` not auto-generated"))
    return errors


def _check_job_spec(spec: Document) -> Errors:
    errors = [
        invalid(f"spec.{name}", spec[name], "must be greater than or equal to 0")
        for name in _COUNTS
        if spec.get(name, 0) < 0
    ]
    mode, replacement = spec["completionMode"], spec["podReplacementPolicy"]
    if mode not in _COMPLETION_MODES:
        errors.append(not_supported("spec.completionMode", mode, _COMPLETION_MODES))
    if replacement not in _REPLACEMENT_POLICIES:
        errors.append(not_supported("spec.podReplacementPolicy", replacement, _REPLACEMENT_POLICIES))
    errors += check_template(spec["template"], "spec.template")
    if spec["template"]["spec"]["restartPolicy"] == "Always":
        errors.append(required("spec.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"'))
    if "selector" not in spec:
        return [*errors, required("spec.selector")]
    errors += check_label_selector(spec["selector"], "spec.selector")
    labels = spec["template"]["metadata"].get("labels") or {}
    if not label_selector_matches(spec["selector"], labels):
        shown = "`selector` does not match template `labels`"
        errors.append(invalid("spec.template.metadata.labels", labels, shown))
    return errors


def check_job_status(new: Document, _old: Document) -> Errors:
    """An update of a job's status: no count may be negative."""
    return [
        invalid(f"status.{name}", count, "must be greater than or equal to 0")
        for name, count in new["status"].items()
        if isinstance(count, int) and count < 0
    ]
