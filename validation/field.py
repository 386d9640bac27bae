"""Reads a document of the API value by value and reports what is wrong with each, as its strict decoder does.

JSON null is the same as absence, an absent field the same as its zero value ("", 0, false, no entries). A value of a
wrong type is reported once and read as None; its reader checks nothing more about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dracaena.api.reasons import nearest
from dracaena.validation.findings import (
    Breach,
    CelPosition,
    Finding,
    ObjectReference,
    Path,
    Severity,
    listed,
    printable,
    show,
)
from dracaena.validation.syntax import Syntax

MOST_INT = 2**63 - 1
"""The API's whole numbers are int64."""


class Report:
    """Collects the findings about one object, in the order in which they are made."""

    def __init__(self, about: ObjectReference) -> None:
        self.about = about
        self.findings: list[Finding] = []


class Field:
    """One value in a document: what it is, where it is, and where findings about it go."""

    __slots__ = ("path", "report", "value")

    def __init__(self, value: Any, path: Path, report: Report) -> None:
        self.value = value
        self.path = path
        self.report = report

    @property
    def absent(self) -> bool:
        """Whether there is nothing here."""
        return self.value is None

    def error(
        self,
        message: str,
        expected: str,
        cel: CelPosition | None = None,
        *,
        breach: Breach = Breach.INVALID,
        is_of_key: bool = False,
    ) -> None:
        """Report that the API server refuses this value, or its key."""
        self._add(Severity.ERROR, message, expected, cel, breach, is_of_key=is_of_key)

    def never(self, message: str, expected: str) -> None:
        """Report that the API server accepts this value and it can never be fulfilled."""
        self._add(Severity.ERROR, message, expected)

    def warn(self, message: str, expected: str, cel: CelPosition | None = None) -> None:
        """Report that this value is accepted but is a mistake."""
        self._add(Severity.WARNING, message, expected, cel)

    def _add(
        self,
        severity: Severity,
        message: str,
        expected: str,
        cel: CelPosition | None = None,
        breach: Breach | None = None,
        *,
        is_of_key: bool = False,
    ) -> None:
        about, seen = self.report.about, show(self.value)
        texts = (printable(message), seen, printable(expected))
        self.report.findings.append(Finding(severity, about, self.path, *texts, cel, breach, is_of_key))

    def below(self, step: str | int, value: Any) -> Field:
        """Return a value inside this one."""
        return Field(value, (*self.path, step), self.report)

    def at(self, *names: str) -> Field:
        """Return what is at a path of names below this value; absent if one of them is missing. Reports nothing: for
        checks of documents whose form others check."""
        found = self
        for name in names:
            found = found.below(name, found.value.get(name) if isinstance(found.value, dict) else None)
        return found

    def objects(self) -> Iterator[Field]:
        """Yield the objects of a list, and skip what is no list or object. Reports nothing, like at()."""
        for index, item in enumerate(self.value if isinstance(self.value, list) else ()):
            if isinstance(item, dict):
                yield self.below(index, item)

    def fields(self, *known: str) -> Fields | None:
        """Read an object of the API: every unknown field is reported."""
        entries = self._mapping("an object")
        if entries is None:
            return None
        for name in entries:
            if name not in known:
                near = nearest(name, known)
                meant = f": did you mean {near}?" if near else ""
                self.below(name, entries[name]).error("unknown field", f"one of {listed(known)}{meant}")
        return Fields(self, entries)

    def some_fields(self) -> Fields | None:
        """Read an object of the API of which only some fields are looked at."""
        entries = self._mapping("an object")
        return None if entries is None else Fields(self, entries)

    def entries(self) -> dict[str, Field] | None:
        """Read a map with free keys, sorted by key."""
        entries = self._mapping("a map")
        if entries is None:
            return None
        return {str(key): self.below(str(key), entries[key]) for key in sorted(entries, key=str)}

    def items(self, most: int | None = None) -> list[Field] | None:
        """Read a list. A list that is too long is reported and not read, as on the server."""
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            self._wrong_type("a list")
            return None
        if most is not None and len(self.value) > most:
            self.error("too many entries", f"at most {most}", breach=Breach.TOO_MANY)
            return None
        return [self.below(index, item) for index, item in enumerate(self.value)]

    def text(self) -> str | None:
        """Read a text."""
        if self.value is None:
            return ""
        if not isinstance(self.value, str):
            self._wrong_type("a text")
            return None
        return self.value

    def whole_number(self) -> int | None:
        """Read an int64."""
        value = 0 if self.value is None else self.value
        if isinstance(value, bool) or not isinstance(value, int) or not -MOST_INT - 1 <= value <= MOST_INT:
            self._wrong_type("a whole number of 64 bits")
            return None
        return value

    def boolean(self) -> bool | None:
        """Read true or false."""
        if self.value is not None and not isinstance(self.value, bool):
            self._wrong_type("true or false")
            return None
        return bool(self.value)

    def required(self, expected: str) -> bool:
        """Report a text, list or map that is absent or empty; return whether it is there."""
        if self.value in (None, "", [], {}):
            self.error("missing", expected, breach=Breach.REQUIRED)
            return False
        return True

    def name(self, syntax: Syntax, *, optional: bool = False, missing: Breach = Breach.INVALID) -> str | None:
        """Read a text of this syntax. None if it breaks the syntax, or is absent. `missing`: what an empty text is."""
        text = self.text()
        if text is None or (optional and self.absent):
            return None
        if not text:
            self.error("missing", syntax.expected, breach=missing)
            return None
        self.check_form(text, syntax)
        return text if syntax.holds(text) else None

    def check_form(self, text: str, syntax: Syntax, *, is_of_key: bool = False) -> None:
        """Report where a text, which is this value or its key, breaks a syntax."""
        what = "the key is " if is_of_key else ""
        if syntax.is_too_long(text):
            self.error(f"{what}too long", syntax.expected, breach=Breach.TOO_LONG, is_of_key=is_of_key)
        if not syntax.has_form(text):
            self.error(f"{what}not {syntax.what}", syntax.expected, is_of_key=is_of_key)

    def choice(self, choices: tuple[str, ...], breach: Breach = Breach.NOT_SUPPORTED) -> str | None:
        """Read a text that must be one of a few. None if it is not."""
        text = self.text()
        if text is not None and text not in choices:
            self.error("unknown value", f"one of {listed(choices)}", breach=breach)
            return None
        return text

    def _mapping(self, expected: str) -> Mapping[str, Any] | None:
        if self.value is None:
            return {}
        if not isinstance(self.value, Mapping):
            self._wrong_type(expected)
            return None
        return self.value

    def _wrong_type(self, expected: str) -> None:
        self.error("wrong type", expected)


class Fields:
    """The fields of one object of the API."""

    __slots__ = ("_entries", "_owner")

    def __init__(self, owner: Field, entries: Mapping[str, Any]) -> None:
        self._owner = owner
        self._entries = entries

    def __getitem__(self, name: str) -> Field:
        return self._owner.below(name, self._entries.get(name))


def check_distinct(fields: list[Field], key: str | None, message: str, expected: str) -> None:
    """Report each object that repeats an earlier one's text at this key, or each text that repeats an earlier one;
    empty texts do not count."""
    met: set[str] = set()
    for field in fields:
        text = field.value if key is None else text_at(field, key)
        if not isinstance(text, str) or not text:
            continue
        if text in met:
            field.error(message, expected, breach=Breach.DUPLICATE)
        met.add(text)


def text_at(field: Field, key: str) -> str | None:
    """Return a text that is not empty from an object, if it has one there. Reports nothing."""
    text = field.value.get(key) if isinstance(field.value, dict) else None
    return text if isinstance(text, str) and text else None
