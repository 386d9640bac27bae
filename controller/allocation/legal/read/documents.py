"""Strict reading of raw API documents: what is not understood stops the reading, with its path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

UNKNOWN: Final = "not known to this version: the claim is left alone"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The first thing in a spec that cannot be honoured.

    A request of which a part is not understood must not be served as if that part were absent: the claim would get
    devices that its author excluded.
    """

    path: str
    """Where it stands, for example `spec.devices.requests[0].exactly.selectors`."""
    what: str
    """What was seen there, in a few words."""
    why: str
    """UNKNOWN, or the rule that is broken."""

    def __str__(self) -> str:
        return f"{self.path}: {self.what}: {self.why}"


class StopReading(Exception):  # noqa: N818 - control flow between readers; `reading` turns it into a value
    """The first thing that cannot be honoured."""

    def __init__(self, found: Unsupported) -> None:
        super().__init__(str(found))
        self.found = found


def reading(read: Callable[[], T]) -> T | Unsupported:
    """Return what the reader returns, or what stopped it."""
    try:
        return read()
    except StopReading as stop:
        return stop.found


def stop(path: str, what: str, why: str = UNKNOWN) -> StopReading:
    """Return the exception to raise."""
    return StopReading(Unsupported(path, what, why))


def only(document: Mapping[str, Any], known: Iterable[str], path: str) -> None:
    """Stop at a field that this version does not know. A null counts as absent, as everywhere in the API."""
    names = frozenset(known)
    unknown = sorted(str(key) for key, value in document.items() if value is not None and key not in names)
    if unknown:
        raise stop(f"{path}.{unknown[0]}", f"field {unknown[0]!r}")


def an_object(value: Any, path: str) -> Mapping[str, Any]:
    """Read an object; absent is empty."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise stop(path, f"a {type(value).__name__}", "expected an object")
    return value


def a_list(value: Any, path: str, limit: int) -> list[Any]:
    """Read a list of at most `limit` entries; absent is empty."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise stop(path, f"a {type(value).__name__}", "expected a list")
    if len(value) > limit:
        raise stop(path, f"{len(value)} entries", f"the API allows {limit}")
    return value


def a_text(value: Any, path: str) -> str:
    """Read a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise stop(path, repr(value)[:80], "expected a text that is not empty")
    return value


def a_truth(value: Any, path: str) -> bool | None:
    """Read true, false or nothing."""
    if value is not None and not isinstance(value, bool):
        raise stop(path, repr(value)[:80], "expected true or false")
    return value
