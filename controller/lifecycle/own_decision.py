"""Which allocations are decisions of ours."""

from __future__ import annotations

import msgspec

from dracaena.api.decision import Decision, decode_decision
from dracaena.api.errors import BadInputError
from dracaena.api.names import decision_annotation
from dracaena.api.resource_objects import AllocatedDevices, AllocationResult, DeviceResult, ResourceClaim
from dracaena.controller.allocation.nodes.node_filter import this_node


def our_decision(claim: ResourceClaim, driver: str) -> Decision | None:
    """Return the decision behind a claim's allocation, None when there is no allocation or it is not ours.

    It is ours if the claim's annotation names exactly these devices. A decision cut so short that it names no device
    matches any allocation with devices of our driver. Devices of other drivers may be among them.
    """
    if claim.status.allocation is None:
        return None
    decision = noted_decision(claim, driver)
    results = claim.status.allocation.devices.results
    if decision is None or not any(result.driver == driver for result in results):
        return None
    if decision.cut and not decision.devices:
        return decision
    return decision if sorted(decision.devices) == sorted(result.device for result in results) else None


def as_decided(claim: ResourceClaim, decision: Decision, driver: str, pool: str) -> ResourceClaim:
    """Return the claim with the allocation of a decision noted on it, as far as the note goes. It is used to hold the
    devices and is never written."""
    results = [DeviceResult(request="", driver=driver, pool=pool, device=name) for name in decision.devices]
    allocation = AllocationResult(devices=AllocatedDevices(results=results), node_selector=this_node(decision.node))
    status = msgspec.structs.replace(claim.status, allocation=allocation)
    return msgspec.structs.replace(claim, status=status)


def noted_decision(claim: ResourceClaim, driver: str) -> Decision | None:
    """Return the decision last noted on a claim, whatever became of it."""
    text = claim.metadata.annotations.get(decision_annotation(driver))
    try:
        return None if text is None else decode_decision(text)
    except BadInputError:
        return None
