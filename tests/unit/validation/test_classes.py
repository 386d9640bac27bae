"""Device classes, and what classes and claims have in common: selectors and opaque configurations."""

from __future__ import annotations

from typing import Any

import pytest

from dracaena.validation import Finding, validate_object
from support.api_documents import ABSENT, EXPRESSION, claim, device_class, edited, errors, policy, warnings

SELECTOR = "spec.selectors[0].cel.expression"
OPAQUE = "spec.config[0].opaque"
PARAMETERS = f"{OPAQUE}.parameters"


def selectors(count: int) -> list[Any]:
    return [{"cel": {"expression": EXPRESSION}}] * count


def configs(count: int) -> list[Any]:
    return [{"opaque": {"driver": "example.com", "parameters": {}}}] * count


def padded(size: int) -> dict[str, str]:
    """Parameters of this many bytes."""
    return {"a": "x" * (size - len('{"a":""}'))}


GOOD = [
    ("spec", ABSENT),
    ("spec.selectors", selectors(32)),
    ("spec.config", configs(32)),
    (SELECTOR, EXPRESSION + " " * (10 * 1024 - len(EXPRESSION))),
    (f"{OPAQUE}.driver", "x" * 63),
    (f"{OPAQUE}.driver", "Other.EXAMPLE.com"),
    (OPAQUE, {"driver": "example.com", "parameters": padded(10 * 1024)}),
    (OPAQUE, {"driver": "example.com", "parameters": {"kind": "TopologyPolicy", "requirement": "of somebody else"}}),
    (PARAMETERS, policy(requirement="NVLink")),
    ("spec.extendedResourceName", "example.com/gpu"),
    ("spec.extendedResourceName", None),
]


@pytest.mark.parametrize(("path", "value"), GOOD)
def test_what_the_server_takes_has_no_error(path: str, value: Any) -> None:
    assert errors(edited(device_class(), path, value)) == []


BAD = [
    ("spec.suitableNodes", {}, "spec.suitableNodes: unknown field"),
    ("spec.selectors", selectors(33), "spec.selectors: too many entries"),
    ("spec.selectors[0]", {}, "spec.selectors[0].cel: missing"),
    ("spec.selectors[0].regex", "a", "spec.selectors[0].regex: unknown field"),
    (SELECTOR, 5, f"{SELECTOR}: wrong type"),
    (SELECTOR, "é" * (5 * 1024) + "x", f"{SELECTOR}: an expression of 10241 bytes"),
    ("spec.config", configs(33), "spec.config: too many entries"),
    ("spec.config[0].requests", [], "spec.config[0].requests: unknown field"),
    (OPAQUE, ABSENT, "spec.config[0].opaque: missing"),
    (f"{OPAQUE}.driver", ABSENT, f"{OPAQUE}.driver: missing"),
    (f"{OPAQUE}.driver", "x" * 64, f"{OPAQUE}.driver: too long"),
    (f"{OPAQUE}.driver", "a_b", f"{OPAQUE}.driver: not a driver name"),
    (PARAMETERS, ABSENT, f"{PARAMETERS}: missing"),
    (PARAMETERS, None, f"{PARAMETERS}: missing"),
    (PARAMETERS, [], f"{PARAMETERS}: wrong type: [], expected an object"),
    (PARAMETERS, padded(10 * 1024 + 1), f"{PARAMETERS}: an object of 10241 bytes"),
    ("spec.extendedResourceName", "", "spec.extendedResourceName: missing"),
    ("spec.extendedResourceName", "gpu", "spec.extendedResourceName: not the name of an extended resource"),
    ("spec.extendedResourceName", "requests.example.com/gpu", "spec.extendedResourceName: not the name"),
    ("spec.extendedResourceName", "x.kubernetes.io/gpu", "spec.extendedResourceName: not the name"),
    ("spec.extendedResourceName", "example.com/" + "x" * 64, "spec.extendedResourceName: not the name"),
    ("metadata.namespace", "default", "metadata.namespace: a namespace on an object that is in none"),
    ("status", {}, "status: unknown field"),
]


@pytest.mark.parametrize(("path", "value", "found"), BAD)
def test_what_the_server_refuses_is_an_error_with_its_place(path: str, value: Any, found: str) -> None:
    assert any(found in error for error in errors(edited(device_class(), path, value)))


def only_finding(document: dict[str, Any]) -> Finding:
    (finding,) = validate_object(document)
    return finding


def test_an_expression_that_does_not_compile_is_shown_with_a_caret() -> None:
    finding = only_finding(edited(device_class(), SELECTOR, f"{EXPRESSION} &&\n  devices.driver == 'x'"))
    assert finding.message.startswith("CEL: ")
    assert finding.cel is not None
    assert (finding.cel.line, finding.cel.column) == (2, 3)
    assert finding.cel.excerpt == "  devices.driver == 'x'\n  ^"


def test_of_a_long_line_the_part_around_the_mistake_is_shown() -> None:
    finding = only_finding(edited(device_class(), SELECTOR, f"{EXPRESSION} || " * 20 + "nothing"))
    assert finding.cel is not None
    line, caret = finding.cel.excerpt.split("\n")
    assert len(line) <= 100
    assert line[len(caret) - 1 :].startswith("nothing")


@pytest.mark.parametrize("expression", ["", "1 + 1", '"text"', "device.driver", "size(device.driver)", "device ="])
def test_an_expression_that_is_no_condition_is_an_error(expression: str) -> None:
    assert len(errors(edited(device_class(), SELECTOR, expression))) == 1


def test_selectors_of_requests_and_alternatives_are_compiled_too() -> None:
    broken = [{"cel": {"expression": "true &&"}}]
    for place in ("spec.devices.requests[0].exactly", "spec.devices.requests[1].firstAvailable[0]"):
        (error,) = errors(edited(claim(), f"{place}.selectors", broken))
        assert error.startswith(f"{place}.selectors[0].cel.expression: CEL: ")


@pytest.mark.parametrize(
    ("parameters", "path", "seen", "expected"),
    [
        (policy(requirement="nvlink"), "requirement", '"nvlink"', "'NVLink'"),
        (policy(speed=5), "speed", "5", "known: "),
        ({"apiVersion": "gpu.dracaena.dev/v1", "kind": "GpuConfig"}, "apiVersion", '"gpu.dracaena.dev/v1"', "v1alpha1"),
        ({"apiVersion": "gpu.dracaena.dev/v1alpha1", "kind": "MigConfig"}, "kind", '"MigConfig"', "TopologyPolicy"),
        ({}, "apiVersion", "nothing", "v1alpha1"),
    ],
)
@pytest.mark.parametrize(
    ("document", "place"),
    [(device_class(), "spec.config[0]"), (claim(), "spec.devices.config[0]")],
    ids=["class", "claim"],
)
def test_our_own_parameters_are_read_and_the_mistake_is_named(
    document: dict[str, Any], place: str, parameters: dict[str, Any], path: str, seen: str, expected: str
) -> None:
    (error,) = errors(edited(document, f"{place}.opaque.parameters", parameters))
    assert error.startswith(f"{place}.opaque.parameters.{path}: not understood by the driver: {seen}, expected ")
    assert expected in error


def test_our_parameters_follow_the_name_of_the_driver() -> None:
    document = edited(device_class(), PARAMETERS, {"any": "thing"})
    assert errors(document, driver="other.example.com") == []
    assert len(errors(document, driver="gpu.dracaena.dev")) == 1


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("driver", ["example.com", "gpu.dracaena.dev"])
def test_parameters_of_any_depth_are_judged(driver: str) -> None:
    """kube-apiserver takes them as they are; ours have to be read."""
    parameters = policy(requirement=nested(4_000))
    found = errors(edited(device_class(), OPAQUE, {"driver": driver, "parameters": parameters}))
    if driver == "example.com":
        assert found == []
    else:
        (error,) = found
        assert error.startswith(f"{PARAMETERS}: not understood by the driver: more than 32 levels deep")


@pytest.mark.parametrize("levels", [5_000, 50_000])
def test_parameters_that_are_too_long_because_they_are_deep_are_refused_by_their_length(levels: int) -> None:
    deep = {"driver": "example.com", "parameters": {"a": nested(levels)}}
    found = errors(edited(device_class(), OPAQUE, deep))
    assert found == [] if levels == 5_000 else found[0].startswith(f"{PARAMETERS}: an object of 100007 bytes")


@pytest.mark.parametrize("parameters", [{"a": {"b": [float("inf")]}}, {"a": 2**70}, {"é": "\ud800"}])
def test_parameters_of_other_drivers_are_never_read(parameters: dict[str, Any]) -> None:
    assert errors(edited(device_class(), OPAQUE, {"driver": "example.com", "parameters": parameters})) == []


def test_a_class_without_an_answer_for_other_devices_is_warned_of() -> None:
    (warning,) = warnings(edited(device_class(), SELECTOR, 'device.attributes["gpu.dracaena.dev"].index == 0'))
    assert warning.startswith(f"{SELECTOR}: no answer for devices of other drivers, which ends the allocation: ")


@pytest.mark.parametrize(
    "expression",
    [
        'device.attributes["gpu.dracaena.dev"].index == 0 && device.driver == "gpu.dracaena.dev"',
        '"gpu.dracaena.dev" in device.attributes && device.attributes["gpu.dracaena.dev"].index == 0',
        'device.attributes["gpu.dracaena.dev"].?index.orValue(1) == 0',
    ],
)
def test_a_class_that_turns_other_devices_away_in_its_own_words_is_not_warned_of(expression: str) -> None:
    assert warnings(edited(device_class(), SELECTOR, expression)) == []


def test_the_first_selector_guards_those_behind_it() -> None:
    second = {"cel": {"expression": 'device.attributes["gpu.dracaena.dev"].index == 0'}}
    assert warnings(edited(device_class(), "spec.selectors[1]", second)) == []
    assert len(warnings(edited(device_class(), "spec.selectors", [{"cel": {"expression": "true"}}, second]))) == 1


@pytest.mark.parametrize("selectors", [ABSENT, [], [{"cel": {"expression": "true"}}]])
def test_a_class_of_ours_that_matches_every_device_is_warned_of(selectors: Any) -> None:
    (warning,) = warnings(edited(device_class(), "spec.selectors", selectors))
    assert warning.startswith("spec.selectors: a class of this driver that matches the devices of every driver")


def test_a_class_of_somebody_else_may_match_every_device() -> None:
    assert warnings(edited(device_class(), "spec", {})) == []


def test_an_extended_resource_of_a_class_of_ours_is_warned_of() -> None:
    (warning,) = warnings(edited(device_class(), "spec.extendedResourceName", "example.com/gpu"))
    assert "get devices of nodes left to kube-scheduler alone" in warning
    assert "unless a quota of this name is to count its claims" in warning
    of_another = {
        "selectors": [{"cel": {"expression": 'device.driver == "nic.example.com"'}}],
        "extendedResourceName": "a.b/c",
    }
    assert warnings(edited(device_class(), "spec", of_another)) == []
