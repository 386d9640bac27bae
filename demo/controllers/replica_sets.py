"""Stand-in for the replica set controller: as many pods as a replica set wants, no more and no fewer.

A pod that has ended or is being deleted is replaced. If there are too many, those that run least are deleted first:
without a node, then not ready, then the youngest. It adopts no pods that others created. After BURST pods it checks
again how many are wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dracaena.api.objects import Pod
from dracaena.demo.objects import ReplicaSetDocument, owned_by, owner_reference
from dracaena.demo.pod_claims import TERMINAL_PHASES
from dracaena.demo.reconcile import BURST, RETRY_S, CachedLoop, CachedStandIn, settle
from dracaena.kube.client import KubeClient
from dracaena.process.clock import Clock

COMPONENT: Final = "replicaset-controller"


class ReplicaSetController(CachedStandIn):
    """Runs between start() and stop(), on caches of its own."""

    def __init__(self, client: KubeClient, clock: Clock, *, burst: int = BURST) -> None:
        self._client = client
        self._burst = burst
        self._is_short = False  # whether this look left a replica set with another number of pods than it wants
        super().__init__(CachedLoop("replica sets", self._reconcile, client, clock, events_as=COMPONENT))
        self._sets = self._loop.cache(ReplicaSetDocument)
        self._loop.cache(Pod)  # a change of a pod wakes the loop

    def _reconcile(self) -> float | None:
        self._is_short = False
        done = settle(self._sets.values(), self._sync, "replica set")
        if self._is_short:
            return 0.0
        return None if done else RETRY_S

    def _sync(self, seen: ReplicaSetDocument) -> None:
        """Take one step, from what the API says now: from an old cache, pods would be created twice."""
        namespace = seen.metadata.namespace
        owner = self._client.get(ReplicaSetDocument, seen.metadata.name, namespace=namespace)
        mine = [pod for pod in self._client.list(Pod, namespace=namespace).items if owned_by(pod, owner)]
        alive = [pod for pod in mine if pod.status.phase not in TERMINAL_PHASES]
        active = sorted((pod for pod in alive if pod.metadata.deletion_timestamp is None), key=_worth, reverse=True)
        if owner.metadata.deletion_timestamp is None:
            active = self._resized(owner, active)
        self._report(owner, active, terminating=sum(pod.metadata.deletion_timestamp is not None for pod in alive))

    def _resized(self, owner: ReplicaSetDocument, active: Sequence[Pod]) -> list[Pod]:
        """The active pods after some were created or deleted, no more than a burst."""
        wanted = owner.spec.get("replicas", 0)
        kept = list(active[: max(wanted, len(active) - self._burst)])
        for pod in active[len(kept) :]:
            meta = pod.metadata
            self._client.delete(Pod, meta.name, namespace=meta.namespace, uid=meta.uid)
            self._events.record(owner, "Normal", "SuccessfulDelete", f"Deleted pod: {meta.name}")
        for _ in range(min(wanted - len(kept), self._burst)):
            made = self._client.create(Pod, pod_document(owner), namespace=owner.metadata.namespace)
            self._events.record(owner, "Normal", "SuccessfulCreate", f"Created pod: {made.metadata.name}")
            kept.append(made)
        self._is_short |= len(kept) != wanted
        return kept

    def _report(self, owner: ReplicaSetDocument, active: Sequence[Pod], *, terminating: int) -> None:
        ready = sum(map(_is_ready, active))
        labels = owner.spec["template"].get("metadata", {}).get("labels") or {}
        status = {
            "replicas": len(active),
            "fullyLabeledReplicas": sum(labels.items() <= pod.metadata.labels.items() for pod in active),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "terminatingReplicas": terminating,
            "observedGeneration": owner.metadata.generation,
        }
        if any(owner.status.get(name, 0) != value for name, value in status.items()):
            meta = owner.metadata
            patch = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": status}
            self._client.merge_patch(
                ReplicaSetDocument, meta.name, patch, namespace=meta.namespace, subresource="status"
            )


def pod_document(owner: ReplicaSetDocument) -> dict[str, Any]:
    """Return the next pod of a replica set."""
    template = owner.spec["template"]
    given = template.get("metadata", {})
    metadata = {key: given[key] for key in ("labels", "annotations") if key in given}
    made = {"generateName": f"{owner.metadata.name}-", "ownerReferences": [owner_reference(owner)]}
    return {"metadata": metadata | made, "spec": template["spec"]}


def _is_ready(pod: Pod) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions)


def _worth(pod: Pod) -> tuple[bool, bool, bool, tuple[int, ...], str]:
    """The order in which pods are kept: bound, running, ready, then older ones, then by name."""
    created = pod.metadata.creation_timestamp or ""
    older = tuple(-ord(character) for character in created)
    return bool(pod.spec.node_name), pod.status.phase == "Running", _is_ready(pod), older, pod.metadata.name
