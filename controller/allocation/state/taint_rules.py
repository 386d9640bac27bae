"""DeviceTaintRules, sorted by what they taint."""

from __future__ import annotations

from collections.abc import Iterable

from dracaena.api.names import taint_key
from dracaena.api.objects import Taint
from dracaena.api.resource_objects import DeviceTaintRule
from dracaena.controller.allocation.legal.read.taints import selects_all, timeless


class TaintRules:
    """All rules that are there. A part of its owner.

    Our own taint in a rule counts for no device of ours: who allocates that is said by its slice alone.
    """

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._own_key = taint_key(driver)
        self._rules: dict[str, DeviceTaintRule] = {}
        self._of_pool: dict[str | None, dict[str, DeviceTaintRule]] = {}  # None: of a device in whatever pool
        self._of_all: dict[str, DeviceTaintRule] = {}
        self.taints_of_all: tuple[Taint, ...] = ()
        """What the rules put on every device of ours."""

    def put(self, rule: DeviceTaintRule) -> DeviceTaintRule | None:
        """Take in a rule, new or changed; return what it was before. Cost: O(rules that taint every device of ours)."""
        before = self.remove(rule.metadata.name)
        self._rules[rule.metadata.name] = rule
        if rule.spec.taint.key == self._own_key or rule.spec.device_selector is None:
            return before
        if selects_all(rule, self._driver):
            self._of_all[rule.metadata.name] = rule
            self._sum_up()
        else:
            self._of_pool.setdefault(rule.spec.device_selector.pool, {})[rule.metadata.name] = rule
        return before

    def remove(self, name: str) -> DeviceTaintRule | None:
        """Forget a rule; return what it was, None when it was not there. Cost: as put()."""
        before = self._rules.pop(name, None)
        if before is None or before.spec.device_selector is None:
            return before
        if self._of_all.pop(name, None) is not None:
            self._sum_up()
        of_pool = self._of_pool.get(before.spec.device_selector.pool, {})
        of_pool.pop(name, None)
        if not of_pool:
            self._of_pool.pop(before.spec.device_selector.pool, None)
        return before

    def every(self) -> Iterable[DeviceTaintRule]:
        """Return all rules, for devices of other drivers."""
        return self._rules.values()

    def of_pool(self, pool: str) -> Iterable[DeviceTaintRule]:
        """Return the rules that may taint devices of one of our pools, but not every device of ours.

        Cost: O(these rules and those that name a device and no pool).
        """
        return (*self._of_pool.get(pool, {}).values(), *self._of_pool.get(None, {}).values())

    def of_pool_or_all(self, pool: str) -> Iterable[DeviceTaintRule]:
        """Return the rules that may taint devices of one of our pools."""
        return (*self.of_pool(pool), *self._of_all.values())

    def _sum_up(self) -> None:
        self.taints_of_all = tuple(timeless(rule.spec.taint) for _, rule in sorted(self._of_all.items()))
