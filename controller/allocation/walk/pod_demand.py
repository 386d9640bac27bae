"""What one pod asks of the cluster: devices, and a node to run on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from dracaena.api.objects import Pod, ResourceClaim
from dracaena.controller.allocation.effort import Effort, Work
from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from dracaena.controller.allocation.legal.read.slices import Device
from dracaena.controller.allocation.legal.selectors import SelectorFailure
from dracaena.controller.allocation.nodes.matching import Names
from dracaena.controller.allocation.nodes.node_filter import NodeFilter
from dracaena.controller.allocation.nodes.placement.label_selector import UnreadableSelectorError
from dracaena.controller.allocation.nodes.pod_resources import UnreadableQuantityError
from dracaena.controller.allocation.request.demands import (
    ClaimDemand,
    RefusalKind,
    Refused,
    RequestDemand,
)
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.pool import held_devices

MOST_SELECTOR_CHARACTERS: Final = 64 << 10
"""Characters of all different selectors in one pod's claims: a second to compile at the worst, and half of what is kept
compiled, so that classes have room beside them. The API server takes a megabyte; sensible claims have 1 KB."""


@dataclass(frozen=True, slots=True)
class PodDemand:
    """A pod with its claims, read."""

    pod: Pod
    claims: tuple[ClaimDemand, ...]
    """Those that are not allocated yet, need devices, and are ours to serve."""
    concerns_us: bool
    """Whether the pod's user visibly means our driver."""
    pins: tuple[Mapping[str, Any], ...]
    """Raw node selectors of the claims that are allocated already."""
    beside: Mapping[str, int]
    """Node → mask of the GPUs there that these claims hold; only nodes with some."""
    filter: NodeFilter


def read_pod_demand(
    inventory: Inventory,
    pod: Pod,
    claims: Sequence[ResourceClaim],
    selectors: CelSelectors,
    barred: Mapping[str, str] = MappingProxyType({}),
    effort: Effort | None = None,
    within: Names | None = None,
    *,
    preempting: bool = False,
) -> PodDemand | Refused:
    """Read all claims of a pod, in the order in which the pod names them.

    A claim is ours when the class of some request matches a device of ours, or when it visibly means our driver. Others
    are left to kube-scheduler, which serves them after ours, on the same node. `barred`: nodes that the pod must not
    use, with the reasons; `within`: the only ones to ask, None: all. `preempting`: pods of lower priority count as
    evicted. What is read is charged to `effort`.
    """
    effort = effort or Effort()
    waiting = tuple(claim for claim in claims if claim.status.allocation is None)
    driver = inventory.driver
    demands = inventory.requests.read(waiting, effort)
    if isinstance(demands, Refused):
        return demands
    meant = inventory.requests.concerns_us(waiting)
    broken = next(_broken_selectors(demands, selectors), None)
    if broken is not None:
        return Refused(RefusalKind.SELECTOR, broken, meant)
    ours = _OursOrNot(inventory, selectors, effort)
    mine = tuple(demand for demand in demands if ours.is_claim_of_ours(demand))
    for demand in mine:
        stranger = ours.stranger(demand)
        if stranger is not None:
            return Refused(RefusalKind.OTHER_DRIVER, stranger, meant)
    allocations = [claim.status.allocation for claim in claims if claim.status.allocation is not None]
    if demands and not mine and not allocations:
        text = f"claim {demands[0].claim.key}: no DeviceClass of its requests matches a device of {driver}"
        return Refused(RefusalKind.OTHER_DRIVER, text, meant)
    # No selector means everywhere.
    pins = tuple(allocation.node_selector for allocation in allocations if allocation.node_selector is not None)
    try:
        resources = inventory.resource_demand(pod, preempting=preempting)
        placement = inventory.placement_demand(pod, effort)
    except (UnreadableQuantityError, UnreadableSelectorError) as error:
        return Refused(RefusalKind.MISTAKE, f"pod {pod.key}: {error}", meant)
    nodes = NodeFilter(pod, pins, barred, resources, placement, effort, within)
    return PodDemand(pod, mine, meant, pins, _held_by_node(inventory, claims), nodes)


class _OursOrNot:
    """Tells which claims and requests are about devices of our driver."""

    def __init__(self, inventory: Inventory, selectors: CelSelectors, effort: Effort) -> None:
        self._effort = effort
        self._inventory = inventory
        self._selectors = selectors
        self._known: dict[str, bool] = {}

    def is_claim_of_ours(self, demand: ClaimDemand) -> bool:
        """Return whether we allocate the claim."""
        requests = (one for entry in demand.requests for one in entry)
        return any(map(self._is_of_ours, requests)) or self._inventory.requests.concerns_us((demand.claim,))

    def stranger(self, demand: ClaimDemand) -> str | None:
        """Say why a claim of ours cannot be served because of a request for devices of a driver that is not allowed."""
        inventory = self._inventory
        if inventory.allowed_drivers:
            return None
        for entry in demand.requests:
            names = [one.device_class.name for one in entry]
            if any(self._is_of_ours(one) for one in entry) or any(map(inventory.requests.class_concerns_us, names)):
                continue
            return (
                f"claim {demand.claim.key}: request {entry[0].request.main}: DeviceClass {', '.join(names)} matches no "
                f"device of {inventory.driver}, and kube-scheduler allocates the devices of other drivers: ask for "
                "them in a claim of their own"
            )
        return None

    def _is_of_ours(self, request: RequestDemand) -> bool:
        """Return whether the request's class can match a device of ours. Where that fails, the failure is ours too."""
        name = request.device_class.name
        if name not in self._known:
            expressions = request.device_class.selectors
            self._known[name] = not expressions or any(
                all(self._selectors.evaluate(expression, device) is not False for expression in expressions)
                for device in self._devices()
            )
        return self._known[name]

    def _devices(self) -> Iterator[Device]:
        for device in self._inventory.kinds_of_devices():
            self._effort.charge(1, Work.CLAIMS)
            yield device


def _broken_selectors(demands: Sequence[ClaimDemand], selectors: CelSelectors) -> Iterator[str]:
    """Yield what a person must mend: expressions that do not compile, and more of them than we compile for one pod."""
    own = {
        selector
        for demand in demands
        for entry in demand.requests
        for one in entry
        for selector in one.request.selectors
    }
    characters = sum(map(len, own))
    if characters > MOST_SELECTOR_CHARACTERS:
        yield (
            f"the pod's claims: their different selectors have {characters} characters in all, and the controller "
            f"compiles at most {MOST_SELECTOR_CHARACTERS} for one pod: use fewer or shorter ones, or put what many "
            "claims select by into a DeviceClass"
        )
        return
    for demand in demands:
        for request in (one for entry in demand.requests for one in entry):
            where = f"claim {demand.claim.key}, request {request.name}"
            for subject, expressions in (
                (f"DeviceClass {request.device_class.name}", request.device_class.selectors),
                (where, request.request.selectors),
            ):
                for expression in expressions:
                    found = selectors.footprint(expression)
                    if isinstance(found, SelectorFailure):
                        yield f"{subject}: selector {expression!r}: {found.reason}"


def _held_by_node(inventory: Inventory, claims: Sequence[ResourceClaim]) -> Mapping[str, int]:
    held = frozenset(device for claim in claims for device in held_devices(claim, inventory.driver))
    pools = (inventory.pool_named(name) for name in sorted({device.pool for device in held}))
    masks = ((pool.node, pool.mask(held)) for pool in pools if pool is not None)
    return {node: mask for node, mask in masks if mask}
