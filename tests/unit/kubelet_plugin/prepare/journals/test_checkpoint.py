from __future__ import annotations

import hashlib
import json
import random
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.api.names import ClaimUid, PodUid
from dracaena.kubelet_plugin.prepare.cdi.spec import Edits, Mount
from dracaena.kubelet_plugin.prepare.effects import MIG_OFF, Effect, Scalar
from dracaena.kubelet_plugin.prepare.journals.checkpoint import (
    Broken,
    Checkpoint,
    State,
    decode_checkpoint,
    encode_checkpoint,
)
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimMetadata, PreparedDevice
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


def with_prepared(change: dict[str, Any]) -> bytes:
    prepared = json.loads(encode_checkpoint(checkpoint()))["checkpoint"]["prepared"]
    return with_body({"prepared": {**prepared, **change}})


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
    answered: bool, aside: str | None, provisional: bool, minors: list[int]
) -> None:
    prepared = prepared_claim("claim", (0, 3), start=4, size=2)
    former = tuple(replace(prepared.devices[0], minor=minor) for minor in minors)
    written = Checkpoint(State.STARTED, "boot-1", replace(prepared, former=former), answered, aside, provisional)
    assert decode_checkpoint(UID, encode_checkpoint(written)) == written


@pytest.mark.parametrize("metadata", [ClaimMetadata("gpus"), ClaimMetadata(None), None])
def test_what_says_that_a_claim_has_metadata_reads_back(metadata: ClaimMetadata | None) -> None:
    prepared = replace(prepared_claim("claim", (0,)), metadata=metadata)
    written = Checkpoint(State.DONE, "boot-1", prepared)
    assert decode_checkpoint(UID, encode_checkpoint(written)) == written


def test_a_file_that_has_more_fields_or_other_white_space_is_read() -> None:
    assert decode_checkpoint(UID, with_body({"profile": {"x": 1}})) == checkpoint()


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
        (b'{"version": 2, "checksum": "x", "checkpoint": {}}', "has version 2, expected 1"),
        (b'{"version": 1, "checksum": "x", "checkpoint": {}}', "has checksum sha256:"),
        (with_prepared({"devices": []}), "prepared without a device"),
        (with_prepared({"devices": 1}), "does not decode"),
        (with_body({"state": "later"}), "does not decode"),
        (with_prepared({"claim": {"namespace": "n", "name": "c", "uid": "other"}}), "is of claim UID other"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, problem: str) -> None:
    read = decode_checkpoint(UID, data)
    assert isinstance(read, Broken)
    assert problem in read.problem


EFFECTS = (
    Effect("a", device_name(0), device_name(0), parameters={"n": 1, "on": True, "text": "x"}),
    Effect("b", device_name(3), device_name(3), "share-1", thing="another"),
)


def test_effects_read_back() -> None:
    written = checkpoint(State.STARTED)
    written = replace(written, prepared=replace(written.prepared, wants=EFFECTS))
    assert decode_checkpoint(UID, encode_checkpoint(written)) == written


@pytest.mark.parametrize("former", [False, True])
def test_shares_of_one_gpu_read_back_each_with_its_size(former: bool) -> None:
    written = checkpoint()
    (device, *_) = written.prepared.devices
    shares = tuple(replace(device, share_id=f"share-{n}", memory_bytes=n << 30, cores=n) for n in (10, 40))
    prepared = written.prepared
    prepared = replace(prepared, former=shares) if former else replace(prepared, devices=shares)
    written = replace(written, prepared=prepared)
    assert decode_checkpoint(UID, encode_checkpoint(written)) == written


def test_every_field_of_a_device_and_of_its_claim_reads_back() -> None:
    written = checkpoint(
        State.STARTED,
        admin_access=True,
        share_id="share",
        access_minors=(30, 31),
        parent_uuid="GPU-1",
        index=0,
        gpu_instance_id=7,
        pci_bus_id="0000:0f:00.0",
        start=4,
        size=2,
        memory_bytes=10 << 30,
        cores=40,
        iommu_group=12,
        resource="nvidia.com/H100",
        iommufd=True,
        vgpu_type_id="nvidia-222",
        edits=Edits(("A=1",), mounts=(Mount("/a", "/b", ("ro",)),)),
    )
    prepared = replace(written.prepared, in_guest=True, consumers=(PodUid("pod-1"), PodUid("pod-2")), wants=EFFECTS)
    written = Checkpoint(State.STARTED, "boot-1", prepared, answered=True, aside="why", provisional=True)
    default = {field.name: field.default for field in fields(PreparedDevice)}
    for device in written.prepared.devices:
        assert not [name for name, value in default.items() if getattr(device, name) == value], "a field is not tried"
    assert decode_checkpoint(UID, encode_checkpoint(written)) == written


VALUES = st.dictionaries(st.text(max_size=3), st.text(max_size=3) | st.integers(-9, 9), max_size=4)


@settings(derandomize=True)
@given(VALUES, st.randoms(use_true_random=False))
def test_equal_checkpoints_are_equal_bytes(parameters: dict[str, Scalar], rng: random.Random) -> None:
    def shuffled(values: dict[str, Scalar]) -> dict[str, Scalar]:
        return dict(rng.sample(list(values.items()), len(values)))

    def written(parameters: dict[str, Scalar]) -> Checkpoint:
        effect = replace(EFFECTS[0], parameters=parameters)
        return replace(checkpoint(), prepared=replace(checkpoint().prepared, wants=(effect,)))

    one = written(parameters)
    other = written(shuffled(parameters))
    assert one == other
    assert encode_checkpoint(one) == encode_checkpoint(other)
    assert decode_checkpoint(UID, encode_checkpoint(other)) == one


def test_a_claim_of_8_gpus_that_each_need_an_effect_fits_into_one_page() -> None:
    """Then a crash leaves the old or the new checkpoint, even while the disk is full."""
    prepared = prepared_claim("claim", range(8), index=7, pci_bus_id="0000:0f:00.0")
    effects = [Effect(MIG_OFF, d.device, d.device, parameters={"gpu": d.uuid}) for d in prepared.devices]
    boot_id = "4b5f7c62-5a65-4a5c-a3c5-5c1f5e0f2d11"
    written = Checkpoint(State.DONE, boot_id, replace(prepared, wants=tuple(effects)))
    assert len(encode_checkpoint(written)) <= 4096
