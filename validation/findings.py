"""What a check found, as values: the same for the command, for an admission webhook and for tests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

Path: TypeAlias = tuple[str | int, ...]
"""Steps from an object to a value in it: names of fields, keys of maps, indexes of lists."""

_FIELD_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_SHOWN_CHARACTERS = 80
"""Characters of a value in a message: enough to recognise it, and the line stays a line."""


class Severity(Enum):
    """How bad it is."""

    ERROR = "error"
    """The API server refuses the object, or what it says can never be done."""
    WARNING = "warning"
    """The API server accepts it, but it certainly does something other than its author wants."""


class Breach(Enum):
    """Which kind of rule of the API a value breaks, in the words of the causes in a server's refusal."""

    DUPLICATE = "FieldValueDuplicate"
    FORBIDDEN = "FieldValueForbidden"
    INVALID = "FieldValueInvalid"
    NOT_FOUND = "FieldValueNotFound"
    NOT_SUPPORTED = "FieldValueNotSupported"
    REQUIRED = "FieldValueRequired"
    TOO_LONG = "FieldValueTooLong"
    TOO_MANY = "FieldValueTooMany"


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """Which object. Texts are "" where the object does not state them."""

    api_version: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        name = self.name or "without a name"
        return printable(f"{self.kind} {self.namespace}/{name}" if self.namespace else f"{self.kind} {name}")


@dataclass(frozen=True, slots=True)
class CelPosition:
    """Where in a CEL expression. Both count from 1, the column in characters."""

    line: int
    column: int
    excerpt: str
    """That line of the expression, with a caret below it near the column."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with one object."""

    severity: Severity
    object: ObjectReference
    path: Path
    """Where it is in the object; an absent field is named by the path at which it is missing."""
    message: str
    """What is wrong, in a few words."""
    seen: str
    """What was seen there, as JSON of at most 80 characters; "nothing" if it is absent."""
    expected: str
    cel: CelPosition | None = None
    breach: Breach | None = None
    """None of a warning, and of an error that no API server finds."""
    is_of_key: bool = False
    """Whether not the value at the path is wrong but its key, the last step."""

    def __str__(self) -> str:
        return f"{render_path(self.path)}: {self.message}: {self.seen}, expected {self.expected}"


def render_path(path: Path) -> str:
    """Return the path as the API writes it: `spec.devices.requests[0].exactly.count`, `metadata.labels["a/b"]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _FIELD_NAME.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{_quoted(step)}]"
    return text or "the object"


def show(value: Any) -> str:
    """Return a value for a message: JSON if it is a scalar, else what it is; at most 80 characters."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "an object" if value else "{}"
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "[]"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > _MOST_BITS:
        return f"a whole number of {value.bit_length()} bits"
    return json.dumps(value) if isinstance(value, bool | int | float) else type(value).__name__


_MOST_BITS = 256
"""Bits of a number that is shown: Python refuses to write the digits of very large ones."""


def printable(text: str) -> str:
    """Return a text that a terminal shows and does not obey: other characters are escaped as in JSON."""
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def _quoted(text: str) -> str:
    shown = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
    return printable(json.dumps(shown, ensure_ascii=False))


def listed(names: Iterable[object]) -> str:
    """Return names for a message, in the order given: `a, b, c`."""
    return ", ".join(str(name) for name in names)
