"""What a pod may ask for that is less than a GPU: a share of one (shares/), or a part that is cut on demand
(partitions/). Both are fractions; places.py puts them on nodes, and knows no difference between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from dracaena.controller.allocation.score.choices import Choice
from dracaena.controller.allocation.state.node_state import NodeKind

FractionMasks = tuple[int, ...]
"""What a request for fractions may have: a mask of GPUs, or for each GPU that is cut on demand a mask of its places."""


@dataclass(frozen=True, slots=True)
class Option:
    """One way to choose the values that requests have to agree on."""

    whole: tuple[int, ...]
    """For each request that gets whole GPUs a mask of those that it may have."""
    fractions: tuple[FractionMasks, ...]
    """For each request that gets fractions of GPUs those that it may have."""


@dataclass(frozen=True, slots=True)
class FractionQuestion:
    """What a pod asks of the nodes of one kind. Requests are named by their places among those whose devices are
    chosen."""

    kind: NodeKind
    fractions: tuple[int, ...]
    """The requests that get fractions of GPUs here."""
    whole: tuple[int, ...]
    """The requests that get whole GPUs here."""
    options: tuple[Option, ...]

    @property
    def is_about_fractions(self) -> bool:
        """Whether places depend on more than the links of whole GPUs."""
        return bool(self.fractions)

    @property
    def wasted(self) -> int:
        """GPUs that requests get whole here although they ask for less."""
        return 0


class Deal(NamedTuple):
    """Fractions for a pod beside one set of whole GPUs."""

    whole: Choice | None
    """None if the pod gets no whole GPU here."""
    option: Option
    picks: tuple[tuple[int, ...], ...]
    """The fractions, in numbers that only NodePlaces.names() can read. Of deals that are equal
    in everything else, the one whose picks sort first is taken."""
    fresh: int
    """Mask of the free GPUs that are broken."""
    left: tuple[int, int]
    """What sorts deals that do the same damage, least first: what is lost or left over."""
    wasted: int = 0
    """GPUs that are taken whole for a part of them."""
    joined: int = 0
    """Mask of the GPUs in use of which the pod gets a share."""

    @property
    def broken(self) -> tuple[int, int]:
        """What sorts deals beside equal sets of whole GPUs, least first."""
        return self.fresh.bit_count(), self.wasted

    @property
    def taken(self) -> int:
        """Mask of the whole GPUs."""
        return 0 if self.whole is None else self.whole.mask


Q = TypeVar("Q", bound=FractionQuestion)
