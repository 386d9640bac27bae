"""What a baseline is asked and what it may answer: a set of GPUs, or what goes wrong instead, as a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from dracaena.api.links import LinkLevel


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """The links of one machine as NVML tells them. Two values are equal only if they are one, so tables can be kept
    for each.
    """

    levels: tuple[tuple[LinkLevel | None, ...], ...]
    """PCIe level of each pair; None: the pair has no PCIe entry at all (and on the diagonal)."""
    nvlinks: tuple[tuple[int, ...], ...]
    """NVLinks of each pair; behind NVSwitches a GPU's whole count for each peer."""
    numa_nodes: tuple[int | None, ...]
    switched: bool = False
    """Whether the NVLinks of a pair run through NVSwitches."""
    product: str | None = None

    @property
    def gpu_count(self) -> int:
        return len(self.nvlinks)


class Fault(Enum):
    """What goes wrong instead of a set of the size asked for. The value is the word in the tables."""

    REFUSED = "refused"
    """It says that the request does not fit, although enough GPUs are free."""
    CRASHED = "crashed"
    """A nil among the devices, which its caller dereferences, or a nil dereference of its own."""
    OVER_ALLOCATED = "over-allocated"
    """More GPUs than asked for, all marked as taken."""
    SHORT = "short"
    """Fewer GPUs than asked for."""
    CUT_APART = "cut apart"
    """Its tree lost GPUs that are free, so that it finds too few."""
    IN_USE = "in use"
    """Hands out a GPU that another job holds."""
    NOT_RUN = "not run"
    """Not asked: the original, or this copy of it, takes too long."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The GPUs that a baseline hands out, ascending, and what is wrong with them."""

    gpus: tuple[int, ...] = ()
    fault: Fault | None = None


Choose = Callable[[Links, tuple[int, ...], int], Answer]
"""(links, free GPUs ascending, count) → answer. A pure function."""


def granted(gpus: Sequence[int]) -> Answer:
    return Answer(tuple(sorted(gpus)))


REFUSED = Answer(fault=Fault.REFUSED)
NOT_RUN = Answer(fault=Fault.NOT_RUN)
