from __future__ import annotations

import dataclasses
import errno
import json
import os
from pathlib import Path

import pytest

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.names import ClaimUid
from dracaena.api.podlist import decode_podlist
from dracaena.kubelet_plugin.adapters.files import FileSteps
from dracaena.kubelet_plugin.device_state import DeviceHeldError, PrepareError
from dracaena.kubelet_plugin.ports import ClaimGoneError
from dracaena.kubelet_plugin.prepare.checkpoint import Checkpoint, encode_checkpoint
from dracaena.kubelet_plugin.prepare.plan import ClaimReference
from support.plugin import (
    FakeClaims,
    FakePods,
    PluginNode,
    claim_of,
    device_name,
    gpu_uuid,
    make_claim,
    make_pod,
    reference_to,
)

CLAIM = make_claim(devices=(0, 1), reserved_for={"pod": "pod-uid"})
REFERENCE = reference_to(CLAIM)
CHECKPOINT = "claims/claim-uid.json"
SPEC = "cdi/gpu.dracaena.dev-claim_claim-uid.json"
PODLIST = "pod-resources/podlist.json"
OTHER = ClaimReference("default", "other", ClaimUid("other-uid"))


class FullDisk(FileSteps):
    """A disk that is full from the n-th write on; removing still works, as on a real one."""

    def __init__(self, writes_left: int) -> None:
        self._writes_left = writes_left

    def write(self, descriptor: int, data: bytes) -> None:
        if self._writes_left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._writes_left -= 1
        super().write(descriptor, data)


class Steps(FileSteps):
    """Notes which files were put in place and removed."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.done.append(target.name)

    def remove(self, path: Path) -> None:
        super().remove(path)
        self.done.append(f"-{path.name}")


def node_in(folder: Path, steps: FileSteps | None = None, boot_id: str = "boot-1") -> PluginNode:
    return PluginNode(folder, FakeClaims(CLAIM), FakePods(make_pod()), steps=steps or FileSteps(), boot_id=boot_id)


def state_of(node: PluginNode) -> str:
    return str(json.loads(node.files()[CHECKPOINT])["checkpoint"]["state"])


def gpu_lists(node: PluginNode) -> list[tuple[str, tuple[str, ...]]]:
    return [(entry.name, entry.gpu_list) for entry in decode_podlist(node.files()[PODLIST])]


def test_prepare_writes_checkpoint_spec_and_podlist_in_this_order(tmp_path: Path) -> None:
    steps = Steps()
    node = node_in(tmp_path, steps)
    prepared = node.state.prepare(REFERENCE)
    assert [d.uuid for d in prepared.devices] == [gpu_uuid(0), gpu_uuid(1)]
    assert steps.done == [Path(p).name for p in (CHECKPOINT, SPEC, PODLIST, CHECKPOINT)]
    assert set(node.files()) == {CHECKPOINT, SPEC, PODLIST}
    assert state_of(node) == "done"
    assert gpu_lists(node) == [("pod", (gpu_uuid(0), gpu_uuid(1)))]


def test_a_prepared_claim_gets_the_same_answer_without_a_write_or_a_read_of_the_api(tmp_path: Path) -> None:
    first = node_in(tmp_path).state.prepare(REFERENCE)
    steps = Steps()
    again = node_in(tmp_path, steps)
    again.claims.unavailable = True
    assert again.state.prepare(REFERENCE) == first
    assert steps.done == []


def test_unprepare_takes_everything_back_in_reverse_order(tmp_path: Path) -> None:
    steps = Steps()
    node = node_in(tmp_path, steps)
    node.state.prepare(REFERENCE)
    steps.done.clear()
    node.claims.by_key.clear()  # the claim is gone: the checkpoint is all there is
    node.state.unprepare(REFERENCE)
    assert steps.done == [Path(PODLIST).name, f"-{Path(SPEC).name}", f"-{Path(CHECKPOINT).name}"]
    assert set(node.files()) == {PODLIST}
    assert gpu_lists(node) == []


def test_unprepare_of_a_claim_that_was_never_prepared_is_fine(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.state.unprepare(REFERENCE)
    node.state.unprepare(REFERENCE)
    assert node.files() == {}


def test_a_claim_replaced_between_allocation_and_prepare_is_refused(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.claims.put(make_claim(uid="another"))
    with pytest.raises(ClaimGoneError):
        node.state.prepare(REFERENCE)
    assert node.files() == {}


def test_a_claim_without_allocation_is_refused(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.claims.put(claim_of("claim", None))
    with pytest.raises(PrepareError, match="is not allocated"):
        node.state.prepare(REFERENCE)
    assert node.files() == {}


def test_a_device_of_another_claim_is_refused_and_its_holder_named(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.claims.put(make_claim("other", (1, 2)))
    node.state.prepare(REFERENCE)
    before = node.files()
    with pytest.raises(
        DeviceHeldError, match=rf"{device_name(1)} is still held by claim default/claim \(UID claim-uid\)"
    ):
        node.state.prepare(OTHER)
    assert node.files() == before
    node.state.unprepare(REFERENCE)
    node.state.prepare(OTHER)


def test_admin_access_sees_devices_that_are_held_and_is_not_listed(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.claims.put(make_claim("other", (0, 1), adminAccess=True))
    node.pods.add(make_pod("monitor", claims={"claim": "other"}))
    node.state.prepare(REFERENCE)
    assert len(node.state.prepare(OTHER).devices) == 2
    assert [name for name, _ in gpu_lists(node)] == ["pod"]


def test_shares_of_one_device_go_to_several_claims(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.claims.put(make_claim("claim", (0,), shareID="a"))
    node.claims.put(make_claim("other", (0,), shareID="b"))
    assert node.state.prepare(REFERENCE).devices[0].share_id == "a"
    assert node.state.prepare(OTHER).devices[0].share_id == "b"


@pytest.mark.parametrize("writes", range(4))
def test_a_full_disk_fails_the_claim_and_leaves_nothing(tmp_path: Path, writes: int) -> None:
    node = node_in(tmp_path, FullDisk(writes))
    with pytest.raises(TemporaryError, match="No space left on device"):
        node.state.prepare(REFERENCE)
    assert not set(node.files()) & {CHECKPOINT, SPEC}
    assert not [name for name in node.files() if name.endswith(".tmp")]
    fresh = node_in(tmp_path)
    fresh.state.prepare(REFERENCE)
    assert state_of(fresh) == "done"


def test_a_full_disk_does_not_keep_a_claim_prepared(tmp_path: Path) -> None:
    node_in(tmp_path).state.prepare(REFERENCE)
    node = node_in(tmp_path, FullDisk(0))
    node.state.unprepare(REFERENCE)
    assert set(node.files()) == {PODLIST}
    node_in(tmp_path).assignments.reconcile()
    assert gpu_lists(node) == []


@pytest.mark.parametrize("blocked", ["cdi", "claims", "pod-resources"])
def test_an_unwritable_folder_fails_the_claim_and_is_named(tmp_path: Path, blocked: str) -> None:
    (tmp_path / blocked).write_bytes(b"")  # a file where the folder should be: root may write into any folder
    node = node_in(tmp_path)
    with pytest.raises(DracaenaError, match=f"{tmp_path}/{blocked}"):
        node.state.prepare(REFERENCE)
    assert not set(node.files()) & {CHECKPOINT, SPEC}


def test_a_cdi_spec_that_was_lost_is_written_again(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.state.prepare(REFERENCE)
    before = node.files()
    (tmp_path / SPEC).unlink()
    node.state.prepare(REFERENCE)
    assert node.files() == before


def test_after_a_reboot_a_claim_is_prepared_anew(tmp_path: Path) -> None:
    node_in(tmp_path).state.prepare(REFERENCE)
    (tmp_path / SPEC).unlink()
    node = node_in(tmp_path, boot_id="boot-2")
    node.assignments.reconcile()
    assert gpu_lists(node) == []
    node.state.prepare(REFERENCE)
    assert json.loads(node.files()[CHECKPOINT])["checkpoint"]["boot_id"] == "boot-2"
    assert SPEC in node.files()
    assert gpu_lists(node) == [("pod", (gpu_uuid(0), gpu_uuid(1)))]


def test_a_claim_of_an_earlier_boot_holds_nothing(tmp_path: Path) -> None:
    node_in(tmp_path).state.prepare(REFERENCE)
    node = node_in(tmp_path, boot_id="boot-2")
    node.claims.put(make_claim("other", (1,)))
    node.state.prepare(OTHER)
    with pytest.raises(DeviceHeldError, match="default/other"):
        node.state.prepare(REFERENCE)


@pytest.mark.parametrize("damage", [b"", b"{", b'{"version":1,"checksum":"sha256:0","checkpoint":{}}'])
def test_a_broken_checkpoint_is_set_aside_and_rebuilt_from_the_claim(tmp_path: Path, damage: bytes) -> None:
    node = node_in(tmp_path)
    node.state.prepare(REFERENCE)
    before = node.files()
    (tmp_path / CHECKPOINT).write_bytes(damage)
    node.state.prepare(REFERENCE)
    assert node.files() == {**before, f"{CHECKPOINT}.broken": damage}


def test_a_broken_checkpoint_still_guards_its_devices(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.claims.put(make_claim("other", (1,)))
    node.state.prepare(REFERENCE)
    (tmp_path / CHECKPOINT).write_bytes(b"{")
    with pytest.raises(DeviceHeldError, match="still held by claim UID claim-uid"):
        node.state.prepare(OTHER)
    node.state.unprepare(REFERENCE)
    node.state.prepare(OTHER)
    assert f"{CHECKPOINT}.broken" in node.files()


def test_a_running_pods_broken_checkpoint_is_rebuilt_without_kubelet(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.state.prepare(REFERENCE)
    before = node.files()
    (tmp_path / CHECKPOINT).write_bytes(b"{")
    restarted = node_in(tmp_path)
    assert restarted.state.recover(restarted.pods.values())
    assert {**before, f"{CHECKPOINT}.broken": b"{"} == node.files()


def test_half_a_preparation_whose_claim_is_gone_is_taken_back(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.checkpoints.start(node.state.prepare(REFERENCE))
    assert state_of(node) == "started"
    node.claims.by_key.clear()
    assert node.state.recover(node.pods.values())
    assert not set(node.files()) & {CHECKPOINT, SPEC}


def test_recovery_waits_for_an_api_that_does_not_answer(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.checkpoints.start(node.state.prepare(REFERENCE))
    node.claims.unavailable = True
    assert not node.state.recover(node.pods.values())
    node.claims.unavailable = False
    assert node.state.recover(node.pods.values())
    assert state_of(node) == "done"


def test_an_api_that_does_not_answer_fails_the_claim_only_for_now(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.claims.unavailable = True
    with pytest.raises(TemporaryError):
        node.state.prepare(REFERENCE)
    assert node.files() == {}


def test_a_pod_that_the_watch_has_not_shown_is_read_for_its_entry(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.pods.shown.clear()
    node.state.prepare(REFERENCE)
    assert [name for name, _ in gpu_lists(node)] == ["pod"]


def test_a_pod_that_cannot_be_read_does_not_fail_prepare(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.pods.shown.clear()
    node.pods.failures = 1
    node.state.prepare(REFERENCE)
    assert gpu_lists(node) == []
    node.pods.add(make_pod())
    node.assignments.reconcile()
    assert [name for name, _ in gpu_lists(node)] == ["pod"]


def test_fields_of_a_newer_plugin_survive_a_new_preparation(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.state.prepare(REFERENCE)
    loaded = node.checkpoints.load(REFERENCE.uid)
    assert isinstance(loaded, Checkpoint)
    newer = dataclasses.replace(loaded, unknown={"profile": "x"}, boot_id="older")
    (tmp_path / CHECKPOINT).write_bytes(encode_checkpoint(newer))
    node.state.prepare(REFERENCE)
    assert json.loads(node.files()[CHECKPOINT])["checkpoint"]["profile"] == "x"
