"""The three answers of a selector: the device matches, does not match, or there is no answer.

The three classes have no truth value: `if selector.evaluate(device):` raises, because it would take a failure for an
answer; write `if outcome is MATCH`, or

    match outcome:
        case Match(): …
        case NoMatch(): …
        case Failed(reason): …
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NoReturn


class _Outcome:
    __slots__ = ()

    def __bool__(self) -> NoReturn:
        raise TypeError("an outcome of a selector is not a truth value: compare with MATCH, and handle Failed")


@dataclass(frozen=True, slots=True)
class Match(_Outcome):
    """The selector is true for the device."""


@dataclass(frozen=True, slots=True)
class NoMatch(_Outcome):
    """The selector is false for the device."""


@dataclass(frozen=True, slots=True)
class Failed(_Outcome):
    """The selector has no answer for the device. In Kubernetes this ends the allocation; it never means "no match"."""

    reason: str


Outcome = Match | NoMatch | Failed

MATCH: Final = Match()
NO_MATCH: Final = NoMatch()
