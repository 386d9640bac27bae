"""Texts of an object, each of one syntax."""

from __future__ import annotations

from dracaena.demo.apiserver.fields import FieldError, invalid
from dracaena.validation.syntax import LABEL_KEY, LABEL_VALUE, Syntax

Errors = list[FieldError]


def check(path: str, text: str, syntax: Syntax) -> Errors:
    """Invalid, unless the text keeps to the syntax."""
    return [] if syntax.holds(text) else [invalid(path, text, f"expected {syntax.expected}")]


def check_labels(path: str, labels: dict[str, str] | None) -> Errors:
    """Labels, or what selects some: one place for all keys and values."""
    errors: Errors = []
    for key, value in (labels or {}).items():
        errors += check(path, key, LABEL_KEY) + check(path, value, LABEL_VALUE)
    return errors
