"""Checks whole objects: which checks an object gets, by its apiVersion and kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dracaena.api.names import DEFAULT_DRIVER_NAME
from dracaena.validation.claims import check_claim, check_template
from dracaena.validation.classes import check_class
from dracaena.validation.config_types import check_config_types
from dracaena.validation.field import Field, Report
from dracaena.validation.findings import Finding, ObjectReference
from dracaena.validation.ignored import check_ignored
from dracaena.validation.pod_templates import holds_pods, is_kubernetes_own, pod_template_paths, value_at
from dracaena.validation.pods import check_pod
from dracaena.validation.policies import check_policies
from dracaena.validation.quotas import check_quota, is_namespace
from dracaena.validation.references import Input, check_pod_references, check_repeated
from dracaena.validation.rewriting import Rewriting
from dracaena.validation.slices import check_slice
from dracaena.validation.taints import check_taint_rule

RESOURCE_GROUP: Final = "resource.k8s.io"
RESOURCE_VERSION: Final = f"{RESOURCE_GROUP}/v1"

_RESOURCE_CHECKS: Final[Mapping[str, Callable[[Field, str], None]]] = {
    "DeviceClass": check_class,
    "DeviceTaintRule": check_taint_rule,
    "ResourceClaim": check_claim,
    "ResourceClaimTemplate": check_template,
    "ResourceSlice": lambda field, _: check_slice(field),
}
_VERSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "DeviceTaintRule": tuple(f"{RESOURCE_GROUP}/{version}" for version in ("v1", "v1beta2", "v1alpha3"))
}
"""Kind → versions that are checked, if there are more than v1: 1.36 has no v1 of it."""
_OTHER_RESOURCE_KINDS: Final = ("ResourcePoolStatusRequest",)
"""Kinds of the group that are not checked, in any version."""


def validate_object(
    document: Mapping[str, Any], driver: str = DEFAULT_DRIVER_NAME, rewriting: Rewriting | None = None
) -> tuple[Finding, ...]:
    """Return what is wrong with one object alone, in document order. Never raises for a value of JSON.

    `driver` is the name of the driver whose opaque parameters are read and whose taint is known. With `rewriting` pods
    are checked as they are after admission. An object of a kind that is not checked has no findings: ask is_checked.
    """
    document = rewriting(document) if rewriting else document
    report = Report(reference_to(document))
    field = Field(document, (), report)
    group, kind = _group_and_kind(document)
    if _is_resource_kind(group, kind):
        _check_resource(field, report.about, driver)
    elif is_namespace(group, kind):
        check_quota(field, driver)
    else:
        for path in pod_template_paths(group, kind, document):
            pod = value_at(document, path)
            check_pod(Field(pod, path, report), driver, rewriting.missing(document, pod) if rewriting else None)
    return tuple(report.findings)


def validate_all(
    documents: Sequence[Mapping[str, Any]], driver: str = DEFAULT_DRIVER_NAME
) -> tuple[tuple[Finding, ...], ...]:
    """Return for each object what is wrong with it, first alone, then compared with the other objects of the input.

    Pods in a Namespace of the input with the label `<driver>/rewrite=true` are checked as admission would leave them.
    """
    rewriting = Rewriting(documents, driver)
    documents = [rewriting(document) for document in documents]
    references = [reference_to(document) for document in documents]
    inputs = Input(list(zip(references, documents, strict=True)))
    return tuple(
        (
            *validate_object(document, driver, rewriting),
            *_check_against(inputs, number, references[number], document, driver),
        )
        for number, document in enumerate(documents)
    )


def is_checked(document: Mapping[str, Any]) -> bool:
    """Whether objects of this kind, or the pod templates in this object, are checked at all."""
    group, kind = _group_and_kind(document)
    is_known = _is_resource_kind(group, kind) or is_namespace(group, kind) or holds_pods(group, kind)
    return is_known or bool(pod_template_paths(group, kind, document))


def is_understood(document: Mapping[str, Any]) -> bool:
    """Whether it is known what pods an object makes. Of a kind that is not Kubernetes' own, only the pod templates in
    it are known: one without any may make pods from other fields."""
    return is_checked(document) or is_kubernetes_own(_group_and_kind(document)[0])


def reference_to(document: Mapping[str, Any]) -> ObjectReference:
    """Return what identifies the object, as far as it is written there."""
    metadata = document.get("metadata")
    fields = metadata if isinstance(metadata, dict) else {}
    return ObjectReference(
        api_version=_text(document.get("apiVersion")),
        kind=_text(document.get("kind")),
        namespace=_text(fields.get("namespace")),
        name=_text(fields.get("name")) or _text(fields.get("generateName")),
    )


def _check_against(
    inputs: Input, number: int, reference: ObjectReference, document: Mapping[str, Any], driver: str
) -> tuple[Finding, ...]:
    group, kind = _group_and_kind(document)
    references = [
        finding
        for path in pod_template_paths(group, kind, document)
        for finding in check_pod_references(reference, document, path, inputs)
    ]
    if group != RESOURCE_GROUP:
        return (*check_repeated(number, reference, inputs), *references)
    policies = check_policies(reference, document, inputs.classes, driver)
    ignored = check_ignored(reference, document, inputs.classes, driver)
    types = check_config_types(reference, document, inputs.classes, driver)
    return (*check_repeated(number, reference, inputs), *references, *policies, *ignored, *types)


def _check_resource(field: Field, about: ObjectReference, driver: str) -> None:
    check = _RESOURCE_CHECKS.get(about.kind)
    if check is None:
        known = ", ".join((*_RESOURCE_CHECKS, *_OTHER_RESOURCE_KINDS))
        field.below("kind", about.kind).error(f"no kind of {RESOURCE_GROUP}", f"one of {known}")
    elif about.api_version not in (versions := _VERSIONS.get(about.kind, (RESOURCE_VERSION,))):
        version = field.below("apiVersion", about.api_version)
        version.error("not the stable version, nothing else was checked", " or ".join(versions))
    else:
        check(field, driver)


def _is_resource_kind(group: str, kind: str) -> bool:
    """Whether an object is of resource.k8s.io, or certainly meant to be: no core kind has such a name."""
    if group == RESOURCE_GROUP:
        return kind not in _OTHER_RESOURCE_KINDS
    return group == "" and kind in _RESOURCE_CHECKS


def _group_and_kind(document: Mapping[str, Any]) -> tuple[str, str]:
    return _text(document.get("apiVersion")).rpartition("/")[0], _text(document.get("kind"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
