"""Which nodes suit one pod: an index of all nodes, and the reasons why the remaining nodes do not suit it.

The index finds the few nodes that selectors name. The filter is asked node by node, and works its answer out once for
nodes that are alike; what a pod and a node say is compared only if one of them says anything (matching).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

import msgspec

from dracaena.api.objects import Node, Pod, Taint, Toleration
from dracaena.api.packed import unpacked
from dracaena.controller.allocation.effort import NODE_STEPS, TERM_READING_STEPS, TERM_STEPS, Effort, Work
from dracaena.controller.allocation.nodes.matching import (
    NAME_FIELD,
    NodeSelector,
    Term,
    read_node_selector,
    required_affinity,
    unfit_for,
)
from dracaena.controller.allocation.nodes.node_resources import ResourceDemand
from dracaena.controller.allocation.nodes.selector_requirement import SelectorRequirement

MAX_LABEL_KEYS: Final = 32
"""Label keys whose values are indexed: those that pods asked for lately. Selectors of one cluster use a handful; each
takes about 0.5 MB at 5,000 nodes and is built in a millisecond."""


FEW_VALUES: Final = 64
"""The most values of a label that are compared with a requirement that does not name the values it wants: zones and
products have fewer, and each host has a name of its own."""

FEW_LEFT: Final = 8
"""Such a requirement narrows the nodes down if it leaves less than one in this many. Collecting those costs 20 ns per
node in each decision, and refusing a visited node 5 µs; most walks visit few."""


Names = frozenset[str] | set[str]
"""Names of nodes. Do not change or keep it: it may be a part of the index."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Barriers:
    """What keeps pods off a node: its taints and its cordon. Nodes with equal barriers share one object."""

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
        """Changes whenever a node comes or goes, or its labels, taints or cordon change."""
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
        """Take in a node, new or changed. Cost: O(indexed keys), and for a new node an insertion into a list."""
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

        Cost: one step for one value, else the number of nodes; the first time for a key one step per node.
        """
        index = self._indexed(key)
        sets = [index[value] for value in values if value in index]
        return sets[0] if len(sets) == 1 else frozenset().union(*sets)

    def named(self, name: str) -> Names:
        """Return the node of that name, if it is there."""
        return frozenset((name,)) & self._nodes.keys()

    def selected(self, selectors: Iterable[NodeSelector], effort: Effort | None = None) -> Names | None:
        """Return a set of all nodes that all of the selectors allow, and maybe others; None when nothing narrows them
        down. Each term is charged.
        """
        return in_all(self._named_by(selector, effort or Effort()) for selector in selectors)

    def check(self) -> None:
        """State what must always hold."""
        assert self._names == sorted(self._nodes), "names are sorted and complete"
        for key, index in self._by_label.items():
            assert index == self._index(key), f"the index of label {key} is what the nodes say"

    def _named_by(self, selector: NodeSelector, effort: Effort) -> Names | None:
        """Return the nodes that some term may match; None when a term does not narrow them down."""
        found: set[str] = set()
        for term in selector.terms:
            effort.charge(TERM_READING_STEPS, Work.NODES)
            names = self._named_by_term(term, effort)
            if names is None:
                return None
            found |= names
        return frozenset(found)

    def _named_by_term(self, term: Term, effort: Effort) -> Names | None:
        for rule in term.fields:
            if rule.operator == "In" and rule.key == NAME_FIELD:
                return frozenset(rule.values) & self._nodes.keys()
        named = [self.with_label(rule.key, rule.values) for rule in term.labels if rule.operator == "In"]
        left = (self._left_by(rule, effort) for rule in term.labels if not named)
        return min(named, key=len) if named else next((names for names in left if names is not None), None)

    def _left_by(self, rule: SelectorRequirement, effort: Effort) -> Names | None:
        """Return the nodes that meet a requirement on a label; None if they are many or it takes too many steps."""
        effort.charge(0 if rule.key in self._by_label else len(self), Work.NODES)
        index = self._indexed(rule.key)
        if len(index) > FEW_VALUES:
            return None
        effort.charge(len(index), Work.NODES)
        sets = [names for value, names in index.items() if rule.matches(value)]
        unlabelled = len(self) - sum(map(len, index.values())) if rule.matches(None) else 0
        if (sum(map(len, sets)) + unlabelled) * FEW_LEFT >= len(self):
            return None
        found = frozenset[str]().union(*sets)
        return found.union(self._nodes.keys() - set[str]().union(*index.values())) if unlabelled else found

    def _indexed(self, key: str) -> Mapping[str, set[str]]:
        """Return the nodes by their value of a label."""
        index = self._by_label.get(key)
        if index is None:
            index = self._by_label[key] = self._index(key)
            if len(self._by_label) > MAX_LABEL_KEYS:
                self._by_label.popitem(last=False)
        self._by_label.move_to_end(key)
        return index

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
    return narrowing[0].intersection(*narrowing[1:])


def this_node(name: str) -> dict[str, Any]:
    """Return the node selector of an allocation that is usable on one node only."""
    rule = {"key": NAME_FIELD, "operator": "In", "values": [name]}
    return {"nodeSelectorTerms": [{"matchFields": [rule]}]}


def tolerations_of(pod: Pod) -> Sequence[Toleration]:
    """Return what the pod tolerates, packed or not. Cost: nothing, but O(tolerations) for packed ones."""
    found: Sequence[Toleration] | msgspec.Raw = pod.spec.tolerations
    return msgspec.convert(unpacked(found), list[Toleration]) if isinstance(found, msgspec.Raw) else found


class PlacementRules(Protocol):
    """What a pod needs of nodes because of other pods and of its storage (placement.placement_demand)."""

    def narrowed(self, nodes: NodeIndex) -> Names | None:
        """Return a set of all nodes that reason() does not refuse, and maybe others; None: all."""

    def reason(self, indexed: IndexedNode) -> str | None:
        """Return why a node is unfit for the pod, in words that follow a count of nodes; None when it may suit it."""


class OtherNeeds(Protocol):
    """What a pod needs of other drivers (walk.other_claims)."""

    def lack(self, node: Node) -> str | None:
        """Return what a node lacks for them now, in words that follow a count of nodes; None when it may suit it."""

    def never(self, node: Node) -> str | None:
        """Return the same if no claim held a device."""


PINNED_ELSEWHERE: Final = "other than the node of a claim that is already allocated"
NOT_TRIED_AGAIN: Final = "that were not examined again"


class NodeFilter:
    """Answers for one pod. For equal labels (those that the pod asks for), taints and cordon the answer is the same.

    `pins` are the raw node selectors of the pod's allocated claims; `barred` are the nodes that it must not use for
    other reasons, with these; `resources` is what it needs of a node besides devices, `placement` what it needs because
    of other pods, `others` what it needs of other drivers. Only the nodes `within` are asked; None:
    all. Looks at nodes are charged to `effort`.
    """

    def __init__(
        self,
        pod: Pod,
        pins: Sequence[Mapping[str, Any]],
        barred: Mapping[str, str] = MappingProxyType({}),
        resources: ResourceDemand | None = None,
        placement: PlacementRules | None = None,
        effort: Effort | None = None,
        within: Names | None = None,
        others: OtherNeeds | None = None,
    ) -> None:
        self._others = others
        self._effort = effort or Effort()
        self._pod = pod
        self._within = within
        self._pins = tuple(map(read_node_selector, pins))
        self._affinity = required_affinity(pod, self._effort) if pod.spec.affinity else None
        self._tolerations = tolerations_of(pod)
        self._selectors = (*self._pins, *(() if self._affinity is None else (self._affinity,)))
        self._barred = barred
        # A pod that names its node has bypassed the scheduler: only kubelet checks what is left there.
        self._resources = None if pod.spec.node_name else resources
        self._placement = placement
        terms = [term for selector in self._selectors for term in selector.terms]
        self._keys = tuple(sorted({*pod.spec.node_selector, *(rule.key for term in terms for rule in term.labels)}))
        self._by_name = bool(pod.spec.node_name) or any(term.fields for term in terms)  # then no node is like another
        self._is_choosy = self._by_name or bool(self._selectors or pod.spec.node_selector)
        rules = sum(len(term.labels) + len(term.fields) for term in terms)
        self._steps = TERM_STEPS * (len(terms) + rules + len(self._tolerations) + len(pod.spec.node_selector))
        self._effort.charge(self._steps, Work.NODES)
        self._steps_of_known = NODE_STEPS + len(self._keys)
        self._known: dict[Hashable, str | None] = {}
        self.is_short = False
        """Whether some node lacked something so far, or was left out because it may lack something."""

    def reason(self, indexed: IndexedNode) -> str | None:
        """Return why the pod cannot run on the node, in words that follow a count of nodes; None when it can.

        What it lacks now comes before what makes it unfit: a walk that meets many nodes without room leaves the others
        out unseen (with_room), and a node must have the same reason either way. Cost: one look-up, a step for each
        resource, and unfit_for()'s cost for the first node of its kind.
        """
        unfit = self.unfit(indexed)
        lack = None if self._resources is None else self._resources.shortage(indexed.node.metadata.name)
        if unfit is None and lack is not None:
            self.is_short = True
        return lack or unfit or self.lack_of_others(indexed)

    def unfit(self, indexed: IndexedNode) -> str | None:
        """Return why the node is unfit for the pod, whatever is left of it: it is not the node of one of the pod's
        claims, it is barred, or else unfit_for()'s first reason, or that of the placement of pods, or it never has the
        devices of other drivers."""
        if self._within is not None and indexed.node.metadata.name not in self._within:
            return NOT_TRIED_AGAIN
        reason = self._unfit_as_others(indexed)
        if self._barred and reason != PINNED_ELSEWHERE:
            reason = self._barred.get(indexed.node.metadata.name, reason)
        if reason is None and self._placement is not None:
            self._effort.charge(NODE_STEPS, Work.NODES)
            reason = self._placement.reason(indexed)
        return self._others.never(indexed.node) if reason is None and self._others is not None else reason

    def lack_of_others(self, indexed: IndexedNode) -> str | None:
        """Return which devices of other drivers the node lacks now."""
        return None if self._others is None else self._others.lack(indexed.node)

    def _unfit_as_others(self, indexed: IndexedNode) -> str | None:
        self._effort.charge(self._steps_of_known, Work.NODES)
        key: Hashable = indexed.barriers
        if self._by_name:
            key = indexed.node.metadata.name
        elif self._keys:
            key = (key, *map(indexed.labels.get, self._keys))
        try:
            return self._known[key]
        except KeyError:
            self._effort.charge(self._steps, Work.NODES)
            reason = self._known[key] = self._unfit(indexed)
            return reason

    def shortage(self, indexed: IndexedNode) -> str | None:
        """Return what the node lacks now."""
        if self._resources is None:
            return None
        reason = self._resources.shortage(indexed.node.metadata.name)
        self.is_short = self.is_short or reason is not None
        return reason

    def narrowed(self, nodes: NodeIndex) -> Names | None:
        """Return a set of all nodes that unfit() does not refuse, and maybe others; None when nothing narrows them
        down.
        """
        named = self._pod.spec.node_name
        labels = () if named else self._pod.spec.node_selector.items()
        return in_all(
            [
                nodes.selected(self._pins if named else self._selectors, self._effort),
                nodes.named(named) if named else None,
                self._within,
                None if self._placement is None else self._placement.narrowed(nodes),
                *(nodes.with_label(key, (value,)) for key, value in labels),
            ]
        )

    def with_room(self) -> Names | None:
        """Return a set of all nodes that shortage() does not refuse, and maybe others; None when that would leave out
        few.
        """
        names = None if self._resources is None else in_all(self._resources.with_room())
        self.is_short = self.is_short or names is not None
        return names

    def _unfit(self, indexed: IndexedNode) -> str | None:
        if not (self._is_choosy or indexed.barriers.taints or indexed.barriers.unschedulable):
            return None  # neither says anything about the other
        if not all(selector.matches(indexed.node) for selector in self._pins):
            return PINNED_ELSEWHERE
        return unfit_for(self._pod, self._affinity, self._tolerations, indexed.node)
