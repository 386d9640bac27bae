"""Opaque parameters as they appear in documents: JSON text (msgspec.Raw) that only their driver understands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

AsSent = Callable[[msgspec.Raw], msgspec.Raw]


def copied(raw: msgspec.Raw) -> msgspec.Raw:
    """Return a copy of a raw value, which is a view of all the decoded bytes and would keep them in memory."""
    return raw.copy()


NO_PARAMETERS: Final = msgspec.Raw(b"{}")

PARAMETERS: Final = ("config", "*", "opaque", "parameters")
"""Where opaque parameters are in the spec of a class and in the devices of a claim; `*` is each entry of a list."""

_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENTRIES: Final = msgspec.json.Decoder(list[msgspec.Raw])


def left_out(index: int) -> msgspec.Raw:
    """Return the placeholder of parameters that were not kept: those of this entry of the claim's spec.devices.config.

    It is a list, which the API never has here.
    """
    return msgspec.Raw(b"[%d]" % index)


def index_left_out(parameters: msgspec.Raw) -> int | None:
    """Return the entry of spec.devices.config whose parameters were not kept; None if they are there."""
    text = bytes(parameters)
    return int(text[1:-1]) if text.startswith(b"[") and text[1:-1].isdigit() else None


def all_but(path: Sequence[str], text: msgspec.Raw, as_sent: AsSent) -> Any:
    """Decode a document, but leave the values at a path as sent. Documents of another form are decoded whole."""
    if not path:
        return as_sent(text)
    step, *rest = path
    try:
        if step == "*":
            return [all_but(rest, entry, as_sent) for entry in _ENTRIES.decode(text)]
        members = _MEMBERS.decode(text)
    except msgspec.ValidationError:
        return msgspec.json.decode(text)
    return {
        name: all_but(rest, value, as_sent) if name == step else msgspec.json.decode(value)
        for name, value in members.items()
    }
