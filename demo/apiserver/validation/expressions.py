"""Validation of CEL expressions: what does not compile is refused, at the same place as by kube-apiserver.

Findings of the type checker have kube-apiserver's words, and so has a syntax error if the expression ends too early;
other syntax errors are in the words of our own parser, which stops at the first one. kube-apiserver also refuses an
expression whose estimated cost is too high; this server makes no estimate.
"""

from __future__ import annotations

from typing import Final

from dracaena.api import limits
from dracaena.cel import CompileError, ResultTypeError, compile_selector
from dracaena.demo.apiserver.fields import invalid, too_long
from dracaena.demo.apiserver.validation.text import Errors

_ENDS_TOO_EARLY: Final = "unexpected end of expression, expecting an operand"
_ENDS_TOO_EARLY_IN_GO: Final = (
    "mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', "
    "NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}"
)


def check_expression(expression: str, path: str) -> Errors:
    """A selector's expression. One that exceeds the length limit is not compiled."""
    if len(expression.encode()) > limits.EXPRESSION_BYTES:
        return [too_long(path, limits.EXPRESSION_BYTES)]
    try:
        compile_selector(expression, new=True)
    except ResultTypeError as error:
        return [invalid(path, expression, error.message)]
    except CompileError as error:
        why = error.rendered.replace(_ENDS_TOO_EARLY, _ENDS_TOO_EARLY_IN_GO)
        return [invalid(path, expression, f"compilation failed: {why}")]
    return []
