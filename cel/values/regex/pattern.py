"""A pattern in the form for RE2."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pattern:
    """The input of RE2: `text` means to RE2 what the pattern means to Go; `size` bounds the instructions that it needs.

    With `walks` the text begins with everything before the match, and the match is its only group. RE2 looks for a
    match at each byte, where `\\B` would hold in the middle of a character.
    """

    text: str
    size: int
    walks: bool = False
