"""Kubernetes times on the wire: RFC 3339 in UTC, whole seconds (``Time``) or exactly six digits (``MicroTime``)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

_FORM: Final = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2})(\.\d+)?(Z|[+-]\d{2}:\d{2})")
_EXAMPLES: Final = {"time": "2026-01-02T15:04:05Z", "microtime": "2026-01-02T15:04:05.000000Z"}


def utc_now() -> datetime:
    """The machine's clock, aware, in UTC."""
    return datetime.now(UTC)


def write_time(moment: datetime) -> str:
    """``Time``: the fraction of a second is cut off."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_time(text: str) -> datetime:
    """A ``Time`` or ``MicroTime``; ValueError if it is neither."""
    return datetime.fromisoformat(text)


def canonical_time(text: str, form: str) -> str:
    """`text` as the server writes it back (`form`: ``time`` or ``microtime``); ValueError if it is no such time."""
    match = _FORM.fullmatch(text)
    fraction = (match[2] or "") if match else ""
    if not match or (form == "microtime" and len(fraction) != len(".000000")):
        raise ValueError(f'"{text}" is no time of the form {_EXAMPLES[form]}')
    try:
        moment = datetime.fromisoformat(match[1] + fraction[:7] + match[3]).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f'the time "{text}" is out of range') from None
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if form == "microtime" else write_time(moment)
