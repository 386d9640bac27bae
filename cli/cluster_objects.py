"""Manifests → the objects of a cluster that decisions read. Other kinds are left out, and named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from dracaena.api.errors import BadInputError
from dracaena.api.objects import (
    DeviceClass,
    KubeObject,
    Node,
    Pod,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from dracaena.cli.manifests import Manifest

T = TypeVar("T", bound=KubeObject)

DEFAULT_NAMESPACE: Final = "default"
"""Where kubectl puts an object that names no namespace."""

_KINDS: Final[tuple[type[KubeObject], ...]] = (
    Node,
    ResourceSlice,
    DeviceClass,
    ResourceClaim,
    ResourceClaimTemplate,
    Pod,
)


@dataclass(frozen=True, slots=True)
class ClusterObjects:
    """The objects of each kind, in the order in which they were read. No two of one kind have the same key."""

    nodes: tuple[Node, ...] = ()
    slices: tuple[ResourceSlice, ...] = ()
    classes: tuple[DeviceClass, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()
    templates: tuple[ResourceClaimTemplate, ...] = ()
    pods: tuple[Pod, ...] = ()
    left_out: tuple[str, ...] = ()
    """What was read and plays no part, one line each."""


def read_cluster_objects(manifests: Iterable[Manifest]) -> ClusterObjects:
    """Decode what decisions read. Raises BadInputError, with its place, for an object of one of these kinds that has
    another version than ours, is not of the API's shape, or stands in the input twice.
    """
    found: dict[type[KubeObject], dict[str, tuple[KubeObject, Manifest]]] = {kind: {} for kind in _KINDS}
    left_out = []
    for manifest in manifests:
        kind = _kind_of(manifest)
        if kind is None:
            left_out.append(f"{manifest.source}: {manifest.object['kind']}: plays no part in decisions")
            continue
        item = _decode(kind, manifest)
        earlier = found[kind].setdefault(item.key, (item, manifest))
        if earlier[1] is not manifest:
            raise _error(manifest, f"{kind.KIND} {item.key} stands in the input already: {earlier[1].source}")
    return ClusterObjects(
        nodes=_all(found, Node),
        slices=_all(found, ResourceSlice),
        classes=_all(found, DeviceClass),
        claims=_all(found, ResourceClaim),
        templates=_all(found, ResourceClaimTemplate),
        pods=_all(found, Pod),
        left_out=tuple(left_out),
    )


def _kind_of(manifest: Manifest) -> type[KubeObject] | None:
    """Return the type of an object; None for a kind that we do not read."""
    name, version = manifest.object["kind"], manifest.object["apiVersion"]
    for kind in _KINDS:
        if name == kind.KIND and version.rpartition("/")[0] == kind.API_VERSION.rpartition("/")[0]:
            if version != kind.API_VERSION:
                raise _error(manifest, f"{name} has apiVersion {version}, expected {kind.API_VERSION}")
            return kind
    return None


def _decode(kind: type[T], manifest: Manifest) -> T:
    document: Mapping[str, Any] = manifest.object
    meta = document.get("metadata")
    if kind.NAMESPACED and isinstance(meta, dict) and not meta.get("namespace"):
        document = {**document, "metadata": {**meta, "namespace": DEFAULT_NAMESPACE}}
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise _error(manifest, f"{kind.KIND} does not decode: {error}") from error


def _all(found: Mapping[type[KubeObject], Mapping[str, tuple[Any, Manifest]]], kind: type[T]) -> tuple[T, ...]:
    return tuple(item for item, _ in found[kind].values())


def _error(manifest: Manifest, text: str) -> BadInputError:
    return BadInputError(f"{manifest.source}: {text}")
