"""Where in an expression something is wrong, in words and with a caret."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dracaena.cel.errors import CompileError

# Problems shown per expression. More would help nobody, and each takes a line as long as the expression's.
SHOWN_PROBLEMS = 20


@dataclass(frozen=True, slots=True, order=True)
class Diagnostic:
    """One thing that is wrong, at an offset in characters."""

    position: int
    message: str


def line_and_column(text: str, position: int) -> tuple[int, int]:
    """Line and column of an offset, both from 1."""
    before = text[:position]
    return before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1


def render(text: str, problem: Diagnostic) -> str:
    """The problem with its line, and a caret below its place, as the API server shows it."""
    line, column = line_and_column(text, problem.position)
    shown = text.split("\n")[line - 1].replace("\t", " ")
    return f"ERROR: <input>:{line}:{column}: {problem.message}\n | {shown}\n | {'.' * (column - 1)}^"


def compile_error(text: str, problems: Iterable[Diagnostic], of: type[CompileError] = CompileError) -> CompileError:
    """The error that lists all problems in the order of the text; message and position are the first one's."""
    ordered = sorted(set(problems))
    first = ordered[0]
    line, column = line_and_column(text, first.position)
    lines = [render(text, problem) for problem in ordered[:SHOWN_PROBLEMS]]
    if len(ordered) > SHOWN_PROBLEMS:
        lines.append(f"and {len(ordered) - SHOWN_PROBLEMS} more")
    return of(first.message, first.position, line, column, "\n".join(lines))
