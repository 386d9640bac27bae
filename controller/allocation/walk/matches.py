"""What selectors match, remembered from one decision to the next: which kinds of nodes have such a device; and where a
selector reads what tells GPUs of equal nodes apart, such as a UUID, which GPUs of a node it may mean.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from dracaena import cel
from dracaena.api import resource_objects
from dracaena.api.device_id import DeviceId
from dracaena.controller.allocation.effort import Memo
from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from dracaena.controller.allocation.legal.read.slices import PublishedDevice
from dracaena.controller.allocation.score.box import mask_of
from dracaena.controller.allocation.state.device_kind import reads_identity
from dracaena.controller.allocation.state.node_state import NodeKind, NodePool

MAX_MASKS: Final = 100_000
"""Remembered masks of all expressions together, about 12 MB: those of 20 pods that wait for certain GPUs among 5,000
nodes. The expressions not asked for longest go first."""


MAX_EXPRESSIONS: Final = 1_000
"""Sets of selectors of which answers are kept by kind: those of all classes, and of what was asked for lately."""

Devices = Callable[[NodeKind], Iterable[PublishedDevice]]
"""Returns the devices of a kind of node that is there (Inventory.devices_of)."""


@dataclass(frozen=True, slots=True)
class _KindAnswers:
    """What is known about one set of selectors."""

    lasting: bool
    """Whether equal nodes give one answer: no selector reads what tells them apart."""
    by_kind: WeakKeyDictionary[NodeKind, bool] = field(default_factory=WeakKeyDictionary)


class MatchedKinds:
    """Answers by selectors and kind of node. Without them each device of each kind is asked in every decision, and some
    node's slices may have to be read for it where nodes have more than whole GPUs. One thread at a time."""

    def __init__(self, selectors: CelSelectors) -> None:
        self.selectors = selectors
        self._known: Memo[tuple[str, tuple[str, ...]], _KindAnswers] = Memo(MAX_EXPRESSIONS)

    def matches(self, driver: str, expressions: tuple[str, ...], devices: Devices, kind: NodeKind) -> bool:
        """Return whether nodes of a kind that is there have a device, held or not, that all expressions match; one for
        which there is no answer counts as matched. Expressions have to compile.

        Cost: a look-up; for what is new a look at each device of the kind, charged as it is evaluated.
        """
        answers = self._known.get((driver, expressions), partial(self._nothing_known, driver, expressions))
        found = answers.by_kind.get(kind)
        if found is None:
            found = any(
                all(self.selectors.evaluate(expression, device) is not False for expression in expressions)
                for device in devices(kind)
            )
            if answers.lasting:
                answers.by_kind[kind] = found
        return found

    def _nothing_known(self, driver: str, expressions: tuple[str, ...]) -> _KindAnswers:
        footprints = map(self.selectors.footprint, expressions)
        lasting = all(isinstance(one, cel.Footprint) and not reads_identity(driver, one) for one in footprints)
        return _KindAnswers(lasting)


class IdentityMasks:
    """Answers by expression and pool, remembered as long as the pool stays as it is. One thread at a time."""

    def __init__(self, selectors: CelSelectors) -> None:
        self._selectors = selectors
        self._by_expression: OrderedDict[str, dict[str, tuple[NodePool, int]]] = OrderedDict()
        self._count = 0

    def may_match(self, driver: str, expression: str, pool: NodePool) -> int:
        """Return the ordinals of the GPUs that the expression matches, or for which it has no answer.

        What is left out can never be given to who asks so; the rest is for the rules to judge. `expression` has to
        compile. Cost: a look-up; after a change of the pool some 5 µs for each of its GPUs.
        """
        known = self._by_expression.get(expression)
        if known is None:
            known = self._by_expression[expression] = {}
        found = known.get(pool.node)
        if found is not None and found[0] is pool:
            return found[1]
        mask = self._ask(driver, expression, pool)
        self._count += found is None
        known[pool.node] = (pool, mask)
        self._forget(expression)
        return mask

    def _ask(self, driver: str, expression: str, pool: NodePool) -> int:
        footprint = self._selectors.footprint(expression)
        assert isinstance(footprint, cel.Footprint), "expressions were compiled when the claims were read"
        names = _names(driver, footprint)
        return mask_of(
            ordinal
            for ordinal, device in enumerate(pool.published)
            if device is not None and (names is None or self._may(driver, expression, device, names))
        )

    def _may(self, driver: str, expression: str, device: resource_objects.Device, names: tuple[str, ...]) -> bool:
        kept = {name: device.attributes[name] for name in names if name in device.attributes}
        answer = self._selectors.evaluate_once(expression, PublishedDevice(DeviceId(driver, "", ""), kept))
        return answer is not False

    def _forget(self, but: str) -> None:
        self._by_expression.move_to_end(but)
        while self._count > MAX_MASKS and len(self._by_expression) > 1:
            self._count -= len(self._by_expression.popitem(last=False)[1])


def _names(driver: str, footprint: cel.Footprint) -> tuple[str, ...] | None:
    """Return the names under which all is published that an expression reads; None: it reads more than attributes."""
    names = set()
    for path in footprint.paths:
        if path == ("driver",):
            continue
        if len(path) < 3 or path[0] != "attributes":
            return None
        _, domain, name = path
        names.add(f"{domain}/{name}")
        if domain == driver:
            names.add(name)
    return tuple(sorted(names))
