"""What a kind of case gives to the runner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """One case. `differences` asks our implementation and returns what differs from the wanted answer, in lines."""

    name: str
    differences: Callable[[], list[str]]


class UnreadableCasesError(Exception):
    """A file of cases is not what it should be; the text names the file and what was expected."""
