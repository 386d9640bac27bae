"""Kubernetes times on the wire: RFC 3339 in UTC, whole seconds (``Time``) or exactly six digits (``MicroTime``)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

_FORM: Final = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2})(\.\d+)?(Z|[+-]\d{2}:\d{2})")
_LAYOUTS: Final = {"time": "2006-01-02T15:04:05Z07:00", "microtime": "2006-01-02T15:04:05.000000Z07:00"}


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
    """`text` as the server writes it back (`form`: ``time`` or ``microtime``); ValueError in Kubernetes' words."""
    match = _FORM.fullmatch(text)
    layout = _LAYOUTS[form]
    if not match:
        raise ValueError(f'parsing time "{text}" as "{layout}": cannot parse "{text}" as "2006"')
    fraction = match[2] or ""
    if form == "microtime" and len(fraction) != len(".000000"):
        rest = fraction + match[3]
        raise ValueError(f'parsing time "{text}" as "{layout}": cannot parse "{rest}" as ".000000"')
    try:
        moment = datetime.fromisoformat(match[1] + fraction[:7] + match[3]).astimezone(UTC)
    except ValueError:
        raise ValueError(f'parsing time "{text}": out of range') from None
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if form == "microtime" else write_time(moment)
