"""JSON as text, against a reader of JSON where one can read it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.json_text import deeper_than, elements, put_back, set_apart

texts = st.text(st.sampled_from('ab"\\[]{}:, \u2028é😀\x00'), max_size=6)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts | st.just("parameters"), inner, max_size=4),
    max_leaves=30,
)
forms = st.sampled_from(
    [{"separators": (",", ":")}, {"indent": 1}, {"ensure_ascii": False}, {"separators": (" , ", " : ")}]
)


def levels(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(levels, inner), default=0)


@given(values, forms)
def test_depth_is_that_of_the_value(value: Any, form: dict[str, Any]) -> None:
    text = json.dumps(value, **form).encode()
    deep = levels(value)
    assert not deeper_than(text, deep)
    assert deep == 0 or deeper_than(text, deep - 1)


@given(st.lists(values, max_size=5), forms)
def test_elements_are_those_of_the_list(value: list[Any], form: dict[str, Any]) -> None:
    assert [json.loads(text) for text in elements(json.dumps(value, **form).encode())] == value


def objects_only(value: Any) -> Any:
    """Let `parameters` be nothing but objects, as in the API, so that each list there is one that was put in."""
    if isinstance(value, list):
        return [objects_only(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: {"a": item} if key == "parameters" and not isinstance(item, dict) else objects_only(item)
        for key, item in value.items()
    }


@given(values, forms)
def test_what_is_set_apart_can_be_put_back(value: Any, form: dict[str, Any]) -> None:
    text = json.dumps({"v": objects_only(value)}, **form).encode()
    left, taken = set_apart(text, ["parameters"])
    assert b'"parameters":{' not in left
    assert put_back(left, ["parameters"], taken) == text
    assert [put_back(b"[%d]" % index, ["parameters"], taken) for index in range(len(taken))] == list(taken)


def test_only_members_that_hold_lists_or_objects_are_set_apart() -> None:
    text = (
        rb'{"a":{"x\"parameters":{"q":1},"parameters":"text"},"parameters" : {"parameters":{}},"b":"\"parameters\":{"}'
    )
    left, taken = set_apart(text, ["parameters", "data"])
    assert taken == (b'{"parameters":{}}',)
    assert left == text.replace(taken[0], b"[0]")


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"parameters":', b"}]")])
def test_ten_thousand_levels_are_no_matter(opening: bytes, closing: bytes) -> None:
    deep = opening * 10_000 + b"1" + closing * 10_000
    assert deeper_than(deep, 9_999)
    left, taken = set_apart(b'{"z":1,"parameters":' + deep + b',"y":2}', ["parameters"])
    assert left == b'{"z":1,"parameters":[0],"y":2}'
    assert taken == (deep,)
    assert list(elements(b"[" + deep + b"," + deep + b"]")) == [deep, deep]


@given(st.binary(max_size=60) | st.text(st.sampled_from('"\\[]{}:,1'), max_size=60).map(str.encode))
def test_what_is_no_json_gets_an_answer_and_no_error(text: bytes) -> None:
    deeper_than(text, 3)
    set_apart(text, ["parameters"])
    assert len(list(elements(text))) <= len(text)


@pytest.mark.parametrize("piece", [b'"', b"[", b'"\\', b'{"a":[', b"]", b"\\", b'"parameters":{'])
def test_the_cost_grows_with_the_size_and_no_faster(piece: bytes) -> None:
    """A million bytes of what is no JSON: anything quadratic would take hours."""
    text = piece * (1_000_000 // len(piece))
    deeper_than(text, 1 << 30)
    set_apart(text, ["parameters"])
    list(elements(text))
