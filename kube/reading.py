"""Reads one object of many, so that an unreadable object affects no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from dracaena.api.json_text import set_apart
from dracaena.api.objects import KubeObject, ObjectMeta

T = TypeVar("T", bound=KubeObject)

REASON_CHARACTERS = 300
"""How much of a decoder's message is kept, in characters: it may quote the object."""

StandIn = Callable[[ObjectMeta, bytes, str], T]
"""Makes what is kept in place of an object that cannot be read, from its name, its text and the reason."""


@dataclass(frozen=True, slots=True)
class Unread(Generic[T]):
    """An object that exists but cannot be read."""

    metadata: ObjectMeta
    """Name, namespace, UID and version, as far as these can be read; an empty name otherwise."""
    reason: str
    instead: T | None
    """What is kept in its place, if anything is."""

    @property
    def key(self) -> str:
        """`namespace/name`, or `name`; empty when not even that can be read."""
        meta = self.metadata
        return f"{meta.namespace}/{meta.name}" if meta.namespace and meta.name else meta.name


@dataclass(frozen=True, slots=True)
class Reader(Generic[T]):
    """How objects of a kind are read."""

    keep: Callable[[T], T] = lambda item: item
    """Makes what is kept of an object."""
    stand_in: StandIn[T] | None = None
    """May raise anything if it cannot make one: it is then unsafe to go on with any object of the kind, and the whole
    read fails.

    The same applies to an object whose name cannot be read: if it were left out of a list, it would count as deleted,
    and what it holds as free."""

    def read(self, kind: type[T], text: bytes | msgspec.Raw) -> T | Unread[T]:
        """Read one object; whatever it raises concerns this object alone."""
        try:
            return self.keep(kind.from_json(text))
        except Exception as error:  # noqa: BLE001 - any object may come, and the next has to be read whatever this one does
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"[:REASON_CHARACTERS]
        whole = bytes(text)
        metadata = name_of(whole)
        if self.stand_in is None:
            return Unread(metadata, reason, None)
        if not metadata.name:
            raise ValueError(f"its name cannot be read either ({reason})")
        return Unread(metadata, reason, self.stand_in(metadata, whole, reason))


class _Named(msgspec.Struct):
    metadata: dict[str, msgspec.Raw]


_TEXT = msgspec.json.Decoder(str)
_NAMED = msgspec.json.Decoder(_Named)
_OF_METADATA = ("name", "namespace", "uid", "resourceVersion")
_APART = ("managedFields", "labels", "annotations", "ownerReferences", "finalizers", "spec", "status")


def name_of(text: bytes) -> ObjectMeta:
    """Read only which object it is. Never raises: what cannot be read is empty."""
    found = _metadata(text)
    if not found and (taken := set_apart(text, ["metadata"])[1]):
        found = _metadata(b'{"metadata":%s}' % taken[0])  # what cannot be skipped stands beside it
    name, namespace, uid, version = (_text(found.get(field)) for field in _OF_METADATA)
    return ObjectMeta(name=name, namespace=namespace, uid=uid, resource_version=version)


def _metadata(text: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _NAMED.decode(set_apart(text, _APART)[0]).metadata
    except Exception:  # noqa: BLE001 - it is unreadable as it is: what can go wrong here has gone wrong before
        return {}


def _text(raw: msgspec.Raw | None) -> str:
    try:
        return "" if raw is None else _TEXT.decode(raw)
    except Exception:  # noqa: BLE001 - as above
        return ""
