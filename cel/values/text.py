"""Text as the messages of the reference show it."""

from __future__ import annotations

import unicodedata
from typing import Final

_ESCAPES: Final = {
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", '"': '\\"', "\\": "\\\\",
}  # fmt: skip


def quoted(text: str) -> str:
    """The text in double quotes, with escapes for what cannot be printed: Go's `%q`."""
    return '"' + "".join(map(_shown, text)) + '"'


def _shown(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character == " " or unicodedata.category(character)[0] in "LMNPS":
        return character
    code_point = ord(character)
    if code_point < 0x80:
        return f"\\x{code_point:02x}"
    return f"\\u{code_point:04x}" if code_point < 0x10000 else f"\\U{code_point:08x}"
