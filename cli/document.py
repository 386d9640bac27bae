"""Reads YAML and JSON as values with their places, strictly: it refuses what another reader would read differently.

Kept from YAML 1.1, which kubectl reads: merge keys, anchors. Not kept: `on`, `off`, `yes`, `no` are texts here, and a
number that 1.1 and 1.2 read differently (010) is an error. Values are those of JSON: no dates, no infinite numbers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import yaml

MOST_DEPTH = 100
"""Levels of mappings and lists. A pod has about 15; readers of such values recurse, and Python stops near 1,000."""
MOST_ALIASED_VALUES = 100_000
"""Values that all aliases of one text may stand for together. Hand-written ones have hundreds; a bomb has billions."""
_MOST_DIGITS = 400
"""Digits of a number: more than any double has, far fewer than the 4,300 at which Python refuses."""


class DocumentError(Exception):
    """A text that cannot be read. Places count from 1."""

    def __init__(self, line: int | None, column: int | None, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.column = column
        self.message = message


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value is in its text, and below it the places of its fields or items."""

    line: int
    column: int
    children: Mapping[str | int, Place]

    def at(self, path: Sequence[str | int]) -> Place:
        """Return the place of a field below, of its key in a mapping; of what exists of it, if it does not."""
        place = self
        for step in path:
            if step not in place.children:
                break
            place = place.children[step]
        return place


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document, or one of several JSON values in a row."""

    value: Any
    place: Place


def read_documents(content: bytes) -> list[Document]:
    """Return the documents in order; one without content has the value None. Raises DocumentError."""
    return [document for part in _parts(_decoded(content)) for document in _ValueReader(part).documents()]


def _decoded(content: bytes) -> str:
    encoding = "utf-8-sig"
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):  # what PowerShell's > writes
        encoding = "utf-16"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        before = content[: error.start]
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
        seen = f"byte 0x{content[error.start]:02x}, expected text in UTF-8"
        raise DocumentError(before.count(b"\n") + 1, column, seen) from error
    control = _CONTROL.search(text)
    if control:
        before_it = text[: control.start()]
        seen = f"control character 0x{ord(control.group()):02x}, expected text"
        raise DocumentError(before_it.count("\n") + 1, len(before_it) - before_it.rfind("\n"), seen)
    return text


_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x84\x86-\x9f\ufffe\uffff]")
_VISIBLE: Final = re.compile(r"\S")
_SURROGATES: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")


@dataclass(frozen=True, slots=True)
class _TextPiece:
    """A piece of a text that is read separately, and where in the text it begins."""

    text: str
    lines_before: int = 0
    columns_before: int = 0


def _parts(text: str) -> list[_TextPiece]:
    """Cut a row of JSON values, as jq prints them, into one text each; YAML stays whole.

    JSON is YAML except for three things, which this repairs: values without `---` between them, tabs, and characters
    written as two escapes.
    """
    decoder, parts = json.JSONDecoder(), []
    at = lines = line_start = 0
    try:
        while visible := _VISIBLE.search(text, at):
            if visible.group() != "{":
                return [_TextPiece(text)]
            end = decoder.raw_decode(text, visible.start())[1]
            parts.append(_TextPiece(_json_as_yaml(text[at:end]), lines, at - line_start))
            lines += text.count("\n", at, end)
            line_start = text.rfind("\n", 0, end) + 1
            at = end
    except (ValueError, RecursionError):
        return [_TextPiece(text)]  # YAML in braces, or broken: the reader says where
    return parts


def _json_as_yaml(text: str) -> str:
    text = text.replace("\t", " ")  # in JSON a tab is never in a string
    return _SURROGATES.sub(_joined, text) if "\\u" in text else text


def _joined(match: re.Match[str]) -> str:
    high, low = int(match[2], 16), int(match[3], 16)
    return match[1] + chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))


_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml, ten times as fast, if PyYAML was built with it; without it only some error texts and places differ."""
_NO_CHILDREN: Final[Mapping[str | int, Place]] = {}


class _ValueReader:
    """Turns the events of one text into values.

    Anchors live as long as their document; the budget for aliases is that of the whole text.
    """

    def __init__(self, part: _TextPiece) -> None:
        self._part = part
        self._events: Iterator[yaml.Event] = iter(yaml.parse(part.text, Loader=_LOADER))
        self._anchors: dict[str, _Anchored] = {}
        self._values = 0
        self._aliased = 0

    def documents(self) -> Iterator[Document]:
        try:
            for event in self._events:
                if isinstance(event, yaml.DocumentStartEvent):
                    self._anchors = {}
                    yield self._value(next(self._events), MOST_DEPTH)
        except yaml.MarkedYAMLError as error:
            position = self._position(error.problem_mark or error.context_mark)
            raise DocumentError(*position, f"not YAML: {error.problem or error.context}") from error
        except yaml.YAMLError as error:
            raise DocumentError(None, None, f"not YAML: {error}") from error

    def _value(self, event: yaml.Event, depth: int) -> Document:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        before = self._values
        self._values += 1
        if isinstance(event, yaml.ScalarEvent):
            document = Document(self._scalar(event), self._place(event))
        elif depth == 0:
            raise self._error(event, f"more than {MOST_DEPTH} levels, expected a manifest")
        elif isinstance(event, yaml.MappingStartEvent):
            document = self._mapping(event, depth - 1)
        elif isinstance(event, yaml.SequenceStartEvent):
            document = self._list(event, depth - 1)
        else:
            raise self._error(event, "the end of the text, expected a value")
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchored(document, self._values - before)
        return document

    def _alias(self, event: yaml.AliasEvent) -> Document:
        anchored = self._anchors.get(event.anchor or "")
        if anchored is None:
            raise self._error(event, f"alias *{event.anchor}, expected an anchor &{event.anchor} that ends before it")
        self._values += anchored.values
        self._aliased += anchored.values
        if self._aliased > MOST_ALIASED_VALUES:
            raise self._error(event, f"aliases stand for more than {MOST_ALIASED_VALUES} values, expected a manifest")
        return anchored.document

    def _mapping(self, start: yaml.MappingStartEvent, depth: int) -> Document:
        self._check_tag(start, _MAP_TAG)
        own: dict[str, Any] = {}
        places: dict[str | int, Place] = {}
        merged: list[Document] = []
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event)
            value = self._value(next(self._events), depth)
            if key == _MERGE and isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
                merged += self._merged(event, value)
                continue
            if key in own:
                first = places[key].line
                raise self._error(event, f"key {key!r} appears twice (first on line {first}), expected once")
            own[key] = value.value
            places[key] = self._place(event, value.place.children)
        for source in merged:
            own = {**source.value, **own}
            places = {**source.place.children, **places}
        return Document(own, self._place(start, places))

    def _merged(self, event: yaml.Event, value: Document) -> list[Document]:
        if isinstance(value.value, dict):
            return [value]
        if isinstance(value.value, list) and all(isinstance(item, dict) for item in value.value):
            return [Document(item, value.place.at((index,))) for index, item in enumerate(value.value)]
        raise self._error(event, "merge key <<, expected a mapping or a list of mappings after it")

    def _key(self, event: yaml.Event) -> str:
        if isinstance(event, yaml.AliasEvent):
            key = self._alias(event).value
        else:
            key = event.value if isinstance(event, yaml.ScalarEvent) else None
        if not isinstance(key, str):
            raise self._error(event, "a key that is not text, expected the name of a field")
        return key

    def _list(self, start: yaml.SequenceStartEvent, depth: int) -> Document:
        self._check_tag(start, _LIST_TAG)
        values: list[Any] = []
        places: dict[str | int, Place] = {}
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            item = self._value(event, depth)
            places[len(values)] = self._place(event, item.place.children)
            values.append(item.value)
        return Document(values, self._place(start, places))

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        if event.tag == _TEXT_TAG or (event.tag in (None, "!") and not event.implicit[0]):
            return event.value
        if event.tag not in (None, *_SCALAR_TAGS):
            raise self._error(event, f"tag {event.tag}, expected none: JSON has no such values")
        try:
            value = _plain(event.value)
        except ValueError as error:
            raise self._error(event, str(error)) from None
        if event.tag is not None and not isinstance(value, _SCALAR_TAGS[event.tag]):
            raise self._error(event, f"tag {event.tag} on {event.value[:40]!r}, expected a value of that type")
        return value

    def _check_tag(self, event: yaml.CollectionStartEvent, known: str) -> None:
        if event.tag not in (None, known):
            raise self._error(event, f"tag {event.tag}, expected none: JSON has no such values")

    def _place(self, event: yaml.Event, children: Mapping[str | int, Place] = _NO_CHILDREN) -> Place:
        return Place(*self._position(event.start_mark), children)

    def _position(self, mark: _Mark | None) -> tuple[int, int]:
        line, column = (0, 0) if mark is None else (mark.line, mark.column)
        columns_before = self._part.columns_before if line == 0 else 0
        return self._part.lines_before + line + 1, columns_before + column + 1

    def _error(self, event: yaml.Event, message: str) -> DocumentError:
        return DocumentError(*self._position(event.start_mark), message)


class _Mark(Protocol):
    """What the marks of both loaders have, counted from 0."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class _Anchored:
    document: Document
    values: int
    """How many values it contains, including itself and those of aliases in it."""


_TAG = "tag:yaml.org,2002:"
_TEXT_TAG = _TAG + "str"
_MAP_TAG = _TAG + "map"
_LIST_TAG = _TAG + "seq"
_SCALAR_TAGS: Final[Mapping[str, tuple[type, ...]]] = {
    _TAG + "null": (type(None),),
    _TAG + "bool": (bool,),
    _TAG + "int": (int,),
    _TAG + "float": (int, float),
}
_MERGE = "<<"
_CONSTANTS: Final[Mapping[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)", re.ASCII)
_BASED = re.compile(r"0x[0-9a-fA-F]+|0o[0-7]+", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_AMBIGUOUS = re.compile(r"[-+]?(?:0[0-9_]+|0b[01_]+|0x[0-9a-fA-F_]+|[1-9][0-9]*_[0-9_]*)", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", re.ASCII)


def _plain(text: str) -> Any:
    """Return the value of an unquoted scalar: the core schema of YAML 1.2. Raises ValueError with what was seen."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in "+-.0123456789":
        return text
    if len(text) <= _MOST_DIGITS:
        if _INTEGER.fullmatch(text):
            return int(text)
        if _BASED.fullmatch(text):
            return int(text, 0)
        if _AMBIGUOUS.fullmatch(text):
            raise ValueError(f"{text} is one number in YAML 1.1 and another value in 1.2, expected quotes or a decimal")
        if _FLOAT.fullmatch(text) and math.isfinite(number := float(text)):
            return number
    if _NOT_FINITE.fullmatch(text) or _FLOAT.fullmatch(text):
        raise ValueError(f"{text[:40]} is beyond what JSON allows, expected quotes or a smaller number")
    return text
