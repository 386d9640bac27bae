"""The nodes of the cluster by name and by label, so that a selector that few nodes match finds them at once."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from dracaena.api.objects import Node, Taint
from dracaena.controller.allocation.effort import TERM_READING_STEPS, Effort, Work
from dracaena.controller.allocation.nodes.node_selector import NAME_FIELD, NodeSelector, Term

MAX_LABEL_KEYS: Final = 32
"""Label keys whose values are indexed: those that pods ask for lately. Selectors of one cluster use a handful; each
takes about 0.5 MB at 5,000 nodes and is built in a millisecond."""


Names = frozenset[str] | set[str]
"""Names of nodes. Not to be changed, and not kept: it may be a part of the index."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Barriers:
    """What keeps pods off a node: its taints and its cordon. Nodes with equal ones share one object."""

    unschedulable: bool
    taints: tuple[Taint, ...]


@dataclass(frozen=True, slots=True)
class IndexedNode:
    """A node as decisions see it."""

    node: Node
    labels: Mapping[str, str]
    barriers: Barriers


class NodeIndex:
    """All nodes. Values of a label are indexed when a pod first asks for its key, and kept up to date from then on."""

    def __init__(self) -> None:
        self.version = 0
        """Another number whenever a node came or went, or has other labels, taints or another cordon."""
        self._names: list[str] = []
        self._nodes: dict[str, IndexedNode] = {}
        self._barriers: WeakValueDictionary[tuple[bool, tuple[Taint, ...]], Barriers] = WeakValueDictionary()
        self._by_label: OrderedDict[str, dict[str, set[str]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._nodes

    @property
    def names(self) -> Sequence[str]:
        """All names, ascending. Do not change it."""
        return self._names

    def get(self, name: str) -> IndexedNode:
        """Return a node that is there."""
        return self._nodes[name]

    def put(self, node: Node) -> None:
        """Take in a node, new or changed. Cost: O(indexed keys), for a new one a place in a list."""
        name = node.metadata.name
        before = self._nodes.get(name)
        if before is None:
            insort(self._names, name)
        barriers = self._shared_barriers(node)
        if before is None or before.labels != node.metadata.labels or before.barriers is not barriers:
            self.version += 1
        self._nodes[name] = IndexedNode(node, node.metadata.labels, barriers)
        self._relabel(name, {} if before is None else before.labels, node.metadata.labels)

    def remove(self, name: str) -> None:
        """Forget a node, if it is there."""
        before = self._nodes.pop(name, None)
        if before is not None:
            self.version += 1
            del self._names[bisect_left(self._names, name)]
            self._relabel(name, before.labels, {})

    def with_label(self, key: str, values: Iterable[str]) -> Names:
        """Return the nodes whose label has one of the values, as they are until the next change.

        Cost: one step for one value, else their number; the first time for a key one step a node.
        """
        index = self._by_label.get(key)
        if index is None:
            index = self._by_label[key] = self._index(key)
            if len(self._by_label) > MAX_LABEL_KEYS:
                self._by_label.popitem(last=False)
        self._by_label.move_to_end(key)
        sets = [index[value] for value in values if value in index]
        return sets[0] if len(sets) == 1 else frozenset().union(*sets)

    def named(self, name: str) -> Names:
        """Return the node of that name, if it is there."""
        return frozenset((name,)) & self._nodes.keys()

    def selected(self, selectors: Iterable[NodeSelector], effort: Effort | None = None) -> Names | None:
        """Return a set that holds all nodes which all of the selectors allow, and maybe others; None when nothing
        narrows them down. Each term is charged.
        """
        return in_all(self._named_by(selector, effort or Effort()) for selector in selectors)

    def check(self) -> None:
        """State what must always hold."""
        assert self._names == sorted(self._nodes), "names are sorted and complete"
        for key, index in self._by_label.items():
            assert index == self._index(key), f"the index of label {key} is what the nodes say"

    def _named_by(self, selector: NodeSelector, effort: Effort) -> Names | None:
        """Return the nodes that some term may match, None when a term names none."""
        found: set[str] = set()
        for term in selector.terms:
            effort.charge(TERM_READING_STEPS, Work.NODES)
            names = self._named_by_term(term)
            if names is None:
                return None
            found |= names
        return frozenset(found)

    def _named_by_term(self, term: Term) -> Names | None:
        for rule in term.fields:
            if rule.operator == "In" and rule.key == NAME_FIELD:
                return frozenset(rule.values) & self._nodes.keys()
        named = [self.with_label(rule.key, rule.values) for rule in term.labels if rule.operator == "In"]
        return min(named, key=len) if named else None

    def _shared_barriers(self, node: Node) -> Barriers:
        taints = tuple(msgspec.structs.replace(taint, time_added=None) for taint in node.spec.taints)
        key = (node.spec.unschedulable, taints)
        shared = self._barriers.get(key)
        if shared is None:
            shared = self._barriers[key] = Barriers(*key)
        return shared

    def _relabel(self, name: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        for key, index in self._by_label.items():
            old, new = before.get(key), after.get(key)
            if old == new:
                continue
            if old is not None:
                index[old].discard(name)
                if not index[old]:
                    del index[old]
            if new is not None:
                index.setdefault(new, set()).add(name)

    def _index(self, key: str) -> dict[str, set[str]]:
        index: dict[str, set[str]] = {}
        for name in self._names:
            value = self._nodes[name].labels.get(key)
            if value is not None:
                index.setdefault(value, set()).add(name)
        return index


def in_all(sets: Iterable[Names | None]) -> Names | None:
    """Return the names that are in all of the sets; None, which stands for all names, when there is no set."""
    narrowing = sorted((names for names in sets if names is not None), key=len)
    if len(narrowing) < 2:
        return narrowing[0] if narrowing else None
    return frozenset(narrowing[0]).intersection(*narrowing[1:])
