"""How long ago something was, in the few characters that a column has."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dracaena.demo.apiserver.times import read_time

UNKNOWN: Final = "<unknown>"
_FUTURE: Final = "<invalid>"
_MINUTE_S: Final = 60
_HOUR_S: Final = 60 * _MINUTE_S
_DAY_S: Final = 24 * _HOUR_S
_YEAR_S: Final = 365 * _DAY_S
# Up to which length a duration is written in one unit only, or with the next smaller one.
_STEPS: Final = (
    (2 * _MINUTE_S, 1, "s", 0, ""),
    (10 * _MINUTE_S, _MINUTE_S, "m", 1, "s"),
    (3 * _HOUR_S, _MINUTE_S, "m", 0, ""),
    (8 * _HOUR_S, _HOUR_S, "h", _MINUTE_S, "m"),
    (2 * _DAY_S, _HOUR_S, "h", 0, ""),
    (8 * _DAY_S, _DAY_S, "d", _HOUR_S, "h"),
    (2 * _YEAR_S, _DAY_S, "d", 0, ""),
    (8 * _YEAR_S, _YEAR_S, "y", _DAY_S, "d"),
)


def duration(seconds: float) -> str:
    """A length of time as kubectl shows it: ``90s``, ``5m10s``, ``3h``, ``2d4h``. Clocks may differ by a second."""
    whole_s = int(seconds)
    if whole_s < 0:
        return "0s" if whole_s == -1 else _FUTURE
    for below_s, unit_s, unit, part_s, part in _STEPS:
        if whole_s < below_s:
            rest = whole_s % unit_s // part_s if part_s else 0
            return f"{whole_s // unit_s}{unit}" + (f"{rest}{part}" if rest else "")
    return f"{whole_s // _YEAR_S}y"


def age(text: str | None, now: datetime) -> str:
    """How long before `now` a time of the API was; ``<unknown>`` for none."""
    return duration((now - read_time(text)).total_seconds()) if text else UNKNOWN
