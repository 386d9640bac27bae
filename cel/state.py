"""What one evaluation carries with it: the device, the variables, and what it has used up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dracaena.cel.cost import WALK_WORK, WORK_LIMIT, tree_size
from dracaena.cel.device import DeviceValues
from dracaena.cel.errors import CostLimitError, EvaluationError

WORK_EXCEEDED: Final = "operation cancelled: actual cost limit exceeded: it takes too many steps"


class State:
    """One evaluation. `cost` counts the units of Kubernetes' model up, `work` what is left of `WORK_LIMIT` down."""

    __slots__ = ("attributes", "capacity", "cost", "driver", "limit", "slots", "values", "work")

    def __init__(self, values: DeviceValues, slots: int, limit: int, work: int = WORK_LIMIT) -> None:
        self.values = values
        self.driver = values.driver
        self.attributes = values.attributes
        self.capacity = values.capacity
        self.slots: list[Any] = [None] * slots
        self.cost = 0
        self.limit = limit
        self.work = work

    def spend(self, work: int) -> None:
        """Take work from the budget before it is done."""
        self.work -= work
        if self.work < 0:
            raise CostLimitError(WORK_EXCEEDED)

    def spend_on(self, value: Any) -> None:
        """Take as much work as walking the whole value, and comparing or copying it, takes."""
        self.spend(WALK_WORK * tree_size(value, self.work))

    def check_limit(self) -> None:
        """End the evaluation when it has used up its cost."""
        if self.cost > self.limit:
            raise CostLimitError


Run = Callable[[State], Any]


class Raised:
    """An error that is the value of a variable: every use of the variable raises it again."""

    __slots__ = ("error",)

    def __init__(self, error: EvaluationError) -> None:
        self.error = error


class _Marker:
    """A value that no expression has."""

    __slots__ = ()


UNSET: Final = _Marker()  # a variable of cel.bind that nobody has asked for yet
FAILED: Final = _Marker()  # the argument or result of a call that failed, for its cost: its size is 1
