"""The types of CEL, as the checker and the declarations of functions see them.

A type is a kind with parameters: `list_of(INT)`, `map_of(STRING, DYN)`, `optional_of(A)`. A type parameter (`A`, `B`)
stands for any type, the same one everywhere in one declaration. An opaque type has only a name
(`opaque("kubernetes.Quantity")`): it can only be passed to functions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Type:
    """One type. `kind` is "int", "list", "opaque", "param", …; `name` tells opaque types and type parameters apart."""

    kind: str
    name: str = ""
    parameters: tuple[Type, ...] = ()
    size: int = field(init=False, compare=False, repr=False)
    """How many types it is made of, including itself."""
    is_open: bool = field(init=False, compare=False, repr=False)
    """Whether it is a type parameter or contains one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", 1 + sum(each.size for each in self.parameters))
        is_open = self.kind == "param" or any(each.is_open for each in self.parameters)
        object.__setattr__(self, "is_open", is_open)

    def __str__(self) -> str:
        return self.text_with(_FULL_NAMES)

    def short(self) -> str:
        """Its name in messages of the checker: `null`, `timestamp` and `duration` without prefix or suffix."""
        return self.text_with(_SHORT_NAMES)

    def text_with(self, names: dict[str, str]) -> str:
        """The type in words, with these names for kinds."""
        if self.kind in ("opaque", "param", "object"):
            return self.name
        shown = names.get(self.kind, self.kind)
        if self.parameters:
            return f"{shown}({', '.join(each.text_with(names) for each in self.parameters)})"
        return shown


_SHORT_NAMES = {"optional": "optional_type"}
_FULL_NAMES = {
    "null": "null_type",
    "timestamp": "google.protobuf.Timestamp",
    "duration": "google.protobuf.Duration",
    "optional": "optional_type",
}

INT = Type("int")
UINT = Type("uint")
DOUBLE = Type("double")
BOOL = Type("bool")
STRING = Type("string")
BYTES = Type("bytes")
NULL = Type("null")
DYN = Type("dyn")
ANY = Type("any")  # google.protobuf.Any: like dyn, but no macro iterates over it. Device attributes have it.
ERROR = Type("error")  # of an expression with a mistake: it fits everywhere, so that each mistake is reported once
TIMESTAMP = Type("timestamp")
DURATION = Type("duration")
A = Type("param", "A")
B = Type("param", "B")


def list_of(element: Type) -> Type:
    """The type of lists of one element type."""
    return Type("list", "list", (element,))


def map_of(key: Type, value: Type) -> Type:
    """The type of maps from one key type to one value type."""
    return Type("map", "map", (key, value))


def optional_of(value: Type) -> Type:
    """The type of a value that may be absent."""
    return Type("optional", "optional_type", (value,))


def type_of_type(value: Type) -> Type:
    """The type of a type: `int` in an expression is a value of `type(int)`."""
    return Type("type", "type", (value,))


def opaque(name: str) -> Type:
    """A type known only by its name, such as `kubernetes.Quantity` or `net.IP`."""
    return Type("opaque", name)


QUANTITY = opaque("kubernetes.Quantity")
SEMVER = opaque("kubernetes.Semver")
URL = opaque("kubernetes.URL")
NAMED_FORMAT = opaque("kubernetes.NamedFormat")
IP = opaque("net.IP")
CIDR = opaque("net.CIDR")


class Opaque:
    """Base of the values of opaque types. Subclasses are frozen, hashable and have their type in `cel_type`.

    `==` of the class is CEL's equality; two values of different classes are never equal. `cel_size` is what the cost
    model sees as the size of the value; it is 1 unless the reference gives the type a size of its own.
    """

    __slots__ = ()
    cel_type: ClassVar[Type]

    def cel_size(self) -> int:
        """Size in the units of the cost model."""
        return 1
