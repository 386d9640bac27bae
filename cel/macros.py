"""The macros: calls whose arguments are not evaluated but built into the tree.

A macro is identified by its name, its number of arguments and whether it has a receiver; any other call of the same
name is an ordinary call.
"""

from __future__ import annotations

from collections.abc import Callable

from dracaena.cel.ast import Bind, Call, Fold, Ident, Select, SyntaxNode

# Names that expressions cannot have, for variables that macros introduce.
_SORT_INPUT = "@__sortBy_input__"


class MacroError(Exception):
    """The arguments do not fit the macro."""

    def __init__(self, position: int, message: str) -> None:
        super().__init__(message)
        self.position = position
        self.message = message


def height(*nodes: SyntaxNode) -> int:
    """The height of the highest node; 0 if there is none."""
    return max((node.height for node in nodes), default=0)


def expand(
    position: int, function: str, target: SyntaxNode | None, arguments: tuple[SyntaxNode, ...]
) -> SyntaxNode | None:
    """What the call expands to, or None if it is not a macro. Arguments that do not fit are a MacroError."""
    if target is None:
        return _has(arguments[0]) if function == "has" and len(arguments) == 1 else None
    if function == "bind" and len(arguments) == 3:
        return _bind(position, target, arguments)
    macro = _MACROS.get((function, len(arguments)))
    return None if macro is None else macro(position, target, arguments)


def _has(argument: SyntaxNode) -> SyntaxNode:
    if not isinstance(argument, Select) or argument.optional:
        raise MacroError(argument.position, "invalid argument to has() macro")
    return Select(argument.position, argument.operand, argument.field_name, test_only=True, height=argument.height)


def _bind(position: int, target: SyntaxNode, arguments: tuple[SyntaxNode, ...]) -> SyntaxNode | None:
    if not isinstance(target, Ident) or target.name != "cel":
        return None
    name, value, body = arguments
    if not isinstance(name, Ident):
        raise MacroError(name.position, "cel.bind() variable names must be simple identifiers")
    return _binding(position, name.name, value, body)


def _binding(position: int, name: str, value: SyntaxNode, body: SyntaxNode) -> Bind:
    return Bind(position, name, value, body, height=1 + height(value, body))


def _names(nodes: tuple[SyntaxNode, ...], complaint: str) -> tuple[str, ...]:
    names: list[str] = []
    for node in nodes:
        if not isinstance(node, Ident):
            raise MacroError(node.position, complaint)
        if node.name in names:
            raise MacroError(node.position, f"duplicate variable name: {node.name}")
        if node.name == "__result__":
            raise MacroError(node.position, "iteration variable overwrites accumulator variable")
        names.append(node.name)
    return tuple(names)


_Macro = Callable[[int, SyntaxNode, tuple[SyntaxNode, ...]], SyntaxNode]


def _fold(kind: str, variables: int, *, conditions: int, transforms: int, complaint: str) -> _Macro:
    """A macro of this many variables, then at most one condition, then at most one transformation."""

    def expand_fold(position: int, target: SyntaxNode, arguments: tuple[SyntaxNode, ...]) -> SyntaxNode:
        names = _names(arguments[:variables], complaint)
        condition = arguments[variables] if conditions else None
        transform = arguments[variables + conditions] if transforms else None
        return Fold(position, kind, target, names, condition, transform, height=1 + height(target, *arguments))

    return expand_fold


def _filter(position: int, target: SyntaxNode, arguments: tuple[SyntaxNode, ...]) -> SyntaxNode:
    names = _names(arguments[:1], "argument is not an identifier")
    element = Ident(arguments[0].position, names[0])
    return Fold(position, "list", target, names, arguments[1], element, height=1 + height(target, *arguments))


def _optional_map(function: str, *, wraps: bool) -> _Macro:
    def expand_optional(position: int, target: SyntaxNode, arguments: tuple[SyntaxNode, ...]) -> SyntaxNode:
        """`has value ? of(bind(name, value, body)) : none`, where the target is computed twice, as in the reference."""
        name, body = arguments
        if not isinstance(name, Ident):
            raise MacroError(name.position, f"{function}() variable name must be a simple identifier")
        bound: SyntaxNode = _binding(
            position, name.name, Call(position, "value", target, (), height=1 + target.height), body
        )
        if wraps:
            bound = Call(position, "optional.of", None, (bound,), height=1 + bound.height)
        condition = Call(position, "hasValue", target, (), height=1 + target.height)
        absent = Call(position, "optional.none", None, ())
        return Call(position, "_?_:_", None, (condition, bound, absent), height=1 + height(condition, bound))

    return expand_optional


def _sort_by(position: int, target: SyntaxNode, arguments: tuple[SyntaxNode, ...]) -> SyntaxNode:
    """`bind(input, target, input.@sortByAssociatedKeys(input.map(name, key)))`."""
    names = _names(arguments[:1], "sortBy() variable name must be a simple identifier")
    sorted_input = Ident(target.position, _SORT_INPUT)
    keys = Fold(position, "list", sorted_input, names, None, arguments[1], height=1 + arguments[1].height)
    call = Call(position, "@sortByAssociatedKeys", sorted_input, (keys,), height=1 + keys.height)
    return _binding(position, _SORT_INPUT, target, call)


_SIMPLE = "argument must be a simple name"
_IDENTIFIER = "argument is not an identifier"

_MACROS: dict[tuple[str, int], _Macro] = {
    ("all", 2): _fold("all", 1, conditions=1, transforms=0, complaint=_SIMPLE),
    ("exists", 2): _fold("exists", 1, conditions=1, transforms=0, complaint=_SIMPLE),
    ("exists_one", 2): _fold("exists_one", 1, conditions=1, transforms=0, complaint=_SIMPLE),
    ("existsOne", 2): _fold("exists_one", 1, conditions=1, transforms=0, complaint=_SIMPLE),
    ("map", 2): _fold("list", 1, conditions=0, transforms=1, complaint=_IDENTIFIER),
    ("map", 3): _fold("list", 1, conditions=1, transforms=1, complaint=_IDENTIFIER),
    ("filter", 2): _filter,
    ("all", 3): _fold("all", 2, conditions=1, transforms=0, complaint=_SIMPLE),
    ("exists", 3): _fold("exists", 2, conditions=1, transforms=0, complaint=_SIMPLE),
    ("exists_one", 3): _fold("exists_one", 2, conditions=1, transforms=0, complaint=_SIMPLE),
    ("existsOne", 3): _fold("exists_one", 2, conditions=1, transforms=0, complaint=_SIMPLE),
    ("transformList", 3): _fold("list", 2, conditions=0, transforms=1, complaint=_SIMPLE),
    ("transformList", 4): _fold("list", 2, conditions=1, transforms=1, complaint=_SIMPLE),
    ("transformMap", 3): _fold("map", 2, conditions=0, transforms=1, complaint=_SIMPLE),
    ("transformMap", 4): _fold("map", 2, conditions=1, transforms=1, complaint=_SIMPLE),
    ("transformMapEntry", 3): _fold("entries", 2, conditions=0, transforms=1, complaint=_SIMPLE),
    ("transformMapEntry", 4): _fold("entries", 2, conditions=1, transforms=1, complaint=_SIMPLE),
    ("optMap", 2): _optional_map("optMap", wraps=True),
    ("optFlatMap", 2): _optional_map("optFlatMap", wraps=False),
    ("sortBy", 2): _sort_by,
}
