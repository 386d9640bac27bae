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

from dracaena.api.objects import Pod
from dracaena.demo.controllers.deployments import template_hash
from dracaena.demo.objects import StatefulSetDocument, owned_by, owner_reference
from dracaena.demo.pod_claims import TERMINAL_PHASES
from dracaena.demo.reconcile import BURST, RETRY_S, CachedLoop, CachedStandIn, settle
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
        mine = ((ordinal_of(owner, pod.metadata.name), pod) for pod in pods if owned_by(pod, owner))
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
        ended = [place for place, pod in staying.items() if pod.status.phase in TERMINAL_PHASES]
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


class StatefulSetController(CachedStandIn):
    """Runs between start() and stop(), on caches of its own."""

    def __init__(self, client: KubeClient, clock: Clock, *, burst: int = BURST) -> None:
        self._client = client
        self._burst = burst
        self._is_short = False  # whether this look left something to do at once
        super().__init__(CachedLoop("stateful sets", self._reconcile, client, clock, events_as=COMPONENT))
        self._sets = self._loop.cache(StatefulSetDocument)
        self._loop.cache(Pod)  # a change of a pod wakes the loop

    def _reconcile(self) -> float | None:
        self._is_short = False
        done = settle(self._sets.values(), self._sync, "stateful set")
        if self._is_short:
            return 0.0
        return None if done else RETRY_S

    def _sync(self, seen: StatefulSetDocument) -> None:
        """Take one step, from what the API says now: an old cache may name pods that are gone."""
        namespace = seen.metadata.namespace
        owner = self._client.get(StatefulSetDocument, seen.metadata.name, namespace=namespace)
        pods = OrdinalPods.of(owner, self._client.list(Pod, namespace=namespace).items)
        if owner.metadata.deletion_timestamp is None:
            self._change(owner, pods)
        # Its own changes wake it again: what it reports is what it found.
        self._report(owner, list(pods.pods.values()))

    def _change(self, owner: StatefulSetDocument, pods: OrdinalPods) -> None:
        namespace, deletions, creations = owner.metadata.namespace, pods.to_delete(), pods.to_make()
        for place in deletions[: self._burst]:
            meta = pods.pods[place].metadata
            self._client.delete(Pod, meta.name, namespace=namespace, uid=meta.uid)
            self._tell(owner, "SuccessfulDelete", f"delete Pod {meta.name}")
        for place in creations[: self._burst]:
            made = self._client.create(Pod, pod_document(owner, place), namespace=namespace)
            self._tell(owner, "SuccessfulCreate", f"create Pod {made.metadata.name}")
        self._is_short |= len(deletions) > self._burst or len(creations) > self._burst

    def _tell(self, owner: StatefulSetDocument, reason: str, what: str) -> None:
        self._events.record(owner, "Normal", reason, f"{what} in StatefulSet {owner.metadata.name} successful")

    def _report(self, owner: StatefulSetDocument, pods: Sequence[Pod]) -> None:
        revision = revision_of(owner)
        staying = [pod for pod in pods if pod.metadata.deletion_timestamp is None]
        updated = sum(pod.metadata.labels.get(REVISION_LABEL) == revision for pod in staying)
        ready = sum(map(is_ready, staying))
        is_updated = updated == len(pods) == owner.spec.get("replicas", 0) == ready
        current = revision if is_updated else owner.status.get("currentRevision") or revision
        status = {
            "observedGeneration": owner.metadata.generation,
            "replicas": len(pods),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "currentReplicas": sum(pod.metadata.labels.get(REVISION_LABEL) == current for pod in staying),
            "updatedReplicas": updated,
            "currentRevision": current,
            "updateRevision": revision,
        }
        if any(owner.status.get(name, 0) != value for name, value in status.items()):
            meta = owner.metadata
            patch = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": status}
            self._client.merge_patch(
                StatefulSetDocument, meta.name, patch, namespace=meta.namespace, subresource="status"
            )


def revision_of(owner: StatefulSetDocument) -> str:
    """Return the name of the present template."""
    return f"{owner.metadata.name}-{template_hash(owner.spec['template'], 0)}"


def ordinal_of(owner: StatefulSetDocument, name: str) -> int:
    """Return the place of a pod of this name, -1 for another name."""
    base, _, number = name.rpartition("-")
    is_place = base == owner.metadata.name and number.isascii() and number.isdecimal() and str(int(number)) == number
    return int(number) if is_place else -1


def pod_document(owner: StatefulSetDocument, place: int) -> dict[str, Any]:
    """Return the pod of a place."""
    template, name = owner.spec["template"], f"{owner.metadata.name}-{place}"
    given = template.get("metadata", {})
    labels = (given.get("labels") or {}) | {
        _INDEX_LABEL: str(place),
        REVISION_LABEL: revision_of(owner),
        _POD_NAME_LABEL: name,
    }
    annotations = {"annotations": given["annotations"]} if "annotations" in given else {}
    made = {"name": name, "labels": labels, "ownerReferences": [owner_reference(owner)]}
    return {"metadata": made | annotations, "spec": template["spec"]}


def is_ready(pod: Pod) -> bool:
    """Whether a pod says that it is ready."""
    return any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions)
