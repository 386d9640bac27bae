"""Shorter transcripts that say the same: what was shown before is referred to, what is repeated is counted.

====================================  ==========================================================================
``{as before: <uid-1>}``              an object exactly as the transcript showed it last
``{as before: <uid-1>, but: {…}}``    the same, except for the fields that stand there
``{like: <uid-1>, but: {…}}``         an object that is shown for the first time, beside the last of its kind
``<gone>``                            a field that was there
``<same>``                            in a list: the element at the same place, as it was
``{refused: Invalid, about: {…},``    a Status of failure with its reason, its details, and of its causes the reasons by
``causes: {spec.x: Required}}``       their fields; with its code where that is not the status of the answer
``<x × 300>``                         a character, so many times
``<… and 31 more>``                   in what was sent: elements of a list that the scenario shows
====================================  ==========================================================================
"""

from __future__ import annotations

import re
from typing import Any

from transcripts.session import Step

MANY = 16
"""Elements of a sent list that are shown; limits are tried with twice as many at least."""
SHOWN = 2
_RUN = re.compile(r"(.)\1{39,}")
"""As many times the same character as nobody counts."""

GONE = "<gone>"
SAME = "<same>"


def abridged(steps: list[Step]) -> list[Step]:
    """The steps, shorter. Two runs differ in this form if they differ in the long one, but for the order of fields."""
    memory = _Memory()
    return [_step(step, memory) for step in steps]


def _step(step: Step, memory: _Memory) -> Step:
    parts: dict[str, Any] = {
        "body": _elided,
        "answer": lambda answer: memory.reduced(_short_refusal(answer, step.get("status"))),
    }
    return {key: _counted(parts[key](part) if key in parts else memory.reduced(part)) for key, part in step.items()}


class _Memory:
    """The objects of a transcript as they were shown last, by uid."""

    def __init__(self) -> None:
        self._objects: dict[str, Any] = {}
        self._last: dict[str, str] = {}  # kind -> uid of the last one that was new

    def reduced(self, value: Any) -> Any:
        """`value` with references in place of what was shown before."""
        if isinstance(value, list):
            return [self.reduced(part) for part in value]
        if not isinstance(value, dict):
            return value
        uid = (value.get("metadata") or {}).get("uid")
        if uid is None:
            return {key: self.reduced(part) for key, part in value.items()}
        before = self._objects.get(uid)
        self._objects[uid] = value
        if before is None:
            return self._introduced(uid, value)
        return {"as before": uid} | ({"but": _changes(before, value)} if before != value else {})

    def _introduced(self, uid: str, value: Any) -> Any:
        model = self._last.get(value.get("kind", ""))
        if "kind" in value:
            self._last[value["kind"]] = uid
        return value if model is None else {"like": model, "but": _changes(self._objects[model], value)}


def _changes(before: Any, now: Any) -> Any:
    if isinstance(before, dict) and isinstance(now, dict):
        changed = {
            key: _changes(before[key], part) if key in before else part
            for key, part in now.items()
            if key not in before or part != before[key]
        }
        return changed | dict.fromkeys((key for key in before if key not in now), GONE)
    if isinstance(before, list) and isinstance(now, list):
        return [SAME if part in before[place : place + 1] else part for place, part in enumerate(now)]
    return now


def _short_refusal(answer: Any, code: Any) -> Any:
    head = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    if not isinstance(answer, dict) or any(answer.get(key) != value for key, value in head.items()):
        return answer
    rest = {key: value for key, value in answer.items() if key not in (*head, "reason", "details", "code")}
    shown: dict[str, Any] = {"refused": answer.get("reason", "")} | rest
    if "details" in answer:
        shown["about"] = {key: value for key, value in answer["details"].items() if key != "causes"}
        causes = answer["details"].get("causes") or ()
        by_field = {one.get("field", ""): one.get("reason", "").removeprefix("FieldValue") for one in causes}
        shown |= {"causes": by_field} if causes else {}
    return shown if answer.get("code") == code else shown | {"code": answer.get("code")}


def _elided(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _elided(part) for key, part in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) <= MANY:
        return [_elided(part) for part in value]
    return [*value[:SHOWN], f"<… and {len(value) - SHOWN} more>"]


def _counted(value: Any) -> Any:
    if isinstance(value, dict):
        return {_counted(key): _counted(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_counted(part) for part in value]
    if isinstance(value, str):
        return _RUN.sub(lambda run: f"<{run[1]} × {len(run[0])}>", value)
    return value
