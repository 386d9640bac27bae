"""Checking calls of `format` whose format string and arguments are literals, before anything is evaluated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dracaena.cel.ast import Call, ListLiteral, Literal, MapLiteral, SyntaxNode
from dracaena.cel.library.formatting import FormatError, parse_format, refusal
from dracaena.cel.source import Diagnostic
from dracaena.cel.types import Type

_ANY_OF: Final = "list map int uint double bool string timestamp bytes duration type null"
_KINDS: Final = {
    letter: frozenset(("dyn", *kinds.split()))
    for letter, kinds in {
        "s": _ANY_OF,
        "d": "int uint",
        "f": "double string",  # the strings NaN, Infinity and -Infinity
        "e": "double string",
        "b": "int uint bool",
        "o": "int uint",
        "x": "int uint string bytes",
        "X": "int uint string bytes",
    }.items()
}


def format_problem(call: Call, type_of: Callable[[SyntaxNode], Type]) -> Diagnostic | None:
    """What is wrong with a call of `format`, or None; also None if not all of it is literal."""
    if call.function != "format" or not isinstance(call.target, Literal) or len(call.arguments) != 1:
        return None
    text, arguments = call.target.value, call.arguments[0]
    if not isinstance(text, str) or not isinstance(arguments, ListLiteral):
        return None
    used = 0
    try:
        for part in parse_format(text, len(arguments.elements)):
            if isinstance(part, str):
                continue
            wrong = _wrong(arguments.elements[used], part.letter, type_of)
            if wrong is not None:
                return Diagnostic(wrong.position, refusal(part.letter, _name(type_of(wrong))))
            used += 1
    except FormatError as error:
        return Diagnostic(call.position, str(error))
    if used < len(arguments.elements):
        reason = f"too many arguments supplied to string.format (expected {used}, got {len(arguments.elements)})"
        return Diagnostic(call.position, reason)
    return None


def _wrong(argument: SyntaxNode, letter: str, type_of: Callable[[SyntaxNode], Type]) -> SyntaxNode | None:
    """The argument, or its element, if the clause cannot format its type."""
    if type_of(argument).kind not in _KINDS[letter]:
        return argument
    if letter == "s" and isinstance(argument, ListLiteral | MapLiteral):
        found = (_wrong(child, letter, type_of) for child in argument.children)
        return next((child for child in found if child is not None), None)
    return None


def _name(type_: Type) -> str:
    return "google.protobuf.Any" if type_.kind == "any" else type_.name or str(type_)
