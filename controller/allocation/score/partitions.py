"""What stays possible of a GPU that is cut into parts, and which part to cut (docs/design/mig.md).

A GPU that can be partitioned has counters, and places: each place is a profile at a start, and takes some of each
counter. What is left of the counters is the GPU's state. All else is worked out from the places, so a new product
needs no code. GPUs of one geometry share one table.
"""

from __future__ import annotations

from operator import sub
from typing import Final, NamedTuple

from dracaena.api.partitions import Left, PartitionGeometry, fits
from dracaena.controller.allocation.effort import Effort, Work

FOOTPRINT_WEIGHT: Final = 1 << 20
"""What a memory slice of a footprint is worth compared with one of a place: no GPU has a million places, so footprints
decide and places only settle ties."""

MOST_STATES: Final = 20_000
"""States that one table remembers, some 200 bytes each. No GPU on sale has a thousand (A100 and H100 with +me: 656),
but made-up slices can have millions; those are worked out again each time."""


class PartitionMove(NamedTuple):
    """Cutting one place out of a GPU."""

    place: int
    """Number of the place."""
    left: Left
    """What is left afterwards."""
    loss: int
    """How much less the GPU is worth afterwards."""


class PartitionTable:
    """What each state of a geometry is worth, and what each place would cost there. Remembers the states that
    were asked about, MOST_STATES at most: the A100's and H100's 18 places make 336 of them. One thread at a time.
    """

    def __init__(self, geometry: PartitionGeometry, effort: Effort | None = None) -> None:
        """`effort`: what the work is charged to, a step for each place that is looked at; None: it is not charged."""
        self.geometry = geometry
        self._effort = Effort() if effort is None else effort
        self._worths: dict[Left, int] = {}
        self._moves: dict[Left, tuple[PartitionMove, ...]] = {}

    def worth(self, left: Left) -> int:
        """Return what can still be cut: the memory slices of all footprints, and after them of all places, that still
        fit, in sum. A sum, so that it adds up over GPUs. A profile with an engine of its own counts as one footprint
        with its plain twin: otherwise a GPU would seem to have twice as many small parts as it can give.
        """
        known = self._worths.get(left)
        if known is None:
            self._effort.charge(len(self.geometry.places), Work.SETS)
            fitting = [place for place in self.geometry.places if fits(place, left)]
            footprints = sum(size for _, size, _ in {place.footprint for place in fitting})
            known = FOOTPRINT_WEIGHT * footprints + sum(place.size for place in fitting)
            if len(self._worths) >= MOST_STATES:
                self._worths.clear()
            self._worths[left] = known
        return known

    def moves(self, left: Left) -> tuple[PartitionMove, ...]:
        """Return every place that can be cut now, in the order of the geometry."""
        known = self._moves.get(left)
        if known is None:
            worth = self.worth(left)
            self._effort.charge(len(self.geometry.places), Work.SETS)
            if len(self._moves) >= MOST_STATES:
                self._moves.clear()
            known = self._moves[left] = tuple(
                PartitionMove(number, after, worth - self.worth(after))
                for number, place in enumerate(self.geometry.places)
                if fits(place, left)
                for after in [tuple(map(sub, left, place.takes))]
            )
        return known
