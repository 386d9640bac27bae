"""Checks device configurations: their form for every driver, and what is in those for ours."""

from __future__ import annotations

import json
import re
from typing import Any

from dracaena.api import limits
from dracaena.api.config.v1alpha1 import (
    ConfigError,
    GpuConfig,
    SharingStrategy,
    TimeSliceInterval,
    UnreadableTextError,
    decode_config,
)
from dracaena.validation.field import Field, Fields
from dracaena.validation.findings import Breach, Path
from dracaena.validation.syntax import DRIVER_NAME

_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]")


def check_config(config: Fields, driver: str) -> None:
    """Check the part that classes and claims have in common: `opaque`. The parameters are read if they are for this
    driver."""
    opaque_field = config["opaque"]
    if opaque_field.absent:
        opaque_field.error("missing", "opaque parameters for a driver", breach=Breach.REQUIRED)
        return
    opaque = opaque_field.fields("driver", "parameters")
    if opaque is None:
        return
    opaque["driver"].name(DRIVER_NAME, missing=Breach.REQUIRED)
    parameters = opaque["parameters"]
    if parameters.absent:
        parameters.error("missing", "an object that the driver reads", breach=Breach.REQUIRED)
    elif check_json_object(parameters, limits.PARAMETERS_BYTES) and opaque["driver"].value == driver:
        _check_own(parameters)


def check_json_object(field: Field, most_bytes: int) -> bool:
    """Check opaque data, which is a JSON object of limited size; return whether it is one."""
    if not isinstance(field.value, dict):
        field.error("wrong type", "an object")
        return False
    size = _json_bytes(field.value)
    if size > most_bytes:
        field.error(f"an object of {size} bytes", f"at most {most_bytes >> 10} KiB", breach=Breach.TOO_LONG)
        return False
    return True


def _json_bytes(value: Any) -> int:
    """Return the length of a value as JSON without blanks, however deeply it is nested."""
    size, waiting = 0, [value]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, dict | list):
            size += len(json.dumps(part, ensure_ascii=False, default=str).encode("utf-8", "replace"))
            continue
        size += 2 + max(0, len(part) - 1)
        if isinstance(part, dict):
            size += len(part)
            waiting += map(str, part)
        waiting += part.values() if isinstance(part, dict) else part
    return size


def _check_own(parameters: Field) -> None:
    try:
        config = decode_config(parameters.value)
    except UnreadableTextError as error:
        parameters.never(f"not understood by the driver: {error.seen}", error.expected)
    except ConfigError as error:
        _at(parameters, _steps(error.path), error.seen).never("not understood by the driver", error.expected)
    else:
        if isinstance(config, GpuConfig) and config.sharing.interval is not None:
            _check_interval(parameters, config.sharing.strategy, config.sharing.interval)


def _check_interval(parameters: Field, strategy: SharingStrategy | None, interval: TimeSliceInterval) -> None:
    """Warn of an interval together with another strategy. Without one, a class or the claim may say TimeSlicing
    elsewhere."""
    if strategy not in (None, SharingStrategy.TIME_SLICING):
        _at(parameters, ("sharing", "interval"), interval.value).warn(
            f"an interval says nothing with strategy {strategy.value}", f"strategy {SharingStrategy.TIME_SLICING.value}"
        )


def _steps(json_path: str) -> Path:
    """Return the steps of a path such as `$.a[0].b`."""
    found = _STEP.finditer(json_path)
    return tuple(int(match[2]) if match[2] else (match[1] or match[3] or "") for match in found)


def _at(field: Field, steps: Path, seen: Any) -> Field:
    return Field(seen, (*field.path, *steps), field.report)
