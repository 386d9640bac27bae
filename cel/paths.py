"""Selecting fields and indexing: `a.b`, `a[i]`, `a.?b`, `a[?i]`, `has(a.b)`.

A path is a root and the steps from it. It costs 1, and 1 for each step that is taken. Once the root is an optional
value or a step is optional, all further steps are optional: something missing then makes the whole path
`optional.none()`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dracaena.cel.errors import EvaluationError
from dracaena.cel.state import EvaluationState, Run
from dracaena.cel.value import NONE, Map, OptionalValue, UInt, type_name


@dataclass(frozen=True, slots=True)
class Step:
    """One step: the key is known (`constant`) or computed by `key`. `tests` is the last step of `has()`."""

    constant: Any = None
    key: Run | None = None
    optional: bool = False
    tests: bool = False


def select(value: Any, key: Any) -> Any:
    """The part of a value under a key; EvaluationError if there is none."""
    kind = type(value)
    if kind is Map:
        found = value.find(key)
        if found is None:
            raise EvaluationError(f"no such key: {shown(key)}")
        return found[1]
    if kind is tuple:
        index = _list_index(key)
        if 0 <= index < len(value):
            return value[index]
        raise EvaluationError(f"index out of bounds: {shown(key)}")
    if kind is OptionalValue:
        return OptionalValue(select(value.value, key)) if value.has_value else NONE
    raise EvaluationError(f"no such key: {shown(key)}")


def find(value: Any, key: Any) -> tuple[Any, Any] | None:
    """The part of a value under a key as (key, part), or None. Values without parts have none."""
    kind = type(value)
    if kind is Map:
        found: tuple[Any, Any] | None = value.find(key)
        return found
    if kind is tuple:
        index = _list_index(key)
        return (key, value[index]) if 0 <= index < len(value) else None
    if kind is OptionalValue:
        return find(value.value, key) if value.has_value else None
    return None


def _list_index(key: Any) -> int:
    kind = type(key)
    if kind is int:
        return int(key)
    if kind is UInt:
        return int(key)
    if kind is float:
        if key.is_integer():
            return int(key)
        raise EvaluationError(f"unsupported index value {key} in list")
    raise EvaluationError(f"unsupported index type '{type_name(key)}' in list")


def shown(key: Any) -> str:
    """A key as the reference writes it in an error."""
    if type(key) is bool:
        return "true" if key else "false"
    return str(int(key)) if type(key) is UInt else str(key)


def path(root: Run, base_cost: int, steps: tuple[Step, ...]) -> Run:
    """Return a function that walks the steps from the value of `root`."""
    if all(step.key is None and not step.optional and not step.tests for step in steps):
        return _constant_path(root, base_cost, tuple(step.constant for step in steps))
    has = steps[-1].tests

    def walk(state: EvaluationState) -> Any:
        state.cost += base_cost
        found = _walk(state, root(state), steps)
        return found is True if has else found

    return walk


def _constant_path(root: Run, base_cost: int, keys: tuple[Any, ...]) -> Run:
    def walk(state: EvaluationState) -> Any:
        state.cost += base_cost
        value = root(state)
        if type(value) is OptionalValue:
            return _walk(state, value, tuple(Step(key) for key in keys))
        for key in keys:
            state.cost += 1
            value = select(value, key)
        return value

    return walk


def _walk(state: EvaluationState, value: Any, steps: tuple[Step, ...]) -> Any:
    optional = False
    if type(value) is OptionalValue:
        if not value.has_value:
            return NONE
        optional = True
        value = value.value
    for step in steps:
        optional = optional or step.optional
        key = step.constant if step.key is None else _key(state, step.key, paid=not optional)
        if step.tests:
            state.cost += 1
            return find(value, key) is not None
        if not optional:
            state.cost += 1
            value = select(value, key)
            continue
        found = find(value, key)
        if found is None:
            return NONE
        state.cost += 1
        value = found[1]
    return OptionalValue(value) if optional else value


def _key(state: EvaluationState, key: Run, *, paid: bool) -> Any:
    """The computed key of a step. A step whose key fails is paid for, unless it is optional."""
    try:
        return key(state)
    except EvaluationError:
        if paid:
            state.cost += 1
        raise


def attribute(domain: str, name: str, *, capacity: bool) -> Run:
    """`device.attributes[domain][name]`, or the same for capacity, without creating maps: the common selector."""
    missing = f"no such key: {name}"

    def read_attribute(state: EvaluationState) -> Any:
        state.cost += 4
        names = state.attributes.get(domain)
        if names is None or name not in names:
            raise EvaluationError(missing)
        return names[name]

    def read_capacity(state: EvaluationState) -> Any:
        state.cost += 4
        names = state.capacity.get(domain)
        if names is None or name not in names:
            raise EvaluationError(missing)
        return names[name]

    return read_capacity if capacity else read_attribute
