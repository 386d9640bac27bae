"""core/v1 NodeSelectors, as pods, allocations and slices of other drivers hold them.

They are read with Kubernetes' own leniency: a term that cannot be read matches no node, and the other terms count all
the same (component-helpers, nodeaffinity). Who must not be lenient asks for the problems.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dracaena.api.limits import DNS_LABEL_BYTES, DNS_SUBDOMAIN_BYTES
from dracaena.api.objects import Node
from dracaena.controller.allocation.effort import TERM_READING_STEPS, Effort, Work

NAME_FIELD: Final = "metadata.name"
_LABEL_OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"})
_FIELD_OPERATORS: Final = frozenset({"In", "NotIn"})
_NAME: Final = re.compile(rf"(?=.{{1,{DNS_LABEL_BYTES}}}\Z)[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?", re.ASCII)
_DOMAIN: Final = re.compile(
    rf"(?=.{{1,{DNS_SUBDOMAIN_BYTES}}}\Z)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*",
    re.ASCII,
)
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,63}", re.ASCII)
_LARGEST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Rule:
    """One requirement. `key` is that of a label, or of a field where it stands among fields."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, value: str | None) -> bool:
        """Return whether a value, None where there is none, meets the requirement."""
        if self.operator == "In":
            return value is not None and value in self.values
        if self.operator == "NotIn":
            return value is None or value not in self.values
        if self.operator == "Exists":
            return value is not None
        if self.operator == "DoesNotExist":
            return value is None
        number, limit = _integer(value), _integer(self.values[0])
        if number is None or limit is None:
            return False
        return number > limit if self.operator == "Gt" else number < limit


@dataclass(frozen=True, slots=True)
class Term:
    """All of its requirements have to be met; there is at least one."""

    labels: tuple[Rule, ...]
    fields: tuple[Rule, ...]

    def matches(self, node: Node) -> bool:
        """Return whether a node meets all of them."""
        labels = node.metadata.labels
        # metadata.name is the only field that nodes are chosen by; any other is empty.
        return all(rule.matches(labels.get(rule.key)) for rule in self.labels) and all(
            rule.matches(node.metadata.name if rule.key == NAME_FIELD else "") for rule in self.fields
        )


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """Any of its terms is enough; without a term it matches nothing."""

    terms: tuple[Term, ...]
    problems: tuple[str, ...] = ()
    """What of the document cannot be read."""

    def matches(self, node: Node) -> bool:
        """Return whether a node is selected."""
        return any(term.matches(node) for term in self.terms)


def read_node_selector(document: Any, effort: Effort | None = None) -> NodeSelector:
    """Read a raw NodeSelector, whatever the document holds; an empty term selects nothing. Each term is charged."""
    if not isinstance(document, Mapping):
        return NodeSelector((), (f"a {type(document).__name__}, expected an object",))
    raw = document.get("nodeSelectorTerms") or ()
    if not _is_list_of_objects(raw):
        return NodeSelector((), ("nodeSelectorTerms is no list of objects",))
    terms, problems = [], []
    for entry in raw:
        if effort is not None:
            effort.charge(TERM_READING_STEPS, Work.NODES)
        try:
            term = Term(
                _rules(entry.get("matchExpressions"), "matchExpressions"),
                _rules(entry.get("matchFields"), "matchFields"),
            )
        except _UnreadableError as error:
            problems.append(str(error))
            continue
        if term.labels or term.fields:
            terms.append(term)
    return NodeSelector(tuple(terms), tuple(problems))


class _UnreadableError(Exception):
    """A term that cannot be read; stays inside this module."""


def _rules(value: Any, part: str) -> tuple[Rule, ...]:
    entries = value or ()
    if not _is_list_of_objects(entries):
        raise _UnreadableError(f"{part} is no list of objects")
    return tuple(_rule(entry, part) for entry in entries)


def _rule(entry: Mapping[str, Any], part: str) -> Rule:
    values = entry.get("values") or ()
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise _UnreadableError(f"{part}: values are no list of texts")
    key, operator = entry.get("key"), entry.get("operator")
    if not isinstance(key, str) or not isinstance(operator, str):
        raise _UnreadableError(f"{part}: key or operator is no text")
    rule = Rule(key, operator, tuple(values))
    problem = _label_problem(rule) if part == "matchExpressions" else _field_problem(rule)
    if problem:
        raise _UnreadableError(f"{part}: key {key!r}: {problem}")
    return rule


def _label_problem(rule: Rule) -> str:
    if rule.operator not in _LABEL_OPERATORS:
        return f"operator {rule.operator!r} is not known"
    if not _is_label_key(rule.key):
        return "no valid label key"
    if rule.operator in ("In", "NotIn") and not rule.values:
        return f"{rule.operator} needs a value"
    if rule.operator in ("Exists", "DoesNotExist") and rule.values:
        return f"{rule.operator} takes no value"
    if rule.operator in ("Gt", "Lt") and (len(rule.values) != 1 or _integer(rule.values[0]) is None):
        return f"{rule.operator} needs one whole number"
    wrong = _first_wrong(rule.values)
    return f"{wrong!r} is no label value" if wrong is not None else ""


def _field_problem(rule: Rule) -> str:
    if rule.operator not in _FIELD_OPERATORS:
        return f"operator {rule.operator!r} is not known for fields"
    return "" if len(rule.values) == 1 else f"{len(rule.values)} values, expected one"


def _first_wrong(values: Iterable[str]) -> str | None:
    return next((value for value in values if value and not _NAME.fullmatch(value)), None)


def _is_label_key(key: str) -> bool:
    domain, slash, name = key.rpartition("/")
    return _NAME.fullmatch(name) is not None and (not slash or _DOMAIN.fullmatch(domain) is not None)


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(entry, Mapping) for entry in value)


def _integer(text: str | None) -> int | None:
    """Read a number as Kubernetes does here: decimal, 64 bits."""
    if text is None or not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -_LARGEST - 1 <= number <= _LARGEST else None
