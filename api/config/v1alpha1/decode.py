"""Opaque parameters → typed config, through the JSON schemas next to this file."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match
from referencing import Registry

from dracaena.api.config.v1alpha1.errors import ConfigError, UnreadableTextError
from dracaena.api.config.v1alpha1.merge import check_policy
from dracaena.api.config.v1alpha1.nvidia import instead_of, is_of_nvidia
from dracaena.api.config.v1alpha1.schemas import KINDS, schema_of
from dracaena.api.config.v1alpha1.types import (
    API_VERSION,
    Confidentiality,
    Enforcement,
    GpuConfig,
    GpuSharing,
    Iommu,
    LinkBandwidth,
    NicAlignment,
    NodeStrategy,
    NumaAlignment,
    Objective,
    Requirement,
    SharingStrategy,
    Siblings,
    TimeSliceInterval,
    TopologyPolicy,
    VfioConfig,
)
from dracaena.api.json_text import deeper_than

MOST_LEVELS: Final = 32
"""Nested lists and objects. The schemas have 2 levels; far more is no honest mistake, and recursive readers fail at
about 1,000."""
MOST_BYTES: Final = 64 << 10
"""The API accepts `limits.PARAMETERS_BYTES`, and writes each `<`, `>` and `&` among them in six bytes."""

E = TypeVar("E", bound=Enum)


Config = TopologyPolicy | GpuConfig | VfioConfig


def decode_config(parameters: msgspec.Raw | Mapping[str, Any]) -> Config:
    """Read the parameters of an opaque config whose driver is ours: JSON text, or what a manifest was read to.

    Raises ConfigError with path, value seen and what was expected: for text that is too long, too deep or no JSON
    object, for another group, version or kind, an unknown field, a wrong type, a value outside its choices or range,
    and for fields that contradict each other. Cost: O(bytes) to find such errors, and about 100 µs for valid
    parameters.
    """
    if isinstance(parameters, msgspec.Raw):
        return _config(_document(bytes(parameters)))
    if _is_deep(parameters):
        raise _too_deep()
    return _config(parameters)


def _too_deep() -> ConfigError:
    return UnreadableTextError(f"more than {MOST_LEVELS} levels deep", "lists and objects that a person can read")


def _document(text: bytes) -> Mapping[str, Any]:
    if len(text) > MOST_BYTES:
        raise UnreadableTextError(f"{len(text)} bytes", f"at most {MOST_BYTES}")
    if deeper_than(text, MOST_LEVELS):
        raise _too_deep()
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableTextError(str(error), "a JSON object") from error


def _is_deep(document: Any) -> bool:
    """Return whether a value is nested deeper than MOST_LEVELS; breadth first, because recursion would overflow."""
    level = [document]
    for _ in range(MOST_LEVELS + 1):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
    return bool(level)


def _config(parameters: Mapping[str, Any]) -> Config:
    if parameters.get("apiVersion") != API_VERSION:
        instead = f": {instead_of(parameters)}" if is_of_nvidia(parameters) else ""
        raise ConfigError("$.apiVersion", parameters.get("apiVersion"), f"{API_VERSION!r}{instead}")
    kind = parameters.get("kind")
    if kind not in KINDS:
        raise ConfigError("$.kind", kind, "one of " + ", ".join(map(repr, KINDS)))
    problem = best_match(_validator(kind).iter_errors(parameters))
    if problem is not None:
        raise _config_error(problem)
    if kind == "VfioConfig":
        return VfioConfig(_choice(Iommu, parameters.get("iommu")))
    return _gpu_config(parameters) if kind == "GpuConfig" else _topology_policy(parameters)


def _gpu_config(parameters: Mapping[str, Any]) -> GpuConfig:
    sharing: Mapping[str, Any] = parameters.get("sharing", {})
    return GpuConfig(
        GpuSharing(
            strategy=_choice(SharingStrategy, sharing.get("strategy")),
            enforcement=_choice(Enforcement, sharing.get("enforcement")),
            interval=_choice(TimeSliceInterval, sharing.get("interval")),
        ),
        confidential=_choice(Confidentiality, parameters.get("confidential")),
    )


def _topology_policy(parameters: Mapping[str, Any]) -> TopologyPolicy:
    figures: Mapping[str, Any] = parameters.get("linkBandwidth", {})
    policy = TopologyPolicy(
        requirement=_choice(Requirement, parameters.get("requirement")),
        min_bandwidth_gb_s=_number("$.minBandwidth", parameters.get("minBandwidth")),
        objective=_choice(Objective, parameters.get("objective")),
        node_strategy=_choice(NodeStrategy, parameters.get("nodeStrategy")),
        numa_alignment=_choice(NumaAlignment, parameters.get("numaAlignment")),
        nic_alignment=_choice(NicAlignment, parameters.get("nicAlignment")),
        siblings=_choice(Siblings, parameters.get("siblings")),
        link_bandwidth=LinkBandwidth(
            **{name.lower(): _number(f"$.linkBandwidth.{name}", value) for name, value in figures.items()}
        ),
    )
    check_policy(policy)
    return policy


def _choice(choices: type[E], value: Any) -> E | None:
    return None if value is None else choices(value)


def _number(path: str, value: float | None) -> float | None:
    if value is None:
        return None
    if value != value:  # NaN, which YAML can express, is neither below nor above any limit
        raise ConfigError(path, value, "a number")
    return float(value)


@cache
def _validator(kind: str) -> Draft202012Validator:
    """Build the validator of a kind once: building costs 50 times as much as validating."""
    schema = schema_of(kind)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema, registry=Registry())  # an empty registry: nothing is ever fetched


_TYPES = {"number": "a number", "object": "a mapping"}


def _config_error(problem: ValidationError) -> ConfigError:
    """Return the error in our own words, because the library's are about schemas."""
    rule: Any = problem.validator_value
    schema: Any = problem.schema
    if problem.validator == "additionalProperties" and isinstance(problem.instance, Mapping):
        known = sorted(schema["properties"])
        unknown = min(str(key) for key in problem.instance if key not in known)
        seen = next(value for key, value in problem.instance.items() if str(key) == unknown)
        expected = f"no such field (known: {', '.join(known)})"
        return ConfigError(f"{problem.json_path}.{unknown}", seen, expected)
    return ConfigError(problem.json_path, problem.instance, _expected(str(problem.validator), rule, problem.message))


def _expected(validator: str, rule: Any, message: str) -> str:
    """Return what a rule of the schema wants."""
    match validator:
        case "enum":
            return "one of " + ", ".join(map(repr, rule))
        case "type":
            return _TYPES.get(rule, message)
        case "minimum":
            return f"at least {rule}"
        case "exclusiveMinimum":
            return f"more than {rule}"
        case "maximum":
            return f"at most {rule} (the unit is GB/s)"
        case "minProperties":
            return f"at least {rule} entry"
        case _:
            return message
