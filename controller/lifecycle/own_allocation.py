"""Which allocations are decisions of ours."""

from __future__ import annotations

from dracaena.api.decision import decision_parameters
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.lifecycle.claim_record import only_node


def our_node(claim: ResourceClaim, driver: str) -> str | None:
    """Return the node of a claim's allocation if it is a decision of ours; None when there is no allocation, or
    kube-scheduler or an administrator made it.

    The allocation itself says so (api.decision), so nothing that users write into the claim matters. Devices of other
    drivers may be among ours.
    """
    allocation = claim.status.allocation
    if allocation is None or decision_parameters(claim, driver) is None:
        return None
    return only_node(claim) if any(result.driver == driver for result in allocation.devices.results) else None
