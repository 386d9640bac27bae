"""What CEL asks of regular expressions, by the text of the pattern."""

from __future__ import annotations

from dracaena.cel.errors import EvaluationError
from dracaena.cel.values.regex.program import Program, compile_pattern
from dracaena.cel.values.regex.search import Search
from dracaena.cel.values.regex.syntax import RegexError

# Steps of a search count as this many list slots in the budget of an evaluation: measured, both take about as long.
_WORK_OF_STEP = 4


def search(text: str, pattern: str) -> bool:
    """Whether the pattern matches anywhere in the text. Raises EvaluationError for a pattern that RE2 refuses."""
    return Search(_compiled(pattern), text).matches()


def find(text: str, pattern: str) -> str:
    """The leftmost match, or nothing. Raises EvaluationError for a pattern that RE2 refuses."""
    match = Search(_compiled(pattern), text).find()
    return "" if match is None else text[match[0] : match[1]]


def find_all(text: str, pattern: str, limit: int = -1) -> tuple[str, ...]:
    """All matches from left to right, at most `limit` unless it is negative. Raises EvaluationError as `find` does."""
    return tuple(Search(_compiled(pattern), text).find_all(limit))


def check(pattern: str) -> None:
    """Raise EvaluationError for a pattern that RE2 refuses."""
    _compiled(pattern)


def search_work(text: str, pattern: str) -> int:
    """An upper bound of what a search takes, in the units of `Overload.work`; nothing for a pattern that is refused."""
    try:
        size = len(compile_pattern(pattern).instructions)
    except RegexError:
        return 0
    return _WORK_OF_STEP * (len(text) + 1) * size


def find_all_work(text: str, pattern: str, limit: int = -1) -> int:
    """As `search_work`. Every match may have looked at the whole rest of the text before it was settled."""
    matches = len(text) + 1 if limit < 0 else min(limit, len(text) + 1)
    return search_work(text, pattern) * max(1, matches // 2)


def _compiled(pattern: str) -> Program:
    try:
        return compile_pattern(pattern)
    except RegexError as error:
        raise EvaluationError(str(error)) from None
