"""Strings that a server has chosen, told from other strings by their type: scenarios pass them on, masks know them."""

from __future__ import annotations

import re
from typing import Any

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

GENERATED = re.compile(r"[bcdfghjklmnpqrstvwxz2456789]{5}")
"""What kube-apiserver hangs on a generateName: no vowels, so that no words come out."""


LONGEST_BASE = 58
"""What is longer is cut, so that the name has 63 characters."""


class Uid(str):
    """``metadata.uid``."""

    __slots__ = ()


class Version(str):
    """``metadata.resourceVersion`` of an object: of its last write."""

    __slots__ = ()


class CollectionVersion(str):
    """``metadata.resourceVersion`` of a list or bookmark.

    It is no older than the newest object's, and newer whenever the server has written something else meanwhile.
    """

    __slots__ = ()


class ContinueToken(str):
    """``metadata.continue`` of a list."""

    __slots__ = ()


class GeneratedName(str):
    """``metadata.name`` made of ``metadata.generateName``."""

    __slots__ = ()


def marked(answer: Any, *, is_bookmark: bool = False, base: str = "") -> Any:
    """A copy of an answer in which such strings carry their type.

    Events of a watch are answers of their own. `base` is the generateName that was sent: a refusal may name what would
    have become of it.
    """
    if isinstance(answer, list):
        return [marked(part) for part in answer]
    if not isinstance(answer, dict):
        return answer
    copy = {key: marked(value) for key, value in answer.items()}
    if isinstance(copy.get("metadata"), dict):
        is_collection = is_bookmark or str(answer.get("kind", "")).endswith(("List", "Table"))
        copy["metadata"] = _marked_metadata(copy["metadata"], is_collection=is_collection)
    if base and answer.get("kind") == "Status":
        copy["details"] = {key: _marked_name(value, base) for key, value in copy.get("details", {}).items()}
    return copy


def _marked_metadata(metadata: dict[str, Any], *, is_collection: bool) -> dict[str, Any]:
    def mark(key: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if key == "resourceVersion" and value.isdecimal():
            return CollectionVersion(value) if is_collection else Version(value)
        if key == "uid" and UUID.fullmatch(value):
            return Uid(value)
        if key == "continue" and value:
            return ContinueToken(value)
        return _marked_name(value, metadata.get("generateName") or "") if key == "name" else value

    return {key: mark(key, value) for key, value in metadata.items()}


def _marked_name(value: Any, base: str) -> Any:
    base = base[:LONGEST_BASE]
    is_made = base and isinstance(value, str) and value.startswith(base) and GENERATED.fullmatch(value[len(base) :])
    return GeneratedName(value) if is_made else value
