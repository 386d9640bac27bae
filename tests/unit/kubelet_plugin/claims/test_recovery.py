"""What recovery settles without kubelet: half a preparation, lost files, broken checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.config.v1alpha1 import TimeSliceInterval
from dracaena.api.errors import TemporaryError
from dracaena.api.names import ClaimUid
from dracaena.api.resource_objects import ResourceClaim
from dracaena.host.adapters.files.whole_files import DocumentFolder, FileSteps
from dracaena.kubelet_plugin.adapters.gpu_driver.files import Kernel
from dracaena.kubelet_plugin.changes.change import Note, Thing
from dracaena.kubelet_plugin.changes.kinds.time_slices import NotedInterval
from dracaena.kubelet_plugin.claims.device_state import PrepareError
from dracaena.kubelet_plugin.claims.last_guard import DeviceHeldError
from dracaena.kubelet_plugin.gpu_driver.installation import GpuDriverInstallation, GpuDriverPlaces
from dracaena.kubelet_plugin.prepare.cdi.gpu_driver_files import GpuDriverEdits
from dracaena.kubelet_plugin.prepare.effects import TIME_SLICE
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference
from dracaena.kubelet_plugin.store.claims import BOOT_MARK, NodeClaims
from support.full_disk import FullDisk
from support.gpu_driver_root import VERSION, put_gpu_driver
from support.killed_steps import KilledSteps, StopError
from support.plugin import FakeClaims, FakePods, PluginNode, make_claim, make_pod, make_pool, reference_to

CLAIM = make_claim(devices=(0, 1), reserved_for={"pod": "pod-uid"})
REFERENCE = reference_to(CLAIM)
CHECKPOINT = "claims/claim-uid.json"
SPEC = "cdi/gpu.dracaena.dev-claim_claim-uid.json"
OTHER = ClaimReference("default", "other", ClaimUid("other-uid"))


def node_in(folder: Path, steps: FileSteps | None = None, **parts: Any) -> PluginNode:
    return PluginNode(folder, FakeClaims(CLAIM), FakePods(make_pod()), steps=steps or FileSteps(), **parts)


def half_prepare(node: PluginNode) -> None:
    """Leave what a crash in the middle of a first preparation leaves."""
    prepared = node.state.prepare(REFERENCE)
    node.node_claims.discard(REFERENCE.uid)
    node.node_claims.start(prepared)


def state_of(node: PluginNode) -> str:
    return str(json.loads(node.files()[CHECKPOINT])["checkpoint"]["state"])


def break_it(checkpoint: Path) -> None:
    checkpoint.write_bytes(b"{")


def test_the_notes_of_an_earlier_boot_are_gone_once_this_one_is_marked_wherever_a_start_is_killed(
    tmp_path: Path,
) -> None:
    for steps in range(1, 40):
        folder = tmp_path / str(steps)
        node = node_in(folder, boot_id="boot-1")
        node.recovery.enter_boot()
        node.state.prepare(REFERENCE)
        break_it(folder / CHECKPOINT)
        note, mark = folder / "ledger/time-slice.gpu-1.json", folder / BOOT_MARK
        note.parent.mkdir(exist_ok=True)
        note.write_bytes(b"torn")
        old = mark.read_bytes()
        killed = node_in(folder, boot_id="boot-2", steps=KilledSteps(steps))
        try:
            killed.recovery.enter_boot()
        except StopError:
            assert mark.read_bytes() == old or not note.exists(), steps
            node_in(folder, boot_id="boot-2").recovery.enter_boot()
            assert not note.exists()
            continue
        assert not note.exists()
        assert steps > 3
        return
    raise AssertionError("a start takes more steps than were tried")


def test_the_notes_of_an_earlier_boot_are_gone_although_a_cdi_spec_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = node_in(tmp_path, boot_id="boot-1")
    node.recovery.enter_boot()
    node.state.prepare(REFERENCE)
    break_it(tmp_path / CHECKPOINT)
    (tmp_path / "ledger").mkdir(exist_ok=True)
    (tmp_path / "ledger/time-slice.gpu-1.json").write_bytes(b"torn")

    def refuse(*_given: object) -> None:
        raise TemporaryError("the folder is read-only")

    monkeypatch.setattr(NodeClaims, "remove_spec", refuse)
    node_in(tmp_path, boot_id="boot-2").recovery.enter_boot()
    assert list((tmp_path / "ledger").iterdir()) == []


DAMAGES = pytest.mark.parametrize("damage", [break_it, Path.unlink], ids=["broken", "lost"])


@DAMAGES
def test_what_was_done_in_a_boot_that_could_not_be_marked_is_not_taken_for_remains_of_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None]
) -> None:
    """The disk was full when the plugin first started in it."""
    node_in(tmp_path, boot_id="boot-1").recovery.enter_boot()
    node = node_in(tmp_path, boot_id="boot-2")

    def refuse(*_given: object) -> None:
        raise TemporaryError("no space left on device")

    with monkeypatch.context() as full:
        full.setattr(DocumentFolder, "write", refuse)
        node.recovery.enter_boot()
    node.state.prepare(REFERENCE)
    with node.node_claims.hold():
        node.node_claims.start(replace(node.node_claims.prepared()[0], claim=OTHER))
    thing = Thing(TIME_SLICE, "gpu-1")
    node.ledger.write(thing, Note("boot-2", {}, NotedInterval(TimeSliceInterval.SHORT)))
    damage(tmp_path / CHECKPOINT)
    again = node_in(tmp_path, boot_id="boot-2")
    again.recovery.enter_boot()
    assert again.ledger.read(thing, NotedInterval) is not None
    assert (tmp_path / SPEC).exists(), "its containers may run"
    assert again.node_claims.may_be_in_use(REFERENCE.uid) or damage is Path.unlink


def test_a_cdi_spec_that_was_lost_is_written_again(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.state.prepare(REFERENCE)
    before = node.files()
    (tmp_path / SPEC).unlink()
    node.state.prepare(REFERENCE)
    assert node.files() == before


def test_a_cdi_spec_that_was_lost_is_written_again_at_start_without_kubelet_or_api(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.state.prepare(REFERENCE)
    before = node.files()
    (tmp_path / SPEC).unlink()
    restarted = node_in(tmp_path)
    restarted.claims.unavailable = True
    assert restarted.recovery.recover(())
    assert restarted.files() == before


def test_a_lost_cdi_spec_waits_for_a_driver_that_comes_late(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.state.prepare(REFERENCE)
    (tmp_path / SPEC).unlink()
    root = tmp_path / "driver"
    places = GpuDriverPlaces(str(root), str(root), str(root))
    installation = GpuDriverInstallation(places, required=True, kernel=Kernel(str(root / "sys")))
    restarted = node_in(tmp_path, gpu_driver_edits=installation.edits)
    assert not restarted.recovery.recover(())
    assert SPEC not in restarted.files()
    put_gpu_driver(root)
    assert restarted.recovery.recover(())
    mounts = json.loads((tmp_path / SPEC).read_bytes())["containerEdits"]["mounts"]
    assert f"{root}/usr/lib64/libcuda.so.{VERSION}" in {mount["hostPath"] for mount in mounts}


@pytest.mark.parametrize("damage", [b"", b"{", b'{"version":1,"checksum":"sha256:0","checkpoint":{}}'])
def test_a_broken_checkpoint_is_set_aside_and_rebuilt_from_the_claim(tmp_path: Path, damage: bytes) -> None:
    node = node_in(tmp_path)
    node.state.prepare(REFERENCE)
    before = node.files()
    (tmp_path / CHECKPOINT).write_bytes(damage)
    node.state.prepare(REFERENCE)
    assert node.files() == {**before, f"{CHECKPOINT}.broken": damage}


def test_a_running_pods_broken_checkpoint_is_rebuilt_without_kubelet(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.state.prepare(REFERENCE)
    before = node.files()
    (tmp_path / CHECKPOINT).write_bytes(b"{")
    restarted = node_in(tmp_path)
    assert restarted.recovery.recover(restarted.pods.values())
    assert {**before, f"{CHECKPOINT}.broken": b"{"} == node.files()


def test_half_a_preparation_whose_claim_is_gone_is_taken_back(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    half_prepare(node)
    assert state_of(node) == "started"
    node.claims.by_key.clear()
    assert node.recovery.recover(node.pods.values())
    assert not set(node.files()) & {CHECKPOINT, SPEC}


def test_what_kubelet_unprepares_while_recovery_reads_the_claim_is_not_prepared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would unprepare it once more: the sweeper waits ten minutes before it takes that as certain."""
    node = node_in(tmp_path)
    half_prepare(node)
    read = node.claims.read_claim

    def unprepared_meanwhile(reference: ClaimReference) -> ResourceClaim:
        claim = read(reference)
        node.state.unprepare(reference)
        return claim

    monkeypatch.setattr(node.claims, "read_claim", unprepared_meanwhile)
    assert node.recovery.recover(node.pods.values())
    assert not set(node.files()) & {CHECKPOINT, SPEC}


def test_recovery_waits_for_an_api_that_does_not_answer(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    half_prepare(node)
    node.claims.unavailable = True
    assert not node.recovery.recover(node.pods.values())
    node.claims.unavailable = False
    assert node.recovery.recover(node.pods.values())
    assert state_of(node) == "done"


def test_other_claims_are_recovered_while_the_api_does_not_name_one_with_a_broken_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = FakePods(make_pod(claims={"claim": "claim", "other": "other"}))
    node = PluginNode(tmp_path, FakeClaims(CLAIM), pods, steps=FileSteps())
    other = make_claim("other", uid="other-uid", devices=(2,), reserved_for={"pod": "pod-uid"})
    node.claims.put(other)
    node.state.prepare(reference_to(other))
    whole = (tmp_path / "claims/other-uid.json").read_bytes()
    break_it(tmp_path / "claims/other-uid.json")
    half_prepare(node)

    def no_answer(*_: str) -> None:
        raise TemporaryError("GET resourceclaims: no answer")

    with monkeypatch.context() as away:
        away.setattr(node.claims, "find_claim", no_answer)
        assert not node.recovery.recover(node.pods.values())
    assert state_of(node) == "done"
    assert (tmp_path / "claims/other-uid.json").read_bytes() == b"{"
    assert node.recovery.recover(node.pods.values())
    assert (tmp_path / "claims/other-uid.json").read_bytes() == whole


@DAMAGES
@pytest.mark.parametrize("writes", range(2))
def test_a_rebuild_that_fails_leaves_a_running_pods_devices_held(
    tmp_path: Path, writes: int, damage: Callable[[Path], object]
) -> None:
    node_in(tmp_path).state.prepare(REFERENCE)
    damage(tmp_path / CHECKPOINT)
    for _ in range(2):
        with pytest.raises(TemporaryError, match="No space left on device"):
            node_in(tmp_path, FullDisk(writes)).state.prepare(REFERENCE)
    node = node_in(tmp_path)
    node.claims.put(make_claim("other", (1,)))
    with pytest.raises(DeviceHeldError):
        node.state.prepare(OTHER)
    assert len(node.state.prepare(REFERENCE).devices) == 2
    assert state_of(node) == "done"


@DAMAGES
def test_a_rebuild_that_fails_takes_no_spec_from_a_running_pod(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    node_in(tmp_path).state.prepare(REFERENCE)
    before = (tmp_path / SPEC).read_bytes()
    damage(tmp_path / CHECKPOINT)

    def stopping() -> GpuDriverEdits:
        raise TemporaryError("the plugin is stopping")

    with pytest.raises(TemporaryError, match="is stopping"):
        node_in(tmp_path, gpu_driver_edits=stopping).state.prepare(REFERENCE)
    assert (tmp_path / SPEC).read_bytes() == before


@DAMAGES
def test_a_running_pods_claim_that_no_longer_fits_is_held_by_what_is_known_of_it(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    node_in(tmp_path).state.prepare(REFERENCE)
    damage(tmp_path / CHECKPOINT)
    node = node_in(tmp_path, read_pool=lambda: make_pool(1))
    with pytest.raises(PrepareError, match="has no device"):
        node.state.prepare(REFERENCE)
    node = node_in(tmp_path)
    node.claims.put(make_claim("other", (1,)))
    with pytest.raises(DeviceHeldError):
        node.state.prepare(OTHER)


@DAMAGES
@pytest.mark.parametrize("step", range(1, 9))
def test_a_running_pods_claim_is_held_by_what_is_known_of_it_whenever_the_plugin_is_killed(
    tmp_path: Path, step: int, damage: Callable[[Path], object]
) -> None:
    """Its spec tells what it holds until its checkpoint does."""
    node_in(tmp_path).state.prepare(REFERENCE)
    damage(tmp_path / CHECKPOINT)
    with pytest.raises((StopError, PrepareError)):
        node_in(tmp_path, KilledSteps(step), read_pool=lambda: make_pool(1)).state.prepare(REFERENCE)
    node = node_in(tmp_path)
    node.claims.put(make_claim("other", (1,)))
    with pytest.raises(DeviceHeldError):
        node.state.prepare(OTHER)
    with pytest.raises(PrepareError):
        node_in(tmp_path, read_pool=lambda: make_pool(1)).state.prepare(REFERENCE)
    assert SPEC not in node.files()


@DAMAGES
def test_a_claim_without_its_checkpoint_guards_its_devices_until_kubelet_unprepares_it(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    node_in(tmp_path).state.prepare(REFERENCE)
    damage(tmp_path / CHECKPOINT)
    node = node_in(tmp_path)
    node.claims.put(make_claim("other", (1,)))
    with pytest.raises(DeviceHeldError, match="still held by claim UID claim-uid"):
        node.state.prepare(OTHER)
    node.state.unprepare(REFERENCE)
    node.state.prepare(OTHER)
    assert (f"{CHECKPOINT}.broken" in node.files()) == (damage is break_it)
