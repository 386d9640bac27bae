"""The schemas for editors refuse what the driver refuses, and nothing that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from dracaena.api.config.v1alpha1 import API_VERSION, ConfigError, decode_config
from dracaena.api.config.v1alpha1.schemas import EDITOR_SCHEMAS, KINDS, editor_schema, schema_of

ROOT = Path(__file__).parents[3]
DRIVER = "gpu.dracaena.dev"
PLACES = {"DeviceClass": (), "ResourceClaim": ("devices",), "ResourceClaimTemplate": ("spec", "devices")}

PROPERTIES: Mapping[str, Any] = schema_of("TopologyPolicy")["properties"]
WORDS = [*sorted({word for rule in PROPERTIES.values() for word in rule.get("enum", ())}), "", "nvlink"]
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(WORDS),
    st.sampled_from([None, True, 0, -1, 0.5, 100, 10_000, 10_001, [], {}]),
    st.dictionaries(st.sampled_from(["NVLink", "PIX", "SOC"]), st.sampled_from([-1, 0, 25, 10_001, "25"])),
)
PARAMETERS = st.dictionaries(st.sampled_from([*sorted(PROPERTIES), "requirements"]), VALUES, max_size=3).flatmap(
    lambda fields: st.builds(
        lambda version, kind: fields | {"apiVersion": version, "kind": kind},
        st.sampled_from([API_VERSION, API_VERSION, API_VERSION, "gpu.dracaena.dev/v1"]),
        st.sampled_from([*KINDS, "TopologyPolicy", "Policy"]),
    )
)


def manifest(kind: str, parameters: Any, driver: str = DRIVER) -> dict[str, Any]:
    spec: dict[str, Any] = {"config": [{"opaque": {"driver": driver, "parameters": parameters}}]}
    for step in reversed(PLACES[kind]):
        spec = {step: spec}
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": "m"}, "spec": spec}


def is_taken(document: Any, name: str = "manifest", driver: str = DRIVER) -> bool:
    return Draft7Validator(editor_schema(name, driver)).is_valid(document)


def is_read(parameters: Mapping[str, Any]) -> bool:
    """Whether the driver takes parameters, fields that contradict each other aside: no schema can tell those."""
    try:
        decode_config(parameters)
    except ConfigError as error:
        return "together with" in error.expected or "largest figure" in error.expected
    return True


@given(PARAMETERS, st.sampled_from(sorted(PLACES)))
def test_in_a_manifest_what_the_driver_reads_is_taken_and_all_else_is_not(
    parameters: dict[str, Any], kind: str
) -> None:
    assert is_taken(manifest(kind, parameters)) == is_read(parameters)


@given(PARAMETERS)
def test_by_itself_each_kind_is_taken_as_the_driver_reads_it(parameters: dict[str, Any]) -> None:
    assert any(is_taken(parameters, kind.lower()) for kind in KINDS) == is_read(parameters)


@pytest.mark.parametrize("kind", sorted(PLACES))
@pytest.mark.parametrize("parameters", [None, [], "text", {}, {"kind": "TopologyPolicy"}, {"apiVersion": API_VERSION}])
def test_what_is_no_configuration_at_all_is_refused(kind: str, parameters: Any) -> None:
    assert not is_taken(manifest(kind, parameters))


def test_only_the_parameters_for_our_driver_are_looked_at() -> None:
    other = manifest("ResourceClaim", {"anything": 1}, driver="nic.example.com")
    assert is_taken(other)
    assert not is_taken(other, driver="nic.example.com")
    assert is_taken({"kind": "Pod", "spec": {"config": 5}})
    assert is_taken({"kind": "ResourceClaim"})


def test_the_manifests_of_this_repository_are_taken() -> None:
    paths = sorted(path for name in ("deviceclasses", "examples") for path in (ROOT / "deploy" / name).rglob("*.yaml"))
    documents = [document for path in paths for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))]
    assert len(documents) > 5
    assert all(is_taken(document) for document in documents)


@pytest.mark.parametrize("name", EDITOR_SCHEMAS)
def test_they_are_schemas_and_refer_to_nothing_outside(name: str) -> None:
    schema = editor_schema(name)
    Draft7Validator.check_schema(schema)
    assert all(reference.startswith("#/definitions/") for reference in references(schema))


def references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [found for item in value for found in references(item)]
    if not isinstance(value, dict):
        return []
    own = [value["$ref"]] if "$ref" in value else []
    return own + [found for item in value.values() for found in references(item)]
