"""The file that chooses fields, in the form of dcgm-exporter's: `FIELD, type, help`, one per line, `#` for comments."""

from __future__ import annotations

import csv
import dataclasses
from dataclasses import dataclass
from typing import Final

from dracaena.api.errors import BadInputError
from dracaena.exporter.series.fields import BY_NAME, DRIVER_VERSION, FIELDS, LEFT_OUT, GpuField
from dracaena.exporter.series.readings import GpuQuantity

LABEL: Final = "label"
_COLUMNS = 3
_SHOWN_BYTES = 80
"""Most characters of a line that are quoted in a message."""


@dataclass(frozen=True, slots=True)
class ChosenFields:
    """Which fields are served."""

    fields: tuple[GpuField, ...]
    driver_version: bool
    """Whether all series have the driver's version as a label."""
    faults: tuple[str, ...] = ()
    """Lines of the file that choose nothing, each with the reason."""

    @property
    def quantities(self) -> frozenset[GpuQuantity]:
        """What must be read from the driver."""
        return frozenset(field.quantity for field in self.fields)


def default_fields() -> ChosenFields:
    """Return what is served without such a file."""
    return ChosenFields(tuple(field for field in FIELDS if field.by_default), driver_version=True)


def read_field_file(data: bytes) -> ChosenFields:
    """Return what a file chooses, in its order. A line that cannot be served is a fault and does not affect others.

    Raises BadInputError if the file is not text at all.
    """
    try:
        text = data.decode("utf-8-sig")
        rows = list(csv.reader(_lines(text), skipinitialspace=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInputError(f"field file: {error}, expected lines of FIELD, type, help") from error
    found: dict[str, GpuField] = {}
    faults: list[str] = []
    driver_version = False
    for row in rows:
        problem = _problem([cell.strip() for cell in row], found, has_version=driver_version)
        if problem is not None:
            faults.append(f"{','.join(row)[:_SHOWN_BYTES]!r}: {problem}")
        elif row[0].strip() == DRIVER_VERSION:
            driver_version = True
        else:
            name, kind, *rest = (cell.strip() for cell in row)
            helped = ", ".join(rest) or BY_NAME[name].help
            found[name] = dataclasses.replace(
                BY_NAME[name], type="counter" if kind == "counter" else "gauge", help=helped
            )
    return ChosenFields(tuple(found.values()), driver_version, tuple(faults))


def _lines(text: str) -> list[str]:
    lines = (line.strip() for line in text.replace("\0", " ").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _problem(row: list[str], found: dict[str, GpuField], *, has_version: bool) -> str | None:
    """Return why a line is invalid, None if it is valid."""
    if len(row) < _COLUMNS:
        return "expected FIELD, type, help"
    name, kind = row[0], row[1]
    if name in LEFT_OUT:
        return f"not served: {LEFT_OUT[name]}"
    if name == DRIVER_VERSION:
        if has_version:
            return "stands twice"
        return None if kind == LABEL else f"can only be a {LABEL}"
    if name not in BY_NAME:
        return "no such field is read through NVML"
    if kind not in ("gauge", "counter"):
        return f"type {kind!r}, expected gauge or counter"
    return "stands twice" if name in found else None
