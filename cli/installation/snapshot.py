"""What was read of an installation, and what a check says about it.

Objects are as the server sent them, and anybody may have written anything into them: the functions here read them
without ever raising.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Final

from dracaena.api.resource_objects import ResourceSlice
from dracaena.validation.pod_templates import value_at

Document = Mapping[str, Any]

NAMES_SHOWN: Final = 5
"""Names in one line: enough to see what they have in common."""

COMPONENT: Final = "app.kubernetes.io/component"
VERSION: Final = "app.kubernetes.io/version"
"""Labels that the chart gives everything."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All objects of a kind, or why they are not known."""

    objects: tuple[Document, ...] = ()
    why_unread: str = ""
    """Why they could not be read; empty if they were."""
    is_served: bool = True
    """Whether the server has this kind. Of one that it does not have there are no objects."""


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """To do something with a kind of objects in all namespaces."""

    verb: str
    group: str
    resource: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{self.group and f'.{self.group}'}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the API server showed at one moment, to the user who asked."""

    driver: str
    command_version: str
    """Of the program that asks."""
    now: datetime
    server_version: str = ""
    """As `1.37`; empty: the server does not say."""
    too_old: str = ""
    """Why the server cannot be used, and what to do; empty if it can."""
    resources: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    """API group with version → the resources in it; none if it is not served, None if that could not be read."""
    kinds: Mapping[str, Listing] = field(default_factory=dict)
    """By resource, such as `nodes`; of most only those that belong to the chart (installation_reader.READS)."""
    slices: tuple[ResourceSlice, ...] = ()
    """Those of the driver."""
    unread_slices: tuple[str, ...] = ()
    """Slices of the driver that are not of the API's shape."""
    no_leader: str = ""
    """Why no controller leads; empty if one does, or if Leases could not be read."""
    rights: Mapping[Right, bool | None] = field(default_factory=dict)
    """What the user may do; None where the server does not say."""

    def objects(self, kind: str) -> tuple[Document, ...]:
        """Return the objects of a kind; none if they could not be read."""
        return self.kinds.get(kind, Listing()).objects

    def of_component(self, kind: str, component: str) -> list[Document]:
        """Return the objects of a kind that the chart made for one of its programs."""
        return [one for one in self.objects(kind) if labels(one).get(COMPONENT) == component]


class State(Enum):
    """What a check says."""

    OK = "ok"
    TO_FIX = "to fix"
    UNKNOWN = "not checked"


class Quote(str):
    """A text that somebody wrote, as an argument of a finding: no name, so that a report leaves it out."""

    __slots__ = ()


Name = str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the answer. What comes from the cluster is kept apart from our own words, so that a report can leave
    out what is no plain name."""

    state: State
    words: str
    """With `{}` for each of the names."""
    names: tuple[Name, ...] = ()
    check: str = ""

    def __str__(self) -> str:
        return self.words.format(*map(listed, self.names))


def fine(words: str, *names: Name) -> Finding:
    """Say what is as it has to be."""
    return Finding(State.OK, words, names)


def to_fix(words: str, *names: Name) -> Finding:
    """Say what was seen, what was expected, and who has to act."""
    return Finding(State.TO_FIX, words, names)


def unknown(words: str, *names: Name) -> Finding:
    """Say what could not be checked, and why."""
    return Finding(State.UNKNOWN, words, names)


def listed(name: Name) -> str:
    """Return a name, or the first of several."""
    if isinstance(name, str):
        return name
    more = len(name) - NAMES_SHOWN
    return ", ".join(name[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def text(document: Any, *path: str | int) -> str:
    """Return the text at a path; empty if there is none."""
    value = value_at(document, path)
    return value if isinstance(value, str) else ""


def number(document: Any, *path: str | int) -> int:
    """Return the whole number at a path; 0 if there is none."""
    value = value_at(document, path)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def entries(document: Any, *path: str | int) -> list[Document]:
    """Return the objects in the list at a path; none if there is no list."""
    value = value_at(document, path)
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, Sequence) else []


def texts(document: Any, *path: str | int) -> dict[str, str]:
    """Return the texts in the map at a path, by key; none if there is no map."""
    value = value_at(document, path)
    pairs: Iterator[tuple[Any, Any]] = iter(value.items() if isinstance(value, Mapping) else ())
    return {key: one for key, one in pairs if isinstance(key, str) and isinstance(one, str)}


def name_of(document: Any) -> str:
    """Return metadata.name."""
    return text(document, "metadata", "name")


def labels(document: Any) -> dict[str, str]:
    """Return metadata.labels."""
    return texts(document, "metadata", "labels")
