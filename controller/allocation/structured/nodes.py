"""Whether a slice or a device is for a node, and what an allocation says about nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dracaena.api.objects import Node
from dracaena.controller.allocation.node_fit import node_selector_matches
from dracaena.controller.allocation.structured.slices import NodeSelection

_LABEL_OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"})
_FIELD_OPERATORS: Final = frozenset({"In", "NotIn"})
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)
_DOMAIN: Final = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*", re.ASCII
)
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


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
    problem = _problem(nodes.selector)
    if problem:
        raise BadNodeSelectorError(problem)
    return node_selector_matches(nodes.selector, node)


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


def _problem(selector: Mapping[str, Any]) -> str:
    """Return what is wrong with a selector, empty when nothing is."""
    terms = selector.get("nodeSelectorTerms") or ()
    if not _is_list_of_objects(terms):
        return "nodeSelectorTerms is no list of objects"
    for term in terms:
        for part, check in (("matchExpressions", _label_problem), ("matchFields", _field_problem)):
            rules = term.get(part) or ()
            if not _is_list_of_objects(rules):
                return f"{part} is no list of objects"
            for rule in rules:
                values = rule.get("values") or []
                if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
                    return f"{part}: values are no list of texts"
                key, operator = rule.get("key"), rule.get("operator")
                if not isinstance(key, str) or not isinstance(operator, str):
                    return f"{part}: key or operator is no text"
                problem = check(key, operator, values)
                if problem:
                    return f"{part}: key {key!r}: {problem}"
    return ""


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(entry, Mapping) for entry in value)


def _label_problem(key: str, operator: str, values: list[str]) -> str:
    if operator not in _LABEL_OPERATORS:
        return f"operator {operator!r} is not known"
    if not _is_label_key(key):
        return "no valid label key"
    if operator in ("In", "NotIn"):
        if not values:
            return f"{operator} needs a value"
        # Any text may be compared with Gt and Lt; label values have their own syntax.
        wrong = [value for value in values if value and not _NAME.fullmatch(value)]
        return f"{wrong[0]!r} is no label value" if wrong else ""
    if operator in ("Gt", "Lt"):
        return "" if len(values) == 1 and _INTEGER.fullmatch(values[0]) else f"{operator} needs one whole number"
    return f"{operator} takes no value" if values else ""


def _field_problem(_key: str, operator: str, values: list[str]) -> str:
    if operator not in _FIELD_OPERATORS:
        return f"operator {operator!r} is not known for fields"
    return "" if len(values) == 1 else f"{len(values)} values, expected one"


def _is_label_key(key: str) -> bool:
    domain, slash, name = key.rpartition("/")
    return _NAME.fullmatch(name) is not None and (not slash or _DOMAIN.fullmatch(domain) is not None)
