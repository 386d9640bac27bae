from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from dracaena.api.errors import DracaenaError, PermanentError, TemporaryError
from dracaena.api.names import ClaimUid
from dracaena.api.podlist import decode_podlist
from dracaena.api.resource_objects import ResourceClaim
from dracaena.host.adapters.files.whole_files import FileSteps
from dracaena.kubelet_plugin.claims.device_state import PrepareError
from dracaena.kubelet_plugin.claims.last_guard import AllocatedAnewError, DeviceHeldError
from dracaena.kubelet_plugin.ports import ClaimGoneError
from dracaena.kubelet_plugin.prepare.cdi.device_nodes import ClaimNodes
from dracaena.kubelet_plugin.prepare.cdi.gpu_driver_files import GpuDriverEdits
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference, PublishedPool
from support.full_disk import FullDisk
from support.plugin import (
    FakeClaims,
    FakePods,
    PluginNode,
    claim_of,
    device_name,
    gpu_uuid,
    make_claim,
    make_pod,
    make_pool,
    make_share,
    reference_to,
)

CLAIM = make_claim(devices=(0, 1), reserved_for={"pod": "pod-uid"})
REFERENCE = reference_to(CLAIM)
CHECKPOINT = "claims/claim-uid.json"
SPEC = "cdi/gpu.dracaena.dev-claim_claim-uid.json"
PODLIST = "pod-resources/podlist.json"
OTHER = ClaimReference("default", "other", ClaimUid("other-uid"))


class Steps(FileSteps):
    """Notes which files were put in place and removed."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def rename(self, source: Path, target: Path, folder: int) -> None:
        super().rename(source, target, folder)
        self.done.append(target.name)

    def remove(self, path: Path, folder: int) -> None:
        super().remove(path, folder)
        self.done.append(f"-{path.name}")


class ReadOnlyCdi(FileSteps):
    """The CDI folder is on a file system that takes no change; all others take them."""

    def rename(self, source: Path, target: Path, folder: int) -> None:
        self._refuse(target)
        super().rename(source, target, folder)

    def remove(self, path: Path, folder: int) -> None:
        self._refuse(path)
        super().remove(path, folder)

    def _refuse(self, path: Path) -> None:
        if path.parent.name == "cdi":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))


class Reallocating(FakeClaims):
    """Another instance of the plugin prepares the claim while this one reads it."""

    def __init__(self, claim: ResourceClaim, meanwhile: Callable[[], object]) -> None:
        super().__init__(claim)
        self._meanwhile = meanwhile

    def read_claim(self, reference: ClaimReference) -> ResourceClaim:
        self._meanwhile()
        return super().read_claim(reference)


def node_in(folder: Path, steps: FileSteps | None = None, **parts: Any) -> PluginNode:
    return PluginNode(folder, FakeClaims(CLAIM), FakePods(make_pod()), steps=steps or FileSteps(), **parts)


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
    node.claims.put(make_share("claim", share_id="a"))
    node.claims.put(make_share("other", share_id="b"))
    assert node.state.prepare(REFERENCE).devices[0].share_id == "a"
    assert node.state.prepare(OTHER).devices[0].share_id == "b"


@pytest.mark.parametrize("shared_first", [True, False])
def test_a_whole_gpu_is_not_prepared_beside_a_share_of_it(tmp_path: Path, shared_first: bool) -> None:
    node = node_in(tmp_path)
    share, whole = make_share("claim", share_id="a"), make_claim("other", (0,))
    first, second = (share, whole) if shared_first else (whole, share)
    node.claims.put(first)
    node.claims.put(second)
    node.state.prepare(reference_to(first))
    with pytest.raises(DeviceHeldError, match=f"{device_name(0)} is still held by claim {first.key}"):
        node.state.prepare(reference_to(second))
    node.state.unprepare(reference_to(first))
    node.state.prepare(reference_to(second))


def test_a_claim_of_another_namespace_that_is_in_the_way_is_not_named(tmp_path: Path) -> None:
    """kubelet tells the pod whatever its claim cannot be prepared for. Our log names the holder."""
    node = node_in(tmp_path)
    holder, other = make_claim("secret", (0,)), make_claim("other", (0,))
    meta = msgspec.structs.replace(holder.metadata, namespace="hidden", uid="holder-uid")
    holder = msgspec.structs.replace(holder, metadata=meta)
    node.claims.put(holder)
    node.claims.put(other)
    node.state.prepare(reference_to(holder))
    with capture_logs() as logs, pytest.raises(DeviceHeldError) as caught:
        node.state.prepare(reference_to(other))
    assert "a claim of another namespace (UID holder-uid)" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "hidden" not in str(caught.value)
    assert ["hidden/secret"] in [entry.get("held_by") for entry in logs]


@pytest.mark.parametrize("writes", range(3))  # the fourth is "done", which fits in the place of "started"
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
    node_in(tmp_path).reporter.reconcile()
    assert gpu_lists(node) == []


@pytest.mark.parametrize("blocked", ["cdi", "claims", "pod-resources"])
def test_an_unwritable_folder_fails_the_claim_and_is_named(tmp_path: Path, blocked: str) -> None:
    (tmp_path / blocked).write_bytes(b"")  # a file where the folder should be: root may write into any folder
    node = node_in(tmp_path)
    with pytest.raises(DracaenaError, match=f"{tmp_path}/{blocked}"):
        node.state.prepare(REFERENCE)
    assert not set(node.files()) & {CHECKPOINT, SPEC}


def test_a_read_only_cdi_folder_fails_the_claim_and_keeps_nothing(tmp_path: Path) -> None:
    node = node_in(tmp_path, ReadOnlyCdi())
    with pytest.raises(PermanentError, match=r"cannot write .*: Read-only file system"):
        node.state.prepare(REFERENCE)
    assert set(node.files()) <= {PODLIST}
    node.state.unprepare(REFERENCE)
    writable = node_in(tmp_path)
    writable.claims.put(make_claim("other", (1,)))
    assert writable.state.prepare(OTHER).devices


def test_unprepare_of_a_claim_that_was_never_prepared_is_fine_in_a_read_only_cdi_folder(tmp_path: Path) -> None:
    (tmp_path / "cdi").mkdir()
    node_in(tmp_path, ReadOnlyCdi()).state.unprepare(REFERENCE)


def test_a_prepared_claim_stays_until_its_spec_can_be_removed(tmp_path: Path) -> None:
    node_in(tmp_path).state.prepare(REFERENCE)
    node = node_in(tmp_path, ReadOnlyCdi())
    with pytest.raises(PermanentError, match="cannot remove"):
        node.state.unprepare(REFERENCE)
    assert {CHECKPOINT, SPEC} <= set(node.files())
    node_in(tmp_path).state.unprepare(REFERENCE)
    assert not set(node.files()) & {CHECKPOINT, SPEC}


def test_a_cdi_folder_that_cannot_even_be_looked_into_locks_no_device(tmp_path: Path) -> None:
    (tmp_path / "cdi").symlink_to("cdi")  # a link to itself: every access fails
    node = node_in(tmp_path)
    with pytest.raises(PermanentError, match="cannot read"):
        node.state.prepare(REFERENCE)
    assert CHECKPOINT not in node.files()


def test_a_first_preparation_whose_spec_cannot_be_removed_again_keeps_its_checkpoint(tmp_path: Path) -> None:
    class Stuck(ReadOnlyCdi):
        def rename(self, source: Path, target: Path, folder: int) -> None:
            if target.name == Path(PODLIST).name:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            FileSteps.rename(self, source, target, folder)

    node = node_in(tmp_path, Stuck())
    with pytest.raises(TemporaryError, match="No space left on device"):
        node.state.prepare(REFERENCE)
    assert state_of(node) == "started"
    restarted = node_in(tmp_path)
    assert restarted.recovery.recover(restarted.pods.values())
    assert state_of(restarted) == "done"


@pytest.mark.parametrize("uid", ["", "../../x", "a/b", ".", "a.b", "a" * 64, "a\n", "ü"])
def test_a_claim_uid_that_is_no_plain_name_is_refused(tmp_path: Path, uid: str) -> None:
    node = node_in(tmp_path)
    reference = ClaimReference("default", "claim", ClaimUid(uid))
    for call in (node.state.prepare, node.state.unprepare):
        with pytest.raises(PrepareError, match="expected 1 to 63 letters, digits and '-'"):
            call(reference)
    assert node.claims.reads == 0
    assert node.files() == {}


def test_a_claim_that_was_allocated_anew_while_it_is_prepared_is_refused_where_it_is_read(tmp_path: Path) -> None:
    first = node_in(tmp_path)
    again = make_claim(devices=(4, 5))
    node = PluginNode(tmp_path, Reallocating(again, lambda: first.state.prepare(REFERENCE)), FakePods(make_pod()))
    with pytest.raises(AllocatedAnewError, match="was allocated again while it is prepared here") as caught:
        node.state.prepare(REFERENCE)
    assert f"holds {device_name(0)}, {device_name(1)}, its allocation says {device_name(4)}" in str(caught.value)
    assert state_of(node) == "done"


def test_a_claim_that_another_instance_prepared_meanwhile_gets_its_answer(tmp_path: Path) -> None:
    first = node_in(tmp_path)
    node = PluginNode(tmp_path, Reallocating(CLAIM, lambda: first.state.prepare(REFERENCE)), FakePods(make_pod()))
    assert node.state.prepare(REFERENCE) == first.state.prepare(REFERENCE)


def test_nothing_is_prepared_before_the_gpus_are_known_but_a_prepared_claim_is_served(tmp_path: Path) -> None:
    def unknown() -> PublishedPool:
        raise TemporaryError("the GPUs of this node are not known yet: no driver")

    node_in(tmp_path).state.prepare(REFERENCE)
    node = node_in(tmp_path, read_pool=unknown)
    node.claims.put(make_claim("other", devices=(3,)))
    assert node.state.prepare(REFERENCE).devices
    with pytest.raises(TemporaryError, match="not known yet: no driver"):
        node.state.prepare(OTHER)
    node.state.unprepare(REFERENCE)
    assert not set(node.files()) & {CHECKPOINT, SPEC}


def test_a_changed_machine_holds_from_the_next_claim_on(tmp_path: Path) -> None:
    pools = [make_pool(1)]
    node = node_in(tmp_path, read_pool=lambda: pools[-1])
    with pytest.raises(PrepareError, match="has no device"):
        node.state.prepare(REFERENCE)
    pools.append(make_pool(2))
    assert len(node.state.prepare(REFERENCE).devices) == 2


def test_after_a_reboot_a_claim_is_prepared_anew(tmp_path: Path) -> None:
    node_in(tmp_path).state.prepare(REFERENCE)
    (tmp_path / SPEC).unlink()
    node = node_in(tmp_path, boot_id="boot-2")
    node.reporter.reconcile()
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
    node.reporter.reconcile()
    assert [name for name, _ in gpu_lists(node)] == ["pod"]


def test_no_node_is_looked_at_below_a_driver_root_that_hangs(tmp_path: Path) -> None:
    """The wait for the driver's files has an end, a look at a node has none, and the node's lock is held."""

    def hangs() -> GpuDriverEdits:
        raise TemporaryError("the driver root does not answer")

    looked_at: list[object] = []

    def look(devices: object) -> ClaimNodes:
        looked_at.append(devices)
        raise TemporaryError("looked")

    node = node_in(tmp_path, gpu_driver_edits=hangs, claim_nodes=look)
    with pytest.raises(TemporaryError, match="the driver root does not answer"):
        node.state.prepare(REFERENCE)
    assert looked_at == []
