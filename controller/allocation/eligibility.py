"""Which devices of a node each request of a pod may use.

Asked once for all nodes of a kind, and only for kinds that a decision comes to; never for all nodes of a decision.
Today the taints of devices decide.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dracaena.api.objects import Toleration
from dracaena.controller.allocation.node_fit import first_untolerated
from dracaena.controller.allocation.pool import NodeKind


@dataclass(frozen=True, slots=True)
class Eligible:
    """Masks over the ordinals of a kind of node."""

    present: int
    """Devices that count for this pod at all, free or not. The others neither are taken nor make a node whole: nobody
    can use them who does not tolerate what they suffer from."""
    of_request: tuple[int, ...]
    """One mask a request: what it may take. A part of `present`."""


@dataclass(frozen=True, slots=True)
class Eligibility:
    """Answers for the requests of one pod, in the order of its claims and requests."""

    tolerations: tuple[tuple[Toleration, ...], ...]
    """Of each request."""

    def of_kind(self, kind: NodeKind) -> Eligible:
        """Return the masks for all nodes of a kind. Cost: O(requests × devices with taints)."""
        every = (1 << kind.box.gpu_count) - 1
        of_request = tuple(every & ~_untolerated(kind, tolerations) for tolerations in self.tolerations)
        present = 0
        for mask in of_request:
            present |= mask
        return Eligible(present, of_request)


def _untolerated(kind: NodeKind, tolerations: Iterable[Toleration]) -> int:
    mask = 0
    for ordinal, taints in kind.foreign_taints:
        if first_untolerated(taints, tolerations) is not None:
            mask |= 1 << ordinal
    return mask
