"""What is kept of volumes and of claims for them: what tells where a pod can have its volumes."""

from __future__ import annotations

from typing import Final

import msgspec

from dracaena.api.objects import ObjectMeta, PersistentVolume, PersistentVolumeClaim
from dracaena.controller.allocation.nodes.placement.placed_pods import shared_labels
from dracaena.controller.allocation.nodes.placement.volumes import BETA_CLASS, BIND_COMPLETED, SELECTED_NODE

_READ: Final = (BETA_CLASS, BIND_COMPLETED, SELECTED_NODE)


def kept_volume_claim(item: PersistentVolumeClaim) -> PersistentVolumeClaim:
    """Return what is kept of a claim for storage."""
    return msgspec.structs.replace(item, metadata=_bare(item.metadata, {}))


def kept_volume(item: PersistentVolume) -> PersistentVolume:
    """Return what is kept of a volume; its labels too, which claims may select by."""
    return msgspec.structs.replace(item, metadata=_bare(item.metadata, item.metadata.labels))


def _bare(meta: ObjectMeta, labels: dict[str, str]) -> ObjectMeta:
    annotations = {name: meta.annotations[name] for name in _READ if name in meta.annotations}
    return ObjectMeta(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        resource_version=meta.resource_version,
        deletion_timestamp=meta.deletion_timestamp,
        labels=shared_labels(tuple(labels.items())),
        annotations=shared_labels(tuple(annotations.items())),
    )
