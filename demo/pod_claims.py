"""What a claim is to a pod. Pure."""

from __future__ import annotations

from dracaena.api.objects import ENDED, Pod
from dracaena.api.resource_objects import ConsumerReference, ResourceClaim


def is_done(pod: Pod) -> bool:
    """Whether the pod no longer needs its claims: it ended, or it is being deleted and never had a node."""
    return pod.status.phase in ENDED or (pod.metadata.deletion_timestamp is not None and not pod.spec.node_name)


def is_reserved_for(claim: ResourceClaim, pod: Pod) -> bool:
    """Whether status.reservedFor names this very pod."""
    return any(
        consumer.resource == "pods" and not consumer.api_group and consumer.uid == pod.metadata.uid
        for consumer in claim.status.reserved_for
    )


def consumer_of(pod: Pod) -> ConsumerReference:
    """Return the entry of status.reservedFor that stands for a pod."""
    return ConsumerReference(resource="pods", name=pod.metadata.name, uid=pod.metadata.uid)
