"""What each pod of this node has of the prepared claims, recomputed only where something changed.

Each prepare, each unprepare and each change of a pod asks about all pods of the node, nearly all of them unchanged; a
node whose GPUs are divided or shared may have hundreds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from dracaena.api.names import ClaimUid
from dracaena.api.objects import Pod
from dracaena.api.podlist import PodlistLine, podlist_line
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim
from dracaena.kubelet_plugin.prepare.reports.gpu_names import GpuNameFormat
from dracaena.kubelet_plugin.prepare.reports.podlist import (
    ClaimPlace,
    annotation_changes,
    by_name,
    claim_names,
    pod_annotations,
    pod_entries,
    unknown_claims,
)
from dracaena.kubelet_plugin.store.claims import differing


@dataclass(frozen=True, slots=True)
class PodDevices:
    """All that is reported about one pod."""

    pod: Pod
    places: tuple[ClaimPlace, ...]
    """UIDs of the claims that it uses, prepared or not."""
    lines: tuple[PodlistLine, ...]
    """Entries of podlist.json, one for each container that has GPUs."""
    wanted: Mapping[str, str | None]
    """Its annotations as they should be; None: there should be none."""
    changes: Mapping[str, str | None]
    """Those that are still to be written."""
    unknown: tuple[ClaimUid, ...]
    """Claims that it may or may not use: not known yet."""


class PodDevicesCache:
    """Remembers the last result. Callers of of() hold the node's lock."""

    def __init__(self, driver: str, name_format: GpuNameFormat) -> None:
        self._driver = driver
        self._name_format = name_format
        self._known: dict[str, PodDevices] = {}  # by the pod's UID; replaced as a whole, never modified
        self._pods: Sequence[Pod] = ()  # the pods of _known, in order: identity shows at once what is unchanged
        self._places: Mapping[str, int] = {}  # in that order, by UID
        self._found: tuple[PodDevices, ...] = ()  # in the same order
        self._users: dict[ClaimPlace, list[Pod]] = {}  # the same pods by the claims that they use
        self._prepared: Sequence[PreparedClaim] = ()
        self._claims: dict[ClaimPlace, Sequence[PreparedClaim]] = {}  # the same claims by place

    def of(self, pods: Sequence[Pod], prepared: Sequence[PreparedClaim]) -> tuple[PodDevices, ...]:
        """Return what these pods have, in their order; forget all others.

        A pod is unchanged if it is the same object: the watch replaces it with each change. Only pods that changed, and
        the users of claims that did, are looked at.
        """
        changed = self._take(prepared)
        gone, come = differing(self._pods, pods)
        if gone or come:
            self._places = {pod.metadata.uid: place for place, pod in enumerate(pods)}
        due = {pod.metadata.uid: pod for place in changed for pod in self._users.get(place, ())}
        for pod in gone:
            due.pop(pod.metadata.uid, None)
        anew = {pod.metadata.uid: self._work_out(pod) for pod in (*due.values(), *come)}
        self._follow_users(gone, [anew[pod.metadata.uid] for pod in come])
        known = {**self._known, **anew}
        for uid in {pod.metadata.uid for pod in gone} - {pod.metadata.uid for pod in come}:
            del known[uid]
        if gone or come:
            found = [known[pod.metadata.uid] for pod in pods]
        else:
            found = list(self._found)
            for uid, each in anew.items():
                found[self._places[uid]] = each
        self._pods, self._known, self._found = pods, known, tuple(found)
        return self._found

    def _follow_users(self, gone: Iterable[Pod], come: Iterable[PodDevices]) -> None:
        for pod in gone:
            for place in self._known[pod.metadata.uid].places:
                self._users[place] = [user for user in self._users[place] if user is not pod]
                if not self._users[place]:
                    del self._users[place]
        for each in come:
            for place in each.places:
                self._users.setdefault(place, []).append(each.pod)

    def are_told(self, pod: Pod) -> bool:
        """Whether a pod has the annotations that the last result says it should have. For any thread."""
        known = self._known.get(pod.metadata.uid)
        return known is not None and not annotation_changes(pod, known.wanted)

    def _take(self, prepared: Sequence[PreparedClaim]) -> AbstractSet[ClaimPlace]:
        """Remember the claims as they are now; return the places of those that changed."""
        left, new = differing(self._prepared, prepared)
        gone, come = {p.claim.uid: p for p in left}, {p.claim.uid: p for p in new}
        self._prepared = prepared
        touched = {_place(p) for p in (*left, *new)}
        stay = [p for place in touched for p in self._claims.get(place, ()) if p.claim.uid not in gone]
        there = by_name(sorted((*stay, *new), key=lambda p: p.claim.uid))
        self._claims.update(there)
        for place in touched - there.keys():
            del self._claims[place]
        return {_place(p) for uid, p in {**gone, **come}.items() if gone.get(uid) != come.get(uid)}

    def _work_out(self, pod: Pod) -> PodDevices:
        places = tuple((pod.metadata.namespace, name) for name in claim_names(pod))
        mine = {place: self._claims[place] for place in places if place in self._claims}
        wanted = pod_annotations(pod, mine, self._driver)
        return PodDevices(
            pod,
            places,
            tuple(podlist_line(entry) for entry in pod_entries(pod, mine, self._name_format)),
            wanted,
            annotation_changes(pod, wanted),
            unknown_claims(pod, mine),
        )


def _place(prepared: PreparedClaim) -> ClaimPlace:
    return (prepared.claim.namespace, prepared.claim.name)
