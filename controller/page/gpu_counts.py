"""Counts GPUs by state for the metrics, from what is watched, as the page does. No lock of decisions is taken."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final

from dracaena.api.gpu_states import gpu_sums
from dracaena.controller.page.turns import worked_out
from dracaena.controller.views.snapshot import ClusterSnapshot, SnapshotMaker, Watched
from dracaena.process.clock import Clock

KEPT_S: Final = 1.0
"""How long a count is reused: all metrics of one scrape show the same count, and the next scrape a new one."""


class GpuCounts:
    """Counts from any thread, one at a time. Nodes of which nothing changed since the last count are not read again."""

    def __init__(self, driver: str, watched: Callable[[], Watched], clock: Clock) -> None:
        self._maker, self._watched, self._clock = SnapshotMaker(driver), watched, clock
        self._lock = threading.Lock()
        self._never = threading.Event()
        self._last: Watched | None = None
        self._snapshot = ClusterSnapshot(driver)
        self._sums: Mapping[str, int] = gpu_sums(())
        self._counted_s = clock.monotonic() - KEPT_S

    def of(self, state: str) -> int:
        """Return how many GPUs are in a state of gpu_states.STATES."""
        return self._now()[0][state]

    def most_free_on_a_node(self) -> int:
        """Return how many GPUs are free on the node that has most."""
        return max((sum(line.open_gpus) for line in self._now()[1].lines), default=0)

    def _now(self) -> tuple[Mapping[str, int], ClusterSnapshot]:
        with self._lock:
            if self._clock.monotonic() >= self._counted_s + KEPT_S:
                self._count()
                self._counted_s = self._clock.monotonic()
            return self._sums, self._snapshot

    def _count(self) -> None:
        watched = self._watched()
        if watched == self._last:
            return
        snapshot = worked_out(self._maker.turns(watched), self._clock, self._never)
        assert snapshot is not None, "turns end with a snapshot"
        self._last, self._snapshot = watched, snapshot
        self._sums = gpu_sums(line.cells for line in snapshot.lines)
