"""How Go prints a structure in a message: the JSON of Kubernetes' internal types, which have no names for JSON.

A refusal that shows a whole structure shows it like this: Go's field names, every field, null for missing values.
"""

from __future__ import annotations

from typing import Any, Final

from dracaena.demo.apiserver.schema import OPAQUE, ListOf, MapOf, Scalar, SchemaField, Struct, Type, structs

# Where Go's name of a field is not the JSON name with a capital.
_NAMES: Final = {
    "bool": "BoolValue",
    "bools": "BoolValues",
    "cel": "CEL",
    "int": "IntValue",
    "ints": "IntValues",
    "string": "StringValue",
    "strings": "StringValues",
    "version": "VersionValue",
    "versions": "VersionValues",
}
_ZEROS: Final = {"string": "", "int32": 0, "int64": 0, "bool": False, "quantity": "0", "intorstring": 0}


def internal(kind: str, value: dict[str, Any], version: str = "1.36") -> dict[str, Any]:
    """`value`, a structure of the type `kind` in ``shapes``, as Go would print it in a version of Kubernetes; fields
    not in there are left out. From 1.37 on, hardly any refusal shows a structure like this."""
    return _struct(structs()[kind], value, version)


def _struct(struct: Struct, value: dict[str, Any], version: str) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, field in struct.fields.items():
        if not field.is_in(version):
            continue
        if name == "metadata":  # embedded in Go, and of a type that has JSON names
            shown |= value.get(name) or {}
        else:
            shown[_NAMES.get(name, name[0].upper() + name[1:])] = _value(field, value.get(name), version)
    return shown


def _value(field: SchemaField, value: Any, version: str) -> Any:
    if value is not None:
        return _given(field.type, value, version)
    if isinstance(field.type, Struct) and not field.pointer:
        return _struct(field.type, {}, version)
    return None if field.pointer or not isinstance(field.type, Scalar) else _ZEROS.get(field.type.name)


def _given(of: Type, value: Any, version: str) -> Any:
    if isinstance(of, Struct):
        return _struct(of, value, version)
    if isinstance(of, ListOf):
        return [_given(of.item, part, version) for part in value]
    if isinstance(of, MapOf):
        return {key: _given(of.item, part, version) for key, part in sorted(value.items())}
    assert of.name in _ZEROS or of.name in OPAQUE or of.name in ("time", "microtime")
    return value
