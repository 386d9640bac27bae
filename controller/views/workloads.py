"""Which workload a pod belongs to, as people call it."""

from __future__ import annotations

from typing import Final, NamedTuple

from dracaena.api.objects import Pod

_TEMPLATE_HASH: Final = "pod-template-hash"
"""Label of the pods of a Deployment: the end of their ReplicaSet's name."""


class Workload(NamedTuple):
    """What made some pods."""

    kind: str
    name: str


def workload_of(pod: Pod | None, name: str) -> Workload:
    """Return the controller of a pod, and the pod itself if it has none or is not known. A ReplicaSet of a Deployment
    is named as that."""
    owner = None if pod is None else next((one for one in pod.metadata.owner_references if one.controller), None)
    if pod is None or owner is None:
        return Workload("Pod", name)
    end = f"-{pod.metadata.labels.get(_TEMPLATE_HASH, '')}"
    if owner.kind == "ReplicaSet" and len(end) > 1 and owner.name.endswith(end):
        return Workload("Deployment", owner.name.removesuffix(end))
    return Workload(owner.kind, owner.name)
