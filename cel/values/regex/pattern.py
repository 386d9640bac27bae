"""A pattern as RE2 takes it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pattern:
    """What RE2 is given: `text` means to RE2 what the pattern means to Go; `size` bounds the instructions it takes.

    With `walks` the text begins with all that comes before the match, and the match is its one group. RE2 looks for a
    match at each byte, where `\\B` would hold in the middle of a character.
    """

    text: str
    size: int
    walks: bool = False
