"""Which objects are checked, and what findings look like."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.validation import (
    Finding,
    ObjectReference,
    Severity,
    is_checked,
    reference_to,
    render_path,
    validate_all,
    validate_object,
)
from dracaena.validation.findings import Breach, show
from support.api_documents import ABSENT, BASES, claim, edited, errors, paths


@pytest.mark.parametrize("name", sorted(BASES))
def test_every_valid_example_has_no_finding(name: str) -> None:
    document = BASES[name]()
    assert is_checked(document)
    assert validate_object(document) == ()


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2", "v1alpha3", "v2"])
def test_another_version_is_one_error_that_names_v1(version: str) -> None:
    document = {**claim(), "apiVersion": f"resource.k8s.io/{version}", "spec": {"devices": "anything"}}
    (finding,) = validate_object(document)
    assert str(finding) == (
        f'apiVersion: not the stable version, nothing else was checked: "resource.k8s.io/{version}", '
        "expected resource.k8s.io/v1"
    )


def test_a_kind_without_its_group_is_one_error() -> None:
    (error,) = errors({**claim(), "apiVersion": "v1"})
    assert error.endswith('"v1", expected resource.k8s.io/v1')


def test_a_kind_that_the_group_does_not_have_is_an_error() -> None:
    (error,) = errors({**claim(), "kind": "ResourceClaims"})
    assert error.startswith('kind: no kind of resource.k8s.io: "ResourceClaims", expected one of DeviceClass')


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [
        ("v1", "ConfigMap"),
        ("example.com/v1", "ResourceClaim"),
        ("example.com/v1", "Pod"),
        ("resource.k8s.io/v1alpha3", "ResourcePoolStatusRequest"),
    ],
)
def test_other_kinds_are_not_checked(api_version: str, kind: str) -> None:
    document = {"apiVersion": api_version, "kind": kind, "spec": 5}
    assert not is_checked(document)
    assert validate_object(document) == ()


@pytest.mark.parametrize(
    "document", [{}, {"kind": []}, {"apiVersion": 1, "kind": {}}, {"metadata": "x", "kind": "Secret"}]
)
def test_an_object_without_a_type_is_not_checked(document: dict[str, Any]) -> None:
    assert not is_checked(document)
    assert validate_object(document) == ()


def test_findings_name_their_object() -> None:
    document = {**claim(), "metadata": {"name": "Train", "namespace": "ml"}}
    (finding,) = validate_object(document)
    assert finding == Finding(
        severity=Severity.ERROR,
        object=ObjectReference("resource.k8s.io/v1", "ResourceClaim", "ml", "Train"),
        path=("metadata", "name"),
        message="not a DNS name",
        seen='"Train"',
        expected="lower-case letters, digits, dashes and dots, at most 253 characters, a letter or digit at both ends",
        breach=Breach.INVALID,
    )
    assert str(finding.object) == "ResourceClaim ml/Train"


def test_an_object_without_a_name_is_called_by_what_it_has() -> None:
    assert str(reference_to({"kind": "Pod"})) == "Pod without a name"
    assert str(reference_to({"kind": "Pod", "metadata": {"generateName": "p-"}})) == "Pod p-"


def test_findings_come_in_the_order_of_the_objects() -> None:
    broken = edited(claim(), "metadata.name", "A")
    one, two, three = validate_all([claim(), broken, {"apiVersion": "v1", "kind": "Secret"}])
    assert (one, paths(two), three) == ((), ["metadata.name"], ())


def test_paths_are_written_as_the_api_writes_them() -> None:
    assert render_path(("spec", "devices", "requests", 0, "name")) == "spec.devices.requests[0].name"
    assert render_path(("metadata", "labels", "a.b/c")) == 'metadata.labels["a.b/c"]'
    assert render_path(("x", "\x1b[2J\n")) == 'x["\\u001b[2J\\n"]'
    assert render_path(()) == "the object"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "nothing"),
        ('a"\n\x1b\u0085', '"a\\"\\n\\u001b\\u0085"'),
        ("x" * 100, '"' + "x" * 77 + '..."'),
        (True, "true"),
        (1.5, "1.5"),
        ([], "[]"),
        ([1], "a list of 1"),
        ({}, "{}"),
        ({"a": 1}, "an object"),
        pytest.param(10**6000, "a whole number of 19932 bits", id="very large"),
    ],
)
def test_values_are_shown_shortly_and_harmlessly(value: Any, text: str) -> None:
    assert show(value) == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=6), children, max_size=4),
    max_leaves=12,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """All values below this one, each as what holds it and its key there."""
    keys = range(len(value)) if isinstance(value, list) else sorted(value) if isinstance(value, dict) else ()
    return [place for key in keys for place in ((value, key), *places(value[key]))]


@settings(derandomize=True)
@given(
    base=st.sampled_from(sorted(BASES)),
    edits=st.lists(st.tuples(st.integers(0, 10_000), JSON | st.just(ABSENT)), min_size=1, max_size=4),
)
def test_no_value_anywhere_makes_it_crash(base: str, edits: list[tuple[int, Any]]) -> None:
    document = BASES[base]()
    for number, value in edits:
        found = [place for place in places(document) if place[1] not in ("apiVersion", "kind")]
        if not found:
            break
        holder, key = found[number % len(found)]
        if value is ABSENT:
            del holder[key]
        else:
            holder[key] = value
    (findings,) = validate_all([document])
    for finding in findings:
        assert str(finding).isprintable()
        assert finding.expected


@settings(derandomize=True)
@given(document=st.dictionaries(st.sampled_from(["apiVersion", "kind", "metadata", "spec", "x"]), JSON))
@pytest.mark.parametrize("kind", ["DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice"])
def test_any_object_of_a_kind_is_judged(kind: str, document: dict[str, Any]) -> None:
    validate_all([{**document, "apiVersion": "resource.k8s.io/v1", "kind": kind}])


@settings(derandomize=True)
@given(document=JSON)
def test_any_pod_is_judged(document: Any) -> None:
    validate_all([{"apiVersion": "v1", "kind": "Pod", "spec": document, "metadata": document}])
