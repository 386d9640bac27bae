"""Label and field selectors of list, watch and deletecollection, with Kubernetes' syntax and refusals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dracaena.demo.apiserver.errors import bad_request
from dracaena.validation.pod_templates import value_at
from dracaena.validation.syntax import LABEL_KEY, LABEL_VALUE, Syntax

if TYPE_CHECKING:
    from dracaena.demo.apiserver.resources import Kind

Document = dict[str, Any]
Labels = dict[str, str]

_WORD: Final = r"[^\s!=,()<>]"
_REQUIREMENT: Final = re.compile(
    rf"\s*(?:(?P<absent>!)\s*)?(?P<key>{_WORD}+)\s*"
    rf"(?:(?P<operator>==|!=|=|>|<|(?:not)?in(?=\s*\())\s*(?P<value>\((?:{_WORD}|[\s,])*\)|{_WORD}*)\s*)?(?P<end>,|$)"
)
_NUMBER: Final = re.compile(r"-?\d+", re.ASCII)
_OPERATORS: Final = {"=": "In", "==": "In", "in": "In", "!=": "NotIn", "notin": "NotIn", ">": "Gt", "<": "Lt"}


@dataclass(frozen=True, slots=True)
class LabelCondition:
    """One condition on labels. `operator` is one of the API: ``In``, ``NotIn``, ``Exists``, ``DoesNotExist``, ``Gt`` or
    ``Lt``."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    @classmethod
    def of(cls, requirement: Mapping[str, Any]) -> LabelCondition:
        """Read a requirement of a selector of labels or nodes."""
        return cls(requirement["key"], requirement["operator"], frozenset(requirement.get("values") or ()))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """True if `labels` satisfy it."""
        value = labels.get(self.key)
        match self.operator:
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case _:
                return self._compares(value)

    def _compares(self, value: str | None) -> bool:
        bound = next(iter(self.values), "")
        if value is None or not _NUMBER.fullmatch(value) or not _NUMBER.fullmatch(bound):
            return False
        return int(value) > int(bound) if self.operator == "Gt" else int(value) < int(bound)


def label_selector_matches(selector: Document, labels: Labels) -> bool:
    """Whether a LabelSelector of the API selects an object with these labels; an empty one selects all."""
    wanted = (selector.get("matchLabels") or {}).items()
    conditions = map(LabelCondition.of, selector.get("matchExpressions") or ())
    return wanted <= labels.items() and all(condition.matches(labels) for condition in conditions)


def parse_labels(text: str) -> tuple[LabelCondition, ...]:
    """``labelSelector``; 400 when it cannot be read."""
    found: list[LabelCondition] = []
    at = 0
    while at < len(text) or text.endswith(","):
        match = _REQUIREMENT.match(text, at)
        if match is None or (match["absent"] and match["operator"]):
            raise bad_request(f'the label selector "{text}" cannot be read from character {at + 1} on')
        found.append(_condition(match))
        at = match.end()
        if not match["end"]:
            break
    return tuple(found)


def _condition(match: re.Match[str]) -> LabelCondition:
    key, operator, value = _checked(match["key"], LABEL_KEY), match["operator"], match["value"]
    if operator is None:
        return LabelCondition(key, "DoesNotExist" if match["absent"] else "Exists")
    listed = value[1:-1].split(",") if operator in ("in", "notin") else [value]
    if operator in (">", "<") and not _NUMBER.fullmatch(value):
        raise bad_request(f'"{value}" is no whole number, which {operator} compares with')
    return LabelCondition(key, _OPERATORS[operator], frozenset(_checked(one.strip(), LABEL_VALUE) for one in listed))


def _checked(text: str, syntax: Syntax) -> str:
    if not syntax.holds(text):
        raise bad_request(f'"{text}" is not {syntax.what}: expected {syntax.expected}')
    return text


@dataclass(frozen=True, slots=True)
class FieldTerm:
    """``path = value`` or ``path != value``."""

    path: tuple[str, ...]
    value: str
    equal: bool

    def matches(self, document: Document) -> bool:
        """True if the document's field is (or is not) the value."""
        return (_field_text(document, self.path) == self.value) is self.equal


def _field_text(document: Document, path: tuple[str, ...]) -> str:
    value = value_at(document, path)
    if path == ("spec", "unschedulable"):
        return "true" if value else "false"
    if path == ("source", "component") and not value:
        return str(document.get("reportingComponent", ""))
    return "" if value is None else str(value)


def parse_fields(kind: Kind, text: str, version: str) -> tuple[FieldTerm, ...]:
    """``fieldSelector``; 400 when it cannot be read or names a field that `kind` cannot be selected by in a version of
    Kubernetes."""
    return tuple(_field_term(kind, part, version) for part in re.split(r"(?<!\\),", text) if part)


def _field_term(kind: Kind, text: str, version: str) -> FieldTerm:
    match = re.fullmatch(r"(?P<label>[^=!]*?)(?P<operator>==|!=|=)(?P<value>.*)", text, re.DOTALL)
    if not match:
        raise bad_request(f'"{text}" is not FIELD=VALUE or FIELD!=VALUE')
    value = re.sub(r"\\([\\,=])", r"\1", match["value"])
    return FieldTerm(_path(kind, match["label"], version), value, match["operator"] != "!=")


def _path(kind: Kind, label: str, version: str) -> tuple[str, ...]:
    if label == "metadata.name" or (label == "metadata.namespace" and kind.namespaced):
        return tuple(label.split("."))
    path = kind.selectable.get(label)
    if path is None or kind.selectable_only.get(label, version) != version:
        raise bad_request(f"field label not supported for {kind.api_version}, Kind={kind.kind}: {label}")
    return path


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a kind a list or watch wants."""

    namespace: str = ""
    name: str = ""
    labels: tuple[LabelCondition, ...] = ()
    fields: tuple[FieldTerm, ...] = ()

    def matches(self, document: Document) -> bool:
        """True if the object is wanted."""
        metadata = document["metadata"]
        if self.namespace and metadata.get("namespace") != self.namespace:
            return False
        if self.name and metadata["name"] != self.name:
            return False
        labels = metadata.get("labels") or {}
        return all(one.matches(labels) for one in self.labels) and all(one.matches(document) for one in self.fields)
