from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.api.names import ClaimUid
from dracaena.kubelet_plugin.prepare.effects import Effect
from dracaena.kubelet_plugin.prepare.journals.checkpoint import (
    Broken,
    Checkpoint,
    State,
    decode_checkpoint,
    encode_checkpoint,
)
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimMetadata
from support.plugin import device_name, gpu_uuid, prepared_claim

UID = ClaimUid("claim-uid")

FIXTURES = Path(__file__).parents[4] / "fixtures" / "checkpoints"
"""One file for each form that a plugin has ever written, made by that plugin."""


def checkpoint(state: State = State.DONE, **device: Any) -> Checkpoint:
    return Checkpoint(state, "boot-1", prepared_claim("claim", (0, 3), **device))


def with_body(change: dict[str, Any]) -> bytes:
    """A file of a newer plugin: further fields, correct checksum, JSON written its own way."""
    document = json.loads(encode_checkpoint(checkpoint()))
    body = json.dumps({**document["checkpoint"], **change}, indent=3)
    digest = hashlib.sha256(body.encode()).hexdigest()
    return f'{{"version": 1, "later": 1, "checkpoint": {body}, "checksum": "sha256:{digest}"}}'.encode()


@settings(derandomize=True)
@given(st.sampled_from(State), st.booleans(), st.none() | st.text(), st.sampled_from([(), (30, 31)]))
def test_a_checkpoint_reads_back(state: State, admin: bool, share: str | None, access: tuple[int, ...]) -> None:
    written = checkpoint(state, admin_access=admin, share_id=share, access_minors=access)
    assert decode_checkpoint(UID, encode_checkpoint(written)) == written


def test_what_tells_a_mig_device_reads_back() -> None:
    more: dict[str, Any] = {"parent_uuid": "GPU-1", "index": 0, "gpu_instance_id": 7, "pci_bus_id": "0000:0f:00.0"}
    written = checkpoint(**more)
    assert decode_checkpoint(UID, encode_checkpoint(written)) == written


@settings(derandomize=True)
@given(st.booleans(), st.none() | st.text(), st.booleans(), st.lists(st.integers(-1, 9), max_size=3))
def test_what_became_of_a_claim_whose_devices_moved_reads_back(
    answered: bool, aside: str | None, planned: bool, minors: list[int]
) -> None:
    prepared = prepared_claim("claim", (0, 3), start=4, size=2)
    former = tuple(replace(prepared.devices[0], minor=minor) for minor in minors)
    written = Checkpoint(State.STARTED, "boot-1", replace(prepared, former=former), answered, aside, planned)
    assert decode_checkpoint(UID, encode_checkpoint(written)) == written


@pytest.mark.parametrize("metadata", [ClaimMetadata("gpus"), ClaimMetadata(None), None])
def test_what_says_that_a_claim_has_metadata_reads_back(metadata: ClaimMetadata | None) -> None:
    prepared = replace(prepared_claim("claim", (0,)), metadata=metadata)
    written = Checkpoint(State.DONE, "boot-1", prepared)
    data = encode_checkpoint(written)
    assert decode_checkpoint(UID, data) == written
    assert (b"metadata" in data) == (metadata is not None)


class _OldDevice(msgspec.Struct):
    """What the release before this one reads of a device: all else it keeps without a look."""

    request: str
    pool: str
    device: str
    uuid: str
    minor: int
    admin_access: bool = False
    share_id: str | None = None
    access_minors: tuple[int, ...] = ()


class _OldBody(msgspec.Struct):
    """The same, of the document."""

    state: Literal["started", "done"]
    boot_id: str
    claim: dict[str, str]
    devices: list[_OldDevice]
    consumers: list[str]


def test_the_release_before_reads_what_this_one_writes() -> None:
    more: dict[str, Any] = {"parent_uuid": "GPU-1", "index": 0, "gpu_instance_id": 7, "pci_bus_id": "0000:0f:00.0"}
    written = checkpoint(**more, access_minors=(30, 31))
    prepared = replace(written.prepared, metadata=ClaimMetadata("gpus"))
    data = encode_checkpoint(replace(written, prepared=prepared))
    envelope = json.loads(data)
    body = data[data.index(b'"checkpoint":') + len(b'"checkpoint":') : -2]
    assert (envelope["version"], envelope["checksum"]) == (1, "sha256:" + hashlib.sha256(body).hexdigest())
    old = msgspec.json.decode(body, type=_OldBody)
    assert [(d.device, d.minor, d.access_minors) for d in old.devices] == [
        (device_name(0), 0, (30, 31)),
        (device_name(3), 3, (30, 31)),
    ]


def test_what_the_release_before_wrote_is_read() -> None:
    body = (
        '{"state":"done","boot_id":"boot-1","claim":{"namespace":"default","name":"claim","uid":"claim-uid"},'
        f'"devices":[{{"request":"gpus","pool":"node-1","device":"{device_name(0)}","uuid":"{gpu_uuid(0)}","minor":0}}],'
        '"consumers":["pod-uid"]}'
    )
    digest = hashlib.sha256(body.encode()).hexdigest()
    data = f'{{"version":1,"checksum":"sha256:{digest}","checkpoint":{body}}}\n'.encode()
    assert decode_checkpoint(UID, data) == Checkpoint(State.DONE, "boot-1", prepared_claim("claim", (0,)))


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.json")), ids=lambda path: path.stem)
def test_files_that_earlier_plugins_wrote_are_read_and_written_again_as_they_were(path: Path) -> None:
    read = decode_checkpoint(UID, path.read_bytes())
    assert isinstance(read, Checkpoint)
    assert [(d.request_name, d.minor, d.share_id) for d in read.prepared.devices] == [
        ("large", 0, "5e1a"),
        ("gpus", 1, None),
    ]
    assert not read.unknown
    assert encode_checkpoint(read) == path.read_bytes()


def test_equal_checkpoints_are_equal_bytes() -> None:
    assert encode_checkpoint(checkpoint()) == encode_checkpoint(checkpoint())


def test_fields_that_we_do_not_know_are_kept() -> None:
    devices = json.loads(encode_checkpoint(checkpoint()))["checkpoint"]["devices"]
    devices[1]["colour"] = "red"
    read = decode_checkpoint(UID, with_body({"profile": {"x": 1}, "devices": devices}))
    assert isinstance(read, Checkpoint)
    assert read.unknown == {"profile": {"x": 1}}
    assert read.unknown_of_devices == {("gpus", device_name(3), None): {"colour": "red"}}
    again = decode_checkpoint(UID, encode_checkpoint(replace(read, state=State.STARTED)))
    assert again == replace(read, state=State.STARTED)


@settings(derandomize=True)
@given(st.data())
def test_no_single_changed_byte_goes_unseen(data: st.DataObject) -> None:
    written = encode_checkpoint(checkpoint())
    position = data.draw(st.integers(0, len(written) - 2))  # the closing newline means nothing
    byte = data.draw(st.integers(0, 255).filter(lambda b: b != written[position]))
    read = decode_checkpoint(UID, written[:position] + bytes([byte]) + written[position + 1 :])
    assert isinstance(read, Broken)


@settings(derandomize=True)
@given(st.integers(0, 5000))
def test_a_file_that_is_cut_off_is_broken(length: int) -> None:
    written = encode_checkpoint(checkpoint())
    assert isinstance(decode_checkpoint(UID, written[: min(length, len(written) - 2)]), Broken)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is not a checkpoint"),
        (b'{"version": 1, "checksum": "x", "checkpoint": ' + b"[" * 100_000, "is not a checkpoint: maximum recursion"),
        (b'{"version": 3, "checksum": "x", "checkpoint": {}}', "has version 3, expected 1 or 2"),
        (b'{"version": 1, "checksum": "x", "checkpoint": {}}', "has checksum sha256:"),
        (with_body({"devices": []}), "prepared without a device"),
        (with_body({"devices": 1}), "does not decode"),
        (with_body({"state": "later"}), "does not decode"),
        (with_body({"claim": {"namespace": "n", "name": "c", "uid": "other"}}), "is of claim UID other"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, problem: str) -> None:
    read = decode_checkpoint(UID, data)
    assert isinstance(read, Broken)
    assert problem in read.problem


EFFECTS = (
    Effect("a", device_name(0), device_name(0), parameters={"n": 1, "on": True, "text": "x"}),
    Effect("b", device_name(3), device_name(3), "share-1", outcome={"made": 7}),
)


def test_effects_read_back_and_a_release_that_knows_none_takes_such_a_file_for_broken() -> None:
    written = checkpoint(State.STARTED)
    written = replace(written, prepared=replace(written.prepared, effects=EFFECTS))
    data = encode_checkpoint(written)
    assert decode_checkpoint(UID, data) == written
    assert json.loads(data)["version"] == 2
    assert json.loads(encode_checkpoint(checkpoint()))["version"] == 1
    assert "effects" not in json.loads(encode_checkpoint(checkpoint()))["checkpoint"]


@pytest.mark.parametrize("former", [False, True])
def test_shares_read_back_and_a_release_that_knows_none_takes_such_a_file_for_broken(former: bool) -> None:
    """It tells devices apart by their names alone, so all shares of a GPU would get the size of one of them."""
    written = checkpoint()
    (device, *_) = written.prepared.devices
    shares = tuple(replace(device, share_id=f"share-{n}", memory_bytes=n << 30, cores=n) for n in (10, 40))
    prepared = written.prepared
    prepared = replace(prepared, former=shares) if former else replace(prepared, devices=shares)
    written = replace(written, prepared=prepared)
    data = encode_checkpoint(written)
    assert decode_checkpoint(UID, data) == written
    assert json.loads(data)["version"] == 2
