from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.names import ClaimUid
from dracaena.kubelet_plugin.prepare.checkpoint import (
    Broken,
    Checkpoint,
    State,
    decode_checkpoint,
    encode_checkpoint,
)
from support.plugin import device_name, prepared_claim

UID = ClaimUid("claim-uid")


def checkpoint(state: State = State.DONE, **device: Any) -> Checkpoint:
    return Checkpoint(state, "boot-1", prepared_claim("claim", (0, 3), **device))


def with_body(change: dict[str, Any]) -> bytes:
    """A file of a newer plugin: further fields, correct checksum, JSON written its own way."""
    document = json.loads(encode_checkpoint(checkpoint()))
    body = json.dumps({**document["checkpoint"], **change}, indent=3)
    digest = hashlib.sha256(body.encode()).hexdigest()
    return f'{{"version": 1, "later": 1, "checkpoint": {body}, "checksum": "sha256:{digest}"}}'.encode()


@given(st.sampled_from(State), st.booleans(), st.none() | st.text(), st.sampled_from([(), (30, 31)]))
def test_a_checkpoint_reads_back(state: State, admin: bool, share: str | None, access: tuple[int, ...]) -> None:
    written = checkpoint(state, admin_access=admin, share_id=share, access_minors=access)
    assert decode_checkpoint(UID, encode_checkpoint(written)) == written


def test_equal_checkpoints_are_equal_bytes() -> None:
    assert encode_checkpoint(checkpoint()) == encode_checkpoint(checkpoint())


def test_fields_that_we_do_not_know_are_kept() -> None:
    devices = json.loads(encode_checkpoint(checkpoint()))["checkpoint"]["devices"]
    devices[1]["colour"] = "red"
    read = decode_checkpoint(UID, with_body({"profile": {"x": 1}, "devices": devices}))
    assert isinstance(read, Checkpoint)
    assert read.unknown == {"profile": {"x": 1}}
    assert read.unknown_of_devices == {device_name(3): {"colour": "red"}}
    again = decode_checkpoint(UID, encode_checkpoint(dataclasses.replace(read, state=State.STARTED)))
    assert again == dataclasses.replace(read, state=State.STARTED)


@given(st.data())
def test_no_single_changed_byte_goes_unseen(data: st.DataObject) -> None:
    written = encode_checkpoint(checkpoint())
    position = data.draw(st.integers(0, len(written) - 2))  # the closing newline means nothing
    byte = data.draw(st.integers(0, 255).filter(lambda b: b != written[position]))
    read = decode_checkpoint(UID, written[:position] + bytes([byte]) + written[position + 1 :])
    assert isinstance(read, Broken)


@given(st.integers(0, 5000))
def test_a_file_that_is_cut_off_is_broken(length: int) -> None:
    written = encode_checkpoint(checkpoint())
    assert isinstance(decode_checkpoint(UID, written[: min(length, len(written) - 2)]), Broken)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is no checkpoint"),
        (b'{"version": 2, "checksum": "x", "checkpoint": {}}', "has version 2, expected 1"),
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
