"""Which ResourceClaim objects a pod names (pod.spec.resourceClaims joined with pod.status.resourceClaimStatuses), and
which of those were made for it or for its PodGroup.

A claim that kube-controller-manager made for a PodGroup is controlled by it, and reserved for it in place of its pods
(KEP-5729, Kubernetes 1.37): one entry for any number of pods, which stays as long as the group does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dracaena.api.objects import OwnerReference, Pod
from dracaena.api.resource_objects import ConsumerReference, ResourceClaim

GROUP: Final = "scheduling.k8s.io"
GROUP_KIND: Final = "PodGroup"
GROUP_RESOURCE: Final = "podgroups"


@dataclass(frozen=True, slots=True)
class PodClaim:
    """One entry of pod.spec.resourceClaims that needs a claim."""

    alias: str
    """Name of the entry: what containers use."""
    namespace: str
    name: str | None
    """Name of the ResourceClaim; None while it is not generated yet."""
    generated: bool
    """Whether it is made from a template, for this pod alone."""
    key: str | None = field(init=False)
    """`namespace/name` of the ResourceClaim."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", None if self.name is None else f"{self.namespace}/{self.name}")


def pod_claims(pod: Pod) -> tuple[PodClaim, ...]:
    """Return the claims of a pod in the order of its spec.

    Entries that need no claim according to kube-controller-manager (a status without a name) are left out.
    """
    statuses = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
    found = []
    for entry in pod.spec.resource_claims:
        generated = entry.resource_claim_name is None
        name = statuses.get(entry.name) if generated else entry.resource_claim_name
        if generated and entry.name in statuses and name is None:
            continue
        found.append(PodClaim(entry.name, pod.metadata.namespace, name, generated))
    return tuple(found)


def is_made_for(claim: ResourceClaim, pod: Pod) -> bool:
    """Whether a claim was generated for a pod, or for its PodGroup."""
    uid = pod.metadata.uid
    return _group_of(claim, pod) is not None or any(
        owner.controller and owner.uid == uid for owner in claim.metadata.owner_references
    )


def made_for_another(claim: ResourceClaim) -> str:
    """Say to a pod that a claim was generated for another object."""
    owner = next((owner for owner in claim.metadata.owner_references if owner.controller), None)
    whose = "" if owner is None else f" ({owner.kind} {owner.name})"
    return f"claim {claim.key} was generated for another owner{whose}"


def group_consumer(claim: ResourceClaim, pod: Pod | None = None) -> ConsumerReference | None:
    """Return the entry of status.reservedFor for the PodGroup that a claim was made for; None: it was made for none, or
    for another one than the pod's.
    """
    owner = next(filter(_is_group, claim.metadata.owner_references), None) if pod is None else _group_of(claim, pod)
    return None if owner is None else ConsumerReference(GROUP_RESOURCE, owner.name, owner.uid, GROUP)


def is_for_group(claim: ResourceClaim) -> bool:
    """Whether a PodGroup has the reservation, which counts for each of its pods."""
    return any(user.resource == GROUP_RESOURCE and user.api_group == GROUP for user in claim.status.reserved_for)


def _group_of(claim: ResourceClaim, pod: Pod) -> OwnerReference | None:
    group = pod.spec.scheduling_group
    if group is None or not group.pod_group_name or claim.metadata.namespace != pod.metadata.namespace:
        return None
    owners = filter(_is_group, claim.metadata.owner_references)
    return next((owner for owner in owners if owner.name == group.pod_group_name), None)


def _is_group(owner: OwnerReference) -> bool:
    return owner.controller and owner.kind == GROUP_KIND and owner.api_version.partition("/")[0] == GROUP
