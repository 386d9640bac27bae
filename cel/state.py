"""The state of one evaluation: the device, the variables, and what it has used up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dracaena.cel.cost import WALK_WORK, WORK_LIMIT, tree_size
from dracaena.cel.device import DeviceValues
from dracaena.cel.errors import CostLimitError, EvaluationError

PULSE: Final = 2_000
"""Units of cost between two reports to the caller: below a millisecond."""

WORK_OF_UNIT: Final = 2
"""Work that is reported as one unit: both take about a quarter of a microsecond."""

WORK_EXCEEDED: Final = "operation cancelled: actual cost limit exceeded: it takes too many steps"


class EvaluationState:
    """One evaluation. `cost` counts the units of Kubernetes' model up, `work` what is left of `WORK_LIMIT` down."""

    __slots__ = (
        "_charge",
        "_floor",
        "_most",
        "_told_cost",
        "_told_work",
        "attributes",
        "capacity",
        "cost",
        "driver",
        "limit",
        "slots",
        "values",
        "work",
    )

    def __init__(
        self,
        values: DeviceValues,
        slots: int,
        limit: int,
        *,
        work: int = WORK_LIMIT,
        charge: Callable[[int], None] | None = None,
    ) -> None:
        """`charge` is called each time that about PULSE more units of cost or of work were used; what it raises ends
        the evaluation."""
        self.values = values
        self.driver = values.driver
        self.attributes = values.attributes
        self.capacity = values.capacity
        self.slots: list[Any] = [None] * slots
        self.cost = 0
        self._most, self._charge = limit, charge
        self.limit = limit if charge is None else min(limit, PULSE)
        """The cost from which over_limit() has to be called."""
        self.work = self._told_work = work
        self._told_cost = 0
        self._floor = 0 if charge is None else max(0, work - PULSE * WORK_OF_UNIT)

    def spend(self, work: int) -> None:
        """Take work from the budget before it is done."""
        self.work -= work
        if self.work < self._floor:
            if self.work < 0:
                raise CostLimitError(WORK_EXCEEDED)
            self._tell()

    def spend_on(self, value: Any) -> None:
        """Take the work of walking the whole value and comparing or copying it."""
        self.spend(WALK_WORK * tree_size(value, self.work))

    def check_limit(self) -> None:
        """End the evaluation if it has used up its cost."""
        if self.cost > self.limit:
            self.over_limit()

    def over_limit(self) -> None:
        """The cost is above `limit`: end the evaluation if it is used up, else report it and continue."""
        if self.cost > self._most or self._charge is None:
            raise CostLimitError
        self._tell()

    @property
    def untold(self) -> int:
        """Units used since `charge` was last called."""
        return self.cost - self._told_cost + (self._told_work - self.work) // WORK_OF_UNIT

    def _tell(self) -> None:
        units = self.untold
        self._told_cost, self._told_work = self.cost, self.work
        self.limit = min(self.cost + PULSE, self._most)
        self._floor = max(0, self.work - PULSE * WORK_OF_UNIT)
        if self._charge is not None:
            self._charge(units)


Run = Callable[[EvaluationState], Any]


class Raised:
    """An error as the value of a variable: every use of the variable raises it again."""

    __slots__ = ("error",)

    def __init__(self, error: EvaluationError) -> None:
        self.error = error


class _Marker:
    """A value that no expression has."""

    __slots__ = ()


UNSET: Final = _Marker()  # a variable of cel.bind that has not been used yet
FAILED: Final = _Marker()  # the argument or result of a call that failed, for its cost: its size is 1
