"""The devices of other drivers, and who holds them.

kube-scheduler allocates them, after us and on the node of our choice. So they matter to a pod that asks for both.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Final, TypeVar, cast

from dracaena.api.device_id import PoolId
from dracaena.api.device_taints import with_taint_rules
from dracaena.api.objects import Node
from dracaena.api.resource_objects import DeviceTaintRule, ResourceSlice
from dracaena.controller.allocation.legal.books import Books, Holding
from dracaena.controller.allocation.legal.pools import SliceIndex
from dracaena.controller.allocation.legal.read.slices import Slice, read_slice

MOST_ANSWERS: Final = 20_000
"""Answers that are remembered, some 300 bytes each: for four different pods on 5,000 nodes."""

NO_DEVICES: Final[frozenset[Holding]] = frozenset()

A = TypeVar("A")


class OtherDevices:
    """Part of its owner. What changes costs a few look-ups; a slice is read when a node that it is for is asked about.

    `taint_rules` returns all DeviceTaintRules.
    """

    def __init__(self, driver: str, taint_rules: Callable[[], Iterable[DeviceTaintRule]]) -> None:
        self._driver, self._taint_rules = driver, taint_rules
        self.are_followed = False
        """Whether all slices of other drivers are taken in. If not, nothing is known about any node."""
        self._slices: dict[str, ResourceSlice] = {}
        self._read: dict[str, Slice] = {}
        self._on_node: dict[str, set[str]] = {}
        """Node → its slices. Those of no single node are under "": several nodes reach them."""
        self._of_pool: dict[PoolId, set[str]] = {}
        self._held: dict[PoolId, Counter[Holding]] = {}
        self.held_by: dict[str, frozenset[Holding]] = {}
        """What each holder has. Read only."""
        self._changes: Counter[str] = Counter()
        """Node → changes of what it reaches; under "" those that concern all nodes."""
        self.may_help = False
        """Whether something changed that may help a pod that waits for such devices. The caller that reacts to it
        resets it."""
        self._answers: OrderedDict[tuple[str, Hashable], tuple[tuple[object, ...], object]] = OrderedDict()

    def change_slice(self, old: ResourceSlice | None, new: ResourceSlice | None) -> bool:
        """Take in a change of a slice; return whether it is one of another driver."""
        items = [item for item in (old, new) if item is not None and item.spec.driver != self._driver]
        for item in items:
            self._remove(item.key)
        if new is not None and new in items:
            self._slices[new.key] = new
            self._on_node.setdefault(_node_of(new), set()).add(new.key)
            self._of_pool.setdefault(_pool_of(new), set()).add(new.key)
            self._changes[_node_of(new)] += 1
        self.may_help = self.may_help or bool(items)
        return bool(items)

    def hold(self, holder: str, others: frozenset[Holding]) -> None:
        """Let `holder` hold exactly these devices from now on, leaving out ours."""
        before = self.held_by.pop(holder, NO_DEVICES)
        after = frozenset(one for one in others if one.device.driver != self._driver) if others else NO_DEVICES
        if after:
            self.held_by[holder] = after
        for one, change in (*((one, -1) for one in before - after), *((one, 1) for one in after - before)):
            counts = self._held.setdefault(one.device.pool_id, Counter())
            counts[one] += change
            if not counts[one]:
                del counts[one]
                if not counts:
                    del self._held[one.device.pool_id]
            for node in {_node_of(self._slices[key]) for key in self._of_pool.get(one.device.pool_id, ())}:
                self._changes[node] += 1
        self.may_help = self.may_help or bool(before - after)

    def retainted(self) -> None:
        """Note that DeviceTaintRules changed."""
        self._read.clear()
        self._changes[""] += 1
        self.may_help = True

    def answer(self, node: Node, question: Hashable, work_out: Callable[[], A]) -> A:
        """Return the answer to a question about what a node can reach; it is worked out once for each change of that.
        `question` must hold on to what it is about."""
        name = node.metadata.name
        version = node, self._changes[name], self._changes[""]
        known = self._answers.get((name, question))
        if known is not None and known[0][0] is node and known[0][1:] == version[1:]:
            return cast("A", known[1])
        found = work_out()
        self._answers[name, question] = version, found
        if len(self._answers) > MOST_ANSWERS:
            self._answers.popitem(last=False)
        return found

    def reach(self, node: str) -> tuple[SliceIndex, Books]:
        """Return the slices that a node can reach, with all others of their pools, and who holds their devices.

        Cost: O(devices of these pools)."""
        keys = self._on_node.get(node, set()) | self._on_node.get("", set())
        pools = {_pool_of(self._slices[key]) for key in keys}
        slices = SliceIndex(self._slice(key) for key in sorted({key for pool in pools for key in self._of_pool[pool]}))
        return slices, Books(one for pool in sorted(pools) for one in self._held.get(pool, ()))

    def check(self) -> None:
        """State what must always hold. For tests: slow."""
        again = OtherDevices(self._driver, self._taint_rules)
        for item in self._slices.values():
            again.change_slice(None, item)
        for holder, others in self.held_by.items():
            again.hold(holder, others)
        assert (again._on_node, again._of_pool) == (self._on_node, self._of_pool), "slices are found"
        assert again._held == self._held, "holdings are counted"

    def _slice(self, key: str) -> Slice:
        known = self._read.get(key)
        if known is None:
            known = self._read[key] = read_slice(with_taint_rules(self._slices[key], self._taint_rules()))
        return known

    def _remove(self, key: str) -> None:
        known = self._slices.pop(key, None)
        self._read.pop(key, None)
        if known is None:
            return
        self._changes[_node_of(known)] += 1
        _take_out(self._on_node, _node_of(known), key)
        _take_out(self._of_pool, _pool_of(known), key)


P = TypeVar("P", str, PoolId)


def _take_out(index: dict[P, set[str]], place: P, key: str) -> None:
    index[place].discard(key)
    if not index[place]:
        del index[place]


def _node_of(item: ResourceSlice) -> str:
    """Return the node that a slice is for; empty when several may reach it, or when it declares counters, which are
    needed wherever a device of its pool is."""
    return "" if item.spec.shared_counters else item.spec.node_name


def _pool_of(item: ResourceSlice) -> PoolId:
    return PoolId(item.spec.driver, item.spec.pool.name)
