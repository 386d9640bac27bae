"""Checks CEL of device classes and requests, selectors and derived attributes: form, length, what the compiler says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dracaena.api import limits
from dracaena.cel import CompileError, Selector, compile_derived_attribute, compile_selector, misused_optional
from dracaena.validation.field import Field
from dracaena.validation.findings import Breach, CelPosition

HONEST_COST: Final = 10_000
"""Units of cost for one look at a device without attributes: an honest selector needs tens."""

_EXCERPT_CHARACTERS = 100
"""Characters of an expression's line that are shown around the caret."""


@dataclass(frozen=True, slots=True)
class CompiledSelector:
    """A selector that the API takes, and where its expression stands."""

    expression: Field
    selector: Selector


def check_selectors(field: Field) -> list[CompiledSelector] | None:
    """Check a list of selectors; return them in order, or None if there is something wrong with one."""
    entries = field.items(limits.SELECTORS)
    if entries is None:
        return None
    compiled = [_compiled(entry) for entry in entries]
    good = [each for each in compiled if each is not None]
    return good if len(good) == len(compiled) else None


def check_derived(expression: Field) -> None:
    """Check the expression of a derived attribute."""
    text = _short_text(expression)
    if text is None:
        return
    try:
        compile_derived_attribute(text)
    except CompileError as error:
        expected = "an expression that compiles and yields a value of an attribute"
        expression.error(f"CEL: {error.message}", expected, _position(error, text))
        return
    _warn_of_misused_optional(expression, text)


def selector_in(expression: Any) -> Selector | None:
    """Return the selector of an expression as it was written, None for what is none: check_selectors reports that."""
    if not isinstance(expression, str) or len(expression) > limits.EXPRESSION_BYTES:
        return None
    try:
        return compile_selector(expression)
    except CompileError:
        return None


def _compiled(entry: Field) -> CompiledSelector | None:
    expression = _expression(entry)
    text = None if expression is None else _short_text(expression)
    if expression is None or text is None:
        return None
    try:
        compiled = CompiledSelector(expression, compile_selector(text, new=True))
    except CompileError as error:
        expected = "an expression that compiles and yields true or false"
        expression.error(f"CEL: {error.message}", expected, _position(error, text))
        return None
    _warn_of_misused_optional(expression, text)
    return compiled


def _warn_of_misused_optional(expression: Field, text: str) -> None:
    mistake = misused_optional(text)
    if mistake is not None:
        expected = "an optional value, as in `.?name.orValue(…)`; without it the selector has no answer for any device"
        expression.warn(f"CEL: {mistake.message}", expected, _position(mistake, text))


def _short_text(expression: Field) -> str | None:
    text = expression.text()
    size = 0 if text is None else len(text.encode("utf-8", "replace"))
    if size > limits.EXPRESSION_BYTES:
        expected = f"at most {limits.EXPRESSION_BYTES >> 10} KiB"
        expression.error(f"an expression of {size} bytes", expected, breach=Breach.TOO_LONG)
        return None
    return text


def _expression(selector: Field) -> Field | None:
    fields = selector.fields("cel")
    if fields is None:
        return None
    if fields["cel"].absent:
        fields["cel"].error("missing", "a CEL selector: cel.expression", breach=Breach.REQUIRED)
        return None
    cel = fields["cel"].fields("expression")
    return None if cel is None else cel["expression"]


def _position(error: CompileError, text: str) -> CelPosition:
    """Return the place with its line of the expression; of a long line what is around the caret."""
    lines = text.split("\n")
    line = lines[error.line - 1] if 0 < error.line <= len(lines) else ""
    at = min(max(error.column - 1, 0), len(line))
    start = max(0, at - _EXCERPT_CHARACTERS // 2) if len(line) > _EXCERPT_CHARACTERS else 0
    shown = "".join(c if c.isprintable() else " " for c in line[start : start + _EXCERPT_CHARACTERS])
    return CelPosition(error.line, error.column, f"{shown}\n{' ' * (at - start)}^")
