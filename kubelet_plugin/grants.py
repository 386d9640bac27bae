"""What each pod of this node has of the prepared claims, worked out anew only where something changed.

Each prepare, each unprepare and each change of a pod asks for all pods of the node, and nearly all are as they were: a
node that is divided or shared may have hundreds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from dracaena.api.names import ClaimUid, PodUid
from dracaena.api.objects import Pod
from dracaena.api.podlist import PodlistEntry
from dracaena.kubelet_plugin.prepare.gpu_forms import GpuForm
from dracaena.kubelet_plugin.prepare.plan import PreparedClaim
from dracaena.kubelet_plugin.prepare.podlist import (
    ClaimPlace,
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
    places: tuple[ClaimPlace, ...]
    """Of the claims that it uses, prepared or not."""
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
        self._prepared: Mapping[ClaimUid, PreparedClaim] = {}
        self._claims: ClaimsByName = {}  # the same

    def of(self, pods: Sequence[Pod], prepared: Sequence[PreparedClaim]) -> tuple[PodGrants, ...]:
        """Return what these pods have, in their order; the others are forgotten.

        A pod is the same as before when it is the same object, which the watch replaces with each change.
        """
        changed = self._take(prepared)
        self._known = {PodUid(pod.metadata.uid): self._of(pod, changed) for pod in pods}
        return tuple(self._known.values())

    def _take(self, prepared: Sequence[PreparedClaim]) -> AbstractSet[ClaimPlace]:
        """Take in the claims as they are now; return the places where something changed."""
        before, now = self._prepared, {p.claim.uid: p for p in prepared}
        changed = {_place(p) for uid, p in before.items() if uid not in now}
        for uid, p in now.items():
            known = before.get(uid)
            if known is not p and known != p:
                changed.add(_place(p))
        if changed:
            others = {place: claims for place, claims in self._claims.items() if place not in changed}
            self._claims = {**others, **by_name(p for p in prepared if _place(p) in changed)}
        self._prepared = now
        return changed

    def _of(self, pod: Pod, changed: AbstractSet[ClaimPlace]) -> PodGrants:
        known = self._known.get(PodUid(pod.metadata.uid))
        if known is not None and known.pod is pod and changed.isdisjoint(known.places):
            return known
        places = tuple((pod.metadata.namespace, name) for name in claim_names(pod))
        mine = {place: self._claims[place] for place in places if place in self._claims}
        return PodGrants(
            pod,
            places,
            pod_entries(pod, mine, self._form),
            annotation_changes(pod, pod_annotations(pod, mine, self._driver)),
            unknown_claims(pod, mine),
        )


def _place(prepared: PreparedClaim) -> ClaimPlace:
    return (prepared.claim.namespace, prepared.claim.name)
