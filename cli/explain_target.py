"""What `dracaena explain` is asked about: a pod or claim by name, or a workload, whose pods name it as their owner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dracaena.api.errors import BadInputError
from dracaena.api.reasons import nearest

if TYPE_CHECKING:
    from dracaena.api.objects import Pod

POD: Final = "pod"
CLAIM: Final = "claim"

_KINDS: Final = {
    POD: ("pods", "po"),
    CLAIM: ("claims", "resourceclaim", "resourceclaims"),
    "deployment": ("deployments", "deploy"),
    "replicaset": ("replicasets", "rs"),
    "statefulset": ("statefulsets", "sts"),
    "daemonset": ("daemonsets", "ds"),
    "job": ("jobs",),
}
"""Kinds with kubectl's other names of them."""
_KIND_OF: Final = {name: kind for kind, others in _KINDS.items() for name in (kind, *others)}

_TEMPLATE_HASH: Final = "pod-template-hash"
"""Label of a Deployment's pods: the ReplicaSet that made them is named by the Deployment and this."""

_NEARNESS: Final = 0.6
"""As of `nearest`, for words as short as kinds."""


@dataclass(frozen=True)
class Target:
    """An object by kind, in lower case, and name."""

    kind: str
    name: str

    def owned(self, pods: Iterable[Pod]) -> tuple[Pod, ...]:
        """Return the pods that a workload has made, those without a node first, then by name."""
        found = (pod for pod in pods if (self.kind, self.name) in owners(pod))
        return tuple(sorted(found, key=lambda pod: (bool(pod.spec.node_name), pod.key)))

    def why_none(self, namespace: str, pods: Iterable[Pod]) -> str:
        """Say that no pod of a namespace belongs to a workload, with the one that was probably meant."""
        known = {owner for pod in pods for owner in owners(pod)}
        kinds = {*_KIND_OF, *(kind for kind, _ in known)}
        text = f"no pod in namespace {namespace} belongs to {self.kind} {self.name}"
        if self.kind not in kinds:
            near = nearest(self.kind, kinds, _NEARNESS)
        else:
            near = nearest(self.name, (name for kind, name in known if kind == self.kind))
        return f"{text}: did you mean {near}?" if near else f"{text}: it does not exist, or has made no pods yet"


def read_target(words: Sequence[str]) -> Target:
    """Read `KIND NAME` or `KIND/NAME`, with kubectl's short and plural names. Raises BadInputError for anything else.

    A kind that is not known stays as it is: pods may belong to a workload of any kind.
    """
    parts = [part for word in words for part in word.split("/")]
    if len(parts) != 2 or not all(parts):
        raise BadInputError(f"expected KIND NAME or KIND/NAME, as in pod/train or job/train, not {' '.join(words)!r}")
    kind = parts[0].lower()
    return Target(_KIND_OF.get(kind, kind), parts[1])


def owners(pod: Pod) -> frozenset[tuple[str, str]]:
    """Return the owners of a pod as (kind in lower case, name), and the Deployment of its ReplicaSet."""
    found = {(owner.kind.lower(), owner.name) for owner in pod.metadata.owner_references}
    suffix = f"-{pod.metadata.labels.get(_TEMPLATE_HASH, '')}"
    deployments = {
        ("deployment", name.removesuffix(suffix))
        for kind, name in found
        if kind == "replicaset" and len(suffix) > 1 and name.endswith(suffix)
    }
    return frozenset(found | deployments)
