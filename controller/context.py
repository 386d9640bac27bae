"""What the parts of one controller have in common."""

from __future__ import annotations

from dataclasses import dataclass

from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.ports import EventSink
from dracaena.controller.queue.time_budgets import TimeBudgets
from dracaena.controller.queue.workqueue import WorkQueue
from dracaena.process.clock import Clock


@dataclass(frozen=True, slots=True)
class ControllerContext:
    """Handed to a part as a whole, so that a part that needs one more of these needs no other parameter."""

    driver: str
    clock: Clock
    metrics: ControllerMetrics
    events: EventSink
    queue: WorkQueue
    budgets: TimeBudgets
