"""What ``dracaena validate`` finds in a part of an object, as causes of a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dracaena.demo.apiserver.fields import FieldError
from dracaena.demo.apiserver.validation.text import Errors
from dracaena.validation.field import Field, Report
from dracaena.validation.findings import Finding, ObjectReference

NO_DRIVER: Final = "none.invalid"
"""Nobody's name, for checks that know more of the devices of one driver: no API server does."""

_MAPS: Final = frozenset({"attributes", "capacity", "counters"})
"""Fields whose entries a server names in brackets."""


def causes(check: Callable[[Field], object], value: Any, at: str) -> Errors:
    """Run a check on the value of the field `at`. What a server accepts is no cause: warnings, and what only an
    allocator finds."""
    report = Report(ObjectReference("", "", "", ""))
    check(Field(value, (), report))
    return [_cause(finding, at) for finding in report.findings if finding.breach is not None]


def _cause(finding: Finding, at: str) -> FieldError:
    assert finding.breach is not None
    place, before = at, ""
    for step in finding.path[:-1] if finding.is_of_key else finding.path:
        in_brackets = isinstance(step, int) or before in _MAPS
        place += f"[{step}]" if in_brackets else f".{step}"
        before = "" if in_brackets else str(step)
    line = f" (line {finding.cel.line}, column {finding.cel.column})" if finding.cel else ""
    return FieldError(finding.breach, place, f"{finding.seen}: {finding.message}{line}, expected {finding.expected}")
