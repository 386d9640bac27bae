"""Calling functions: choosing the overload by the values, and paying for the call.

As in the reference, a call is paid for even if an argument fails, with 1 as the size of the failed argument; only calls
with three or more arguments stop at the first argument that fails, and are paid for only if it is the last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dracaena.cel.checker import ResolvedCall
from dracaena.cel.errors import EvaluationError
from dracaena.cel.folds import no_overload
from dracaena.cel.function import CostFunction, Overload
from dracaena.cel.state import FAILED, EvaluationState, Run
from dracaena.cel.types import Opaque, Type
from dracaena.cel.value import Duration, Map, OptionalValue, Timestamp, TypeValue, UInt

_PYTHON_TYPES: Final[dict[str, type]] = {
    "int": int,
    "uint": UInt,
    "double": float,
    "bool": bool,
    "string": str,
    "bytes": bytes,
    "null": type(None),
    "timestamp": Timestamp,
    "duration": Duration,
    "type": TypeValue,
}

_Price = int | CostFunction


def accepts(parameter: Type, value: Any) -> bool:
    """Whether a value may be passed for a parameter. In a list or map, the first element stands for all."""
    kind = parameter.kind
    if kind in ("dyn", "any", "param"):
        return True
    if kind == "list":
        return type(value) is tuple and (not value or accepts(parameter.parameters[0], value[0]))
    if kind == "map":
        if type(value) is not Map:
            return False
        first = next(value.items(), None)
        return first is None or all(map(accepts, parameter.parameters, first))
    if kind == "optional":
        return type(value) is OptionalValue
    if kind == "opaque":
        return isinstance(value, Opaque) and value.cel_type == parameter
    return type(value) is _PYTHON_TYPES.get(kind)


def call(resolved: ResolvedCall, arguments: tuple[Run, ...], static: tuple[Type, ...], *, stops: bool = False) -> Run:
    """Return a function that evaluates the arguments, pays and calls. `stops`: at the first argument that fails."""
    price = _price(resolved)
    stops = stops or (len(resolved.overloads) > 1 and not resolved.function.name.startswith(("_", "@")))
    candidates = _candidates(resolved, static)
    choose = _chooser(candidates, static)
    if isinstance(price, int) and all(overload.work is None for overload in candidates):
        if len(arguments) == 1:
            return _simple_unary(choose, price, *arguments)
        if len(arguments) == 2 and not stops:
            return _simple_binary(choose, price, *arguments)
    apply = _applied(choose, price)
    if len(arguments) == 0:
        return apply
    if len(arguments) == 2 and not stops:
        return _binary(apply, price, *arguments)
    return _many(apply, price, arguments)


# Functions of one implementation for all types, besides the operators.
_OF_ALL_TYPES: Final = frozenset(("size", "sort"))


def _candidates(resolved: ResolvedCall, static: tuple[Type, ...]) -> tuple[Overload, ...]:
    """The overloads that values may choose from. Where types are open, some have more than the checker settled on."""
    name = resolved.function.name
    if not any(map(_can_differ, static)) or not (name in _OF_ALL_TYPES or name.startswith(("_", "-", "!", "@"))):
        return resolved.overloads
    first = resolved.overloads[0]
    return tuple(
        overload
        for overload in resolved.function.overloads
        if overload.member is first.member and len(overload.parameters) == len(first.parameters)
    )


def _price(resolved: ResolvedCall) -> _Price:
    if resolved.function.cost is not None:
        return resolved.function.cost
    if len(resolved.overloads) == 1 and resolved.overloads[0].cost is not None:
        return resolved.overloads[0].cost
    return 1


def _can_differ(static: Type) -> bool:
    """Whether a value of this static type can actually be of another type: null fits all types but the simple ones."""
    return static.kind not in _SURE or any(map(_can_differ, static.parameters))


_SURE: Final = frozenset({"int", "uint", "double", "bool", "string", "bytes", "list", "map", "type"})


_Choice = Callable[..., Overload]


def _chooser(overloads: tuple[Overload, ...], static: tuple[Type, ...]) -> _Choice:
    """Return a function that finds the overload for values: the first that accepts them, remembered by their types."""
    only = overloads[0]
    if len(overloads) == 1 and not any(map(_can_differ, static)):
        return lambda *_values: only
    known: dict[tuple[type, ...], Overload] = {}

    def choose(*values: Any) -> Overload:
        kinds = tuple(map(type, values))
        found = known.get(kinds)
        if found is None:
            found = _first(overloads, values)
            if _CONTAINERS.isdisjoint(kinds):
                known[kinds] = found
        return found

    return choose


# For these, their elements also decide whether they are accepted; for other values, only the type.
_CONTAINERS: Final = frozenset((tuple, Map))


def _first(overloads: tuple[Overload, ...], values: tuple[Any, ...]) -> Overload:
    for overload in overloads:
        if all(map(accepts, overload.parameters, values)):
            return overload
    raise no_overload()


_Apply = Callable[..., Any]


def _applied(choose: _Choice, price: _Price) -> _Apply:
    """Return a function that makes a call with given values and pays for it."""

    def apply(state: EvaluationState, *values: Any) -> Any:
        try:
            overload = choose(*values)
            if overload.work is not None:
                state.spend(overload.work(*values))
            result = overload.call(*values)
        except EvaluationError:
            state.cost += _cost(price, values, FAILED)
            raise
        state.cost += _cost(price, values, result)
        return result

    return apply


def _cost(price: _Price, values: tuple[Any, ...], result: Any) -> int:
    return price if isinstance(price, int) else price(values, result)


def _binary(apply: _Apply, price: _Price, left: Run, right: Run) -> Run:
    def call_two(state: EvaluationState) -> Any:
        try:
            first = left(state)
        except EvaluationError as error:
            second = value_or_failed(state, right)
            state.cost += _cost(price, (FAILED, second), FAILED)
            raise error from None
        try:
            second = right(state)
        except EvaluationError:
            state.cost += _cost(price, (first, FAILED), FAILED)
            raise
        return apply(state, first, second)

    return call_two


def _many(apply: _Apply, price: _Price, arguments: tuple[Run, ...]) -> Run:
    before, last = arguments[:-1], arguments[-1]

    def call_many(state: EvaluationState) -> Any:
        values = []
        for argument in before:
            values.append(argument(state))  # noqa: PERF401 - a comprehension is a frame more for each level of nesting
        try:
            values.append(last(state))
        except EvaluationError:
            state.cost += _cost(price, (*values, FAILED), FAILED)
            raise
        return apply(state, *values)

    return call_many


def value_or_failed(state: EvaluationState, run: Run) -> Any:
    """The value, or FAILED: the second argument is evaluated and counts even when the first one failed."""
    try:
        return run(state)
    except EvaluationError:
        return FAILED


# Calls with a fixed price and no work are most calls, so it pays to make them fast.


def _simple_unary(choose: _Choice, price: int, argument: Run) -> Run:
    def call_one(state: EvaluationState) -> Any:
        state.cost += price
        value = argument(state)
        return choose(value).call(value)

    return call_one


def _simple_binary(choose: _Choice, price: int, left: Run, right: Run) -> Run:
    def call_two(state: EvaluationState) -> Any:
        state.cost += price
        try:
            first = left(state)
        except EvaluationError as error:
            value_or_failed(state, right)
            raise error from None
        second = right(state)
        return choose(first, second).call(first, second)

    return call_two
