"""Counts GPUs by state for the metrics, from what is watched, as the page does. No lock of decisions is taken."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

from dracaena.api.gpu_states import gpu_sums
from dracaena.controller.page.snapshots import LatestSnapshot
from dracaena.controller.views.snapshot import ClusterSnapshot
from dracaena.process.clock import Clock

KEPT_S: Final = 1.0
"""How long a count is reused: all metrics of one scrape show the same count, and the next scrape a new one."""

_NEVER: Final = threading.Event()


class GpuCounts:
    """Counts from any thread, one at a time."""

    def __init__(self, latest: LatestSnapshot, clock: Clock) -> None:
        self._latest, self._clock = latest, clock
        self._lock = threading.Lock()
        self._snapshot: ClusterSnapshot | None = None
        self._sums: Mapping[str, int] = gpu_sums(())
        self._most_free = 0
        self._counted_s = clock.monotonic() - KEPT_S

    def of(self, state: str) -> int:
        """Return how many GPUs are in a state of gpu_states.STATES."""
        with self._lock:
            self._count()
            return self._sums[state]

    def most_free_on_a_node(self) -> int:
        """Return how many GPUs are free on the node that has most."""
        with self._lock:
            self._count()
            return self._most_free

    def _count(self) -> None:
        if self._clock.monotonic() < self._counted_s + KEPT_S:
            return
        snapshot = self._latest.now(_NEVER)
        assert snapshot is not None, "turns end with a snapshot"
        if snapshot is not self._snapshot:
            self._snapshot, self._sums = snapshot, gpu_sums(line.cells for line in snapshot.lines)
            self._most_free = max((sum(line.open_gpus) for line in snapshot.lines), default=0)
        self._counted_s = self._clock.monotonic()
