"""Why nodes do not do for one pod, asked node by node, and worked out once for nodes that are alike."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from dracaena.api.objects import Pod
from dracaena.controller.allocation.node_fit import node_selector_matches, required_affinity, unfit_reason
from dracaena.controller.allocation.node_index import IndexedNode

PINNED_ELSEWHERE: Final = "other than the node of a claim that is already allocated"


class NodeFilter:
    """Answers for one pod. Of equal labels (those that the pod asks for), taints and cordon the answer is the same.

    `pins` are the raw node selectors of claims that the pod has and that are allocated.
    """

    def __init__(self, pod: Pod, pins: Sequence[Mapping[str, Any]]) -> None:
        affinity = required_affinity(pod)
        selectors = (*pins, *(() if affinity is None else (affinity,)))
        self._pod = pod
        self._pins = pins
        self._keys = tuple(sorted({*pod.spec.node_selector, *_label_keys(selectors)}))
        self._by_name = bool(pod.spec.node_name) or any(
            term.get("matchFields") for term in _terms(selectors)
        )  # then a node is like no other
        self._known: dict[Hashable, str | None] = {}

    def reason(self, indexed: IndexedNode) -> str | None:
        """Return why the pod cannot run on the node, in words that follow a count of nodes; None when it can.

        Cost: one look-up, and node_fit's cost for the first node of its kind.
        """
        key: Hashable = (indexed.barriers, *map(indexed.labels.get, self._keys))
        if self._by_name:
            key = indexed.node.metadata.name
        try:
            return self._known[key]
        except KeyError:
            reason = self._known[key] = self._reason(indexed)
            return reason

    def _reason(self, indexed: IndexedNode) -> str | None:
        if not all(node_selector_matches(selector, indexed.node) for selector in self._pins):
            return PINNED_ELSEWHERE
        return unfit_reason(self._pod, indexed.node)


def _label_keys(selectors: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for term in _terms(selectors):
        for rule in term.get("matchExpressions") or ():
            yield str(rule.get("key"))


def _terms(selectors: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for selector in selectors:
        yield from selector.get("nodeSelectorTerms") or ()
