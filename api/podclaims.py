"""Which ResourceClaim objects a pod names (pod.spec.resourceClaims joined with pod.status.resourceClaimStatuses)."""

from __future__ import annotations

from dataclasses import dataclass, field

from dracaena.api.objects import Pod


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

    Left out is an entry of which kube-controller-manager says that it needs no claim (a status without a name).
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
