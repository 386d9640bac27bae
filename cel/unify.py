"""Whether one type fits another, and what type parameters stand for: unification in CEL's type checker.

The rules are the reference checker's: dyn and any fit everything, null fits opaque types, timestamps and durations, a
type parameter fits what it has been found to stand for, and becomes the more general type when two types meet.
"""

from __future__ import annotations

from typing import Final

from dracaena.cel.types import DYN, Type

_WILD = frozenset({"dyn", "any", "error"})
_NULLABLE = frozenset({"null", "opaque", "optional", "object", "any", "duration", "timestamp"})
_SIMPLE = frozenset({"int", "uint", "double", "bool", "string", "bytes"})
_FITS_SIMPLE = _WILD | {"param"}
_CONTAINERS = frozenset({"list", "map", "optional", "type"})


# Steps of comparing and resolving types in one expression. The worst expression of 10 KiB that is not an attack takes
# 40,000; this many take 0.1 s. Types can double with each variable: {v: v}.
MOST_STEPS: Final = 250_000


class TooComplexError(Exception):
    """The types of an expression take more than MOST_STEPS to compare."""


class Substitution:
    """What each type parameter stands for so far."""

    def __init__(self) -> None:
        self._found: dict[str, Type] = {}
        self._replaced: list[tuple[str, Type | None]] = []  # what to restore if a type does not fit after all
        self._fresh = 0
        self._steps = 0

    def fresh(self) -> Type:
        """A type parameter that nothing else has."""
        self._fresh += 1
        return Type("param", f"_{self._fresh}")

    def fits(self, pairs: tuple[tuple[Type, Type], ...]) -> bool:
        """Whether each first type fits its second. The types of type parameters are kept only if all fit."""
        settled = True
        for first, second in pairs:
            if first.kind not in _SIMPLE or second.kind not in _SIMPLE:
                settled = False
            elif first.kind != second.kind:
                return False
        if settled:
            return True
        self._replaced.clear()
        if all(self._fits(first, second) for first, second in pairs):
            return True
        for name, before in reversed(self._replaced):
            if before is None:
                del self._found[name]
            else:
                self._found[name] = before
        return False

    def resolve(self, type_: Type, *, final: bool = False) -> Type:
        """The type with its parameters replaced; if `final`, those that stand for nothing become dyn."""
        if not type_.is_open:
            return type_
        self._step()
        while type_.kind == "param":
            known = self._found.get(type_.name)
            if known is None:
                return DYN if final else type_
            type_ = known
        if not type_.is_open:
            return type_
        return Type(type_.kind, type_.name, tuple(self.resolve(each, final=final) for each in type_.parameters))

    def _step(self) -> None:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise TooComplexError

    def _let(self, parameter: Type, type_: Type) -> None:
        self._replaced.append((parameter.name, self._found.get(parameter.name)))
        self._found[parameter.name] = type_

    def _fits(self, first: Type, second: Type) -> bool:
        self._step()
        if second.kind == "param":
            valid, known = self._stands_for(first, second)
            if valid or known:
                return valid
        if first.kind == "param":
            return self._stands_for(second, first)[0]
        if first.kind in _WILD or second.kind in _WILD:
            return True
        if first.kind == "null" or second.kind == "null":
            return first.kind in _NULLABLE and second.kind in _NULLABLE
        if first.kind != second.kind:
            return False
        if first.kind == "type":
            return True
        if first.kind in _CONTAINERS:
            return all(map(self._fits, first.parameters, second.parameters))
        return first == second

    def _stands_for(self, type_: Type, parameter: Type) -> tuple[bool, bool]:
        """Whether the parameter may stand for the type, and whether it already stood for one."""
        if type_ == parameter:
            return True, True
        known = self._found.get(parameter.name)
        if known is not None:
            if type_ == known:
                return True, True
            if not self._fits(type_, known):
                return False, True
            general = more_general(type_, known)
            if not self._occurs(parameter, general):
                self._let(parameter, general)
            return True, True
        if self._occurs(parameter, type_):
            return False, False
        self._let(parameter, type_)
        return True, False

    def _occurs(self, parameter: Type, within: Type) -> bool:
        if not within.is_open:
            return False
        self._step()
        if within.kind == "param":
            if within == parameter:
                return True
            known = self._found.get(within.name)
            return known is not None and self._occurs(parameter, known)
        return any(self._occurs(parameter, each) for each in within.parameters)


def never_fits(first: Type, second: Type) -> bool:
    """Whether they obviously do not fit: a simple type fits no other one. A short cut for operators' many overloads."""
    return first.kind in _SIMPLE and first.kind != second.kind and second.kind not in _FITS_SIMPLE


def more_general(first: Type, second: Type) -> Type:
    """The more general of two types that fit each other."""
    return first if _as_general(first, second) else second


def _as_general(first: Type, second: Type) -> bool:
    if first.kind in ("dyn", "any", "param"):
        return True
    if second.kind in ("dyn", "any", "param") or first.kind != second.kind:
        return False
    if first.kind == "type":
        return True
    if first.kind in _CONTAINERS:
        return all(map(_as_general, first.parameters, second.parameters))
    return first == second


def instantiate(types: tuple[Type, ...], substitution: Substitution) -> tuple[Type, ...]:
    """The types of a declaration with its own fresh type parameters."""
    fresh: dict[str, Type] = {}

    def replace(type_: Type) -> Type:
        if type_.kind == "param":
            if type_.name not in fresh:
                fresh[type_.name] = substitution.fresh()
            return fresh[type_.name]
        if not type_.is_open:
            return type_
        return Type(type_.kind, type_.name, tuple(map(replace, type_.parameters)))

    return tuple(map(replace, types))
