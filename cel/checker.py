"""The type checker: it finds every mistake that can be seen without a device.

It determines the type of each node, the overloads that may apply to each call, and the value of each name of a type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from dracaena.cel import types
from dracaena.cel.ast import (
    Bind,
    Call,
    Fold,
    Ident,
    Index,
    ListLiteral,
    Literal,
    MapLiteral,
    MessageLiteral,
    Select,
    SyntaxNode,
    walk,
)
from dracaena.cel.environment import Environment
from dracaena.cel.errors import EvaluationError
from dracaena.cel.function import Function, Overload
from dracaena.cel.library.format_check import format_problem
from dracaena.cel.source import Diagnostic, compile_error
from dracaena.cel.types import Type, list_of, map_of, optional_of
from dracaena.cel.unify import Substitution, TooComplexError, instantiate, more_general, never_fits
from dracaena.cel.value import TypeValue, type_of
from dracaena.cel.values.regex import matching


@dataclass(frozen=True, slots=True)
class ResolvedCall:
    """What a call calls. If there are several overloads, the values decide. `namespaced` calls have no receiver."""

    function: Function
    overloads: tuple[Overload, ...]
    namespaced: bool


@dataclass(frozen=True, slots=True)
class Checked:
    """What the checker found out about the nodes of a tree."""

    _types: dict[SyntaxNode, Type]
    calls: dict[SyntaxNode, ResolvedCall]
    type_values: dict[SyntaxNode, TypeValue] = field(default_factory=dict)
    guesses: bool = False
    """Whether types may be wrong. A call on a value of unknown type left a type parameter open, as in
    `dyn(x).reverse()`: as in the reference, the next use then settles it merely by the order of overloads. Or the
    receiver of `or` or `orValue` may be no optional."""

    def type_of(self, node: SyntaxNode) -> Type:
        """The type of a node; dyn if only the values can tell."""
        return self._types[node]


def check(root: SyntaxNode, environment: Environment, text: str) -> Checked:
    """Check a tree. CompileError lists all problems found."""
    checker = _Checker(environment)
    try:
        checker.check(root)
        checked = checker.result()
    except TooComplexError:
        raise compile_error(text, [Diagnostic(checker.current.position, "types are too complex")]) from None
    problems = checker.problems or [
        *_mixed_literals(root, checked),
        *_invalid_literals(root, environment),
        *_invalid_formats(root, checked),
    ]
    if problems:
        raise compile_error(text, problems)
    return checked


# Number of types that one type may be made of. Maps may be 250 levels deep; only types that double get larger.
_LARGEST_TYPE: Final = 512


class _Checker:
    def __init__(self, environment: Environment) -> None:
        self.problems: list[Diagnostic] = []
        self.current: SyntaxNode
        """The node whose type was asked for last."""
        self._environment = environment
        self._substitution = Substitution()
        self._types: dict[SyntaxNode, Type] = {}
        self._calls: dict[SyntaxNode, ResolvedCall] = {}
        self._type_values: dict[SyntaxNode, TypeValue] = {}
        self._guesses = False
        self._locals: list[tuple[str, Type]] = []
        self._checks: dict[type[SyntaxNode], Callable[[Any], Type]] = {
            Literal: self._literal,
            Ident: self._ident,
            Select: self._select,
            Index: self._index,
            Call: self._call,
            ListLiteral: self._list,
            MapLiteral: self._map,
            MessageLiteral: self._message,
            Bind: self._bind,
            Fold: self._fold,
        }

    def result(self) -> Checked:
        """What was found, with every type parameter replaced."""
        final = {node: self._substitution.resolve(type_, final=True) for node, type_ in self._types.items()}
        return Checked(final, self._calls, self._type_values, self._guesses)

    def check(self, node: SyntaxNode) -> Type:
        """The type of the node, once everything below it is checked. A node that a macro uses twice is checked once."""
        known = self._types.get(node)
        if known is not None:
            return known
        self.current = node
        found = self._checks[type(node)](node)
        if found.size > _LARGEST_TYPE:
            found = self._report(node, "the type is too large")
        self._types[node] = found
        return found

    # Small things

    def _report(self, node: SyntaxNode, message: str) -> Type:
        self.problems.append(Diagnostic(node.position, message))
        return types.ERROR

    def _fits(self, first: Type, second: Type) -> bool:
        return self._substitution.fits(((first, second),))

    def _mismatch(self, node: SyntaxNode, expected: Type, found: Type) -> Type:
        wanted, seen = self._shown(expected), self._shown(found)
        return self._report(node, f"expected type '{wanted}' but found '{seen}'")

    def _shown(self, type_: Type) -> str:
        return self._substitution.resolve(type_, final=True).short()

    def _join(self, so_far: Type | None, found: Type) -> Type:
        """The element type of a literal after one more element. `_mixed_literals` reports what does not fit."""
        if so_far is None:
            return found
        return more_general(so_far, found) if self._fits(so_far, found) else types.DYN

    def _unwrapped(self, node: SyntaxNode, found: Type, *, optional: bool) -> Type:
        """The type that an element or entry adds to its literal."""
        if not optional:
            return found
        resolved = self._substitution.resolve(found)
        if resolved.kind == "optional":
            return resolved.parameters[0]
        if resolved.kind not in ("dyn", "any", "error"):
            self._mismatch(node, optional_of(resolved), resolved)
        return resolved

    # Nodes

    def _literal(self, node: Literal) -> Type:
        return type_of(node.value)

    def _ident(self, node: Ident) -> Type:
        if not node.rooted:
            for name, type_ in reversed(self._locals):
                if name == node.name:
                    return type_
        return self._global(node, node.name) or self._undeclared(node, node.name)

    def _global(self, node: SyntaxNode, name: str) -> Type | None:
        variable = self._environment.variables.get(name)
        if variable is not None:
            return variable
        named = self._environment.type_names.get(name)
        if named is None:
            return None
        self._type_values[node] = TypeValue(name)
        return types.type_of_type(named)

    def _undeclared(self, node: SyntaxNode, name: str) -> Type:
        return self._report(node, f"undeclared reference to '{name}' (in container '')")

    def _select(self, node: Select) -> Type:
        qualified = None if node.test_only or node.optional else qualified_name(node)
        if qualified is not None:
            found = self._global(node, qualified)
            if found is not None:
                return found
        return self._field(node, self.check(node.operand))

    def _field(self, node: Select, operand: Type) -> Type:
        operand = self._substitution.resolve(operand)
        target = operand.parameters[0] if operand.kind == "optional" else operand
        result = types.DYN
        if target.kind == "map":
            result = target.parameters[1]
        elif target.kind == "object":
            known = self._environment.fields.get(node.field_name)
            result = known or self._report(node, f"undefined field '{node.field_name}'")
        elif target.kind == "param":
            self._fits(types.DYN, target)
        elif target.kind not in ("dyn", "any", "error"):
            self._report(node, f"type '{self._shown(target)}' does not support field selection")
        if node.test_only:
            return types.BOOL
        if operand.kind == "optional" or node.optional:
            return optional_of(result)
        return result

    def _index(self, node: Index) -> Type:
        function = self._environment.functions["_[?_]" if node.optional else "_[_]"]
        return self._resolve(node, function, (self.check(node.operand), self.check(node.index)), is_member=False)

    def _call(self, node: Call) -> Type:
        arguments = tuple(map(self.check, node.arguments))
        if node.function in ("_&&_", "_||_"):
            return self._logical(node, arguments)
        if node.target is not None:
            prefix = qualified_name(node.target)
            function = None if prefix is None else self._environment.functions.get(f"{prefix}.{node.function}")
            if function is not None:
                return self._resolve(node, function, arguments, is_member=False, namespaced=True)
            arguments = (self.check(node.target), *arguments)
        function = self._environment.functions.get(node.function)
        if function is None:
            return self._undeclared(node, node.function)
        return self._resolve(node, function, arguments, is_member=node.target is not None)

    def _logical(self, node: Call, arguments: tuple[Type, ...]) -> Type:
        for argument, found in zip(node.arguments, arguments, strict=True):
            if not self._fits(found, types.BOOL):
                self._mismatch(argument, types.BOOL, found)
        return types.BOOL

    def _resolve(
        self,
        node: SyntaxNode,
        function: Function,
        arguments: tuple[Type, ...],
        *,
        is_member: bool,
        namespaced: bool = False,
    ) -> Type:
        """The result type of a call, from all overloads that its arguments fit."""
        result: Type | None = None
        chosen: list[Overload] = []
        for overload in function.overloads:
            if overload.member is not is_member or len(overload.parameters) != len(arguments):
                continue
            if any(map(never_fits, arguments, overload.parameters)):
                continue
            declared = (overload.result, *overload.parameters)
            if overload.generic:
                declared = instantiate(declared, self._substitution)
            if not self._substitution.fits(tuple(zip(arguments, declared[1:], strict=True))):
                continue
            chosen.append(overload)
            found = self._substitution.resolve(declared[0])
            if result is None:
                result = found
            elif result.kind not in ("dyn", "any") and result != found:
                result = types.DYN
        if result is None:
            return self._no_overload(node, function.name, arguments, is_member=is_member)
        self._calls[node] = ResolvedCall(function, tuple(chosen), namespaced)
        if result.is_open and any(map(_holds_dyn, arguments)):
            self._guesses = True
        # Kubernetes 1.36 returns a receiver that turns out to be no optional, whatever type the call has.
        if function.name in ("or", "orValue") and is_member and _holds_dyn(arguments[0]):
            self._guesses = True
        return result

    def _no_overload(self, node: SyntaxNode, name: str, arguments: tuple[Type, ...], *, is_member: bool) -> Type:
        shown = [self._shown(argument) for argument in arguments]
        signature = f"{shown[0]}.({', '.join(shown[1:])})" if is_member else f"({', '.join(shown)})"
        return self._report(node, f"found no matching overload for '{name}' applied to '{signature}'")

    def _list(self, node: ListLiteral) -> Type:
        element: Type | None = None
        for each, optional in zip(node.elements, node.optional, strict=True):
            element = self._join(element, self._unwrapped(each, self.check(each), optional=optional))
        return list_of(element or self._substitution.fresh())

    def _map(self, node: MapLiteral) -> Type:
        key_type: Type | None = None
        value_type: Type | None = None
        for key, value, optional in zip(node.keys, node.values, node.optional, strict=True):
            key_type = self._join(key_type, self.check(key))
            value_type = self._join(value_type, self._unwrapped(value, self.check(value), optional=optional))
        return map_of(key_type or self._substitution.fresh(), value_type or self._substitution.fresh())

    def _message(self, node: MessageLiteral) -> Type:
        if node.name.startswith("google."):
            return self._report(node, f"message literals are not supported: '{node.name}'")
        return self._undeclared(node, node.name)

    def _bind(self, node: Bind) -> Type:
        self._locals.append((node.name, self.check(node.value)))
        result = self.check(node.body)
        self._locals.pop()
        return result

    def _fold(self, node: Fold) -> Type:
        variables = self._loop_types(node, self._substitution.resolve(self.check(node.range)))
        self._locals.extend(zip(node.names, variables, strict=False))
        if node.condition is not None:
            found = self.check(node.condition)
            if not self._fits(types.BOOL, found):
                self._mismatch(node.condition, types.BOOL, found)
        collected = types.BOOL if node.transform is None else self.check(node.transform)
        del self._locals[len(self._locals) - len(node.names) :]
        if node.kind == "list":
            return list_of(collected)
        if node.kind == "map":
            return map_of(variables[0], collected)
        if node.kind == "entries" and node.transform is not None:
            entries = map_of(self._substitution.fresh(), self._substitution.fresh())
            return entries if self._fits(entries, collected) else self._mismatch(node.transform, entries, collected)
        return types.BOOL

    def _loop_types(self, node: Fold, range_: Type) -> tuple[Type, Type]:
        """The types of the loop variables."""
        two = len(node.names) == 2
        if range_.kind == "list":
            element = range_.parameters[0]
            return (types.INT, element) if two else (element, element)
        if range_.kind == "map":
            return range_.parameters[0], range_.parameters[1]
        if range_.kind in ("dyn", "param", "error"):
            self._fits(types.DYN, range_)
            return types.DYN, types.DYN
        self._report(
            node.range,
            f"expression of type '{self._shown(range_)}' cannot be range of a comprehension "
            "(must be list, map, or dynamic)",
        )
        return types.ERROR, types.ERROR


def qualified_name(node: SyntaxNode) -> str | None:
    """`a.b.c` as a name, or None if the node is not a chain of names."""
    parts: list[str] = []
    while isinstance(node, Select) and not node.test_only and not node.optional:
        parts.append(node.field_name)
        node = node.operand
    if not isinstance(node, Ident):
        return None
    parts.append(node.name)
    return ".".join(reversed(parts))


def _mixed_literals(root: SyntaxNode, checked: Checked) -> list[Diagnostic]:
    """Lists and maps whose parts differ in type: Kubernetes requires one type, except below a call of `format`."""
    problems: list[Diagnostic] = []

    def compare(nodes: tuple[SyntaxNode, ...], optional: tuple[bool, ...]) -> None:
        first: Type | None = None
        for node, is_optional in zip(nodes, optional, strict=True):
            found = checked.type_of(node)
            if is_optional and found.kind == "optional":
                found = found.parameters[0]
            if first is None:
                first = found
            elif found != first:
                problems.append(
                    Diagnostic(node.position, f"expected type '{first.short()}' but found '{found.short()}'")
                )
                return

    waiting = [root]
    seen: set[SyntaxNode] = set()
    while waiting:
        node = waiting.pop()
        if node in seen or (isinstance(node, Call) and node.function == "format"):
            continue
        seen.add(node)
        waiting.extend(node.children)
        if isinstance(node, ListLiteral):
            compare(node.elements, node.optional)
        elif isinstance(node, MapLiteral):
            compare(node.keys, (False,) * len(node.keys))
            compare(node.values, node.optional)
    return problems


def _invalid_literals(root: SyntaxNode, environment: Environment) -> list[Diagnostic]:
    """Literal timestamps, durations and patterns that are invalid."""
    problems: list[Diagnostic] = []
    for node in walk(root):
        if not isinstance(node, Call) or not node.arguments or not isinstance(node.arguments[0], Literal):
            continue
        literal = node.arguments[0]
        try:
            if node.function == "matches" and isinstance(literal.value, str):
                matching.check(literal.value)
            elif node.function in ("timestamp", "duration") and node.target is None:
                _convert(environment.functions[node.function], literal.value)
        except EvaluationError:
            problems.append(Diagnostic(literal.position, f"invalid {node.function} argument"))
    return problems


def _holds_dyn(type_: Type) -> bool:
    return type_.kind in ("dyn", "any") or any(map(_holds_dyn, type_.parameters))


def _invalid_formats(root: SyntaxNode, checked: Checked) -> Iterator[Diagnostic]:
    for node in walk(root):
        problem = format_problem(node, checked.type_of) if isinstance(node, Call) else None
        if problem is not None:
            yield problem


def _convert(function: Function, value: Any) -> None:
    for overload in function.overloads:
        if overload.parameters == (type_of(value),):
            overload.call(value)
