"""JSON in the form in which kube-apiserver writes it.

kube-apiserver stores opaque parameters as the bytes that it received and rewrites them at each patch. In any other
form, a later patch of the object by any client would count as a change of an immutable field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dracaena.api.json_text import deeper_than

MOST_LEVELS: Final = 100
"""Deeper text is not rewritten: it would have to be parsed first, and parsers fail at about 1,000 levels."""

_ESCAPED: Final = {
    b"<": b"\\u003c",
    b">": b"\\u003e",
    b"&": b"\\u0026",
    "\u2028".encode(): b"\\u2028",
    "\u2029".encode(): b"\\u2029",
}


def encode_as_go(document: Mapping[str, Any]) -> bytes:
    """Return compact JSON with sorted keys, in which `<`, `>`, `&` and two line ends are escaped.

    Values that are JSON text already (msgspec.Raw) stay in their own order.
    """
    text = msgspec.json.encode(document, order="sorted")
    for character, escape in _ESCAPED.items():
        text = text.replace(character, escape)  # they occur only in strings, so the document stays the same
    return text


def as_go_writes(parameters: msgspec.Raw) -> msgspec.Raw:
    """Return a JSON object in that form; unchanged if it cannot be read (too deep, or half a surrogate pair)."""
    text = bytes(parameters)
    if deeper_than(text, MOST_LEVELS):
        return parameters
    try:
        return msgspec.Raw(encode_as_go(msgspec.json.decode(text, type=dict[str, Any])))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return parameters
