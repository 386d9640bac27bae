from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dracaena.api.go_json import as_go_writes, encode_as_go


@pytest.mark.parametrize(
    ("document", "body"),
    [
        ({"b": 1, "a": {"d": [1, 2], "c": None}}, b'{"a":{"c":null,"d":[1,2]},"b":1}'),
        ({"text": "a < b > c & d \u2028"}, rb'{"text":"a \u003c b \u003e c \u0026 d \u2028"}'),
        ({"text": "\\u003c stays"}, rb'{"text":"\\u003c stays"}'),
    ],
)
def test_bodies_have_the_form_that_the_server_writes(document: dict[str, Any], body: bytes) -> None:
    assert encode_as_go(document) == body
    assert json.loads(body) == document


def test_text_that_is_json_already_stays_in_its_own_order() -> None:
    assert encode_as_go({"b": msgspec.Raw(b'{"z":"<","a":1}')}) == rb'{"b":{"z":"\u003c","a":1}}'


def test_parameters_are_written_as_the_server_would() -> None:
    assert as_go_writes(msgspec.Raw(b'{"b": "<", "a": [1, 2.5]}')) == msgspec.Raw(rb'{"a":[1,2.5],"b":"\u003c"}')


@pytest.mark.parametrize(
    "text",
    [
        b'{"b":1,"a":' + b"[" * 2_000 + b"]" * 2_000 + b"}",
        rb'{"b":1,"a":"\ud800"}',
        b'{"b":1,"a":"\xff"}',
        b'{"a":1e999}',
    ],
)
def test_parameters_that_cannot_be_read_stay_as_they_are(text: bytes) -> None:
    assert as_go_writes(msgspec.Raw(text)) == msgspec.Raw(text)
