"""Reports fields of slices that this version does not know, and what is left alone for them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Final

from dracaena.api.resource_objects import ResourceSlice
from dracaena.controller.allocation.legal.read.slices import not_understood
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.ports import EventSink

EVENT_REASON: Final = "SliceNotUnderstood"

MAX_REPORTED: Final = 8
"""Different texts reported about one driver while we lead. A newer driver has the same fields on every node."""


class SliceReports:
    """Counts slices with such fields by driver, and reports each text once, on the first slice by name that has it.

    A stand-by reports nothing, and a new leader starts by reporting what there is. Safe to use from many threads.
    """

    def __init__(self, events: EventSink, metrics: ControllerMetrics, is_leading: Callable[[], bool]) -> None:
        self._events = events
        self._metrics = metrics
        self._is_leading = is_leading
        self._lock = threading.Lock()
        self._slices: dict[str, tuple[ResourceSlice, str]] = {}  # by name, with what is said of it
        self._counts: Counter[str] = Counter()  # of these by driver
        self._reported: set[tuple[str, str]] = set()  # driver, text; since we lead

    def changed(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        """Take in a change of a slice. Cost: O(devices)."""
        subject = new or old
        if subject is None:
            return
        text = "" if new is None else not_understood(new.spec)
        with self._lock:
            before = self._slices.pop(subject.metadata.name, None)
            if before is not None:
                self._count(before[0].spec.driver, -1)
            if new is not None and text:
                self._slices[new.metadata.name] = new, text
                self._count(new.spec.driver, 1)
        if new is not None and text and self._is_leading():
            self._report(new, text)

    def begin(self) -> None:
        """Report what there is, because we lead from now on."""
        with self._lock:
            known = sorted(self._slices.items())
        for _, (one, text) in known:
            self._report(one, text)

    def _count(self, driver: str, change: int) -> None:
        self._counts[driver] += change
        self._metrics.watches.not_understood_slices.labels(driver).set(self._counts[driver])

    def _report(self, subject: ResourceSlice, text: str) -> None:
        driver = subject.spec.driver
        with self._lock:
            reported = Counter(name for name, _ in self._reported)[driver]
            if (driver, text) in self._reported or reported >= MAX_REPORTED:
                return
            self._reported.add((driver, text))
        message = f"Dracaena allocates nothing that it does not understand. {text}. Upgrade Dracaena to use it"
        self._events.record(subject, "Warning", EVENT_REASON, message)
