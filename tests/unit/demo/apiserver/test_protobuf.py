"""Bodies in protobuf. That real ones are read as their JSON is in tests/integration/test_kubectl.py."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from dracaena.demo.apiserver.protobuf import KINDS, read_protobuf
from dracaena.demo.apiserver.schema import ListOf, MapOf, Struct, structs
from dracaena.demo.apiserver.shapes.numbers import NUMBERS

FORM = "application/vnd.kubernetes.protobuf"


def field(number: int, value: bytes | int) -> bytes:
    """One field of a message, short enough for one byte of length."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    return bytes([number << 3 | 2, len(value)]) + value


def body(kind: str, api_version: str, message: bytes) -> bytes:
    head = field(1, api_version.encode()) + field(2, kind.encode())
    return b"k8s\0" + field(1, head) + field(2, message) + field(3, b"") + field(4, b"")


def namespace(metadata: bytes) -> bytes:
    return body("Namespace", "v1", field(1, metadata) + field(2, b"") + field(3, field(1, b"")))


NAME = field(1, b"desk")
AT = 8
"""The field creationTimestamp of ObjectMeta."""


def timestamp(seconds: int) -> bytes:
    """A Timestamp, whose seconds are a varint of 64 bits."""
    bits = seconds % (1 << 64)
    groups = [bits >> place & 0x7F for place in range(0, max(1, bits.bit_length()), 7)]
    return bytes([1 << 3]) + bytes(group | 0x80 for group in groups[:-1]) + bytes(groups[-1:])


def test_a_namespace_is_read_as_its_json_would_be_without_zeros():
    label = field(11, field(1, b"team") + field(2, b"a"))
    metadata = NAME + field(2, b"") + field(7, 0) + field(8, b"") + label
    assert read_protobuf(namespace(metadata), "Namespace") == {
        "kind": "Namespace",
        "apiVersion": "v1",
        "metadata": {"name": "desk", "labels": {"team": "a"}},
    }


def test_numbers_below_zero_and_both_forms_of_a_step_are_read():
    step = field(1, field(1, 1) + field(3, b"25%")) + field(2, field(1, 0) + field(2, 3))
    below = bytes([1 << 3]) + b"\xff" * 9 + b"\x01"
    read = read_protobuf(body("Deployment", "apps/v1", field(2, below + field(4, field(2, step)))), "Deployment")
    steps = {"maxUnavailable": "25%", "maxSurge": 3}
    assert read["spec"] == {"replicas": -1, "strategy": {"rollingUpdate": steps}}


def test_a_zero_is_kept_where_none_would_mean_something_else():
    read = read_protobuf(body("Deployment", "apps/v1", field(2, field(1, 0) + field(6, 0))), "Deployment")
    assert read["spec"] == {"replicas": 0, "revisionHistoryLimit": 0}


def test_a_body_is_taken_and_one_that_names_an_unserved_field_is_refused(api):
    made = api.send("POST", "/api/v1/namespaces", namespace(NAME), form=FORM)
    assert (made.code, made.body["metadata"]["name"], made.body["status"]) == (201, "desk", {"phase": "Active"})
    paused = body("Deployment", "apps/v1", field(1, NAME) + field(2, field(7, 1)))
    refused = api.send("POST", "/apis/apps/v1/namespaces/default/deployments", paused, form=FORM)
    assert refused.code == 501
    assert "spec.paused" in refused.body["message"]


@pytest.mark.parametrize(
    "broken", [b"", b"k8s", b"{}", namespace(NAME)[:-9], b"k8s\0\x12\xff", body("Namespace", "v1", field(15, b"x"))]
)
def test_a_broken_body_is_refused(api, broken):
    refused = api.send("POST", "/api/v1/namespaces", broken, form=FORM)
    assert (refused.code, refused.body["reason"]) == (400, "BadRequest")


def test_a_time_is_read_in_whole_seconds_and_zero_is_none():
    read = read_protobuf(namespace(NAME + field(AT, timestamp(1764153600))), "Namespace")
    assert read["metadata"] == {"name": "desk", "creationTimestamp": "2025-11-26T10:40:00Z"}
    assert read_protobuf(namespace(NAME + field(AT, timestamp(0))), "Namespace")["metadata"] == {"name": "desk"}


def test_no_time_whatever_is_a_defect_of_the_server(api):
    powers = [sign * (1 << power) + off for power in range(30, 64) for sign in (1, -1) for off in (-1, 0, 1)]
    ends = (253402300799, 253402300800, -62135596800, -62135596801, -1, 2**63 - 1, -(2**63))
    for seconds in (*powers, *ends):
        answer = api.send("POST", "/api/v1/namespaces", namespace(NAME + field(AT, timestamp(seconds))), form=FORM)
        assert answer.code in (201, 400, 409), (seconds, answer.body)


@pytest.mark.parametrize("seconds", [1 << 40, 1 << 55, 1 << 62, -(1 << 62)])
def test_a_time_out_of_range_is_refused_with_its_number(api, seconds):
    refused = api.send("POST", "/api/v1/namespaces", namespace(NAME + field(AT, timestamp(seconds))), form=FORM)
    assert (refused.code, refused.body["reason"]) == (400, "BadRequest")
    assert f"{seconds} s after 1970 is out of range" in refused.body["message"]


def test_no_body_whatever_leads_to_anything_but_a_document_or_a_reason():
    rng = random.Random(11)
    whole = namespace(NAME + field(11, field(1, b"team") + field(2, b"a")))
    for _ in range(3000):
        damaged = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(4, len(damaged))] = rng.randrange(256)
        with suppress(ValueError):
            assert isinstance(read_protobuf(bytes(damaged), "Namespace"), dict)


def test_every_field_of_the_kinds_has_a_number():
    known = {part.split()[0]: set(part.split()[1:]) for part in NUMBERS.replace("\n    ", " ").strip().splitlines()}
    waiting: list[Struct] = [structs()[kind] for kind in KINDS]
    seen: set[str] = set()
    while waiting:
        struct = waiting.pop()
        seen.add(struct.name)
        assert {*struct.fields, *struct.unserved} == {word.partition("=")[0] for word in known[struct.name]}
        for one in struct.fields.values():
            inner = one.type
            while isinstance(inner, ListOf | MapOf):
                inner = inner.item
            if isinstance(inner, Struct) and inner.name not in seen:
                waiting.append(inner)
    assert seen == known.keys()
