"""Which pods count on which node, and how many of them each rule is about: counted once, then kept up to date."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final, TypeVar
from weakref import WeakValueDictionary

import msgspec

from dracaena.api.objects import Pod
from dracaena.controller.allocation.effort import Effort, Work
from dracaena.controller.allocation.nodes.placement.pod_terms import (
    ANTI_AFFINITY,
    LabelSelector,
    PodSet,
    PodTerm,
    UnreadableSelectorError,
    read_terms,
)

MAX_COUNTS: Final = 64
"""Counts that are kept up to date besides those that waiting pods need: what pods asked for lately. Each costs 0.3 µs
for every pod that comes, moves or goes, and memory for the nodes where it found a pod."""

Labels = Mapping[str, str]

_NO_LABELS: Final[Labels] = MappingProxyType({})
_ANY: Final = ("", "")


@dataclass(frozen=True, slots=True, eq=False)
class PodFacts:
    """What rules read of a pod that is on a node. One object for equal pods, compared by identity."""

    namespace: str
    labels: Labels
    leaving: bool
    """Whether the pod is being deleted: spread constraints ignore it."""
    keeps_off: tuple[PodTerm, ...]
    """Its required anti-affinity; empty if that cannot be read."""
    volume_claims: tuple[str, ...] = ()
    """Claims for storage that it names."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Which pods a count is about: those that are in all of the sets."""

    sets: tuple[PodSet, ...]
    leaving_too: bool = True


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """A claim for storage, by the pods on nodes that use it."""

    namespace: str
    claim: str


@dataclass(frozen=True, slots=True)
class OfClass:
    """The volumes of a storage class, and the class itself."""

    name: str


@dataclass(frozen=True, slots=True)
class Change:
    """A count went up or down on some node; a term stands for the pods that have it. For storage any change counts as
    fewer users.
    """

    of: Counted | PodTerm | ClaimUse | OfClass
    is_more: bool


class PodCount:
    """How many pods there are on each node, and in each domain of the labels that were asked for."""

    __slots__ = ("__weakref__", "_domains", "nodes")

    def __init__(self) -> None:
        self.nodes: dict[str, int] = {}
        self._domains: dict[str, dict[str, int]] = {}

    def in_domains(self, topology_key: str, labels_of: Mapping[str, Labels]) -> Mapping[str, int]:
        """Return the value of the label → pods on nodes with that value; values without a pod are left out.

        Cost: a look-up; the first time for a label one step per node that has such pods. Read only.
        """
        domains = self._domains.get(topology_key)
        if domains is None:
            domains = self._domains[topology_key] = {}
            for node, number in self.nodes.items():
                _add(domains, labels_of.get(node, _NO_LABELS).get(topology_key), number)
        return domains

    @property
    def known_keys(self) -> Iterable[str]:
        """The labels that were asked for."""
        return tuple(self._domains)

    def add(self, node: str, labels: Labels, number: int) -> None:
        """Count this many more pods on a node; labels are those of the node."""
        _add(self.nodes, node, number)
        for key, domains in self._domains.items():
            _add(domains, labels.get(key), number)

    def relabel(self, node: str, before: Labels, after: Labels) -> None:
        """Take in that a node's labels changed."""
        number = self.nodes.get(node)
        for key, domains in self._domains.items() if number is not None else ():
            if before.get(key) != after.get(key):
                _add(domains, before.get(key), -(number or 0))
                _add(domains, after.get(key), number or 0)

    def clear(self) -> None:
        """Forget all pods."""
        self.nodes.clear()
        self._domains.clear()


class PlacedPods:
    """Pods by node, nodes and namespaces with their labels. One owner, one thread at a time.

    Pods may be reported before their node, and the node may go and come back meanwhile. Cost of a change: a step for
    each count that is kept, and nothing if no rule was ever asked for.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, Labels] = {}
        self._namespaces: dict[str, Labels] = {}
        self._pods: dict[str, dict[str, tuple[str, PodFacts]]] = {}  # namespace → name of the pod in the books
        self._counts: WeakValueDictionary[Counted, PodCount] = WeakValueDictionary()
        self._recent: OrderedDict[Counted, PodCount] = OrderedDict()
        self._keeping_off: dict[PodTerm, PodCount] = {}
        self._anchors: dict[tuple[str | None, str, str], dict[PodTerm, None]] = {}
        self._users: dict[ClaimUse, int] = {}
        self._changes: set[Change] = set()

    # Asking

    def placed(self, namespace: str, pod: str) -> tuple[str, PodFacts] | None:
        """Return the node that a pod counts on, and what rules read of it."""
        return self._pods.get(namespace, {}).get(pod)

    @property
    def keeps_pods_off(self) -> bool:
        """Whether any pod on a node has required anti-affinity."""
        return bool(self._anchors)

    def labels(self, node: str) -> Labels:
        """Return the labels of a node; none if the node is not there."""
        return self._nodes.get(node, _NO_LABELS)

    def count(self, of: Counted, effort: Effort) -> PodCount:
        """Return a count, which stays up to date as long as a reference to it exists.

        Cost: a look-up; the first time one step for each pod of the namespaces that it is about, charged to `effort`.
        """
        found = self._counts.get(of)
        if found is None:
            found = PodCount()
            self._fill(of, found, effort)
            self._counts[of] = found
        self._recent[of] = found
        self._recent.move_to_end(of)
        if len(self._recent) > MAX_COUNTS:
            self._recent.popitem(last=False)
        return found

    def domains(self, count: PodCount, topology_key: str) -> Mapping[str, int]:
        """Return how many of the counted pods are in each domain (PodCount.in_domains)."""
        return count.in_domains(topology_key, self._nodes)

    def keeping_off(self, namespace: str, labels: Labels) -> Iterator[tuple[PodTerm, PodCount]]:
        """Yield the terms of pods on nodes that keep a pod of this namespace with these labels away, each with the pods
        that have it. Cost: a look-up for each label, and a step for each term that is about one of them.
        """
        if not self._anchors:
            return
        own = self._namespaces.get(namespace, _NO_LABELS)
        anchors = (_ANY, *labels.items())
        found = {term: None for anchor in anchors for term in self._anchors.get((namespace, *anchor), ())}
        for anchor in anchors:
            by_labels = self._anchors.get((None, *anchor), ())
            found.update(dict.fromkeys(term for term in by_labels if _selects(term.pods.namespace_selector, own)))
        for term in found:
            if _selects(term.pods.selector, labels):
                yield term, self._keeping_off[term]

    def users(self, claim: ClaimUse) -> int:
        """Return how many pods on nodes use a claim for storage."""
        return self._users.get(claim, 0)

    def is_in(self, pods: PodSet, namespace: str, labels: Labels) -> bool:
        """Return whether a pod is in a set."""
        return _selects(pods.selector, labels) and self._is_named(pods, namespace)

    # Taking in

    def set_node(self, name: str, labels: Labels) -> None:
        """Take in a node, new or changed."""
        self._relabel(name, self._nodes.get(name, _NO_LABELS), labels)
        self._nodes[name] = labels

    def remove_node(self, name: str) -> None:
        """Forget a node, if it is there. Its pods stay until they are reported elsewhere or gone."""
        self._relabel(name, self._nodes.pop(name, _NO_LABELS), _NO_LABELS)

    def set_namespace(self, name: str, labels: Labels | None) -> None:
        """Take in a namespace; None: it is gone. Cost: if labels changed, each count by namespace labels is counted
        again.
        """
        if self._namespaces.get(name) == labels:
            return
        if labels is None:
            del self._namespaces[name]
        else:
            self._namespaces[name] = labels
        for of, count in list(self._counts.items()):
            if any(pods.namespace_selector is not None for pods in of.sets):
                count.clear()
                self._fill(of, count, Effort())
                self._changed(of)
        for term in self._keeping_off:
            if term.pods.namespace_selector is not None:
                self._changed(term)

    def place(self, pod: str, namespace: str, node: str | None, facts: PodFacts | None) -> None:
        """Count a pod on a node, None: on none. Cost: a step for each count that is kept."""
        pods = self._pods.get(namespace, {})
        before = pods.get(pod)
        after = None if node is None or facts is None else (node, facts)
        if before == after:
            return
        if before is not None:
            del pods[pod]
            if not pods:
                del self._pods[namespace]
            self._count(*before, -1)
        if after is not None:
            self._pods.setdefault(namespace, {})[pod] = after
            self._count(*after, 1)

    def changes(self) -> frozenset[Change]:
        """Return what changed since the last call."""
        if not self._changes:
            return frozenset()
        found, self._changes = frozenset(self._changes), set()
        return found

    def check(self, labels: Mapping[str, Labels]) -> None:
        """State what must always hold, by counting all pods again. `labels` are those of all nodes. For tests: slow."""
        assert self._nodes == labels, "nodes have the labels that they say"
        for of, count in self._counts.items():
            again = PodCount()
            self._fill(of, again, Effort())
            self._check(count, again)
        terms: dict[PodTerm, PodCount] = {}
        for pods in self._pods.values():
            for node, facts in pods.values():
                for term in facts.keeps_off:
                    terms.setdefault(term, PodCount()).add(node, _NO_LABELS, 1)
        assert terms.keys() == self._keeping_off.keys(), "anti-affinity of pods on nodes is known"
        for term, again in terms.items():
            self._check(self._keeping_off[term], again)

    def _check(self, count: PodCount, again: PodCount) -> None:
        assert count.nodes == again.nodes, "pods are counted on their nodes"
        for key in count.known_keys:
            assert count.in_domains(key, self._nodes) == again.in_domains(key, self._nodes), "and in their domains"

    # Inside

    def _count(self, node: str, facts: PodFacts, sign: int) -> None:
        labels = self._nodes.get(node, _NO_LABELS)
        for of, count in list(self._counts.items()):
            if self._is_counted(of, facts):
                count.add(node, labels, sign)
                self._changes.add(Change(of, sign > 0))
        for name in facts.volume_claims:
            use = ClaimUse(facts.namespace, name)
            _add(self._users, use, sign)
            self._changes.add(Change(use, sign > 0))
        for term in facts.keeps_off:
            holders = self._keeping_off.get(term)
            if holders is None:
                holders = self._keeping_off[term] = PodCount()
                for anchor in _anchors(term):
                    self._anchors.setdefault(anchor, {})[term] = None
            holders.add(node, labels, sign)
            self._changes.add(Change(term, sign > 0))
            if not holders.nodes:
                del self._keeping_off[term]
                for anchor in _anchors(term):
                    del self._anchors[anchor][term]
                    if not self._anchors[anchor]:
                        del self._anchors[anchor]

    def _fill(self, of: Counted, count: PodCount, effort: Effort) -> None:
        named = [pods.namespaces for pods in of.sets if pods.namespace_selector is None]
        names: Iterable[str] = frozenset.intersection(*named) & self._pods.keys() if named else tuple(self._pods)
        known: dict[PodFacts, bool] = {}  # equal pods share their facts
        for name in names:
            pods = self._pods[name]
            effort.charge(len(pods), Work.NODES)
            for node, facts in pods.values():
                is_counted = known.get(facts)
                if is_counted is None:
                    is_counted = known[facts] = self._is_counted(of, facts)
                if is_counted:
                    count.add(node, _NO_LABELS, 1)

    def _is_counted(self, of: Counted, facts: PodFacts) -> bool:
        return (of.leaving_too or not facts.leaving) and all(
            self.is_in(pods, facts.namespace, facts.labels) for pods in of.sets
        )

    def _is_named(self, pods: PodSet, namespace: str) -> bool:
        if namespace in pods.namespaces:
            return True
        by_labels = pods.namespace_selector
        if by_labels is None:
            return False
        labels = self._namespaces.get(namespace)
        # kube-scheduler looks namespaces up by their labels, and finds only those that exist.
        return not by_labels.rules or (labels is not None and by_labels.matches(labels))

    def _relabel(self, node: str, before: Labels, after: Labels) -> None:
        if before == after:
            return
        for count in (*self._counts.values(), *self._keeping_off.values()):
            count.relabel(node, before, after)

    def _changed(self, of: Counted | PodTerm) -> None:
        self._changes |= {Change(of, True), Change(of, False)}


def pod_facts(pod: Pod) -> PodFacts:
    """Return what rules read of a pod. Cost: 1 µs if an equal pod was read lately and has no anti-affinity."""
    rules = pod.spec.affinity.get(ANTI_AFFINITY)
    return _shared(
        pod.metadata.namespace,
        tuple(pod.metadata.labels.items()),
        b"" if rules is None else msgspec.json.encode(rules),
        tuple(
            one.persistent_volume_claim.claim_name
            for one in pod.spec.volumes
            if one.persistent_volume_claim is not None
        ),
        leaving=pod.metadata.deletion_timestamp is not None,
    )


@lru_cache(8_192)
def _shared(
    namespace: str, labels: tuple[tuple[str, str], ...], rules: bytes, claims: tuple[str, ...], *, leaving: bool
) -> PodFacts:
    try:
        terms = read_terms({ANTI_AFFINITY: msgspec.json.decode(rules)}, ANTI_AFFINITY, namespace) if rules else ()
    except UnreadableSelectorError:
        terms = ()
    return PodFacts(sys.intern(namespace), shared_labels(labels), leaving, terms, claims)


@lru_cache(8_192)
def shared_labels(labels: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Return one object for equal labels: the pods of a cluster come from few templates. Do not change it."""
    return {sys.intern(key): sys.intern(value) for key, value in labels}


def _anchors(term: PodTerm) -> Iterator[tuple[str | None, str, str]]:
    """Yield where a term is indexed: by namespace, or None for namespaces found by their labels, and by a label that
    the pods must have, if the term names one."""
    selector = term.pods.selector
    if selector is None:
        return
    named = next((rule for rule in selector.rules if rule.operator == "In"), None)
    labels = [_ANY] if named is None else [(named.key, value) for value in dict.fromkeys(named.values)]
    namespaces: list[str | None] = sorted(term.pods.namespaces)  # type: ignore[assignment]
    if term.pods.namespace_selector is not None:
        namespaces.append(None)
    for namespace in namespaces:
        for key, value in labels:
            yield namespace, key, value


def _selects(selector: LabelSelector | None, labels: Labels) -> bool:
    return selector is not None and selector.matches(labels)


K = TypeVar("K", bound=Hashable)


def _add(counts: dict[K, int], key: K | None, number: int) -> None:
    if key is None:
        return
    left = counts.get(key, 0) + number
    if left:
        counts[key] = left
    else:
        del counts[key]


def without_one(domains: Mapping[str, int], value: str | None) -> Mapping[str, int]:
    """Return domains with one pod fewer in one of them."""
    if value is None or value not in domains:
        return domains
    fewer = dict(domains)
    _add(fewer, value, -1)
    return fewer
