"""Opaque JSON that is nested too deeply for Python's readers and writers of JSON, which are recursive.

kube-apiserver reads up to 10,000 levels. Here such a value is an object with its text under one name, from the body
of a request to the bytes that are stored.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from dracaena.api import limits
from dracaena.api.json_text import deeper_than, put_back, set_apart

OPAQUE_FIELDS: Final = ("parameters", "data")
_READ_LEVELS: Final = 200
"""Levels that are read here like everything else."""
_NAME: Final = "\ufdd0deep"
"""Not a character, so that no real field has such a name."""
_HELD: Final = re.compile(rb'\{"' + _NAME.encode() + rb'":("(?:[^"\\]++|\\.)*+")\}')


def hold_texts(body: bytes) -> bytes:
    """Return a JSON body in which deep opaque values are held as text. ValueError if it is deeper than Go reads."""
    if not deeper_than(body, _READ_LEVELS):
        return body
    if deeper_than(body, limits.JSON_LEVELS):
        raise ValueError("exceeded max depth")
    left, taken = set_apart(body, OPAQUE_FIELDS)
    return put_back(
        left, OPAQUE_FIELDS, [_hold(value) if deeper_than(value, _READ_LEVELS) else value for value in taken]
    )


def held_text(value: dict[str, Any]) -> str | None:
    """Return the text of a value that is held like this, None for every other one."""
    text = value.get(_NAME)
    return text if isinstance(text, str) else None


def release_texts(encoded: bytes) -> bytes:
    """Return the bytes of a document with the texts in place of their holders."""
    if _NAME.encode() not in encoded:
        return encoded
    return _HELD.sub(lambda found: json.loads(found[1]).encode(), encoded)


def _hold(value: bytes) -> bytes:
    return json.dumps({_NAME: value.decode()}, ensure_ascii=False, separators=(",", ":")).encode()
