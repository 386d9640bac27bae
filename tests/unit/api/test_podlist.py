from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from dracaena.api.annotations import (
    RequestDevices,
    decode_devices,
    decode_uuids,
    encode_devices,
    encode_uuids,
)
from dracaena.api.device_share import DeviceShare
from dracaena.api.errors import BadInputError
from dracaena.api.podlist import PodlistEntry, decode_podlist, podlist_schema
from support.podlists import encode_podlist

SCHEMA = Draft7Validator(podlist_schema())
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
    "data",
    [
        b"",
        b"{}",
        b"[1]",
        b'[{"name":"\xff"}]',
        b'[{"name":"p"}]',
        b'[{"name":"p","namespace":"n"',
        b"\xff",
        b'[{"x":' + b"[" * 100_000,
    ],
)
def test_other_shapes_are_bad_input(data: bytes) -> None:
    with pytest.raises(BadInputError, match="podlist does not decode"):
        decode_podlist(data)


names = st.sampled_from(["a", "b-1", "GPU-1", "MIG-1", 'quote"d', "line\nbreak", "<b>markup</b>", "\u00fc"])
uuids = st.lists(names, min_size=1, max_size=3, unique=True)
listed_entries = st.builds(
    PodlistEntry,
    name=names,
    namespace=names,
    container=names,
    gpu_list=uuids.map(tuple),
    uid=names,
    claims=uuids.map(tuple),
    mig=st.dictionaries(names, names, max_size=1),
    shares=st.lists(
        st.builds(DeviceShare, gpu=names, share_id=names, memory=st.just("20Gi"), cores=st.integers(0, 100)), max_size=1
    ).map(tuple),
)


@given(st.lists(listed_entries, max_size=2, unique_by=lambda entry: entry.order))
def test_what_is_written_holds_to_the_schema(given_entries: list[PodlistEntry]) -> None:
    SCHEMA.validate(json.loads(encode_podlist(given_entries)))


@pytest.mark.parametrize(
    "change",
    [
        {"name": 1},
        {"gpu_list": []},
        {"gpu_list": "GPU-1"},
        {"gpu_list": ["GPU-1", "GPU-1"]},
        {"claims": []},
        {"mig": {}},
        {"mig": {"MIG-1": 7}},
        {"shares": [{"gpu": "GPU-1", "share_id": "s", "memory": "1Gi"}]},
        {"shares": [{"gpu": "GPU-1", "share_id": "s", "memory": "1Gi", "cores": 101}]},
        *({key: None} for key in ("name", "namespace", "container", "gpu_list", "uid", "claims")),
    ],
)
def test_the_schema_refuses_other_forms(change: dict[str, object]) -> None:
    entry = {"name": "p", "namespace": "n", "container": "c", "gpu_list": ["GPU-1"], "uid": "u", "claims": ["x"]}
    SCHEMA.validate([{**entry, "later": 1}])
    changed = {key: value for key, value in {**entry, **change}.items() if value is not None}
    assert not SCHEMA.is_valid([changed])


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
