"""What each pod of this node has of the prepared claims, worked out anew only where something changed.

Each prepare, each unprepare and each change of a pod asks for all pods of the node, and nearly all are as they were: a
node that is divided or shared may have hundreds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dracaena.api.names import ClaimUid, PodUid
from dracaena.api.objects import Pod
from dracaena.api.podlist import PodlistEntry
from dracaena.kubelet_plugin.prepare.gpu_forms import GpuForm
from dracaena.kubelet_plugin.prepare.plan import PreparedClaim
from dracaena.kubelet_plugin.prepare.podlist import (
    ClaimsByName,
    annotation_changes,
    by_name,
    claim_names,
    pod_annotations,
    pod_entries,
    unknown_claims,
)


@dataclass(frozen=True, slots=True)
class PodGrants:
    """All that is told of one pod."""

    pod: Pod
    names: tuple[str, ...]
    """Of the claims that it uses."""
    claims: tuple[PreparedClaim, ...]
    """The prepared ones of these names."""
    entries: tuple[PodlistEntry, ...]
    changes: Mapping[str, str | None]
    """Of its annotations: what is still to be written; None: to be removed."""
    unknown: tuple[ClaimUid, ...]
    """Claims of which it is not known whether it uses them."""


class Grants:
    """Keeps what was worked out last. Callers hold the node's lock."""

    def __init__(self, driver: str, form: GpuForm) -> None:
        self._driver = driver
        self._form = form
        self._known: dict[PodUid, PodGrants] = {}

    def of(self, pods: Sequence[Pod], prepared: Sequence[PreparedClaim]) -> tuple[PodGrants, ...]:
        """Return what these pods have, in their order; the others are forgotten.

        A pod is the same as before when it is the same object, which the watch replaces with each change.
        """
        claims = by_name(prepared)
        self._known = {PodUid(pod.metadata.uid): self._of(pod, claims) for pod in pods}
        return tuple(self._known.values())

    def _of(self, pod: Pod, prepared: ClaimsByName) -> PodGrants:
        known = self._known.get(PodUid(pod.metadata.uid))
        same = known is not None and known.pod is pod
        names = known.names if known is not None and same else claim_names(pod)
        claims = tuple(p for name in names for p in prepared.get((pod.metadata.namespace, name), ()))
        if known is not None and same and known.claims == claims:
            return known
        mine = by_name(claims)
        return PodGrants(
            pod,
            names,
            claims,
            pod_entries(pod, mine, self._form),
            annotation_changes(pod, pod_annotations(pod, mine, self._driver)),
            unknown_claims(pod, mine),
        )
