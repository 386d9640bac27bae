"""Counts free GPUs for the metrics, under the state's lock."""

from __future__ import annotations

from typing import Final

from dracaena.controller.allocation.state.free_gpus import FreeGpus, free_gpus_in_turns
from dracaena.controller.state.cluster import ClusterState
from dracaena.process.clock import Clock

KEPT_S: Final = 1.0
"""How long a count is reused: both metrics of one scrape show the same count, and the next scrape a new one."""


class FreeGpuCount:
    """Counts in the state, from any thread. Decisions get the lock between its turns. Two threads may count at once."""

    def __init__(self, state: ClusterState, clock: Clock) -> None:
        self._state, self._clock = state, clock
        self._known: tuple[float, FreeGpus] | None = None
        """When we counted, and the result; replaced as a whole."""

    def total(self) -> int:
        """Return how many GPUs are free in the cluster."""
        return self._count().total

    def most_on_a_node(self) -> int:
        """Return how many GPUs are free on the node that has most."""
        return self._count().most_on_a_node

    def _count(self) -> FreeGpus:
        known = self._known
        if known is not None and self._clock.monotonic() < known[0] + KEPT_S:
            return known[1]
        counted = self._counted()
        self._known = (self._clock.monotonic(), counted)
        return counted

    def _counted(self) -> FreeGpus:
        turns = free_gpus_in_turns(self._state.inventory)
        while True:
            with self._state.lock:
                found = next(turns)
            if found is not None:
                return found
