"""Separates the known fields of a document from those of a newer version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Parts = Mapping[type, Mapping[str, Any]]
"""Struct → which of its fields contain objects whose fields are known: one, a list, or a map (under an empty name)."""


_EMPTY: Final = '""'
"""Stands for the empty name, because an empty note would mean that all is known."""


def known_part(value: Any, shape: Any, parts_of: Parts, noted: list[str], path: str = "") -> Any:
    """Return a value without the fields that its Struct does not have; add their paths to `noted`."""
    if isinstance(shape, list) and isinstance(value, list):
        return [known_part(item, shape[0], parts_of, noted, f"{path}[{index}]") for index, item in enumerate(value)]
    if isinstance(shape, dict) and isinstance(value, dict):
        return {name: known_part(item, shape[""], parts_of, noted, f"{path}[{name}]") for name, item in value.items()}
    if not isinstance(value, dict) or not isinstance(shape, type):
        return value
    parts = parts_of.get(shape, {})
    names: tuple[str, ...] = shape.__struct_encode_fields__  # type: ignore[attr-defined]  # every shape is a Struct
    # Null is the same as absent, as everywhere in the API.
    unknown = sorted(name for name, item in value.items() if item is not None and name not in names)
    noted.extend(f"{path}.{name or _EMPTY}".removeprefix(".") for name in unknown)
    return {
        name: known_part(item, parts[name], parts_of, noted, f"{path}.{name}") if name in parts else item
        for name, item in value.items()
        if name in names
    }
