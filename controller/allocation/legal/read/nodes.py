"""Whether a slice or a device is for a node, and what an allocation says about nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dracaena.api.objects import Node
from dracaena.controller.allocation.legal.read.slices import NodeSelection
from dracaena.controller.allocation.nodes.matching import read_node_selector


class BadNodeSelectorError(Exception):
    """A node selector of a slice that the API server would have refused."""


def selects(nodes: NodeSelection, node: Node) -> bool:
    """Return whether the selection is for the node. Raises BadNodeSelectorError."""
    if nodes.node_name:
        return nodes.node_name == node.metadata.name
    if nodes.all_nodes:
        return True
    if nodes.selector is None:
        return False
    selector = read_node_selector(nodes.selector)
    if selector.problems:
        raise BadNodeSelectorError(selector.problems[0])
    return selector.matches(node)


def this_node(name: str) -> dict[str, Any]:
    """Return the node selector of an allocation that is only good on one node."""
    rule = {"key": "metadata.name", "operator": "In", "values": [name]}
    return {"nodeSelectorTerms": [{"matchFields": [rule]}]}


def joined(selectors: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return one selector that demands what all of them demand, each requirement once; None: any node will do.

    Each has at most one term: several are alternatives, which cannot be joined.
    """
    joint: dict[str, list[Mapping[str, Any]]] = {"matchExpressions": [], "matchFields": []}
    for selector in selectors:
        for term in selector.get("nodeSelectorTerms") or ():
            for part, known in joint.items():
                for rule in term.get(part) or ():
                    if all(_identity(rule) != _identity(other) for other in known):
                        known.append(rule)
    term = {part: [dict(rule) for rule in rules] for part, rules in joint.items() if rules}
    return {"nodeSelectorTerms": [term]} if term else None


def _identity(rule: Mapping[str, Any]) -> tuple[Any, Any, frozenset[str]]:
    return rule.get("key"), rule.get("operator"), frozenset(rule.get("values") or ())
