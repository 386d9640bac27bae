"""What an expression may name: the variable `device`, the fields of its type, the functions, the names of types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Final

from dracaena.cel import types
from dracaena.cel.device import LanguageFeatures
from dracaena.cel.function import Function, Overload
from dracaena.cel.library import LIBRARIES
from dracaena.cel.standard import STANDARD, includes
from dracaena.cel.types import Type, list_of, map_of, optional_of

DEVICE: Final = Type("object", "kubernetes.DRADevice")


@dataclass(frozen=True, slots=True, eq=False)
class Environment:
    """Everything a name can mean. `fields` are those of the device, with `has()` and selection checked against them."""

    variables: Mapping[str, Type]
    fields: Mapping[str, Type]
    functions: Mapping[str, Function]
    type_names: Mapping[str, Type]


_TYPE_NAMES: Final = {
    "bool": types.BOOL,
    "bytes": types.BYTES,
    "double": types.DOUBLE,
    "int": types.INT,
    "list": list_of(types.DYN),
    "map": map_of(types.DYN, types.DYN),
    "null_type": types.NULL,
    "string": types.STRING,
    "type": types.type_of_type(types.DYN),
    "uint": types.UINT,
    "optional_type": optional_of(types.DYN),
    "google.protobuf.Duration": types.DURATION,
    "google.protobuf.Timestamp": types.TIMESTAMP,
    "net.CIDR": types.CIDR,
    "net.IP": types.IP,
}


@cache
def environment_of(features: LanguageFeatures, *, new: bool) -> Environment:
    """The environment for selectors; for `new` expressions only with what the feature gates allow.

    In a stored expression an attribute may be a list: it was written while the gate for that was on, or does not care.
    """
    attribute = types.DYN if features.list_type_attributes or not new else types.ANY
    fields = {
        "driver": types.STRING,
        "attributes": map_of(types.STRING, map_of(types.STRING, attribute)),
        "capacity": map_of(types.STRING, map_of(types.STRING, types.QUANTITY)),
    }
    if features.consumable_capacity or not new:
        fields["allowMultipleAllocations"] = types.BOOL
    functions = [*STANDARD, *LIBRARIES]
    if features.list_type_attributes or not new:
        functions.append(includes.FUNCTION)
    return Environment(
        MappingProxyType({"device": DEVICE}),
        MappingProxyType(fields),
        MappingProxyType(_merged(functions)),
        MappingProxyType(_TYPE_NAMES),
    )


def _merged(functions: Iterable[Function]) -> dict[str, Function]:
    """Functions by name; those of one name become one with the overloads of all."""
    merged: dict[str, Function] = {}
    for function in functions:
        known = merged.get(function.name)
        if known is not None:
            overloads: tuple[Overload, ...] = (*known.overloads, *function.overloads)
            cost = known.cost if known.cost is not None else function.cost
            function = Function(function.name, overloads, cost)  # noqa: PLW2901
        merged[function.name] = function
    return merged
