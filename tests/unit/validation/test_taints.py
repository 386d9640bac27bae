"""DeviceTaintRules, in each version of the API that has them."""

from __future__ import annotations

from typing import Any

import pytest

from support.api_documents import ABSENT, edited, errors, taint_rule, warnings

SELECTOR = "spec.deviceSelector"


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1alpha3"])
@pytest.mark.parametrize(
    ("path", "value"),
    [
        (SELECTOR, {}),
        (f"{SELECTOR}.pool", "racks/one"),
        (f"{SELECTOR}.device", None),
        ("spec.taint.effect", "None"),
        ("spec.taint.value", ABSENT),
        ("spec.taint.timeAdded", ABSENT),
        ("status", {"conditions": [{"type": "EvictionInProgress"}]}),
    ],
)
def test_what_the_server_takes_has_no_finding(version: str, path: str, value: Any) -> None:
    document = edited(taint_rule() | {"apiVersion": f"resource.k8s.io/{version}"}, path, value)
    assert (errors(document), warnings(document)) == ([], [])


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1alpha3"])
@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ("spec.taint", ABSENT, "spec.taint.key: missing"),
        ("spec.taint.key", "a b", "spec.taint.key: not a label key"),
        ("spec.taint.value", "-", "spec.taint.value: not a label value"),
        ("spec.taint.effect", ABSENT, "spec.taint.effect: unknown value"),
        ("spec.taint.effect", "PreferNoSchedule", "spec.taint.effect: unknown value"),
        ("spec.taint.timeAdded", "now", "spec.taint.timeAdded: not a time"),
        (f"{SELECTOR}.driver", "", f"{SELECTOR}.driver: missing"),
        (f"{SELECTOR}.driver", "a_b", f"{SELECTOR}.driver: not a driver name"),
        (f"{SELECTOR}.pool", "a//b", f"{SELECTOR}.pool: not a pool name"),
        (f"{SELECTOR}.device", "gpu.0", f"{SELECTOR}.device: not a DNS label"),
        (f"{SELECTOR}.deviceClassName", "gpu", f"{SELECTOR}.deviceClassName: unknown field"),
        (f"{SELECTOR}.selectors", [], f"{SELECTOR}.selectors: unknown field"),
        ("metadata.namespace", "ml", "metadata.namespace: a namespace on an object that is in none"),
        ("spec.taints", [], "spec.taints: unknown field"),
    ],
)
def test_what_the_server_refuses_is_an_error_with_its_place(version: str, path: str, value: Any, found: str) -> None:
    document = edited(taint_rule() | {"apiVersion": f"resource.k8s.io/{version}"}, path, value)
    assert any(error.startswith(found) for error in errors(document))


def test_a_version_that_no_server_has_is_one_error_that_names_those_there_are() -> None:
    (error,) = errors(taint_rule() | {"apiVersion": "resource.k8s.io/v1beta1", "spec": 5})
    assert error.endswith("expected resource.k8s.io/v1 or resource.k8s.io/v1beta2 or resource.k8s.io/v1alpha3")


def test_a_rule_without_a_selector_is_warned_of_because_it_taints_nothing() -> None:
    (warning,) = warnings(edited(taint_rule(), SELECTOR, ABSENT))
    assert warning.startswith("spec.deviceSelector: without a selector the rule taints nothing")


def test_a_rule_with_the_taint_of_our_controller_is_warned_of() -> None:
    document = edited(taint_rule(), "spec.taint.key", "gpu.dracaena.dev/controller-allocated")
    (warning,) = warnings(document)
    assert warning.startswith("spec.taint.key: this taint counts for no device of ours")
    assert warnings(document, driver="gpu.example.com") == []
