"""What a decision about a pod may be."""

from __future__ import annotations

from dataclasses import dataclass

from dracaena.controller.allocation.allocator import NoFit, Settled
from dracaena.controller.allocation.request import Refused
from dracaena.controller.allocation.result import Allocation


@dataclass(frozen=True, slots=True)
class InProgress:
    """A claim is being taken back, or allocated for some pod. Its next change, or a failed write, wakes the pod."""

    claim_key: str


@dataclass(frozen=True, slots=True)
class Behind:
    """An equal pod with an earlier turn waits because it fits on no node now, or because of their quota. The same holds
    for this pod."""

    refusal: Refused | None = None
    """What was reported to that pod, if its quota is the reason why it waits."""


@dataclass(frozen=True, slots=True)
class Deferred:
    """The pod may fit on nodes that just changed, but pods with earlier turns are tried on these nodes first. The
    pod is tried again after them."""


Decision = Allocation | NoFit | Behind | Refused | Settled | InProgress | Deferred
