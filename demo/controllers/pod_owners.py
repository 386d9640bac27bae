"""What the controllers of objects that make pods have in common: replica sets, stateful sets and jobs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from dracaena.api.objects import Pod
from dracaena.demo.objects import WholeDocument, owned_by, owner_reference
from dracaena.demo.reconcile import RETRY_S, CachedStandIn, settle
from dracaena.kube.client import KubeClient
from dracaena.process.clock import Clock

BURST: Final = 500
"""Pods that a controller creates or deletes before it checks again how many are wanted, like the real ones. So a number
with a zero too many can be corrected soon."""

Owner = TypeVar("Owner", bound=WholeDocument)


class PodOwners(CachedStandIn, Generic[Owner]):
    """Controls all objects of a kind that own pods."""

    def __init__(self, kind: type[Owner], client: KubeClient, clock: Clock, *, events_as: str, burst: int) -> None:
        super().__init__(kind.RESOURCE, client, clock, events_as=events_as)
        self._kind = kind
        self._burst = burst
        self._owners = self._cache(kind)
        self._pods = self._cache(Pod)  # a change of a pod wakes the loop
        self._again_s: list[float] = []  # when another look has to follow this one, in seconds

    @abstractmethod
    def _sync(self, owner: Owner, pods: Sequence[Pod]) -> None:
        """Take one step with an object, and the pods that it owns."""

    def _reconcile(self) -> float | None:
        self._again_s = []
        if not settle(self._owners.values(), self._look, self._kind.KIND):
            self._again_s.append(RETRY_S)
        return min(self._again_s, default=None)

    def _look(self, seen: Owner) -> None:
        """Read what the API says now: from an old cache, pods would be created twice."""
        namespace = seen.metadata.namespace
        pods = self._client.list(Pod, namespace=namespace).items
        owner = self._client.get(self._kind, seen.metadata.name, namespace=namespace)
        self._sync(owner, [pod for pod in pods if owned_by(pod, owner)])

    def _resized(self, owner: Owner, active: Sequence[Pod], wanted: int, document: Mapping[str, Any]) -> list[Pod]:
        """Return the active pods, of which the last are kept least, after some were created or deleted: no more than a
        burst."""
        kept = list(active[: max(wanted, len(active) - self._burst)])
        for pod in active[len(kept) :]:
            self._delete(pod)
            self._events.record(owner, "Normal", "SuccessfulDelete", f"Deleted pod: {pod.metadata.name}")
        for _ in range(min(wanted - len(kept), self._burst)):
            made = self._client.create(Pod, document, namespace=owner.metadata.namespace)
            self._events.record(owner, "Normal", "SuccessfulCreate", f"Created pod: {made.metadata.name}")
            kept.append(made)
        if len(kept) != wanted:
            self._again_s.append(0.0)
        return kept

    def _report(self, owner: Owner, status: Mapping[str, Any]) -> None:
        """Write a status, if it is not there already. Counts of nothing are left out by the API."""
        if any(owner.status.get(name, 0) != value for name, value in status.items()):
            self._patch_status(owner, status)


def pod_document(owner: WholeDocument, **metadata: Any) -> dict[str, Any]:
    """Return the next pod of an object with a template, with more `metadata` than every such pod has."""
    template = owner.spec["template"]
    given = template.get("metadata", {})
    kept = {key: given[key] for key in ("labels", "annotations") if key in given}
    made = {"generateName": f"{owner.metadata.name}-", "ownerReferences": [owner_reference(owner)]}
    return {"metadata": kept | made | metadata, "spec": template["spec"]}


def is_ready(pod: Pod) -> bool:
    """Whether a pod says that it is ready."""
    return any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions)
