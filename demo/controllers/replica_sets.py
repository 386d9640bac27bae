"""Stand-in for the replica set controller: as many pods as a replica set wants, no more and no fewer.

A pod that has ended or is being deleted is replaced. If there are too many, those that run least are deleted first:
without a node, then not ready, then the youngest. It adopts no pods that others created. After BURST pods it checks
again how many are wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dracaena.api.objects import ENDED, Pod
from dracaena.demo.controllers.pod_owners import BURST, PodOwners, is_ready, pod_document
from dracaena.demo.objects import ReplicaSetDocument
from dracaena.kube.client import KubeClient
from dracaena.process.clock import Clock

COMPONENT: Final = "replicaset-controller"


class ReplicaSetController(PodOwners[ReplicaSetDocument]):
    """Runs between start() and stop(), on caches of its own."""

    def __init__(self, client: KubeClient, clock: Clock, *, burst: int = BURST) -> None:
        super().__init__(ReplicaSetDocument, client, clock, events_as=COMPONENT, burst=burst)

    def _sync(self, owner: ReplicaSetDocument, pods: Sequence[Pod]) -> None:
        alive = [pod for pod in pods if pod.status.phase not in ENDED]
        active = sorted((pod for pod in alive if pod.metadata.deletion_timestamp is None), key=_worth, reverse=True)
        if owner.metadata.deletion_timestamp is None:
            active = self._resized(owner, active, owner.spec.get("replicas", 0), pod_document(owner))
        ready = sum(map(is_ready, active))
        labels = owner.spec["template"].get("metadata", {}).get("labels") or {}
        status = {
            "replicas": len(active),
            "fullyLabeledReplicas": sum(labels.items() <= pod.metadata.labels.items() for pod in active),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "terminatingReplicas": sum(pod.metadata.deletion_timestamp is not None for pod in alive),
            "observedGeneration": owner.metadata.generation,
        }
        self._report(owner, status)


def _worth(pod: Pod) -> tuple[bool, bool, bool, tuple[int, ...], str]:
    """The order in which pods are kept: bound, running, ready, then older ones, then by name."""
    created = pod.metadata.creation_timestamp or ""
    older = tuple(-ord(character) for character in created)
    return bool(pod.spec.node_name), pod.status.phase == "Running", is_ready(pod), older, pod.metadata.name
