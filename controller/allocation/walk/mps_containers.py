"""Finds containers in which a share by MPS would make other devices useless, before anything is allocated.

A process has one MPS server, which has one GPU, and sees no other. The kubelet plugin refuses such containers when it
prepares a claim, but then the devices are held and the pod is bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dracaena.api.objects import Pod
from dracaena.api.podclaims import pod_claims
from dracaena.api.resource_objects import ResourceClaim
from dracaena.api.sharing import requires_mps
from dracaena.controller.allocation.request import ClaimDemand


@dataclass(frozen=True, slots=True)
class _Part:
    """What one request of a claim gives, whichever alternative is taken."""

    request: str
    """`claim NAMESPACE/NAME, request NAME`."""
    count: int
    """Devices at least."""
    by_mps: bool
    """Whether it is a share by MPS for sure."""


def unfit_container(
    pod: Pod, demands: Sequence[ClaimDemand], claims: Sequence[ResourceClaim], driver: str
) -> str | None:
    """Return why no node can serve a pod as its containers use its claims, None if that is not the reason.

    `demands` are the claims to be allocated, all of whose requests are for devices of ours; of the other `claims`,
    those that are allocated count too. Only what holds on each node is said: `enforcement: BestEffort` may do without
    MPS, and so may some alternative. Cost: nothing where no claim requires MPS.
    """
    parts = {one.claim.metadata.name: _of_demand(one) for one in demands}
    for claim in claims:
        if claim.status.allocation is not None:
            parts.setdefault(claim.metadata.name, _of_allocation(claim, driver))
    if not any(part.by_mps for of_claim in parts.values() for part in of_claim.values()):
        return None
    aliases = {one.alias: parts.get(one.name or "", {}) for one in pod_claims(pod)}
    for given in _by_container(pod, aliases):
        share = next((part.request for part in given if part.by_mps), None)
        if share is not None and sum(part.count for part in given) > 1:
            others = " and ".join(part.request for part in given if part.request != share) or "another like it"
            return (
                f"pod {pod.key}: one container uses {share}, a share by MPS, and {others}: as a client of MPS it sees "
                "only the GPU of its server, so give the share to a container of its own (resources.claims[].request)"
            )
    return None


def _of_demand(demand: ClaimDemand) -> Mapping[str, _Part]:
    found = {}
    for alternatives in demand.requests:
        taken = [one for one in alternatives if not one.request.admin_access]
        if len(taken) < len(alternatives):
            continue
        main = alternatives[0].request.main
        found[main] = _Part(
            f"claim {demand.claim.key}, request {main}",
            min(1 if one.request.all_devices else one.count for one in alternatives),
            all(one.requires_mps for one in alternatives),
        )
    return found


def _of_allocation(claim: ResourceClaim, driver: str) -> Mapping[str, _Part]:
    assert claim.status.allocation is not None
    devices = claim.status.allocation.devices
    configs = [
        (config.requests, config.opaque.parameters)
        for config in devices.config
        if config.opaque is not None and config.opaque.driver == driver
    ]
    found: dict[str, _Part] = {}
    for result in devices.results:
        if result.driver != driver or result.admin_access:
            continue
        main = result.request.partition("/")[0]
        count = found[main].count + 1 if main in found else 1
        by_mps = result.share_id is not None and requires_mps(result.request, configs)
        found[main] = _Part(f"claim {claim.key}, request {main}", count, by_mps)
    return found


def _by_container(pod: Pod, aliases: Mapping[str, Mapping[str, _Part]]) -> Iterator[list[_Part]]:
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        given: dict[str, _Part] = {}
        for use in container.resources.claims:
            of_claim = aliases.get(use.name, {})
            names = [use.request] if use.request else list(of_claim)
            given |= {of_claim[name].request: of_claim[name] for name in names if name in of_claim}
        if given:
            yield list(given.values())
