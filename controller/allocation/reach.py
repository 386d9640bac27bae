"""Which nodes may serve a waiting pod, found out in microseconds.

A freed device does not help the pods that cannot use it, and a decision would cost a hundred times as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from hashlib import blake2b
from typing import Final

import msgspec

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.nodes.matching import required_affinity, unfit_for
from dracaena.controller.allocation.nodes.node_filter import tolerations_of
from dracaena.controller.allocation.nodes.node_resources import ResourceDemand, may_preempt
from dracaena.controller.allocation.nodes.pod_resources import UnreadableQuantityError
from dracaena.controller.allocation.request import ClaimDemand, Refused
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodeState

MOST_FILTER_BYTES: Final = 4 << 10
"""Of node selector, affinity and tolerations together; ordinary pods have some hundred. Longer ones are not evaluated
at each change, but in a decision, which has a deadline."""

DIGEST_BYTES: Final = 16
"""128 bits: no tenant can find a second filter with the same digest."""

BOUNDLESS: Final = 1 << 20
"""More pods than any node serves. Nodes with MIG devices and shares are not counted."""

_ENCODER = msgspec.json.Encoder(order="deterministic")


class Prospect(Enum):
    """What a node may be to a pod."""

    NONE = "none"
    """It cannot serve the pod as it is now."""
    SHORT = "short"
    """It lacks CPU, memory and the like, and may serve the pod with more of them."""
    POSSIBLE = "possible"
    """It may serve the pod; only a decision can find out."""


class Reach:
    """What a pod without allocated claims asks of a node, as far as it can be checked without a walk.

    It may call a node possible that is not, but never the other way round. Whole GPUs are counted; if a node has more
    to give than these, it is possible whenever the pod may run there. It reads the inventory as it is at each call, but
    DeviceClasses as they were when it was made.
    """

    def __init__(self, inventory: Inventory, pod: Pod, claims: Sequence[ResourceClaim]) -> None:
        """Cost: some 50 µs for an ordinary pod, in proportion to its size."""
        self._inventory = inventory
        self._pod = pod
        self._claims = len(claims)
        self._least = _least_devices(inventory, claims)
        self._filter_id = _filter_id(pod)
        is_short = self._filter_id is not None
        self._affinity = required_affinity(pod) if is_short else None
        self._tolerations = tolerations_of(pod) if is_short else ()
        self._resources = _resources(inventory, pod, preempting=len(claims) == 1 and may_preempt(pod))

    @property
    def is_of_one_claim(self) -> bool:
        """Whether the pod has one claim. With several, devices that come or go anywhere may change which are ours."""
        return self._claims == 1

    def prospect(self, node: str, known: dict[tuple[bytes, str], bool]) -> Prospect:
        """Return what a node may be to the pod now.

        `known` is shared by questions about one moment: pods with the same node selector, affinity and tolerations get
        the same answer for a node. Cost: 1 µs; unfit_for()'s cost for the first of these pods, and a step for each
        resource if there are enough devices.
        """
        if node not in self._inventory.nodes or not self._has_devices(node):
            return Prospect.NONE
        if not self._admits(node, known):
            return Prospect.NONE
        if self._resources is not None and self._resources.shortage(node) is not None:
            return Prospect.SHORT
        return Prospect.POSSIBLE

    @property
    def kind(self) -> tuple[bytes | None, int]:
        """What most() depends on: pods of equal kinds get equal answers."""
        return self._filter_id, self._least

    def most(self, node: str, known: dict[tuple[bytes, str], bool]) -> int:
        """Return how many such pods a node may serve once all others have left it, BOUNDLESS if that cannot be counted.
        `known` as in prospect()."""
        pool = self._inventory.pool(node)
        if pool is None or not self._inventory.offers(node):
            return 0
        is_countable = self._least and not self._inventory.is_mixed(pool.kind)
        pods = pool.offered.bit_count() // self._least if is_countable else BOUNDLESS
        return pods if pods and self._admits(node, known) else 0

    def _has_devices(self, node: str) -> bool:
        state = self._inventory.state(node)
        if not isinstance(state, NodeState):
            return False
        return self._inventory.is_mixed(state.kind) or state.free.bit_count() >= self._least

    def _admits(self, node: str, known: dict[tuple[bytes, str], bool]) -> bool:
        if self._filter_id is None:
            return True
        key = self._filter_id, node
        found = known.get(key)
        if found is None:
            item = self._inventory.nodes.get(node).node
            found = known[key] = unfit_for(self._pod, self._affinity, self._tolerations, item) is None
        return found


def _filter_id(pod: Pod) -> bytes | None:
    spec = pod.spec
    text = _ENCODER.encode((spec.node_name, spec.node_selector, spec.affinity, spec.tolerations))
    return blake2b(text, digest_size=DIGEST_BYTES).digest() if len(text) <= MOST_FILTER_BYTES else None


def _least_devices(inventory: Inventory, claims: Sequence[ResourceClaim]) -> int:
    """Return the least number of free GPUs that a node without other devices needs: one of the claims is ours, or the
    pod would not wait for devices. A request for an amount may be served from a GPU in use."""
    demands = inventory.requests.read(claims)
    return 0 if isinstance(demands, Refused) else min(map(_least_of, demands), default=0)


def _least_of(claim: ClaimDemand) -> int:
    return sum(
        min(
            0 if one.request.all_devices or one.request.admin_access or one.request.capacity else one.count
            for one in alternatives
        )
        for alternatives in claim.requests
    )


def _resources(inventory: Inventory, pod: Pod, *, preempting: bool) -> ResourceDemand | None:
    if pod.spec.node_name:
        return None  # it has bypassed the scheduler, and only kubelet checks what is left there
    try:
        return inventory.resource_demand(pod, preempting=preempting)
    except UnreadableQuantityError:
        return None
