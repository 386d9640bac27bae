from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.objects import Toleration
from dracaena.api.resourceclaim import (
    NOT_YET,
    UNKNOWN,
    ClaimSpec,
    ClassSpec,
    DeviceRequest,
    OpaqueEntry,
    Unsupported,
    read_claim_spec,
    read_class_spec,
)


def exactly(**fields: Any) -> dict[str, Any]:
    return {"deviceClassName": "gpu.dracaena.dev", **fields}


def spec(*requests: Any, **fields: Any) -> dict[str, Any]:
    return {"devices": {"requests": list(requests), **fields}}


def request(name: str = "gpus", **fields: Any) -> dict[str, Any]:
    return {"name": name, "exactly": exactly(**fields)}


def test_a_count_of_a_class_is_read() -> None:
    assert read_claim_spec(spec(request(count=4))) == ClaimSpec(
        requests=(DeviceRequest(name="gpus", device_class="gpu.dracaena.dev", count=4),), configs=()
    )


def test_the_defaults_of_the_api_and_the_values_that_mean_nothing_are_read() -> None:
    plain = request(
        allocationMode="ExactCount",
        adminAccess=False,
        selectors=[],
        tolerations=[],
        capacity=None,
        derivedAttributes={},
    )
    assert read_claim_spec(spec(plain, constraints=[], config=[])) == ClaimSpec(
        requests=(DeviceRequest(name="gpus", device_class="gpu.dracaena.dev", count=1),), configs=()
    )


def test_tolerations_are_kept() -> None:
    tolerations = [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]
    read = read_claim_spec(spec(request(tolerations=tolerations)))
    assert isinstance(read, ClaimSpec)
    assert read.requests[0].tolerations == (
        Toleration(key="a", operator="Exists", effect="NoExecute", toleration_seconds=5),
    )


def test_configs_keep_their_requests_driver_and_place() -> None:
    config = [{"requests": ["gpus"], "opaque": {"driver": "gpu.dracaena.dev", "parameters": {"kind": "X"}}}]
    read = read_claim_spec(spec(request(), config=config))
    assert isinstance(read, ClaimSpec)
    assert read.configs == (
        OpaqueEntry(("gpus",), "gpu.dracaena.dev", {"kind": "X"}, "spec.devices.config[0].opaque.parameters"),
    )


REQUEST = "spec.devices.requests[0]"


@pytest.mark.parametrize(
    ("document", "path", "why"),
    [
        (spec(request(selectors=[{"cel": {"expression": "true"}}])), f"{REQUEST}.exactly.selectors", NOT_YET),
        (spec(request(adminAccess=True)), f"{REQUEST}.exactly.adminAccess", NOT_YET),
        (spec(request(allocationMode="All")), f"{REQUEST}.exactly.allocationMode", NOT_YET),
        (spec(request(capacity={"requests": {"memory": "1Gi"}})), f"{REQUEST}.exactly.capacity", NOT_YET),
        (spec(request(derivedAttributes=[{}])), f"{REQUEST}.exactly.derivedAttributes", NOT_YET),
        (spec({"name": "a", "firstAvailable": [{}]}), f"{REQUEST}.firstAvailable", NOT_YET),
        (
            spec(request(), constraints=[{"requests": [], "matchAttribute": "a.b/c"}]),
            "spec.devices.constraints[0].matchAttribute",
            NOT_YET,
        ),
        (
            spec(request(), constraints=[{"distinctAttribute": "a.b/c"}]),
            "spec.devices.constraints[0].distinctAttribute",
            NOT_YET,
        ),
        (spec(request(), constraints=[{"requests": ["gpus"]}]), "spec.devices.constraints[0]", UNKNOWN),
        (spec(request(), constraints=[{"sameNode": True}]), "spec.devices.constraints[0].sameNode", UNKNOWN),
        (spec({"name": "a"}), REQUEST, UNKNOWN),
        (spec({"name": "a", "anyOf": []}), f"{REQUEST}.anyOf", UNKNOWN),
        (spec(request(allocationMode="Some")), f"{REQUEST}.exactly.allocationMode", UNKNOWN),
        (spec(request(shape="ring")), f"{REQUEST}.exactly.shape", UNKNOWN),
        (spec(request(tolerations=[{"key": "a", "until": 5}])), f"{REQUEST}.exactly.tolerations[0].until", UNKNOWN),
        (spec(request(), config=[{"requests": ["gpus"]}]), "spec.devices.config[0]", UNKNOWN),
        (spec(request(), config=[{"clear": {}}]), "spec.devices.config[0].clear", UNKNOWN),
        ({"devices": {"requests": [request()], "pools": []}}, "spec.devices.pools", UNKNOWN),
        ({"devices": {"requests": [request()]}, "nodes": []}, "spec.nodes", UNKNOWN),
        (spec(request(count=0)), f"{REQUEST}.exactly.count", "expected a whole number above 0"),
        (spec(request(count=True)), f"{REQUEST}.exactly.count", "expected a whole number above 0"),
        (spec(request(deviceClassName="")), f"{REQUEST}.exactly.deviceClassName", "expected a text that is not empty"),
        (spec(request("a", count=17), request("b", count=16)), "spec.devices.requests", "can hold at most 32"),
        (spec("gpus"), REQUEST, "expected an object"),
        ({"devices": {"requests": {}}}, "spec.devices.requests", "expected a list"),
    ],
)
def test_what_cannot_be_honoured_is_named_with_its_place(document: dict[str, Any], path: str, why: str) -> None:
    read = read_claim_spec(document)
    assert isinstance(read, Unsupported)
    assert read.path == path
    assert why in read.why
    assert str(read).startswith(f"{path}: ")


def test_a_class_without_selectors_is_read_with_its_configs() -> None:
    opaque = {"driver": "gpu.dracaena.dev", "parameters": {"kind": "X"}}
    assert read_class_spec({"config": [{"opaque": opaque}], "extendedResourceName": "a.b/c"}) == ClassSpec(
        configs=(OpaqueEntry((), "gpu.dracaena.dev", {"kind": "X"}, "spec.config[0].opaque.parameters"),)
    )


@pytest.mark.parametrize(
    ("document", "path", "why"),
    [
        ({"selectors": [{"cel": {"expression": "true"}}]}, "spec.selectors", NOT_YET),
        ({"suitableNodes": {}}, "spec.suitableNodes", UNKNOWN),
        ({"config": [{}]}, "spec.config[0]", UNKNOWN),
        ({"config": [{"requests": ["a"], "opaque": {}}]}, "spec.config[0].requests", UNKNOWN),
    ],
)
def test_a_class_that_cannot_be_honoured_is_named_with_its_place(document: dict[str, Any], path: str, why: str) -> None:
    read = read_class_spec(document)
    assert isinstance(read, Unsupported)
    assert (read.path, read.why) == (path, why)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(st.dictionaries(st.sampled_from(["devices", "x"]), json_values))
def test_no_document_makes_the_reader_raise(document: dict[str, Any]) -> None:
    assert isinstance(read_claim_spec(document), ClaimSpec | Unsupported)


@given(json_values)
def test_no_request_makes_the_reader_raise(value: Any) -> None:
    for document in (spec(value), spec({"name": "a", "exactly": value}), spec(request(), config=[value])):
        assert isinstance(read_claim_spec(document), ClaimSpec | Unsupported)
