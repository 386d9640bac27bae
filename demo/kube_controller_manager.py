"""Stand-in for kube-controller-manager: the claim controller, one duty for nodes, and what is in `controllers/`.

What it does, as the real one does it:
* makes claims from templates and records their names in pod.status.resourceClaimStatuses;
* reserves allocated claims for pods that were bound past the scheduler;
* drops reservations of pods that are gone, replaced, ended, or deleted before they had a node; with the last one, if
  the claim has the delete-protection finalizer, it drops the allocation in the same write and the finalizer next;
* deletes a generated claim when its pod is done;
* removes the not-ready taint, which the API server gives to every new node, from nodes that say Ready.

What it does not do: nodes that stop reporting, any other taint, pods of lost nodes, device taint eviction, PodGroups.
As in the real one, a claim that was allocated and never reserved stays allocated.
"""

from __future__ import annotations

from typing import Any

from dracaena.api.names import DELETE_PROTECTION_FINALIZER, POD_CLAIM_NAME_ANNOTATION
from dracaena.api.objects import Pod, PodResourceClaim
from dracaena.api.podclaims import pod_claims
from dracaena.api.resource_objects import ConsumerReference, ResourceClaim, ResourceClaimTemplate
from dracaena.demo.controllers.deployments import DeploymentController
from dracaena.demo.controllers.garbage import GarbageCollector
from dracaena.demo.controllers.jobs import JobController
from dracaena.demo.controllers.namespaces import NamespaceController
from dracaena.demo.controllers.replica_sets import ReplicaSetController
from dracaena.demo.controllers.stateful_sets import StatefulSetController
from dracaena.demo.objects import NodeWithStatus, owned_by, owner_reference
from dracaena.demo.pod_claims import consumer_of, is_done, is_reserved_for
from dracaena.demo.reconcile import RETRY_S, CachedStandIn, settle
from dracaena.kube.client import KubeClient
from dracaena.process.clock import Clock

COMPONENT = "resource_claim"
"""source.component of the real controller's Events."""

NOT_READY = "node.kubernetes.io/not-ready"
"""Taint of a node whose Ready condition is not True."""

MAX_BASE_LENGTH = 57
"""A generated name is base, hyphen and 5 random characters, at most 63 (DNS label)."""


class KubeControllerManager(CachedStandIn):
    """Runs between start() and stop(), on caches of its own."""

    def __init__(self, client: KubeClient, clock: Clock) -> None:
        super().__init__("kube-controller-manager", client, clock, events_as=COMPONENT)
        self._pods = self._cache(Pod)
        self._claims = self._cache(ResourceClaim)
        self._templates = self._cache(ResourceClaimTemplate)
        self._nodes = self._cache(NodeWithStatus)
        # Claims that were just made and may not be in the cache yet: a second claim would never be used.
        self._made: dict[tuple[str, str], str] = {}
        self._controllers = (
            DeploymentController(client, clock),
            ReplicaSetController(client, clock),
            StatefulSetController(client, clock),
            GarbageCollector(client, clock),
            JobController(client, clock),
            NamespaceController(client, clock),
        )

    @property
    def failure(self) -> Exception | None:
        """The bug that ended the stand-in or one of its controllers, if one did."""
        failures = (super().failure, *(part.failure for part in self._controllers))
        return next((failure for failure in failures if failure is not None), None)

    def start(self) -> None:
        """Begin to watch and act."""
        super().start()
        for controller in self._controllers:
            controller.start()

    def stop(self) -> None:
        """End all threads."""
        for controller in self._controllers:
            controller.stop()
        super().stop()

    def _reconcile(self) -> float | None:
        results = (
            settle(self._nodes.values(), self._admit_node, "node"),
            settle(self._pods.values(), self._serve_pod, "pod"),
            settle(self._claims.values(), self._free_claim, "claim"),
            settle(self._claims.values(), self._delete_finished, "generated claim"),
        )
        return None if all(results) else RETRY_S

    # claims of pods

    def _serve_pod(self, pod: Pod) -> None:
        """Make the claims that the pod's templates ask for, and reserve them if nobody else will."""
        if pod.metadata.deletion_timestamp is not None or is_done(pod):
            return
        missing = {one.alias for one in pod_claims(pod) if one.name is None}
        if missing:
            self._make_claims(pod, [entry for entry in pod.spec.resource_claims if entry.name in missing])
        if pod.spec.node_name:
            self._reserve_for_bound(pod)

    def _make_claims(self, pod: Pod, missing: list[PodResourceClaim]) -> None:
        names = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
        for entry in missing:
            made = self._existing(pod, entry) or self._create(pod, entry)
            if made is not None:
                names[entry.name] = made
        if len(names) > len(pod.status.resource_claim_statuses):
            statuses = [{"name": key, "resourceClaimName": names[key]} for key in sorted(names)]
            patch = {"metadata": {"uid": pod.metadata.uid}, "status": {"resourceClaimStatuses": statuses}}
            meta = pod.metadata
            self._client.merge_patch(Pod, meta.name, patch, namespace=meta.namespace, subresource="status")

    def _existing(self, pod: Pod, entry: PodResourceClaim) -> str | None:
        for claim in self._claims.values():
            if (
                claim.metadata.namespace == pod.metadata.namespace
                and claim.metadata.annotations.get(POD_CLAIM_NAME_ANNOTATION) == entry.name
                and owned_by(claim, pod)
            ):
                return claim.metadata.name
        return self._made.get((pod.metadata.uid, entry.name))

    def _create(self, pod: Pod, entry: PodResourceClaim) -> str | None:
        namespace = pod.metadata.namespace
        template = self._templates.get(f"{namespace}/{entry.resource_claim_template_name}")
        if template is None:
            missing = f'resourceclaimtemplate "{entry.resource_claim_template_name}" not found'
            why = f"PodResourceClaim {entry.name}: {missing}"
            self._events.record(pod, "Warning", "FailedResourceClaimCreation", why)
            return None
        document = claim_document(pod, entry, template)
        name = self._client.create(ResourceClaim, document, namespace=namespace).metadata.name
        self._made[pod.metadata.uid, entry.name] = name
        return name

    def _reserve_for_bound(self, pod: Pod) -> None:
        for one in pod_claims(pod):
            claim = self._claims.get(one.key) if one.key else None
            if claim is None or claim.status.allocation is None or is_reserved_for(claim, pod):
                continue
            consumers = [*claim.status.reserved_for, consumer_of(pod)]
            self._patch_status(claim, {"reservedFor": consumers})

    # claims that nobody needs any more

    def _free_claim(self, claim: ResourceClaim) -> None:
        """Drop stale reservations; with the last one the allocation too, if the finalizer is there."""
        protected = DELETE_PROTECTION_FINALIZER in claim.metadata.finalizers
        valid = [consumer for consumer in claim.status.reserved_for if self._is_alive(claim, consumer)]
        if len(valid) < len(claim.status.reserved_for):
            patch: dict[str, Any] = {"reservedFor": valid or None}
            if protected and not valid:
                patch["allocation"] = None
            claim = self._patch_status(claim, patch)
            if protected and claim.status.allocation is None:
                self._drop_finalizers(claim, DELETE_PROTECTION_FINALIZER)
        elif protected and claim.metadata.deletion_timestamp is not None and not valid:
            if claim.status.allocation is not None:
                claim = self._patch_status(claim, {"allocation": None})
            self._drop_finalizers(claim, DELETE_PROTECTION_FINALIZER)

    def _is_alive(self, claim: ResourceClaim, consumer: ConsumerReference) -> bool:
        if consumer.resource != "pods" or consumer.api_group:
            return True  # the real one reports an error and leaves the claim stuck
        pod = self._pods.get(f"{claim.metadata.namespace}/{consumer.name}")
        if pod is None or pod.metadata.uid != consumer.uid:
            # The cache of pods may be behind that of claims: only the API itself can say that a pod is gone.
            pod = self._read(Pod, consumer.name, claim.metadata.namespace)
        return pod is not None and pod.metadata.uid == consumer.uid and not is_done(pod)

    def _delete_finished(self, claim: ResourceClaim) -> None:
        if claim.metadata.deletion_timestamp is not None or claim.status.reserved_for:
            return
        for owner in claim.metadata.owner_references:
            pod = self._pods.get(f"{claim.metadata.namespace}/{owner.name}")
            if owner.controller and pod is not None and pod.metadata.uid == owner.uid and is_done(pod):
                self._delete(claim)

    # nodes

    def _admit_node(self, node: NodeWithStatus) -> None:
        ready = any(one.type == "Ready" and one.status == "True" for one in node.status.conditions)
        kept = [taint for taint in node.spec.taints if taint.key != NOT_READY]
        if ready and len(kept) < len(node.spec.taints):
            self._patch(node, {"spec": {"taints": kept or None}})


def claim_document(pod: Pod, entry: PodResourceClaim, template: ResourceClaimTemplate) -> dict[str, Any]:
    """Return the claim to create for one entry of a pod from its template."""
    extra = template.spec.metadata
    annotations = dict(extra.get("annotations") or {}) | {POD_CLAIM_NAME_ANNOTATION: entry.name}
    return {
        "metadata": {
            "generateName": generate_name(pod.metadata.name, entry.name),
            "labels": dict(extra.get("labels") or {}),
            "annotations": annotations,
            "ownerReferences": [owner_reference(pod)],
        },
        "spec": template.spec.spec,
    }


def generate_name(pod_name: str, entry_name: str) -> str:
    """Return the prefix of a generated claim's name: `<pod>-<entry>-`.

    Both parts are shortened in proportion when the base would pass 57 characters, so that neither is lost.
    """
    length = len(pod_name) + 1 + len(entry_name)
    if length > MAX_BASE_LENGTH:
        pod_name = pod_name[: len(pod_name) * MAX_BASE_LENGTH // length]
        entry_name = entry_name[: len(entry_name) * MAX_BASE_LENGTH // length]
    return f"{pod_name}-{entry_name}-"
