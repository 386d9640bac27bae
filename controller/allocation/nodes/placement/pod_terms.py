"""Which pods a rule is about: label selectors, and the terms of required pod affinity and anti-affinity, read.

Sources: meta/v1 LabelSelector (apimachinery, LabelSelectorAsSelector), core/v1 PodAffinityTerm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dracaena.api.packed import unpacked
from dracaena.controller.allocation.nodes.selector_requirement import SelectorRequirement

_OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})


class UnreadableSelectorError(ValueError):
    """A document that is no LabelSelector. The API server accepts none; files may contain some."""


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """A conjunction of rules; without a rule it matches everything."""

    rules: tuple[SelectorRequirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels are selected. Cost: one step per rule."""
        return all(rule.matches(labels.get(rule.key)) for rule in self.rules)


def read_label_selector(document: Any) -> LabelSelector | None:
    """Read a raw LabelSelector; None, which matches nothing, if there is no document.

    Rules come in the order of their keys, so that selectors with the same meaning are mostly equal. Raises
    UnreadableSelectorError.
    """
    if document is None:
        return None
    if not isinstance(document, Mapping):
        raise UnreadableSelectorError(f"a label selector is a {type(document).__name__}, expected an object")
    labels = document.get("matchLabels") or {}
    expressions = document.get("matchExpressions") or ()
    if not isinstance(labels, Mapping) or not isinstance(expressions, list | tuple):
        raise UnreadableSelectorError("matchLabels is not an object or matchExpressions not a list")
    rules = {SelectorRequirement(str(key), "In", (str(value),)) for key, value in labels.items()}
    rules.update(map(_rule, expressions))
    return LabelSelector(tuple(sorted(rules, key=lambda rule: (rule.key, rule.operator, rule.values))))


def _rule(entry: Any) -> SelectorRequirement:
    if not isinstance(entry, Mapping):
        raise UnreadableSelectorError("an entry of matchExpressions is not an object")
    key, operator, values = entry.get("key"), entry.get("operator"), entry.get("values") or ()
    if not isinstance(key, str) or operator not in _OPERATORS or not isinstance(values, list | tuple):
        raise UnreadableSelectorError(f"matchExpressions: key {key!r} with operator {operator!r} cannot be read")
    if bool(values) != (operator in ("In", "NotIn")):
        raise UnreadableSelectorError(f"matchExpressions: key {key!r}: {operator} with {len(values)} values")
    return SelectorRequirement(key, operator, tuple(sorted(map(str, values))))


AFFINITY: Final = "podAffinity"
ANTI_AFFINITY: Final = "podAntiAffinity"
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class PodSet:
    """Which pods a term is about."""

    namespaces: frozenset[str]
    """Namespaces by name, whatever their labels."""
    namespace_selector: LabelSelector | None
    """Namespaces by their labels, besides those by name; None: no others."""
    selector: LabelSelector | None
    """None selects no pod."""


@dataclass(frozen=True, slots=True)
class PodTerm:
    """One term: pods, and the node label by which nodes are near each other."""

    pods: PodSet
    topology_key: str


def read_terms(affinity: Mapping[str, Any], kind: str, namespace: str) -> tuple[PodTerm, ...]:
    """Read the terms of AFFINITY or ANTI_AFFINITY that must hold, in the order of the document, each once.

    `matchLabelKeys` and `mismatchLabelKeys` are already in the selector: the API server writes them there when the pod
    is created (KEP-3633). Raises UnreadableSelectorError.
    """
    part = affinity.get(kind)
    if part is None:
        return ()
    entries = unpacked(part.get(REQUIRED)) or () if isinstance(part, Mapping) else None
    if not isinstance(entries, list | tuple) or not all(isinstance(entry, Mapping) for entry in entries):
        raise UnreadableSelectorError(f"{kind} is not an object with a list of terms")
    return tuple(dict.fromkeys(_term(entry, namespace) for entry in entries))


def _term(entry: Mapping[str, Any], namespace: str) -> PodTerm:
    names = entry.get("namespaces") or ()
    if not isinstance(names, list | tuple):
        raise UnreadableSelectorError("namespaces of an affinity term are not a list")
    namespace_selector = read_label_selector(entry.get("namespaceSelector"))
    named = frozenset(map(str, names))
    if not named and namespace_selector is None:
        named = frozenset((namespace,))
    pods = PodSet(named, namespace_selector, read_label_selector(entry.get("labelSelector")))
    return PodTerm(pods, str(entry.get("topologyKey", "")))
