"""Timestamps and durations: reading and writing them, and their parts.

A timestamp's parts are in UTC unless a time zone is given: an offset such as "-08:00" or a name such as
"Europe/Berlin", which is looked up in the time zone data of the Python installation.
"""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from datetime import timezone as fixed_zone
from decimal import Decimal
from typing import Any

from dracaena.cel import types
from dracaena.cel.errors import EvaluationError
from dracaena.cel.function import Function, Overload, member
from dracaena.cel.standard.arithmetic import checked_duration, checked_timestamp
from dracaena.cel.value import INT_MAX, Duration, Timestamp

_SECOND = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_TIMESTAMP_TEXT = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{1,2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]+))?"
    r"(?:Z|([+-])([0-9]{2}):([0-9]{2}))"
)


def timestamp_of(text: str) -> Timestamp:
    """The timestamp of RFC 3339 text; digits of the fraction after the ninth are dropped."""
    match = _TIMESTAMP_TEXT.fullmatch(text)
    if match is None:
        raise EvaluationError(_NO_TIMESTAMP)
    year, month, day, hour, minute, second = (int(match.group(n)) for n in range(1, 7))
    hours, minutes = int(match.group(9) or 0), int(match.group(10) or 0)
    if year == 0 or hours > 24 or minutes > 59:
        raise EvaluationError("timestamp overflow" if year == 0 else _NO_TIMESTAMP)
    try:
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        raise EvaluationError(_NO_TIMESTAMP) from None
    fraction = int((match.group(7) or "0")[:9].ljust(9, "0"))
    offset = (hours * 60 + minutes) * 60 * (-1 if match.group(8) == "-" else 1)
    return checked_timestamp((_whole_seconds(moment) - offset) * _SECOND + fraction)


_NO_TIMESTAMP = "type conversion error from 'string' to 'google.protobuf.Timestamp'"


def _whole_seconds(moment: datetime) -> int:
    past = moment - _EPOCH
    return past.days * 86_400 + past.seconds


def timestamp_text(value: Timestamp) -> str:
    """RFC 3339 in UTC, with as many digits of the fraction as needed."""
    seconds, fraction = divmod(value.nanoseconds, _SECOND)
    moment = _EPOCH + timedelta(seconds=seconds)
    digits = f".{fraction:09d}".rstrip("0") if fraction else ""
    return f"{moment.year:04d}-{moment:%m-%dT%H:%M:%S}{digits}Z"


_UNITS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # U+00B5
    "μs": 1_000,  # U+03BC
    "ms": 1_000_000,
    "s": _SECOND,
    "m": 60 * _SECOND,
    "h": 3_600 * _SECOND,
}
_DURATION_PART = re.compile(r"([0-9]*)(\.[0-9]*)?(ns|us|µs|μs|ms|s|m|h)")
_NO_DURATION = "type conversion error from 'string' to 'google.protobuf.Duration'"


def duration_of(text: str) -> Duration:
    """The duration of text such as "1h30m" or "-1.5s"."""
    body = text[1:] if text[:1] in ("+", "-") else text
    if body == "0":
        return Duration(0)
    total = 0
    position = 0
    while position < len(body) or not body:
        match = _DURATION_PART.match(body, position)
        if match is None or not (match.group(1) or (match.group(2) or "").strip(".")):
            raise EvaluationError(_NO_DURATION)
        total += _part(match.group(1), (match.group(2) or "").strip("."), _UNITS[match.group(3)])
        if total > INT_MAX + 1:
            raise EvaluationError(_NO_DURATION)
        position = match.end()
    if total > INT_MAX and not text.startswith("-"):
        raise EvaluationError(_NO_DURATION)
    return checked_duration(-total if text.startswith("-") else total)


def _part(whole: str, fraction: str, unit: int) -> int:
    """Nanoseconds of one number with its unit; fractions of a nanosecond are dropped."""
    if len(whole.lstrip("0")) > 19:
        raise EvaluationError(_NO_DURATION)
    digits = fraction[:18]
    return int(whole or "0") * unit + (int(digits or "0") * unit // 10 ** len(digits) if digits else 0)


def duration_text(value: Duration) -> str:
    """Seconds as the shortest decimal number of the double, without an exponent, then "s"."""
    seconds, fraction = divmod(abs(value.nanoseconds), _SECOND)
    number = format(Decimal(repr(float(seconds) + fraction / 1e9)), "f").removesuffix(".0")
    return f"{'-' if value.nanoseconds < 0 else ''}{number}s"


def _zone(name: str) -> tzinfo:
    if ":" in name:
        hours, _, minutes = name.partition(":")
        if not re.fullmatch(r"[+-]?[0-9]{1,4}", hours) or not re.fullmatch(r"[+-]?[0-9]{1,4}", minutes):
            raise EvaluationError(f"invalid time zone offset: {name}")
        offset = int(hours) * 60 + (-int(minutes) if name.startswith("-") else int(minutes))
        if abs(offset) >= 24 * 60:
            raise EvaluationError(f"invalid time zone offset: {name}")
        return fixed_zone(timedelta(minutes=offset))
    if name in ("", "UTC"):
        return UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise EvaluationError(f"unknown time zone {name}") from None


_TimeField = Callable[[datetime, int], int]


def _in_zone(part: _TimeField) -> Callable[[Timestamp, str], int]:
    def part_in_zone(value: Timestamp, zone: str) -> int:
        seconds, fraction = divmod(value.nanoseconds, _SECOND)
        try:
            moment = (_EPOCH + timedelta(seconds=seconds)).astimezone(_zone(zone))
        except OverflowError:
            raise EvaluationError("timestamp overflow") from None
        return part(moment, fraction)

    return part_in_zone


def _in_utc(part: _TimeField) -> Callable[[Timestamp], int]:
    def part_in_utc(value: Timestamp) -> int:
        seconds, fraction = divmod(value.nanoseconds, _SECOND)
        return part(_EPOCH + timedelta(seconds=seconds), fraction)

    return part_in_utc


def _towards_zero(nanoseconds: int, unit: int) -> int:
    return nanoseconds // unit if nanoseconds >= 0 else -(-nanoseconds // unit)


def _duration_part(unit: int) -> Callable[[Duration], int]:
    return lambda value: _towards_zero(value.nanoseconds, unit)


def _parts(name: str, id_: str, part: _TimeField, *more: Overload) -> Function:
    return Function(
        name,
        (
            member(f"timestamp_to_{id_}", (types.TIMESTAMP,), types.INT, _in_utc(part)),
            member(f"timestamp_to_{id_}_with_tz", (types.TIMESTAMP, types.STRING), types.INT, _in_zone(part)),
            *more,
        ),
    )


def _of_duration(id_: str, unit: int) -> Overload:
    call: Callable[..., Any] = _duration_part(unit)
    return member(f"duration_to_{id_}", (types.DURATION,), types.INT, call)


FUNCTIONS = (
    _parts("getFullYear", "year", lambda moment, _: moment.year),
    _parts("getMonth", "month", lambda moment, _: moment.month - 1),
    _parts("getDayOfYear", "day_of_year", lambda moment, _: moment.timetuple().tm_yday - 1),
    _parts("getDayOfMonth", "day_of_month", lambda moment, _: moment.day - 1),
    _parts("getDate", "day_of_month_1_based", lambda moment, _: moment.day),
    _parts("getDayOfWeek", "day_of_week", lambda moment, _: moment.isoweekday() % 7),
    _parts("getHours", "hours", lambda moment, _: moment.hour, _of_duration("hours", 3_600 * _SECOND)),
    _parts("getMinutes", "minutes", lambda moment, _: moment.minute, _of_duration("minutes", 60 * _SECOND)),
    _parts("getSeconds", "seconds", lambda moment, _: moment.second, _of_duration("seconds", _SECOND)),
    _parts(
        "getMilliseconds",
        "milliseconds",
        lambda _, fraction: fraction // 1_000_000,
        _of_duration("milliseconds", 1_000_000),
    ),
)
