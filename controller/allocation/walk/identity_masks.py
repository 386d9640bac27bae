"""Which GPUs of a node a selector may mean that reads what tells GPUs of equal nodes apart, such as a UUID."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from dracaena import cel
from dracaena.api import resource_objects
from dracaena.api.device_id import DeviceId
from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from dracaena.controller.allocation.legal.read.slices import PublishedDevice
from dracaena.controller.allocation.score.box import mask_of
from dracaena.controller.allocation.state.node_state import NodePool

MAX_MASKS: Final = 100_000
"""Remembered masks of all expressions together, about 12 MB: those of 20 pods that wait for certain GPUs among 5,000
nodes. The expressions not asked for longest go first."""


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
