"""How long a server asks to be left alone: the header Retry-After (RFC 9110, 10.2.3), or a Status object's details."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

LONGEST_S: Final = 120.0
"""No longer wait is honoured. kube-apiserver asks for seconds; a proxy in between that asks for an hour, or for a date
in another year, must not keep pods from their devices for so long."""

_SECONDS: Final = re.compile(r"[0-9]{1,9}")
_ENDLESS: Final = re.compile(r"[0-9]{10,}")


def retry_after_s(headers: Mapping[str, str], status_details: object = None) -> float | None:
    """Return the wait that an answer asks for, above 0 and at most LONGEST_S; None if it asks for none that can be
    read.

    A date is compared with the answer's own Date, so that only the server's clock counts; without that header it says
    nothing. `status_details` is `details` of the Status object that was answered, whatever it is: its retryAfterSeconds
    counts where there is no header, in the error event of a watch for example.
    """
    asked = headers.get("Retry-After")
    found = _seconds_of_details(status_details) if asked is None else _seconds(asked.strip(), headers.get("Date"))
    return None if found is None or not found > 0 else min(found, LONGEST_S)


def _seconds(asked: str, date: str | None) -> float | None:
    if _SECONDS.fullmatch(asked):
        return float(asked)
    if _ENDLESS.fullmatch(asked):
        return LONGEST_S
    until, now = _moment(asked), _moment(date or "")
    return None if until is None or now is None else (until - now).total_seconds()


def _moment(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):  # it is made for mail, and looks into any text
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _seconds_of_details(details: object) -> float | None:
    seconds = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    return float(max(0, min(seconds, LONGEST_S))) if isinstance(seconds, int) else None
