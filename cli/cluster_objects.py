"""Manifests → the objects of a cluster that decisions depend on. Other kinds are left out, and named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from dracaena.api.errors import BadInputError
from dracaena.api.objects import KubeObject, Namespace, Node, Pod
from dracaena.api.resource_objects import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from dracaena.api.workload_objects import PodGroup, PodGroupV1Alpha2
from dracaena.cli.manifests import Manifest, ManifestError
from dracaena.validation import reference_to
from dracaena.validation.field import Field, Report
from dracaena.validation.nodes import check_node_selector

T = TypeVar("T", bound=KubeObject)

DEFAULT_NAMESPACE: Final = "default"
"""Namespace where kubectl puts an object that names none."""

_KINDS: Final[tuple[type[KubeObject], ...]] = (
    Node,
    ResourceSlice,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    Pod,
    PodGroup,
    Namespace,
)
_OLDER_VERSIONS: Final[Mapping[type[KubeObject], tuple[str, ...]]] = {
    DeviceTaintRule: ("resource.k8s.io/v1beta2", "resource.k8s.io/v1alpha3"),
    PodGroup: (PodGroupV1Alpha2.API_VERSION,),
}
"""Versions of a kind that have the fields of ours."""


@dataclass(frozen=True, slots=True)
class ClusterObjects:
    """The objects of each kind, in the order in which they were read. No two of one kind have the same key."""

    nodes: tuple[Node, ...] = ()
    slices: tuple[ResourceSlice, ...] = ()
    classes: tuple[DeviceClass, ...] = ()
    taint_rules: tuple[DeviceTaintRule, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()
    templates: tuple[ResourceClaimTemplate, ...] = ()
    pods: tuple[Pod, ...] = ()
    pod_groups: tuple[PodGroup, ...] = ()
    namespaces: tuple[Namespace, ...] = ()
    workloads: tuple[Manifest, ...] = ()
    """The workloads, as written."""
    left_out: tuple[str, ...] = ()
    """What was read but is not used, one line per kind."""


def read_cluster_objects(
    manifests: Iterable[Manifest], *, is_workload: Callable[[Manifest], bool] = lambda _: False
) -> ClusterObjects:
    """Decode what decisions read; workloads are set apart.

    Raises BadInputError, with its place, for an object of one of these kinds that has another version than ours, is not
    of the API's shape, or stands in the input as something else too.
    """
    found: dict[type[KubeObject], dict[str, tuple[KubeObject, Manifest]]] = {kind: {} for kind in _KINDS}
    others: dict[str, list[Manifest]] = {}
    workloads: list[Manifest] = []
    for manifest in manifests:
        if is_workload(manifest):
            workloads.append(manifest)
            continue
        kind = _kind_of(manifest)
        if kind is None:
            others.setdefault(manifest.object["kind"], []).append(manifest)
            continue
        item = decode_object(kind, manifest)
        earlier, first = found[kind].setdefault(item.key, (item, manifest))
        if earlier != item:
            raise _error(manifest, f"another {kind.KIND} {item.key} is already in the input: {first.source}")
    return ClusterObjects(
        nodes=_all(found, Node),
        slices=_all(found, ResourceSlice),
        classes=_all(found, DeviceClass),
        taint_rules=_all(found, DeviceTaintRule),
        claims=_all(found, ResourceClaim),
        templates=_all(found, ResourceClaimTemplate),
        pods=_all(found, Pod),
        pod_groups=_all(found, PodGroup),
        namespaces=_all(found, Namespace),
        workloads=tuple(workloads),
        left_out=tuple(_left_out(kind, found_there) for kind, found_there in others.items()),
    )


def _left_out(kind: str, manifests: Sequence[Manifest]) -> str:
    count = f"{len(manifests)} of kind {kind}, the first at {manifests[0].source}"
    return f"left out: {count}: not used in decisions"


def _kind_of(manifest: Manifest) -> type[KubeObject] | None:
    """Return the type of an object; None for a kind that we do not read."""
    name, version = manifest.object["kind"], manifest.object["apiVersion"]
    for kind in _KINDS:
        if name == kind.KIND and version.rpartition("/")[0] == kind.API_VERSION.rpartition("/")[0]:
            if version not in (kind.API_VERSION, *_OLDER_VERSIONS.get(kind, ())):
                raise _error(manifest, f"{name} has apiVersion {version}, expected {kind.API_VERSION}")
            return kind
    return None


def decode_object(kind: type[T], manifest: Manifest) -> T:
    """Decode one object. Raises BadInputError, with its place, where it is not of the API's shape."""
    document = _without_nulls(manifest.object)
    meta = document.get("metadata")
    if kind.NAMESPACED and isinstance(meta, dict) and not meta.get("namespace"):
        document = {**document, "metadata": {**meta, "namespace": DEFAULT_NAMESPACE}}
    try:
        item = kind.from_json(json.dumps(document).encode())
    except msgspec.DecodeError as error:
        raise _error(manifest, f"{manifest.object['kind']} does not decode: {error}") from error
    _check_node_selector(manifest)
    return item


def _without_nulls(value: Any) -> Any:
    """Return a document without fields that are null, which the API reads as absent. Opaque parameters are no fields
    of the API and stay as they are.
    """
    if isinstance(value, Mapping):
        return {
            key: item if key == "parameters" else _without_nulls(item)
            for key, item in value.items()
            if item is not None
        }
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _check_node_selector(manifest: Manifest) -> None:
    """Raise for a node selector that the API would refuse: it is the one document that decisions read raw."""
    for path in _NODE_SELECTORS.get(manifest.object["kind"], ()):
        report = Report(reference_to(manifest.object))
        field: Field | None = Field(manifest.object, (), report)
        for step in path:
            fields = field and field.some_fields()
            field = fields[step] if fields else None
        if field is not None:
            check_node_selector(field)
        if report.findings:
            finding = report.findings[0]
            place = manifest.source.place.at(finding.path)
            raise ManifestError(manifest.source.file, place.line, place.column, f"{report.about}: {finding}")


_NODE_SELECTORS: Final[Mapping[str, Sequence[tuple[str, ...]]]] = {
    "Pod": (("spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"),),
    "ResourceClaim": (("status", "allocation", "nodeSelector"),),
}
"""Kind → where its objects have node selectors."""


def _all(found: Mapping[type[KubeObject], Mapping[str, tuple[Any, Manifest]]], kind: type[T]) -> tuple[T, ...]:
    return tuple(item for item, _ in found[kind].values())


def _error(manifest: Manifest, text: str) -> BadInputError:
    return BadInputError(f"{manifest.source}: {text}")
