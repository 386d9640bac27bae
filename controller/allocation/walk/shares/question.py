"""What a pod that names amounts asks of the nodes of one kind: which requests get shares, of which GPUs, and how much
(docs/design/0029-shares.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dracaena.api.config.v1alpha1 import TopologyPolicy
from dracaena.api.quantity import Quantity
from dracaena.controller.allocation.legal.capacity import AmountDemand, amounts
from dracaena.controller.allocation.legal.read.slices import PublishedDevice
from dracaena.controller.allocation.score.box import ordinals_of
from dracaena.controller.allocation.state.node_state import NodeKind


@dataclass(frozen=True, slots=True)
class ShareQuestion:
    """What a pod asks of the nodes of one kind."""

    kind: NodeKind
    policies: tuple[TopologyPolicy, ...]
    """The policy of each request whose GPUs are chosen."""
    counts: tuple[int, ...]
    """Number of GPUs of each of them."""
    masks: tuple[int, ...]
    """GPUs that each of them may have, whole or a share, judged by its selectors, taints and amounts."""
    amounts: tuple[AmountDemand, ...]
    taken: Mapping[int, tuple[Mapping[str, int] | None, ...]]
    """Place of each request for amounts → for each GPU what it takes of each capacity, in billionths; None: never."""
    shares: tuple[AmountDemand, ...]
    """The requests that get a share somewhere; the others take all of any GPU of this kind."""

    @property
    def whole(self) -> tuple[int, ...]:
        """Places of the requests that get whole GPUs here."""
        in_shares = {one.place for one in self.shares}
        return tuple(place for place in range(len(self.counts)) if place not in in_shares)

    @property
    def is_about_shares(self) -> bool:
        """Whether places depend on more than the links of whole GPUs: there are shares, or GPUs that are too small."""
        return bool(self.shares) or (not self.kind.is_mixed and any(not self.masks[one.place] for one in self.amounts))

    @property
    def is_linked(self) -> bool:
        """Whether the pod asks for several GPUs without amounts, whose links count before everything else."""
        with_amounts = {one.place for one in self.amounts}
        return sum(count for place, count in enumerate(self.counts) if place not in with_amounts) > 1


def share_question(
    kind: NodeKind,
    policies: Sequence[TopologyPolicy],
    counts: Sequence[int],
    masks: Sequence[int],
    demands: Sequence[AmountDemand],
    *,
    fractional: bool,
) -> ShareQuestion:
    """Return what a pod asks of the nodes of a kind. `masks`: the GPUs that each request may have, judged by its
    selectors and taints. `fractional` as in capacity.amounts. Cost: O(requests × GPUs)."""
    taken = {
        demand.place: tuple(
            None if one is None else _taken(one.device, demand.capacity, fractional=fractional) for one in kind.devices
        )
        for demand in demands
    }
    cut = list(masks)
    for place, found in taken.items():
        cut[place] &= sum(1 << ordinal for ordinal, amount in enumerate(found) if amount is not None)
    shares = tuple(
        demand
        for demand in demands
        if any(
            _leaves(kind, ordinal, taken[demand.place]) for ordinal in ordinals_of(kind.shareable & cut[demand.place])
        )
    )
    return ShareQuestion(kind, tuple(policies), tuple(counts), tuple(cut), tuple(demands), taken, shares)


def _taken(device: PublishedDevice, capacity: Mapping[str, Quantity], *, fractional: bool) -> Mapping[str, int] | None:
    """Return what a request takes of an unused device; None if that is more than there is."""
    found = amounts(device, capacity, fractional=fractional)
    if found is None or any(found[one.name] > one.value for one in device.capacities):
        return None
    return {name: amount.nano for name, amount in found.items()}


def _leaves(kind: NodeKind, ordinal: int, taken: Sequence[Mapping[str, int] | None]) -> bool:
    """Whether another share of the GPU is possible beside one that takes this."""
    one, amount = kind.devices[ordinal], taken[ordinal]
    if one is None or amount is None:
        return False
    return all(held.value.nano - amount[held.name] >= held.least_nano for held in one.device.capacities)
