"""meta/v1 LabelSelectors of affinity terms and spread constraints (apimachinery, LabelSelectorAsSelector)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dracaena.controller.allocation.nodes.matching import Rule

_OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})


class UnreadableSelectorError(ValueError):
    """A document that is no LabelSelector. The API server lets none pass; files may hold some."""


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All of its rules have to be met; without a rule it matches everything."""

    rules: tuple[Rule, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels are selected. Cost: one step a rule."""
        return all(rule.matches(labels.get(rule.key)) for rule in self.rules)


def read_label_selector(document: Any) -> LabelSelector | None:
    """Read a raw LabelSelector; None, which matches nothing, where there is no document.

    Rules come in the order of their keys, so that selectors that mean the same are mostly equal. Raises
    UnreadableSelectorError.
    """
    if document is None:
        return None
    if not isinstance(document, Mapping):
        raise UnreadableSelectorError(f"a label selector is a {type(document).__name__}, expected an object")
    labels = document.get("matchLabels") or {}
    expressions = document.get("matchExpressions") or ()
    if not isinstance(labels, Mapping) or not isinstance(expressions, list | tuple):
        raise UnreadableSelectorError("matchLabels is no object or matchExpressions no list")
    rules = {Rule(str(key), "In", (str(value),)) for key, value in labels.items()}
    rules.update(map(_rule, expressions))
    return LabelSelector(tuple(sorted(rules, key=lambda rule: (rule.key, rule.operator, rule.values))))


def _rule(entry: Any) -> Rule:
    if not isinstance(entry, Mapping):
        raise UnreadableSelectorError("an entry of matchExpressions is no object")
    key, operator, values = entry.get("key"), entry.get("operator"), entry.get("values") or ()
    if not isinstance(key, str) or operator not in _OPERATORS or not isinstance(values, list | tuple):
        raise UnreadableSelectorError(f"matchExpressions: key {key!r} with operator {operator!r} cannot be read")
    if bool(values) != (operator in ("In", "NotIn")):
        raise UnreadableSelectorError(f"matchExpressions: key {key!r}: {operator} with {len(values)} values")
    return Rule(key, operator, tuple(sorted(map(str, values))))
