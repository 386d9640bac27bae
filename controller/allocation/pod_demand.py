"""What one pod asks of the cluster: devices, and a node to run on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dracaena.api.objects import Pod, ResourceClaim
from dracaena.controller.allocation.answers import Question
from dracaena.controller.allocation.demands import ClaimDemand, Refused, read_demands
from dracaena.controller.allocation.eligibility import Eligibility
from dracaena.controller.allocation.inventory import Inventory
from dracaena.controller.allocation.node_filter import NodeFilter
from dracaena.controller.allocation.pool import held_devices


@dataclass(frozen=True, slots=True)
class PodDemand:
    """A pod with its claims, read."""

    pod: Pod
    claims: tuple[ClaimDemand, ...]
    """Those that are not allocated yet and need devices."""
    question: Question
    pins: tuple[Mapping[str, Any], ...]
    """Raw node selectors of the claims that are allocated already."""
    beside: Mapping[str, int]
    """Node → mask of the GPUs there that these claims hold; only nodes with some."""
    filter: NodeFilter


def read_pod_demand(inventory: Inventory, pod: Pod, claims: Sequence[ResourceClaim]) -> PodDemand | Refused:
    """Read all claims of a pod, in the order in which the pod names them."""
    driver = inventory.driver
    demands = read_demands(driver, inventory.classes, (c for c in claims if c.status.allocation is None))
    if isinstance(demands, Refused):
        return demands
    requests = [request for claim in demands for request in claim.requests]
    allocations = [claim.status.allocation for claim in claims if claim.status.allocation is not None]
    # No selector means everywhere.
    pins = tuple(allocation.node_selector for allocation in allocations if allocation.node_selector is not None)
    question = Question(
        counts=tuple(request.count for request in requests),
        policies=tuple(request.policy for request in requests),
        eligibility=Eligibility(tuple(request.tolerations for request in requests)),
    )
    return PodDemand(pod, demands, question, pins, _held_by_node(inventory, claims), NodeFilter(pod, pins))


def _held_by_node(inventory: Inventory, claims: Sequence[ResourceClaim]) -> Mapping[str, int]:
    held = frozenset(device for claim in claims for device in held_devices(claim, inventory.driver))
    pools = (inventory.pool_named(name) for name in sorted({device.pool for device in held}))
    masks = ((pool.node, pool.mask(held)) for pool in pools if pool is not None)
    return {node: mask for node, mask in masks if mask}
