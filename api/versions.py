"""Vendors' version texts as SemVer 2.0.0, the only form allowed in a version attribute."""

from __future__ import annotations

import re

from dracaena.api.limits import ATTRIBUTE_VALUE_BYTES

_VENDOR = re.compile(r"([0-9]{1,19})(?:\.([0-9]{1,19}))?(?:\.([0-9]{1,19}))?(?:[-+].*)?", re.ASCII | re.DOTALL)
_NUMBER, _WORD = r"(?:0|[1-9][0-9]*)", r"(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_SEMVER = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-{_WORD}(?:\.{_WORD})*)?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)


def is_semver(text: str) -> bool:
    """Return whether the API server accepts a text as a version."""
    return len(text.encode()) <= ATTRIBUTE_VALUE_BYTES and _SEMVER.fullmatch(text) is not None


def to_semver(text: str) -> str | None:
    """Return the SemVer of a vendor's version: 535.104.05 is 535.104.5, 12.2 is 12.2.0.

    A pre-release or build part stays unchanged. None if no SemVer says the same (four numbers, words).
    """
    match = _VENDOR.fullmatch(text)
    if match is None:
        return None
    numbers = [match[part] or "0" for part in (1, 2, 3)]
    end = max(match.end(part) for part in (1, 2, 3))
    version = ".".join(str(int(number)) for number in numbers) + text[end:]
    return version if is_semver(version) else None
