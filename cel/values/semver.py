"""Semantic versions, https://semver.org version 2.0.0: the type of version attributes.

Numbers are within uint64, as in the library that Kubernetes uses (github.com/blang/semver v4).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final

from dracaena.cel.errors import EvaluationError
from dracaena.cel.types import SEMVER, Opaque, Type
from dracaena.cel.value import UINT_MAX
from dracaena.cel.values.text import quoted

Identifier = int | str


@dataclass(frozen=True, slots=True, eq=False)
class Semver(Opaque):
    """One version. Build data is kept, but ignored by equality and order."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[Identifier, ...] = ()
    build: tuple[str, ...] = ()

    cel_type: ClassVar[Type] = SEMVER

    @staticmethod
    def parse(text: str) -> Semver:
        """Read a version. Raises EvaluationError."""
        return _parse(text)

    @staticmethod
    def parse_loose(text: str) -> Semver:
        """Read a version after normalising it: without "v" and leading zeros, with 0 for missing minor and patch."""
        return _parse_loose(text)

    def compare(self, other: Semver) -> int:
        """-1 if this precedes the other, 0 if they are equal, 1 if it follows (semver.org, 11)."""
        mine, others = self._order(), other._order()
        return (mine > others) - (mine < others)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Semver) and self._order() == other._order()

    def __hash__(self) -> int:
        return hash(self._order())

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        if self.prerelease:
            text += "-" + ".".join(map(str, self.prerelease))
        return text + ("+" + ".".join(self.build) if self.build else "")

    def _order(self) -> tuple[object, ...]:
        """A key: a version without pre-release follows all of its pre-releases, numbers precede words."""
        identifiers = tuple((isinstance(part, str), part) for part in self.prerelease)
        return self.major, self.minor, self.patch, not self.prerelease, identifiers


_WORD: Final = re.compile(r"[0-9A-Za-z-]*")
_NUMBER: Final = re.compile(r"[0-9]*")


def _parse(text: str) -> Semver:
    if not text:
        raise EvaluationError("Version string empty")
    parts = text.split(".", 2)
    if len(parts) != 3:
        raise EvaluationError("No Major.Minor.Patch elements found")
    major, minor = _number(parts[0], "Major"), _number(parts[1], "Minor")
    rest, plus, build = parts[2].partition("+")
    patch, dash, prerelease = rest.partition("-")
    return Semver(
        major,
        minor,
        _number(patch, "Patch"),
        tuple(_prerelease_part(part) for part in prerelease.split(".")) if dash else (),
        tuple(_build_part(part) for part in build.split(".")) if plus else (),
    )


def _parse_loose(text: str) -> Semver:
    parts = [_without_zeros(part) for part in text.removeprefix("v").split(".", 2)]
    if len(parts) < 3 and any(sign in parts[-1] for sign in "+-"):
        raise EvaluationError("short version cannot contain PreRelease/Build meta data")
    return _parse(".".join(parts + ["0"] * (3 - len(parts))))


def _without_zeros(part: str) -> str:
    if len(part) < 2:
        return part
    stripped = part.lstrip("0")
    return stripped if stripped[:1] and stripped[0] in "0123456789" else "0" + stripped


def _number(text: str, which: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise EvaluationError(f"Invalid character(s) found in {which.lower()} number {quoted(text)}")
    if len(text) > 1 and text[0] == "0":
        raise EvaluationError(f"{which} number must not contain leading zeroes {quoted(text)}")
    return _uint64(text)


def _uint64(text: str) -> int:
    if not text:
        raise EvaluationError('strconv.ParseUint: parsing "": invalid syntax')
    if len(text) > len(str(UINT_MAX)) or int(text) > UINT_MAX:
        raise EvaluationError(f"strconv.ParseUint: parsing {quoted(text)}: value out of range")
    return int(text)


def _prerelease_part(text: str) -> Identifier:
    if not text:
        raise EvaluationError("Prerelease is empty")
    if _NUMBER.fullmatch(text):
        if len(text) > 1 and text[0] == "0":
            raise EvaluationError(f"Numeric PreRelease version must not contain leading zeroes {quoted(text)}")
        return _uint64(text)
    if not _WORD.fullmatch(text):
        raise EvaluationError(f"Invalid character(s) found in prerelease {quoted(text)}")
    return text


def _build_part(text: str) -> str:
    if not text:
        raise EvaluationError("Build meta data is empty")
    if not _WORD.fullmatch(text):
        raise EvaluationError(f"Invalid character(s) found in build meta data {quoted(text)}")
    return text
