"""Claims on MIG devices, whole GPUs and shares of the same GPUs, through prepare and unprepare on real files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.errors import DracaenaError
from dracaena.api.names import DeviceName
from dracaena.api.resource_objects import ResourceClaim
from dracaena.host.gpu_driver.thread import WedgedError
from dracaena.kubelet_plugin.changes.kinds.mig_instances import SETTLED_S
from dracaena.kubelet_plugin.claims.device_state import PrepareError, SetAsideError
from dracaena.kubelet_plugin.claims.last_guard import DeviceHeldError
from dracaena.kubelet_plugin.ports import EffectPendingError
from support.fake_mig import CHANGES
from support.mig_claims import Claims
from support.mig_node import ask_at_once, mig_node
from support.plugin import (
    BEST_EFFORT,
    reference_to,
    share_of,
    sharing_config,
)


@pytest.fixture
def claims(tmp_path: Path) -> Iterator[Claims]:
    with mig_node() as mig:
        yield Claims(tmp_path, mig)


def test_a_claim_gets_the_mig_device_that_was_made_for_it_by_its_nodes_and_uuid(claims: Claims) -> None:
    claim = claims.claim("one", claims.place("3g.40gb", 4))
    (device,) = claims.node.state.prepare(reference_to(claim)).devices
    uuid = "MIG-00000000-0000-0000-0000-000000000001"
    assert (device.uuid, device.gpu_instance_id, device.start, device.size) == (uuid, 1, 4, 4)
    spec = claims.node.files()["cdi/gpu.dracaena.dev-claim_one-uid.json"].decode()
    for path in ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"):
        assert f'"path": "{path}"' in spec
    assert "NVIDIA_VISIBLE_DEVICES=void" in spec
    claims.restart()
    assert claims.node.state.prepare(reference_to(claim)).devices == (device,)
    claims.node.recovery.follow_devices()
    assert claims.done()[0].devices == (device,)
    claims.node.state.unprepare(reference_to(claim))
    assert claims.mig.hardware.layout(0) == []
    assert claims.node.node_claims.of(reference_to(claim).uid) is None


def test_a_claim_of_several_devices_gets_all_or_none(claims: Claims) -> None:
    every = [claims.place("1g.10gb", start) for start in range(7)]
    claim = claims.claim("seven", *every)
    claims.mig.hardware.put(0, "1g.10gb", 6)
    with pytest.raises(DracaenaError, match=r"memory slice 6 of GPU .* is taken by GPU instance"):
        claims.node.state.prepare(reference_to(claim))
    assert claims.mig.hardware.layout(0) == [("1g.10gb", 6, 1)]
    claims.mig.hardware.gpus[0].instances.clear()
    prepared = claims.node.state.prepare(reference_to(claim))
    assert len({device.uuid for device in prepared.devices}) == 7


def test_who_has_a_part_excludes_who_wants_the_whole_and_the_other_way_round(claims: Claims) -> None:
    part = claims.claim("part", claims.place("1g.10gb", 0))
    whole = claims.claim("whole", claims.gpus[0])
    share = claims.claim("share", claims.gpus[0], config=BEST_EFFORT, **share_of("10Gi"))
    over = claims.claim("over", claims.place("2g.20gb", 0))
    beside = claims.claim("beside", claims.place("2g.20gb", 2))
    claims.node.state.prepare(reference_to(part))
    for held in (whole, share, over):
        with pytest.raises(DeviceHeldError):
            claims.node.state.prepare(reference_to(held))
    claims.node.state.prepare(reference_to(beside))
    for claim in (part, beside):
        claims.node.state.unprepare(reference_to(claim))
    claims.node.state.prepare(reference_to(whole))
    with pytest.raises(DeviceHeldError):
        claims.node.state.prepare(reference_to(part))


def test_a_whole_gpu_and_a_share_take_it_out_of_mig_mode_or_say_what_stands_in_the_way(claims: Claims) -> None:
    gpu = claims.mig.hardware.gpus[0]
    gpu.mode = gpu.pending = gpu.watched = True
    for claim in (
        claims.claim("whole", claims.gpus[0]),
        claims.claim("share", claims.gpus[0], config=BEST_EFFORT, **share_of("10Gi")),
    ):
        gpu.mode = gpu.pending = gpu.watched = True
        with pytest.raises(DracaenaError, match=r"does not leave MIG mode.*IN_USE"):
            claims.node.state.prepare(reference_to(claim))
        assert claims.done() == []
        gpu.watched = False
        claims.node.state.prepare(reference_to(claim))
        assert not gpu.mode
        claims.node.state.unprepare(reference_to(claim))


def test_a_place_is_ours_while_it_is_noted_and_as_long_after_that_as_a_reading_may_be_older(claims: Claims) -> None:
    place, instances, clock = DeviceName(claims.place("1g.10gb", 0)), claims.mig.instances, claims.mig.clock
    claim = claims.claim("one", place)
    assert instances.places() == frozenset()
    claims.node.state.prepare(reference_to(claim))
    assert instances.places() == instances.settling() == {place}
    clock.advance(SETTLED_S + 1)
    assert instances.places() == {place}
    assert instances.settling() == frozenset()
    claims.note_of(place).write_bytes(b"rubbish")
    assert instances.places() == {place}, "it may be ours"
    claims.note_of(place).unlink()
    claims.node.state.unprepare(reference_to(claim))
    assert instances.places() == frozenset()
    claims.node.state.prepare(reference_to(other := claims.claim("other", claims.place("1g.10gb", 3))))
    claims.node.state.unprepare(reference_to(other))
    clock.advance(SETTLED_S)
    assert instances.places() == {claims.place("1g.10gb", 3)}
    clock.advance(1)
    assert instances.places() == frozenset()


def test_a_strategy_that_a_mig_device_does_not_offer_is_refused(claims: Claims) -> None:
    device = claims.place("1g.10gb", 0)
    claim = claims.claim("mps", device, config=sharing_config(strategy="MPS"))
    with pytest.raises(PrepareError, match=r"strategy MPS, which MIG device .* does not offer"):
        claims.node.state.prepare(reference_to(claim))


def test_an_instance_that_is_in_use_keeps_its_place_until_it_can_go(claims: Claims) -> None:
    claim = claims.claim("one", claims.place("1g.10gb", 0))
    claims.node.state.prepare(reference_to(claim))
    claims.mig.hardware.gpus[0].instances[1].busy = True
    with pytest.raises(DracaenaError, match="IN_USE"):
        claims.node.state.unprepare(reference_to(claim))
    other = claims.claim("other", claims.place("1g.10gb+me", 0))
    with pytest.raises(DeviceHeldError):
        claims.node.state.prepare(reference_to(other))
    claims.mig.hardware.gpus[0].instances[1].busy = False
    claims.node.state.unprepare(reference_to(claim))
    claims.node.state.prepare(reference_to(other))


def test_a_place_that_is_about_to_be_made_is_held_before_the_driver_is_asked(claims: Claims) -> None:
    def wedge(what: str, work: Any, _deadline_s: float) -> object:
        if what.startswith("making"):
            raise WedgedError("the NVIDIA driver does not answer")
        return work()

    pending = claims.claim("pending", claims.place("2g.20gb", 0))
    other = claims.claim("other", claims.place("1g.10gb", 1))
    claims.mig.ask = wedge
    with pytest.raises(EffectPendingError):
        claims.node.state.prepare(reference_to(pending))
    claims.mig.ask = ask_at_once
    claims.mig.fake.calls.clear()
    with pytest.raises(DeviceHeldError):
        claims.node.state.prepare(reference_to(other))
    assert not set(CHANGES) & set(claims.mig.fake.calls)
    claims.node.state.prepare(reference_to(pending))
    assert claims.mig.hardware.layout(0) == [("2g.20gb", 0, 1)]


@pytest.mark.parametrize("is_read", [True, False], ids=["", "of a plugin that has read nothing yet"])
def test_a_claim_that_ends_while_the_driver_is_released_is_unprepared(claims: Claims, is_read: bool) -> None:
    """Or a drain for a new driver would never end. What outlives the new driver is nobody's, and is told as that."""
    part, whole = claims.claim("part", claims.place("1g.10gb", 0)), claims.claim("whole", claims.gpus[1])
    for claim in (part, whole):
        claims.node.state.prepare(reference_to(claim))
    claims.mig.release.reason = "label gpu.dracaena.dev/release-driver asks for it"
    claims.mig.is_read = is_read
    for claim in (part, whole):
        claims.node.state.unprepare(reference_to(claim))
        assert claims.node.node_claims.of(reference_to(claim).uid) is None
    assert not claims.mig.library.is_open
    assert claims.mig.hardware.layout(0) == [("1g.10gb", 0, 1)], "nothing was asked of the driver"


def loaded_anew(claims: Claims, *lost: ResourceClaim) -> None:
    """Load the driver anew, which leaves no instance; then a reading tells which claims have lost their devices."""
    for gpu in claims.mig.hardware.gpus:
        gpu.instances.clear()
    names = {claim.metadata.name for claim in lost}
    devices = [d for prepared in claims.done() if prepared.claim.name in names for d in prepared.devices]
    claims.read(dataclasses.replace(claims.pool, vanished={device.device: device.uuid for device in devices}))


@pytest.mark.parametrize("is_read", [True, False], ids=["", "before any reading shows that it is gone"])
def test_the_nodes_of_a_device_that_is_gone_open_no_other_claims_device(claims: Claims, is_read: bool) -> None:
    """Containers that run go on to hold them, and the driver gives number and nodes to the next instance."""
    gone = claims.claim("gone", claims.place("1g.10gb", 0))
    other = claims.claim("other", claims.place("1g.10gb", 3))
    (before,) = claims.node.state.prepare(reference_to(gone)).devices
    loaded_anew(claims, *([gone] if is_read else []))
    claims.node.recovery.follow_devices()
    with pytest.raises(
        DeviceHeldError, match=r"nvidia-cap13 now, which containers of claim default/gone .* still have"
    ):
        claims.node.state.prepare(reference_to(other))
    assert claims.mig.hardware.layout(0) == []
    claims.node.state.unprepare(reference_to(gone))
    (device,) = claims.node.state.prepare(reference_to(other)).devices
    assert device.access_minors == before.access_minors == (12, 13)


def test_a_claim_whose_device_is_gone_stands_in_the_way_of_its_place_and_its_nodes_alone(claims: Claims) -> None:
    gone = claims.claim("gone", claims.place("1g.10gb", 0))
    claims.node.state.prepare(reference_to(gone))
    loaded_anew(claims, gone)
    claims.node.recovery.follow_devices()
    claims.mig.hardware.put(0, "1g.10gb", 6)  # gets number and nodes of what is gone
    beside = claims.claim("beside", claims.place("1g.10gb", 3))
    (device,) = claims.node.state.prepare(reference_to(beside)).devices
    assert device.gpu_instance_id == 2
    over = claims.claim("over", claims.place("2g.20gb", 0))
    with pytest.raises(DeviceHeldError, match=r"is still held as a part of the same GPU.* by claim default/gone"):
        claims.node.state.prepare(reference_to(over))


def test_no_container_is_started_with_the_nodes_of_a_device_that_is_gone(claims: Claims) -> None:
    claim = claims.claim("gone", claims.place("1g.10gb", 0))
    prepared = claims.node.state.prepare(reference_to(claim))
    files = claims.node.files()
    there = claims.pool
    loaded_anew(claims, claim)
    (trouble,), _ = claims.node.recovery.follow_devices()
    assert trouble.aside == f"MIG device {prepared.devices[0].uuid} is gone"
    assert trouble.vanished == (prepared.devices[0].uuid,)
    assert "cdi/gpu.dracaena.dev-claim_gone-uid.json" not in claims.node.files()
    for _ in range(2):
        with pytest.raises(SetAsideError, match="is gone"):
            claims.node.state.prepare(reference_to(claim))
        claims.restart()
    claims.read(there)  # as if the reading had been wrong
    claims.node.recovery.follow_devices()
    assert claims.done()[0].devices == prepared.devices
    assert claims.node.files() == files
    loaded_anew(claims, claim)
    claims.node.recovery.follow_devices()
    claims.node.state.unprepare(reference_to(claim))
    assert claims.node.node_claims.by_boot() == ((), (), ())


def test_a_place_that_is_not_divided_on_demand_is_no_device(tmp_path: Path) -> None:
    with mig_node() as mig:
        claims = Claims(tmp_path, mig, setting="1")
        claim = claims.claim("one", claims.place("1g.10gb", 0))
        with pytest.raises(PrepareError, match="this node has no device mig-"):
            claims.node.state.prepare(reference_to(claim))
        assert dataclasses.replace(claims.pool).switched == {claims.gpus[1]}
