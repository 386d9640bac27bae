"""What CEL needs of regular expressions, by the text of the pattern."""

from __future__ import annotations

from typing import Final

from dracaena.cel.cost import WORK_LIMIT
from dracaena.cel.errors import CostLimitError, EvaluationError
from dracaena.cel.values.regex import engine
from dracaena.cel.values.regex.pattern import Pattern
from dracaena.cel.values.regex.syntax import RegexError, read

# Characters of a pattern. A selector has 10 KiB, so only a pattern that is built from text can be longer; reading one
# of this length takes 20 ms.
MOST_CHARACTERS: Final = 20_000

# Work, in steps of 0.1 to 0.2 µs (`WORK_LIMIT`). Measured with the worst patterns that a search found: reading takes
# 1 µs per character; RE2 takes 0.35 µs per instruction to compile, 6 µs for each search or match, and 20 ns per
# instruction and byte if each byte leads to a state that it has not seen before. Compiling is charged each time, so
# that the answer does not depend on what others have compiled before.
_WORK_OF_CHARACTER: Final = 6
_WORK_OF_SEARCH: Final = 40
_WORK_OF_INSTRUCTION: Final = 2
_STEPS_OF_WORK: Final = 8

_TOO_MUCH: Final = WORK_LIMIT + 1
_TOO_LARGE: Final = "operation cancelled: actual cost limit exceeded: a regular expression is too large"


def search(text: str, pattern: str) -> bool:
    """Whether the pattern matches anywhere in the text. Raises EvaluationError for a pattern that Go refuses."""
    return _first(text, pattern) is not None


def find(text: str, pattern: str) -> str:
    """The leftmost match, or nothing. Raises as `search` does."""
    return _first(text, pattern) or ""


def find_all(text: str, pattern: str, limit: int = -1) -> tuple[str, ...]:
    """All matches from left to right, at most `limit` unless it is negative. Raises as `search` does.

    As in Go, an empty match right after a match is left out.
    """
    found: list[str] = []
    previous_end = -1
    readable = _readable(pattern)
    if limit == 0:
        return ()
    try:
        for begin, end in engine.spans(readable, text):
            if end > begin or begin != previous_end:
                found.append(text[begin:end])
                if len(found) == limit:
                    break
            previous_end = end
    except ValueError as error:
        raise _as_cel(error) from None
    return tuple(found)


def check(pattern: str) -> None:
    """Raise EvaluationError for a pattern that Go refuses. Compiles nothing, so it takes time linear in the pattern."""
    if len(pattern) <= MOST_CHARACTERS:
        _readable(pattern)


def search_work(text: str, pattern: str) -> int:
    """An upper bound of what a search takes, in the units of `Overload.work`, with compiling."""
    return _work(text, pattern, searches=1)


def find_all_work(text: str, pattern: str, limit: int = -1) -> int:
    """As `search_work`. Every match may have looked at the whole rest of the text before it was settled."""
    matches = len(text) + 1 if limit < 0 else min(limit, len(text) + 1)
    return _work(text, pattern, searches=max(1, matches // 2))


def _work(text: str, pattern: str, *, searches: int) -> int:
    if len(pattern) > MOST_CHARACTERS:
        return _TOO_MUCH
    reading = _WORK_OF_CHARACTER * len(pattern)
    try:
        size = read(pattern).size
    except RegexError:
        return reading
    length = len(text) if text.isascii() else len(text.encode())
    searching = _WORK_OF_SEARCH * searches + size * (length + 1) * searches // _STEPS_OF_WORK
    return reading + _WORK_OF_INSTRUCTION * size + searching


def _first(text: str, pattern: str) -> str | None:
    try:
        return engine.search(_readable(pattern), text)
    except ValueError as error:
        raise _as_cel(error) from None


def _as_cel(error: ValueError) -> Exception:
    """What ends the evaluation: the limit, or an error if RE2 refuses what Go accepts, of which no case is known."""
    if isinstance(error, engine.TooLargeError):
        return CostLimitError(_TOO_LARGE)
    return EvaluationError(f"error parsing regexp: {error}")


def _readable(pattern: str) -> Pattern:
    try:
        return read(pattern)
    except RegexError as error:
        raise EvaluationError(str(error)) from None
