from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.annotations import (
    RequestDevices,
    decode_devices,
    decode_uuids,
    encode_devices,
    encode_uuids,
)
from dracaena.api.errors import BadInputError
from dracaena.api.podlist import PodlistEntry, decode_podlist, encode_podlist

text = st.text(max_size=12)
entries = st.builds(
    PodlistEntry,
    name=text,
    namespace=text,
    container=text,
    gpu_list=st.lists(text, max_size=3).map(tuple),
    uid=text,
    claims=st.lists(text, max_size=2).map(tuple),
)


def test_published_keys_come_first_and_in_their_order() -> None:
    entry = PodlistEntry("pod", "ns", "main", ("GPU-1",), uid="u", claims=("c",))
    assert list(json.loads(encode_podlist([entry]))[0]) == [
        "name",
        "namespace",
        "container",
        "gpu_list",
        "uid",
        "claims",
    ]


def test_no_container_with_a_gpu_is_an_empty_array() -> None:
    assert json.loads(encode_podlist([])) == []


@given(st.lists(entries, max_size=5, unique_by=lambda entry: entry.order))
def test_podlist_reads_back_sorted_and_order_of_input_does_not_matter(given_entries: list[PodlistEntry]) -> None:
    data = encode_podlist(given_entries)
    assert decode_podlist(data) == tuple(sorted(given_entries, key=lambda entry: entry.order))
    assert encode_podlist(reversed(given_entries)) == data


def test_unknown_keys_are_ignored() -> None:
    data = b'[{"name":"p","namespace":"n","container":"c","gpu_list":["GPU-1"],"later":{"x":1}}]'
    assert decode_podlist(data) == (PodlistEntry("p", "n", "c", ("GPU-1",)),)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[1]", b'[{"name":"\xff"}]', b'[{"name":"p"}]', b'[{"name":"p","namespace":"n"', b"\xff"]
)
def test_other_shapes_are_bad_input(data: bytes) -> None:
    with pytest.raises(BadInputError, match="podlist does not decode"):
        decode_podlist(data)


def test_devices_annotation_reads_back_sorted_by_container() -> None:
    value = encode_devices({"z": [RequestDevices("c", "gpus", ("GPU-1", "GPU-2"))], "a": []})
    assert value == '{"a":[],"z":[{"claim":"c","request":"gpus","uuids":["GPU-1","GPU-2"]}]}'
    assert decode_devices(value) == {"a": (), "z": (RequestDevices("c", "gpus", ("GPU-1", "GPU-2")),)}


def test_broken_devices_annotation_is_bad_input() -> None:
    with pytest.raises(BadInputError, match="devices annotation"):
        decode_devices('{"a": 1}')


def test_uuids_annotation_names_each_gpu_once() -> None:
    assert encode_uuids(["GPU-2", "GPU-1", "GPU-2"]) == "GPU-2,GPU-1"
    assert decode_uuids("GPU-2,GPU-1") == ("GPU-2", "GPU-1")
    assert decode_uuids(encode_uuids([])) == ()
