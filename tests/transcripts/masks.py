"""Tokens for what a server chooses by chance. Equality and order stay visible; whatever looks odd stays as it came.

Left out is what the embedded server does not imitate: the words of refusals and warnings, the order of causes, a
second cause at the same field, and ``metadata.managedFields``. Of a refusal the status code, the reason and the causes'
reasons and fields stay, of warnings their number.

====================  ===================================================================================
``<uid-1>``           a uid; the same number is the same uid, in order of appearance
``<rv-3>``            the version of an object; numbers are in the order of the versions
``<rv-3+>``           the version of a list or bookmark: not before rv-3, before rv-4
``<continue-1>``      a continue token
``<suffix-1>``        what was hung on a generateName, if it looks as Kubernetes makes it
``<time>``            a time of this run in whole seconds; ``<time, µs>`` with microseconds
``<time + 30 s>``     a time so long after the answer that showed it first, rounded to ten seconds
``<server>``          host and port of the server
``<age>``             in a table: so many seconds
``<description>``     what a table says about a column
``<text>``            a warning
====================  ===================================================================================
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from transcripts.session import AT, Session, Step
from transcripts.values import CollectionVersion, ContinueToken, GeneratedName, Uid, Version

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?Z")
_EARLY = timedelta(seconds=2)
"""Times of a run may be before its start: the server cuts the fraction of a second off."""
_LATER = timedelta(seconds=5)
"""What is later than its answer by this was reckoned ahead: grace periods in scenarios are 30 s and more, or none."""
_LATEST = timedelta(hours=1)
"""What is later than this was not reckoned from now."""

_AGE = re.compile(r"\d{1,2}s")
"""Of what a scenario has made: none lasts two minutes."""
_WARNING = re.compile(r'"(?:[^"\\]|\\.)*"')


def masked(session: Session) -> list[Step]:
    """The steps of a scenario in a form that two runs share."""
    masks = _Masks(session)
    return [masks.step(step) for step in session.steps]


class _Masks:
    def __init__(self, session: Session) -> None:
        self._started = session.started
        self._answered = session.started
        self._times: dict[str, str] = {}
        self._server = session.ground.address
        self._versions = sorted({int(value) for value in _found(session.steps, Version)})
        self._texts = {value: f"<uid-{n}>" for n, value in _numbered(_found(session.steps, Uid))}
        self._tokens = {value: f"<continue-{n}>" for n, value in _numbered(_found(session.steps, ContinueToken))}
        for n, name in _numbered(_found(session.steps, GeneratedName)):
            self._texts[name] = f"{name[:-5]}<suffix-{n}>"

    def step(self, step: Step) -> Step:
        shown = dict(step)
        self._answered = shown.pop(AT, self._answered)
        if "request" in step:
            shown["request"] = self._request(**step["request"])
        if "Warning" in step.get("headers", {}):
            shown["headers"] = step["headers"] | {"Warning": _WARNING.sub('"<text>"', step["headers"]["Warning"])}
        return {key: self._value(value) for key, value in shown.items()}

    def _request(self, method: str, path: str, query: dict[str, Any]) -> str:
        # Not escaped as on the wire: to be read by people.
        shown = "&".join(f"{key}={self._value(value)}" for key, value in query.items())
        return f"{method} {self._text(path)}" + (f"?{shown}" if shown else "")

    def _value(self, value: Any) -> Any:
        if isinstance(value, dict):
            value = _without_ages(value) if value.get("kind") == "Table" else value
            value = _without_words(value) if value.get("kind") == "Status" else value
            value = {key: part for key, part in value.items() if key != "managedFields"}
            return {self._value(key): self._value(part) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [self._value(part) for part in value]
        return self._string(value) if isinstance(value, str) else value

    def _string(self, value: str) -> str:
        if isinstance(value, Version):
            return f"<rv-{self._ordinal(value)}>"
        if isinstance(value, CollectionVersion):
            return f"<rv-{self._ordinal(value)}+>"
        if isinstance(value, ContinueToken):
            return self._tokens[value]
        if _TIME.fullmatch(value):
            return self._times.setdefault(value, self._time(value))
        return self._text(value)

    def _text(self, value: str) -> str:
        text = str(value).replace(self._server, "<server>")
        for found, token in self._texts.items():
            text = text.replace(found, token)
        return text

    def _ordinal(self, version: str) -> int:
        return bisect.bisect_right(self._versions, int(version))

    def _time(self, value: str) -> str:
        time = datetime.fromisoformat(value)
        fraction = ", µs" if "." in value else ""
        if self._started - _EARLY <= time <= self._answered + _LATER:
            return f"<time{fraction}>"
        if self._answered < time < self._answered + _LATEST:
            ahead_s = (time - self._answered).total_seconds()
            return f"<time + {round(ahead_s, -1):g} s{fraction}>"
        return value


def _without_ages(table: dict[str, Any]) -> dict[str, Any]:
    def cell(value: Any) -> Any:
        return "<age>" if isinstance(value, str) and _AGE.fullmatch(value) else value

    columns = [one | {"description": "<description>"} for one in table["columnDefinitions"] or ()]
    rows = [row | {"cells": [cell(value) for value in row["cells"]]} for row in table["rows"] or ()]
    return table | {"columnDefinitions": columns or table["columnDefinitions"], "rows": rows or table["rows"]}


def _found(value: Any, kind: type[str]) -> Iterator[str]:
    if isinstance(value, dict):
        for part in value.values():
            yield from _found(part, kind)
    elif isinstance(value, list):
        for part in value:
            yield from _found(part, kind)
    elif isinstance(value, kind):
        yield value


def _numbered(values: Iterable[str]) -> Iterator[tuple[int, str]]:
    return enumerate(dict.fromkeys(str(value) for value in values), start=1)


def _telling(cause: dict[str, Any]) -> tuple[bool, str]:
    """A key that sorts a cause that says more before one that says less."""
    reason = cause.get("reason", "")
    return reason == "FieldValueInvalid", reason


def _without_words(status: dict[str, Any]) -> dict[str, Any]:
    """A Status without its message and those of its causes; the causes sorted, of those at a field the most telling."""
    shown = {key: value for key, value in status.items() if key != "message"}
    causes = (status.get("details") or {}).get("causes")
    if causes:
        in_order = sorted(causes, key=lambda cause: (cause.get("field", ""), _telling(cause)), reverse=True)
        found = {cause.get("field", ""): cause for cause in in_order}
        kept = [{key: found[one][key] for key in ("reason", "field") if key in found[one]} for one in sorted(found)]
        shown["details"] = status["details"] | {"causes": kept}
    return shown
