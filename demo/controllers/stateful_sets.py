"""Stand-in for the stateful set controller: pods with fixed names, in order.

What it does, as the real one does it: pods NAME-0, NAME-1, …; with podManagementPolicy OrderedReady one at a time, each
after the one before it is ready, and removed from the last one back; with Parallel all at once. A pod that has ended is
deleted and made again by its name. A new template replaces pods from the last one back, one after the other; with
updateStrategy OnDelete only those that somebody deletes.

What it does not do: volumes, partitions, minReadySeconds and other first ordinals are refused by the API server, and
revisions are not kept as objects, so `kubectl rollout undo` has none to go back to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from dracaena.api.objects import ENDED, Pod
from dracaena.demo.controllers.deployments import template_hash
from dracaena.demo.controllers.pod_owners import BURST, PodOwners, is_ready, pod_document
from dracaena.demo.objects import StatefulSetDocument
from dracaena.kube.client import KubeClient
from dracaena.process.clock import Clock

COMPONENT: Final = "statefulset-controller"
REVISION_LABEL: Final = "controller-revision-hash"
_POD_NAME_LABEL: Final = "statefulset.kubernetes.io/pod-name"
_INDEX_LABEL: Final = "apps.kubernetes.io/pod-index"


@dataclass(frozen=True, slots=True)
class OrdinalPods:
    """The pods of a stateful set by their place, and what it is to do with them next."""

    owner: StatefulSetDocument
    pods: dict[int, Pod]

    @classmethod
    def of(cls, owner: StatefulSetDocument, pods: Sequence[Pod]) -> OrdinalPods:
        """Sort the pods that the set owns."""
        mine = ((ordinal_of(owner, pod.metadata.name), pod) for pod in pods)
        return cls(owner, {place: pod for place, pod in sorted(mine, key=lambda one: one[0]) if place >= 0})

    @property
    def wanted(self) -> range:
        """The places that are to have a pod."""
        return range(self.owner.spec.get("replicas", 0))

    def to_make(self) -> list[int]:
        """The places to make pods for now."""
        missing = [place for place in self.wanted if place not in self.pods]
        if self._is_parallel:
            return missing
        # One that is ready may be followed by the next.
        return [place for place in missing[:1] if all(self._is_settled(before) for before in range(place))]

    def to_delete(self) -> list[int]:
        """The places whose pods to delete now: ended ones, those of too many, then one of an older template. In order,
        nothing but ended pods goes while one that is to stay is not ready, as in a cluster."""
        staying = {place: pod for place, pod in self.pods.items() if pod.metadata.deletion_timestamp is None}
        ended = [place for place, pod in staying.items() if pod.status.phase in ENDED]
        surplus = [place for place in reversed(staying) if place not in self.wanted]
        if self._is_parallel and (ended or surplus):
            return sorted({*ended, *surplus})
        if ended or (not self._is_parallel and not all(map(self._is_settled, self.wanted))):
            return ended
        if surplus:
            return [] if len(staying) < len(self.pods) else surplus[:1]
        return self._outdated(staying)

    def _outdated(self, staying: dict[int, Pod]) -> list[int]:
        if self.owner.spec["updateStrategy"]["type"] != "RollingUpdate":
            return []
        revision = revision_of(self.owner)
        for place in reversed(self.wanted):
            pod = staying.get(place)
            if pod is None:
                return []
            if pod.metadata.labels.get(REVISION_LABEL) != revision:
                return [place]
            if not is_ready(pod):
                return []
        return []

    @property
    def _is_parallel(self) -> bool:
        return bool(self.owner.spec["podManagementPolicy"] == "Parallel")

    def _is_settled(self, place: int) -> bool:
        pod = self.pods.get(place)
        return pod is not None and pod.metadata.deletion_timestamp is None and is_ready(pod)


class StatefulSetController(PodOwners[StatefulSetDocument]):
    """Runs between start() and stop(), on caches of its own."""

    def __init__(self, client: KubeClient, clock: Clock, *, burst: int = BURST) -> None:
        super().__init__(StatefulSetDocument, client, clock, events_as=COMPONENT, burst=burst)

    def _sync(self, owner: StatefulSetDocument, pods: Sequence[Pod]) -> None:
        places = OrdinalPods.of(owner, pods)
        if owner.metadata.deletion_timestamp is None:
            self._change(owner, places)
        # Its own changes wake it again: what it reports is what it found.
        self._report(owner, status_of(owner, list(places.pods.values())))

    def _change(self, owner: StatefulSetDocument, pods: OrdinalPods) -> None:
        deletions, creations = pods.to_delete(), pods.to_make()
        for place in deletions[: self._burst]:
            self._delete(pods.pods[place])
            self._tell(owner, "SuccessfulDelete", f"delete Pod {pods.pods[place].metadata.name}")
        for place in creations[: self._burst]:
            made = self._client.create(Pod, ordinal_pod(owner, place), namespace=owner.metadata.namespace)
            self._tell(owner, "SuccessfulCreate", f"create Pod {made.metadata.name}")
        if len(deletions) > self._burst or len(creations) > self._burst:
            self._again_s.append(0.0)

    def _tell(self, owner: StatefulSetDocument, reason: str, what: str) -> None:
        self._events.record(owner, "Normal", reason, f"{what} in StatefulSet {owner.metadata.name} successful")


def status_of(owner: StatefulSetDocument, pods: Sequence[Pod]) -> dict[str, Any]:
    """Return the status of a stateful set with these pods."""
    revision = revision_of(owner)
    staying = [pod for pod in pods if pod.metadata.deletion_timestamp is None]
    updated = sum(pod.metadata.labels.get(REVISION_LABEL) == revision for pod in staying)
    ready = sum(map(is_ready, staying))
    is_updated = updated == len(pods) == owner.spec.get("replicas", 0) == ready
    current = revision if is_updated else owner.status.get("currentRevision") or revision
    return {
        "observedGeneration": owner.metadata.generation,
        "replicas": len(pods),
        "readyReplicas": ready,
        "availableReplicas": ready,
        "currentReplicas": sum(pod.metadata.labels.get(REVISION_LABEL) == current for pod in staying),
        "updatedReplicas": updated,
        "currentRevision": current,
        "updateRevision": revision,
    }


def revision_of(owner: StatefulSetDocument) -> str:
    """Return the name of the present template."""
    return f"{owner.metadata.name}-{template_hash(owner.spec['template'], 0)}"


def ordinal_of(owner: StatefulSetDocument, name: str) -> int:
    """Return the place of a pod of this name, -1 for another name."""
    base, _, number = name.rpartition("-")
    is_place = base == owner.metadata.name and number.isascii() and number.isdecimal() and str(int(number)) == number
    return int(number) if is_place else -1


def ordinal_pod(owner: StatefulSetDocument, place: int) -> dict[str, Any]:
    """Return the pod of a place."""
    name = f"{owner.metadata.name}-{place}"
    labels = owner.spec["template"].get("metadata", {}).get("labels") or {}
    own = {_INDEX_LABEL: str(place), REVISION_LABEL: revision_of(owner), _POD_NAME_LABEL: name}
    return pod_document(owner, name=name, labels=labels | own)
