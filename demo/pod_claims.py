"""Which claims a pod uses, by name. Pure."""

from __future__ import annotations

from dracaena.api.objects import Pod, PodResourceClaim
from dracaena.api.resource_objects import ConsumerReference, ResourceClaim

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})


def is_done(pod: Pod) -> bool:
    """Whether the pod no longer needs its claims: it ended, or it is being deleted and never had a node."""
    return pod.status.phase in TERMINAL_PHASES or (
        pod.metadata.deletion_timestamp is not None and not pod.spec.node_name
    )


def claim_name(pod: Pod, entry: PodResourceClaim) -> str | None:
    """Return the name of the claim of one entry of spec.resourceClaims, None while it is not known.

    An entry that needs no claim (a status without a name) reads as not known too; see needed_entries().
    """
    if entry.resource_claim_name is not None:
        return entry.resource_claim_name
    statuses = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
    return statuses.get(entry.name)


def needed_entries(pod: Pod) -> tuple[PodResourceClaim, ...]:
    """Return the entries that need a claim, without those that need none according to the API."""
    none_needed = {status.name for status in pod.status.resource_claim_statuses if status.resource_claim_name is None}
    return tuple(entry for entry in pod.spec.resource_claims if entry.name not in none_needed)


def is_reserved_for(claim: ResourceClaim, pod: Pod) -> bool:
    """Whether status.reservedFor names this very pod."""
    return any(
        consumer.resource == "pods" and not consumer.api_group and consumer.uid == pod.metadata.uid
        for consumer in claim.status.reserved_for
    )


def is_owned_by(claim: ResourceClaim, pod: Pod) -> bool:
    """Whether the claim was made for this very pod."""
    return any(owner.controller and owner.uid == pod.metadata.uid for owner in claim.metadata.owner_references)


def consumer_of(pod: Pod) -> ConsumerReference:
    """Return the entry of status.reservedFor that stands for a pod."""
    return ConsumerReference(resource="pods", name=pod.metadata.name, uid=pod.metadata.uid)
