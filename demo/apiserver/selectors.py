"""Label and field selectors of list, watch and deletecollection, with Kubernetes' syntax and refusals."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dracaena.demo.apiserver.errors import bad_request
from dracaena.validation.pod_templates import value_at
from dracaena.validation.syntax import LABEL_KEY, LABEL_VALUE, Syntax

if TYPE_CHECKING:
    from dracaena.demo.apiserver.resources import Kind

Document = dict[str, Any]
Labels = dict[str, str]

_WORD: Final = re.compile(r"\s*(!=|==|=|!|,|\(|\)|>|<|[^\s!=,()<>]+)")


@dataclass(frozen=True, slots=True)
class LabelCondition:
    """One condition on labels. `operator` is ``in``, ``notin``, ``exists``, ``!``, ``gt`` or ``lt``."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Labels) -> bool:
        """True if `labels` satisfy it."""
        value = labels.get(self.key)
        match self.operator:
            case "exists":
                return value is not None
            case "!":
                return value is None
            case "in":
                return value in self.values
            case "notin":
                return value not in self.values
            case _:
                return self._compares(value)

    def _compares(self, value: str | None) -> bool:
        if value is None or not re.fullmatch(r"-?\d+", value):
            return False
        bound = int(next(iter(self.values)))
        return int(value) > bound if self.operator == "gt" else int(value) < bound


_OPERATORS: Final = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!"}


def label_selector_matches(selector: Document, labels: Labels) -> bool:
    """Whether a LabelSelector of the API selects an object with these labels; an empty one selects all."""
    conditions = [
        LabelCondition(key, "in", frozenset({value})) for key, value in (selector.get("matchLabels") or {}).items()
    ]
    conditions += [
        LabelCondition(one["key"], _OPERATORS[one["operator"]], frozenset(one.get("values") or ()))
        for one in selector.get("matchExpressions") or ()
    ]
    return all(condition.matches(labels) for condition in conditions)


class _LabelParser:
    def __init__(self, text: str) -> None:
        self._words = [match[1] for match in _WORD.finditer(text)]
        self._at = 0

    def parse(self) -> tuple[LabelCondition, ...]:
        found: list[LabelCondition] = []
        while self._at < len(self._words):
            found.append(self._requirement())
            if self._at < len(self._words):
                word = self._next()
                if word != ",":
                    raise bad_request(f"found '{word}', expected: ',' or 'end of string'")
                if self._at == len(self._words):
                    raise bad_request("found '', expected: identifier after ','")
        return tuple(found)

    def _peek(self) -> str:
        return self._words[self._at] if self._at < len(self._words) else ""

    def _next(self) -> str:
        word = self._peek()
        self._at += 1
        return word

    def _requirement(self) -> LabelCondition:
        if self._peek() == "!":
            self._next()
            return LabelCondition(self._key(), "!")
        key = self._key()
        word = self._peek()
        if word in ("", ","):
            return LabelCondition(key, "exists")
        operator = self._next()
        if operator in ("=", "==", "!="):
            value = "" if self._peek() in ("", ",") else self._next()
            return LabelCondition(key, "notin" if operator == "!=" else "in", frozenset({self._value(value)}))
        if operator in ("in", "notin"):
            return LabelCondition(key, operator, self._values())
        if operator in (">", "<"):
            value = self._next()
            if not re.fullmatch(r"-?\d+", value):
                raise bad_request(
                    f"unable to parse requirement: values[0][{key}]: Invalid value: \"{value}\": for 'Gt', 'Lt' "
                    "operators, the value must be an integer"
                )
            return LabelCondition(key, "gt" if operator == ">" else "lt", frozenset({value}))
        raise bad_request(f"unable to parse requirement: found '{operator}', expected: in, notin, =, ==, !=, gt, lt")

    def _key(self) -> str:
        key = self._next()
        if not key or key in ("!", "=", "==", "!=", ",", "(", ")", "<", ">"):
            raise bad_request(f"unable to parse requirement: found '{key}', expected: identifier")
        return self._checked(key, LABEL_KEY)

    def _value(self, value: str) -> str:
        return self._checked(value, LABEL_VALUE)

    def _checked(self, text: str, syntax: Syntax) -> str:
        if not syntax.holds(text):
            raise bad_request(f'unable to parse requirement: "{text}": expected {syntax.expected}')
        return text

    def _values(self) -> frozenset[str]:
        if self._next() != "(":
            raise bad_request(f"unable to parse requirement: found '{self._words[self._at - 1]}' expected: '('")
        values: set[str] = set()
        while True:
            word = self._next()
            if word == ")":
                return frozenset(values or {""})
            if word == "":
                raise bad_request("unable to parse requirement: found '', expected: ',' or ')'")
            if word != ",":
                values.add(self._value(word))


def parse_labels(text: str) -> tuple[LabelCondition, ...]:
    """``labelSelector``; 400 when it cannot be read."""
    return _LabelParser(text).parse()


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
    if path in (("spec", "unschedulable"), ("spec", "hostNetwork")):
        return "true" if value else "false"
    if path == ("status", "podIP"):
        addresses = value_at(document, ("status", "podIPs")) or []
        return addresses[0]["ip"] if addresses else ""
    if path == ("source", "component") and not value:
        return str(document.get("reportingComponent", ""))
    return "" if value is None else str(value)


def parse_fields(kind: Kind, text: str, version: str) -> tuple[FieldTerm, ...]:
    """``fieldSelector``; 400 when it cannot be read or names a field that `kind` cannot be selected by in a version of
    Kubernetes."""
    return tuple(_field_term(kind, part, version) for part in _split(text) if part)


def _split(text: str) -> list[str]:
    return re.split(r"(?<!\\),", text)


def _field_term(kind: Kind, text: str, version: str) -> FieldTerm:
    match = re.fullmatch(r"(?P<label>[^=!]*?)(?P<operator>==|!=|=)(?P<value>.*)", text, re.DOTALL)
    if not match:
        raise bad_request(f"invalid selector: '{text}'; can't understand '{text}'")
    value = re.sub(r"\\([\\,=])", r"\1", match["value"])
    return FieldTerm(_path(kind, match["label"], version), value, match["operator"] != "!=")


def _path(kind: Kind, label: str, version: str) -> tuple[str, ...]:
    if label == "metadata.name" or (label == "metadata.namespace" and kind.namespaced):
        return tuple(label.split("."))
    path = kind.selectable.get(label)
    if path is None or kind.selectable_only.get(label, version) != version:
        raise bad_request(_unsupported(kind, label))
    return path


def _unsupported(kind: Kind, label: str) -> str:
    if kind.group:
        if kind.selectable:
            return f"field label not supported for {kind.group}/{kind.version}, Kind={kind.kind}: {label}"
        return f'"{label}" is not a known field selector: only "metadata.name", "metadata.namespace"'
    return f"field label not supported: {label}"


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
