"""Which kinds of nodes publish a device that selectors match, remembered from one decision to the next.

To ask it of all kinds takes a look at each of their devices, and where nodes have more than whole GPUs some node's
slices may have to be read for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from dracaena import cel
from dracaena.controller.allocation.effort import Memo
from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from dracaena.controller.allocation.state.device_kind import reads_identity
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodeKind

MAX_EXPRESSIONS: Final = 1_000
"""Sets of selectors that answers are kept of: those of all classes, and of the claims that were asked about lately."""


@dataclass(frozen=True, slots=True)
class _Answers:
    """What is known about one set of selectors."""

    lasting: bool
    """Whether equal nodes give the same answer: no selector reads what tells them apart."""
    by_kind: WeakKeyDictionary[NodeKind, bool] = field(default_factory=WeakKeyDictionary)


class MatchedKinds:
    """Answers by selectors and kind of node. One thread at a time."""

    def __init__(self, selectors: CelSelectors) -> None:
        self.selectors = selectors
        self._known: Memo[tuple[str, tuple[str, ...]], _Answers] = Memo(MAX_EXPRESSIONS)

    def any_kind(self, inventory: Inventory, expressions: tuple[str, ...]) -> bool:
        """Return whether nodes of any kind that is there have such a device (matches). Cost: a step for each kind."""
        return any(self.matches(inventory, kind, expressions) for kind in inventory.buckets)

    def matches(self, inventory: Inventory, kind: NodeKind, expressions: tuple[str, ...]) -> bool:
        """Return whether nodes of a kind that is there have a device, held or not, that all expressions match. One that
        has no answer for a device matches it. Expressions have to compile.

        Cost: a look-up; for what is new a look at each device of the kind, charged by what is evaluated.
        """
        answers = self._known.get((inventory.driver, expressions), partial(self._new, inventory.driver, expressions))
        found = answers.by_kind.get(kind)
        if found is None:
            found = self._ask(inventory, kind, expressions)
            if answers.lasting:
                answers.by_kind[kind] = found
        return found

    def _new(self, driver: str, expressions: tuple[str, ...]) -> _Answers:
        footprints = [self.selectors.footprint(expression) for expression in expressions]
        return _Answers(all(isinstance(one, cel.Footprint) and not reads_identity(driver, one) for one in footprints))

    def _ask(self, inventory: Inventory, kind: NodeKind, expressions: tuple[str, ...]) -> bool:
        return any(
            all(self.selectors.evaluate(expression, device) is not False for expression in expressions)
            for device in inventory.devices_of(kind)
        )
