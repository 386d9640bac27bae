"""The values of CEL that Python does not have, CEL's equality, and the type of a value.

CEL distinguishes bool, int and uint where Python does not (`True == 1`, equal hashes), so neither `==` nor a plain dict
works for values: use `equal` and `Map`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from dracaena.cel import types
from dracaena.cel.errors import EvaluationError
from dracaena.cel.types import Opaque, Type

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1
UINT_MAX: Final = 2**64 - 1


class UInt(int):
    """A value of CEL's uint. Use `checked_uint` if the number could be out of range."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"UInt({int(self)})"


def checked_int(number: int, what: str = "integer overflow") -> int:
    """The number as int, or EvaluationError if int64 cannot hold it."""
    if INT_MIN <= number <= INT_MAX:
        return number
    raise EvaluationError(what)


def checked_uint(number: int) -> UInt:
    """The number as uint, or EvaluationError if uint64 cannot hold it."""
    if 0 <= number <= UINT_MAX:
        return UInt(number)
    raise EvaluationError("unsigned integer overflow")


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A point in time in nanoseconds since 1970-01-01T00:00:00Z."""

    nanoseconds: int


@dataclass(frozen=True, slots=True)
class Duration:
    """A span of time in nanoseconds, within int64."""

    nanoseconds: int


@dataclass(frozen=True, slots=True)
class TypeValue:
    """A type as a value: what `type(x)` gives. Types are equal by name, so `type([1]) == type(["a"])`."""

    name: str


class OptionalValue:
    """A value that may be absent: `optional.of(x)`, `optional.none()`."""

    __slots__ = ("_present", "_value")

    def __init__(self, value: Any, *, present: bool = True) -> None:
        self._value = value
        self._present = present

    @property
    def has_value(self) -> bool:
        """Whether there is a value."""
        return self._present

    @property
    def value(self) -> Any:
        """The value. If it is absent, the expression fails."""
        if not self._present:
            raise EvaluationError("optional.none() dereference")
        return self._value

    def __repr__(self) -> str:
        return f"optional.of({self._value!r})" if self._present else "optional.none()"


NONE: Final = OptionalValue(None, present=False)


class Map:
    """An immutable map that keeps its order and keeps the keys 1, 1u and true apart.

    `find` accepts an equal number of another numeric type: `m[1u]` and `m[1.0]` find the key 1. A map with a `default`
    finds every key, but contains only its own, like the domains of a device.
    """

    __slots__ = ("_default", "_entries")

    def __init__(self, entries: Iterable[tuple[Any, Any]] = (), default: Any = None) -> None:
        self._entries: dict[Any, tuple[Any, Any]] = {_slot(key): (key, value) for key, value in entries}
        self._default = default

    def find(self, key: Any) -> tuple[Any, Any] | None:
        """The entry (key, value), or None if there is no such key."""
        found = self._own(key)
        if found is None and self._default is not None:
            return key, self._default
        return found

    def _own(self, key: Any) -> tuple[Any, Any] | None:
        kind = type(key)
        if kind is str:
            return self._entries.get(key)
        if kind not in _KEY_TYPES:
            return None
        found = self._entries.get(_slot(key))
        if found is None and kind in NUMBERS:
            return self._find_number(key)
        return found

    def _find_number(self, key: float) -> tuple[Any, Any] | None:
        if isinstance(key, float):
            if not key.is_integer():
                return None
            key = int(key)
        number = int(key)
        return self._entries.get(number) or self._entries.get((UInt, number)) or self._entries.get((float, number))

    def __contains__(self, key: object) -> bool:
        return self._own(key) is not None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self._entries.values())

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Keys and values in order."""
        return iter(self._entries.values())

    def values(self) -> Iterator[Any]:
        """Values in the order of their keys."""
        return (value for _, value in self._entries.values())

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{key!r}: {value!r}" for key, value in self.items()) + "}"


NUMBERS = frozenset({int, UInt, float})
_KEY_TYPES = frozenset({str, int, UInt, float, bool, type(None)})


def _slot(key: Any) -> Any:
    """The key to use in a dict: str and int themselves, and a pair for everything that Python deems equal to them."""
    kind = type(key)
    if kind is str or kind is int:
        return key
    if kind not in _KEY_TYPES:
        raise EvaluationError(f"unsupported key type: {type_name(key)}")
    return (kind, key)


def equal(left: Any, right: Any) -> bool:
    """CEL's equality: numbers of different types by value, different other types are unequal, NaN equals nothing."""
    kind, other = type(left), type(right)
    if kind is str or other is str or kind is bool or other is bool:
        return kind is other and bool(left == right)
    if kind is tuple or other is tuple:
        return kind is other and len(left) == len(right) and all(map(equal, left, right))
    if kind is Map or other is Map:
        return kind is other and _equal_maps(left, right)
    if kind is OptionalValue or other is OptionalValue:
        return kind is other and _equal_optionals(left, right)
    if kind in NUMBERS and other in NUMBERS:
        # As the reference compares: an integer next to a double becomes one, and 2**53 + 1 equals 2.0**53.
        return float(left) == float(right) if (kind is float) is not (other is float) else bool(left == right)
    return kind is other and bool(left == right)


def _equal_maps(left: Map, right: Map) -> bool:
    if len(left) != len(right):
        return False
    for key, value in left.items():
        found = right.find(key)
        if found is None or not equal(value, found[1]):
            return False
    return True


def _equal_optionals(left: OptionalValue, right: OptionalValue) -> bool:
    if left.has_value and right.has_value:
        return equal(left.value, right.value)
    return left.has_value == right.has_value


_TYPES: dict[type, Type] = {
    int: types.INT,
    UInt: types.UINT,
    float: types.DOUBLE,
    bool: types.BOOL,
    str: types.STRING,
    bytes: types.BYTES,
    type(None): types.NULL,
    tuple: types.list_of(types.DYN),
    Map: types.map_of(types.DYN, types.DYN),
    OptionalValue: types.optional_of(types.DYN),
    Timestamp: types.TIMESTAMP,
    Duration: types.DURATION,
    TypeValue: types.type_of_type(types.DYN),
}


def type_of(value: Any) -> Type:
    """The type of a value at run time; elements of lists and maps are not looked at."""
    known = _TYPES.get(type(value))
    if known is not None:
        return known
    if isinstance(value, Opaque):
        return value.cel_type
    raise TypeError(f"{type(value).__name__} is not a value of CEL")


def type_name(value: Any) -> str:
    """The name that CEL gives the type of a value: `int`, `list`, `google.protobuf.Timestamp`, …."""
    found = type_of(value)
    return found.name or str(found)
