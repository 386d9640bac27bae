"""Long lists of documents, kept as JSON text: as an object each `{"operator":"Exists"}` takes ten times the memory."""

from __future__ import annotations

from typing import Any, Final

import msgspec

LONGEST_UNPACKED_BYTES: Final = 4_096
"""Of a list as text. A claim for a few devices has some hundred bytes, and is read at each decision about it."""

_ENCODER: Final = msgspec.json.Encoder()


def packed(value: Any) -> Any:
    """Return a value that came from JSON as text if it is long, else unchanged. Cost: O(its text)."""
    text = _ENCODER.encode(value)
    return msgspec.Raw(text) if len(text) > LONGEST_UNPACKED_BYTES else value


def unpacked(value: Any) -> Any:
    """Return what packed() was given; for a long value, a new copy. Cost: O(its text), nothing for a short one."""
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value
