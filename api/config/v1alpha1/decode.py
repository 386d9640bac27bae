"""Opaque parameters → typed config, through the JSON schemas beside this file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match
from referencing import Registry

from dracaena.api.config.v1alpha1.types import API_VERSION, GpuConfig, Requirement, TopologyPolicy
from dracaena.api.errors import BadInputError

_KINDS = ("TopologyPolicy", "GpuConfig")


class ConfigError(BadInputError):
    """Opaque parameters for our driver cannot be read: their author must mend them."""

    def __init__(self, path: str, seen: object, expected: str) -> None:
        super().__init__(f"{path}: {_short(seen)}, expected {expected}")
        self.path = path
        """JSON path of the value, `$` being the parameters."""
        self.seen = seen
        self.expected = expected


def decode_config(parameters: Mapping[str, Any]) -> TopologyPolicy | GpuConfig:
    """Read the parameters of an opaque config whose driver is ours.

    Raises ConfigError with path, value seen and what was expected: for another group, version or kind, for an
    unknown field, and for a value outside its choices.
    """
    if parameters.get("apiVersion") != API_VERSION:
        raise ConfigError("$.apiVersion", parameters.get("apiVersion"), repr(API_VERSION))
    kind = parameters.get("kind")
    if kind not in _KINDS:
        raise ConfigError("$.kind", kind, "one of " + ", ".join(map(repr, _KINDS)))
    problem = best_match(_validator(kind).iter_errors(parameters))
    if problem is not None:
        raise _config_error(problem)
    if kind == "GpuConfig":
        return GpuConfig()
    return TopologyPolicy(requirement=Requirement(parameters.get("requirement", Requirement.BEST_EFFORT.value)))


@cache
def _validator(kind: str) -> Draft202012Validator:
    """Build the validator of a kind once: building costs 50 times as much as validating."""
    text = resources.files(__package__).joinpath(f"{kind.lower()}.schema.json").read_text(encoding="utf-8")
    schema = json.loads(text)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema, registry=Registry())  # an empty registry: nothing is ever fetched


def _config_error(problem: ValidationError) -> ConfigError:
    """Say it in our words where the library's are about schemas."""
    rule: Any = problem.validator_value
    schema: Any = problem.schema
    if problem.validator == "additionalProperties" and isinstance(problem.instance, Mapping):
        known = sorted(schema["properties"])
        unknown = min(str(key) for key in problem.instance if key not in known)
        expected = f"no such field (known are {', '.join(known)})"
        return ConfigError(f"{problem.json_path}.{unknown}", problem.instance[unknown], expected)
    if problem.validator == "enum":
        return ConfigError(problem.json_path, problem.instance, "one of " + ", ".join(map(repr, rule)))
    return ConfigError(problem.json_path, problem.instance, problem.message)


def _short(value: object) -> str:
    """Show a value in a message: 80 characters are enough to recognise it."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
