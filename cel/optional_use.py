"""A mistake that compiles: a function of optional values on a value of the device, which never is one."""

from __future__ import annotations

from typing import Final

from dracaena.cel.ast import Call, Ident, Index, Select, SyntaxNode, walk
from dracaena.cel.errors import CompileError
from dracaena.cel.parser import parse
from dracaena.cel.source import Diagnostic, compile_error

_FUNCTIONS: Final = frozenset(("or", "orValue", "hasValue", "value"))
"""Members of optional values. The macros optMap and optFlatMap become calls of hasValue and value."""


def misused_optional(expression: str) -> CompileError | None:
    """Return where an expression that compiles asks a value of the device for what only optional values have.

    `device.attributes["d"].name.orValue("x")` lacks a `?`: `.?name`. Attributes are of unknown type to the checker, so
    it compiles, but the call fails on every device (Kubernetes 1.37; 1.36 passes the value of `or` and `orValue` on).
    The error is returned, not raised: the API server accepts the expression. Costs one walk over the tree.
    """
    tree = parse(expression)
    problems = [
        Diagnostic(node.position, f"'{node.function}' needs an optional value: write `?` before the last name or index")
        for node in walk(tree)
        if isinstance(node, Call)
        and node.function in _FUNCTIONS
        and node.target is not None
        and _is_plain_path(node.target)
    ]
    return compile_error(expression, problems) if problems else None


def _is_plain_path(node: SyntaxNode) -> bool:
    """Whether this is a path into the device without an optional step."""
    while isinstance(node, Select | Index):
        if node.optional:
            return False
        node = node.operand
    return isinstance(node, Ident) and node.name == "device"
