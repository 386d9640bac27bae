"""JSON schemas of the kinds of the config group: of each kind alone, and of the manifests that contain them.

The schemas of the kinds are files next to this one, with which the driver checks parameters. The schema of manifests is
for editors: it looks only at the parameters for our driver, so whatever it refuses, the driver refuses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

from dracaena.api.names import DEFAULT_DRIVER_NAME

KINDS: Final = ("TopologyPolicy", "GpuConfig", "VfioConfig")
MANIFEST: Final = "manifest"
"""Name of the schema of a DeviceClass, ResourceClaim or ResourceClaimTemplate with parameters for our driver."""
EDITOR_SCHEMAS: Final = (MANIFEST, *(kind.lower() for kind in KINDS))

_DIALECT: Final = "http://json-schema.org/draft-07/schema#"
"""The dialect that every editor reads. The schemas use no keyword with another meaning in a later dialect."""
_CONFIGS: Final[Mapping[str, tuple[str, ...]]] = {
    "DeviceClass": ("spec", "config"),
    "ResourceClaim": ("spec", "devices", "config"),
    "ResourceClaimTemplate": ("spec", "spec", "devices", "config"),
}
"""Kind → where its list of configurations is."""


@cache
def schema_of(kind: str) -> Mapping[str, Any]:
    """Return the schema of one of KINDS, which is read only."""
    text = resources.files(__package__).joinpath(f"{kind.lower()}.schema.json").read_text(encoding="utf-8")
    schema: Mapping[str, Any] = json.loads(text)
    return schema


def editor_schema(name: str, driver: str = DEFAULT_DRIVER_NAME) -> dict[str, Any]:
    """Return one of EDITOR_SCHEMAS. `driver` is the name by which manifests call our driver."""
    if name == MANIFEST:
        return _manifest(driver)
    kind = next(kind for kind in KINDS if kind.lower() == name)
    return {**schema_of(kind), "$schema": _DIALECT}


def _manifest(driver: str) -> dict[str, Any]:
    definitions = {kind: {key: schema_of(kind)[key] for key in schema_of(kind) if key != "$schema"} for kind in KINDS}
    return {
        "$schema": _DIALECT,
        "title": f"Manifests with parameters for {driver}",
        "description": f"Looks at what DeviceClasses, ResourceClaims and ResourceClaimTemplates say to {driver} alone.",
        "type": "object",
        "allOf": [_if_equal("kind", kind, _nested(steps)) for kind, steps in _CONFIGS.items()],
        "definitions": {
            "config": {"properties": {"opaque": _if_equal("driver", driver, _below("parameters", _ref("parameters")))}},
            "parameters": {
                "required": ["apiVersion", "kind"],
                **_if_equal("kind", "GpuConfig", _ref("GpuConfig")),
                "else": {
                    **_if_equal("kind", "VfioConfig", _ref("VfioConfig")),
                    "else": _ref("TopologyPolicy"),
                },
            },
            **definitions,
        },
    }


def _if_equal(key: str, value: str, then: Mapping[str, Any]) -> dict[str, Any]:
    return {"if": {**_below(key, {"const": value}), "required": [key]}, "then": then}


def _nested(steps: tuple[str, ...]) -> dict[str, Any]:
    """Return a schema that requires the list at this path to have the form of configurations."""
    if not steps:
        return {"items": _ref("config")}
    return _below(steps[0], _nested(steps[1:]))


def _below(key: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"properties": {key: schema}}


def _ref(definition: str) -> dict[str, Any]:
    return {"$ref": f"#/definitions/{definition}"}
