"""Counts free GPUs for the metrics, under the state's lock."""

from __future__ import annotations

from dracaena.controller.allocation.state.free_gpus import FreeGpus, free_gpus_in_turns
from dracaena.controller.state.cluster import ClusterState


class FreeGpuCount:
    """Asks the state. From any thread; decisions have the lock between its turns."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def total(self) -> int:
        """Return how many are free in the cluster."""
        return self._count().total

    def most_on_a_node(self) -> int:
        """Return how many are free on the node that has most."""
        return self._count().most_on_a_node

    def _count(self) -> FreeGpus:
        turns = free_gpus_in_turns(self._state.inventory)
        while True:
            with self._state.lock:
                found = next(turns)
            if found is not None:
                return found
