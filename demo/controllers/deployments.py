"""Stand-in for the deployment controller: a replica set for each template, and the rollout from one to the next.

What it does, as the real one does it: names, labels, revisions and annotations of replica sets; both strategies, with
maxSurge and maxUnavailable; a former template gets its old replica set again; old ones beyond revisionHistoryLimit are
deleted; the conditions Available and Progressing; Events. Replica sets that the selector matches and that nobody
controls are adopted, as after `kubectl delete --cascade=orphan`; if somebody else's replica set has the name of a new
one, collisionCount leads to another name.

What it does not do: progressDeadlineSeconds never expires (no condition ProgressDeadlineExceeded), and
pod-template-hash is a different hash. Paused deployments and minReadySeconds are refused by the API server.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from dracaena.demo.apiserver.selectors import label_selector_matches
from dracaena.demo.controllers.rollout import Rollout, next_sizes
from dracaena.demo.objects import DeploymentDocument, ReplicaSetDocument, owned_by, owner_reference
from dracaena.demo.reconcile import RETRY_S, CachedStandIn, settle, stamped
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import AlreadyExistsError
from dracaena.process.clock import Clock, rfc3339

COMPONENT: Final = "deployment-controller"
HASH_LABEL: Final = "pod-template-hash"
_PREFIX: Final = "deployment.kubernetes.io/"
REVISION: Final = f"{_PREFIX}revision"
_REVISION_NUMBER: Final = re.compile(r"[0-9]{1,18}")
"""The largest revision that fits into the real one's 64 bits; anybody may write the annotation."""

_HASH_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_HASH_LENGTH: Final = 10
"""Length of the hash, that of most real ones."""


@dataclass(frozen=True, slots=True)
class ReplicaSets:
    """The replica sets of a deployment: the one of its template, and all others by age."""

    new: ReplicaSetDocument | None
    old: tuple[ReplicaSetDocument, ...]

    @classmethod
    def of(cls, deployment: DeploymentDocument, sets: Sequence[ReplicaSetDocument]) -> ReplicaSets:
        """Sort the replica sets that the deployment owns."""
        mine = sorted((one for one in sets if owned_by(one, deployment)), key=revision_of)
        template = _without_hash(deployment.spec["template"])
        same = [one for one in mine if _without_hash(one.spec["template"]) == template]
        new = min(same, key=lambda one: (one.metadata.creation_timestamp or "", one.metadata.name), default=None)
        return cls(new, tuple(one for one in mine if one is not new))

    @property
    def all(self) -> tuple[ReplicaSetDocument, ...]:
        """All of them."""
        return self.old if self.new is None else (*self.old, self.new)


class DeploymentController(CachedStandIn):
    """Runs between start() and stop(), on caches of its own."""

    def __init__(self, client: KubeClient, clock: Clock) -> None:
        super().__init__("deployments", client, clock, events_as=COMPONENT)
        self._deployments = self._cache(DeploymentDocument)
        self._cache(ReplicaSetDocument)  # a change of a replica set wakes the loop

    def _reconcile(self) -> float | None:
        return None if settle(self._deployments.values(), self._sync, "deployment") else RETRY_S

    def _sync(self, seen: DeploymentDocument) -> None:
        """Take one step, from what the API says now; the write of each step wakes us for the next."""
        namespace = seen.metadata.namespace
        # In this order: a replica set that was orphaned by then belongs to a deployment that is being deleted, or gone.
        # Adopted after that, it would be garbage.
        found = self._client.list(ReplicaSetDocument, namespace=namespace).items
        deployment = self._client.get(DeploymentDocument, seen.metadata.name, namespace=namespace)
        if deployment.metadata.deletion_timestamp is not None:
            return
        sets = ReplicaSets.of(deployment, [self._adopted(deployment, one) for one in found])
        rollout = Rollout.of(deployment.spec)
        new = self._with_revision(deployment, sets, rollout)
        deployment = self._telling_revision(deployment, revision_of(new))
        sets = ReplicaSets(new, sets.old)
        sizes = next_sizes(rollout, new, sets.old)
        sized = [self._scale(deployment, one, sizes[one.metadata.uid], rollout) for one in sets.all]
        self._forget_old(deployment, sets)
        self._report(deployment, new, sized, rollout)

    def _adopted(self, deployment: DeploymentDocument, one: ReplicaSetDocument) -> ReplicaSetDocument:
        """A replica set, adopted by the deployment if it should be."""
        if not is_adoptable(deployment, one):
            return one
        meta = one.metadata
        patch = {"metadata": {"uid": meta.uid, "ownerReferences": [owner_reference(deployment)]}}
        return self._client.strategic_patch(ReplicaSetDocument, meta.name, patch, namespace=meta.namespace)

    def _with_revision(self, deployment: DeploymentDocument, sets: ReplicaSets, rollout: Rollout) -> ReplicaSetDocument:
        """The replica set of the template, created if there is none, with the newest revision."""
        newest = max((revision_of(one) for one in sets.old), default=0)
        new = sets.new
        if new is None:
            new = self._made(deployment, replica_set_document(deployment, newest + 1, rollout))
        elif revision_of(new) <= newest:
            new = self._patch(new, {}, metadata={"annotations": {REVISION: str(newest + 1)}})
        return new

    def _telling_revision(self, deployment: DeploymentDocument, revision: int) -> DeploymentDocument:
        """The deployment, which says its revision, too."""
        if revision_of(deployment) == revision:
            return deployment
        return self._patch(deployment, {}, metadata={"annotations": {REVISION: str(revision)}})

    def _made(self, deployment: DeploymentDocument, document: dict[str, Any]) -> ReplicaSetDocument:
        """The new replica set. If another one has its name, the next look tries another name."""
        try:
            return self._client.create(ReplicaSetDocument, document, namespace=deployment.metadata.namespace)
        except AlreadyExistsError:
            self._patch_status(deployment, {"collisionCount": deployment.status.get("collisionCount", 0) + 1})
            raise

    def _scale(
        self, deployment: DeploymentDocument, one: ReplicaSetDocument, size: int, rollout: Rollout
    ) -> ReplicaSetDocument:
        before = one.spec.get("replicas", 0)
        annotations = rollout_annotations(rollout)
        if size == before and annotations.items() <= one.metadata.annotations.items():
            return one
        sized = self._patch(one, {"spec": {"replicas": size}}, metadata={"annotations": annotations})
        if size != before:
            way = "up" if size > before else "down"
            told = f"Scaled {way} replica set {one.metadata.name} from {before} to {size}"
            self._events.record(deployment, "Normal", "ScalingReplicaSet", told)
        return sized

    def _forget_old(self, deployment: DeploymentDocument, sets: ReplicaSets) -> None:
        """Delete the oldest replica sets without pods that exceed the history limit."""
        empty = [one for one in sets.old if not one.spec.get("replicas") and not one.status.get("replicas")]
        for one in empty[: max(0, len(sets.old) - deployment.spec["revisionHistoryLimit"])]:
            self._delete(one)

    def _report(
        self,
        deployment: DeploymentDocument,
        new: ReplicaSetDocument,
        sets: Sequence[ReplicaSetDocument],
        rollout: Rollout,
    ) -> None:
        counts = {
            name: sum(one.status.get(name, 0) for one in sets)
            for name in ("replicas", "readyReplicas", "availableReplicas", "terminatingReplicas")
        }
        wanted = sum(one.spec.get("replicas", 0) for one in sets)
        status: dict[str, Any] = counts | {
            "observedGeneration": deployment.metadata.generation,
            "updatedReplicas": new.status.get("replicas", 0),
            "unavailableReplicas": max(0, wanted - counts["availableReplicas"]),
        }
        said = deployment.status.get("conditions", ())
        now = rfc3339(self._clock.now())
        conditions = stamped(conditions_of(new.metadata.name, status, rollout), said, now, "lastUpdateTime")
        changed = any(deployment.status.get(name, 0) != value for name, value in status.items())
        if changed or conditions != said:
            self._patch_status(deployment, status | {"conditions": conditions})


def is_adoptable(deployment: DeploymentDocument, one: ReplicaSetDocument) -> bool:
    """Whether the deployment selects a replica set that nobody controls and that is not being deleted."""
    meta = one.metadata
    is_free = meta.deletion_timestamp is None and not any(owner.controller for owner in meta.owner_references)
    return is_free and label_selector_matches(deployment.spec["selector"], meta.labels)


def _without_hash(template: dict[str, Any]) -> dict[str, Any]:
    """A pod template as a deployment has it; that of its replica set has the hash among the labels."""
    metadata = template.get("metadata", {})
    labels = {key: value for key, value in metadata.get("labels", {}).items() if key != HASH_LABEL}
    return template | {"metadata": metadata | {"labels": labels}}


def template_hash(template: dict[str, Any], collisions: int) -> str:
    """Return a short name for a template: equal templates have equal names after equally many collisions."""
    hashed = [template, collisions] if collisions else template
    number = int.from_bytes(hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).digest())
    letters = []
    for _ in range(_HASH_LENGTH):
        number, letter = divmod(number, len(_HASH_ALPHABET))
        letters.append(_HASH_ALPHABET[letter])
    return "".join(letters)


def revision_of(one: DeploymentDocument | ReplicaSetDocument) -> int:
    """Return the revision of a deployment, or that a replica set belongs to; 0 if its annotation is not a number."""
    written = one.metadata.annotations.get(REVISION, "")
    return int(written) if _REVISION_NUMBER.fullmatch(written) else 0


def rollout_annotations(rollout: Rollout) -> dict[str, str]:
    """Return what a deployment writes on its replica sets about their number of pods."""
    most = rollout.replicas + rollout.surge
    return {f"{_PREFIX}desired-replicas": str(rollout.replicas), f"{_PREFIX}max-replicas": str(most)}


def replica_set_document(deployment: DeploymentDocument, revision: int, rollout: Rollout) -> dict[str, Any]:
    """Return the replica set of a deployment's template, without pods yet."""
    template = deployment.spec["template"]
    label = {HASH_LABEL: template_hash(template, deployment.status.get("collisionCount", 0))}
    selector, metadata = deployment.spec["selector"], template.get("metadata", {})
    labels = metadata.get("labels", {}) | label
    return {
        "metadata": {
            "name": f"{deployment.metadata.name}-{label[HASH_LABEL]}",
            "labels": labels,
            "annotations": {REVISION: str(revision)} | rollout_annotations(rollout),
            "ownerReferences": [owner_reference(deployment)],
        },
        "spec": {
            "replicas": 0,
            "selector": selector | {"matchLabels": selector.get("matchLabels", {}) | label},
            "template": template | {"metadata": metadata | {"labels": labels}},
        },
    }


def conditions_of(name: str, status: dict[str, Any], rollout: Rollout) -> list[dict[str, Any]]:
    """Return the conditions of a deployment whose newest replica set has this name."""
    available = {
        "type": "Available",
        "status": "True",
        "reason": "MinimumReplicasAvailable",
        "message": "Deployment has minimum availability.",
    }
    if status["availableReplicas"] < rollout.replicas - rollout.unavailable:
        available |= {
            "status": "False",
            "reason": "MinimumReplicasUnavailable",
            "message": "Deployment does not have minimum availability.",
        }
    counts = {status[name] for name in ("replicas", "updatedReplicas", "availableReplicas")}
    is_complete = counts == {rollout.replicas}
    progressing = {
        "type": "Progressing",
        "status": "True",
        "reason": "NewReplicaSetAvailable" if is_complete else "ReplicaSetUpdated",
        "message": f'ReplicaSet "{name}" {"has successfully progressed" if is_complete else "is progressing"}.',
    }
    return [available, progressing]
