"""Charges work to the pod or claim that caused it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dracaena.controller.queue.time_budgets import TimeBudgets
from dracaena.controller.queue.workqueue import WorkQueue
from dracaena.process.clock import Clock


@dataclass(slots=True)
class Charge:
    """Work under way."""

    gave_devices: bool = False
    """Whether a pod got devices by it."""


class Charging:
    """Measures work by the processor time of its thread, so that waiting is free. Safe to use from many
    threads."""

    def __init__(self, queue: WorkQueue, budgets: TimeBudgets, clock: Clock) -> None:
        self._queue = queue
        self._budgets = budgets
        self._clock = clock

    @contextmanager
    def of(self, key: str) -> Iterator[Charge]:
        """Charge what is done in this block to the namespace of a key, and let all that comes behind others rest
        because of it."""
        began_s, charge = self._clock.worked(), Charge()
        try:
            yield charge
        finally:
            used_s = self._clock.worked() - began_s
            rest_s = self._budgets.charge(key, used_s, gave_devices=charge.gave_devices)
            if rest_s:
                self._queue.rest_behind_others(rest_s)
