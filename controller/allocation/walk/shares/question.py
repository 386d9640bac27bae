"""What a pod that names amounts asks of the nodes of one kind: which requests get shares, of which GPUs, and how much
(docs/design/shares.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

from dracaena.api.quantity import Quantity
from dracaena.controller.allocation.legal.capacity import AmountDemand, amounts
from dracaena.controller.allocation.legal.read.slices import PublishedDevice
from dracaena.controller.allocation.score.box import ordinals_of
from dracaena.controller.allocation.state.node_state import NodeKind
from dracaena.controller.allocation.walk.fractions import FractionQuestion, Option


@dataclass(frozen=True, slots=True)
class ShareQuestion(FractionQuestion):
    """What a pod asks of the nodes of one kind."""

    amounts: tuple[AmountDemand, ...]
    taken: Mapping[int, tuple[Mapping[str, int] | None, ...]]
    """Request for amounts → for each GPU what it takes of each capacity, in billionths; None: never."""
    shares: tuple[AmountDemand, ...]
    """The requests that get a share somewhere; the others take all of any GPU of this kind."""
    masks: tuple[int, ...]
    """GPUs that each request may have, whole or a share, judged by its selectors, taints and amounts."""

    @property
    def is_about_fractions(self) -> bool:
        """Whether places depend on more than the links of whole GPUs: there are shares, or GPUs that are too small."""
        return bool(self.shares) or (not self.kind.is_mixed and any(not self.masks[one.place] for one in self.amounts))

    @property
    def wasted(self) -> int:
        """GPUs that requests get whole here although they ask for less."""
        return sum(one.count for one in self.amounts if one not in self.shares and self._takes_less(one))

    def _takes_less(self, demand: AmountDemand) -> bool:
        return any(
            amount is not None
            and one is not None
            and any(
                amount[held.name] < held.value.nano for held in one.device.capacities if held.name in demand.capacity
            )
            for amount, one in zip(self.taken[demand.place], self.kind.devices, strict=True)
        )

    def narrowed(self, options: Sequence[Sequence[int]]) -> ShareQuestion:
        """Return the question for requests that may have only these GPUs, in each of several ways to agree."""
        # If there is more than GPUs, a request that no GPU can serve may be about the rest.
        places = [at for at in range(len(self.masks)) if not self.kind.is_mixed or any(masks[at] for masks in options)]
        in_shares = [one.place for one in self.shares if one.place in places]
        whole = [at for at in places if at not in in_shares]
        ways = (Option(tuple(masks[at] for at in whole), tuple((masks[at],) for at in in_shares)) for masks in options)
        every = tuple(reduce(or_, masks) for masks in zip(*options, strict=True))
        return replace(self, fractions=tuple(in_shares), whole=tuple(whole), options=tuple(ways), masks=every)


def masks_of(asked: ShareQuestion, option: Option) -> dict[int, int]:
    """Return the GPUs of which each request for shares may have one."""
    return {at: mask for at, (mask,) in zip(asked.fractions, option.fractions, strict=True)}


def share_question(
    kind: NodeKind, masks: Sequence[int], demands: Sequence[AmountDemand], *, fractional: bool
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
    asked = ShareQuestion(kind, (), (), (), tuple(demands), taken, shares, tuple(cut))
    return asked.narrowed((cut,))


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
