"""The driver numbers its devices anew while claims are prepared: no GPU reaches two claims, and nothing is guessed."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.machine import Gpu
from dracaena.api.mig import MigDevice
from dracaena.api.names import PoolName
from dracaena.api.resource_objects import ResourceClaim
from dracaena.host.adapters.files.whole_files import FileSteps
from dracaena.kubelet_plugin.adapters.kernel import gpu_minors
from dracaena.kubelet_plugin.adapters.kernel.gpu_minors import GpuMinors
from dracaena.kubelet_plugin.claims import reconciler as claim_reconciler
from dracaena.kubelet_plugin.claims.device_state import SetAsideError
from dracaena.kubelet_plugin.claims.last_guard import DeviceHeldError
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim, PublishedPool
from dracaena.kubelet_plugin.store import claim_files
from support.plugin import DRIVER, NODE, claim_of, device_name, gpu_uuid, make_claim, make_share, reference_to
from support.renumbered_gpus import ALL, WITHOUT_3, A, B, moved, node_in, nodes, pool_of


def test_a_claims_files_follow_its_gpu_to_another_minor(tmp_path: Path) -> None:
    node = node_in(tmp_path, A, job_mapping=True)
    node.state.prepare(reference_to(A))
    assert nodes(node, "a-uid") == ["/dev/nvidia5"]
    node.reporter.reconcile()
    moved(node, WITHOUT_3)
    node.reporter.reconcile()
    assert nodes(node, "a-uid") == ["/dev/nvidia4"]
    assert node.files()["jobs/4"] == b"default/pod-a/main\n"
    assert node.files()["jobs/5"] == b""
    (device,) = node.node_claims.prepared()[0].devices
    assert (device.uuid, device.minor, device.index) == (gpu_uuid(5), 4, 4)


@pytest.mark.parametrize("how", ["prepare", "recover", "sweep", "restart"])
def test_a_stale_spec_is_mended_whoever_comes_first(tmp_path: Path, how: str) -> None:
    node = node_in(tmp_path, A, B)
    node.state.prepare(reference_to(A))
    node = node_in(tmp_path, A, B, pool=WITHOUT_3) if how == "restart" else node
    node.pool = WITHOUT_3
    if how == "prepare":
        assert node.state.prepare(reference_to(A)).devices[0].minor == 4
    elif how == "sweep":
        node.sweeper.sweep()
    else:
        assert node.recovery.recover(())
    assert nodes(node, "a-uid") == ["/dev/nvidia4"]


def test_a_node_that_running_containers_hold_goes_to_no_other_claim(tmp_path: Path) -> None:
    node = node_in(tmp_path, A, B)
    node.state.prepare(reference_to(A))
    node.pool = WITHOUT_3  # /dev/nvidia5, which A's containers have, is GPU 6 now
    with pytest.raises(
        DeviceHeldError, match=r"is /dev/nvidia5 now, which containers of claim default/a \(UID a-uid\) still have"
    ):
        node.state.prepare(reference_to(B))
    assert nodes(node, "b-uid") is None
    node.state.unprepare(reference_to(A))
    node.state.prepare(reference_to(B))
    assert nodes(node, "b-uid") == ["/dev/nvidia5"]


def test_the_nodes_of_containers_stay_held_over_a_restart(tmp_path: Path) -> None:
    node = node_in(tmp_path, A, B)
    node.state.prepare(reference_to(A))
    moved(node, WITHOUT_3)
    again = node_in(tmp_path, A, B, pool=WITHOUT_3)
    with pytest.raises(DeviceHeldError, match="/dev/nvidia5"):
        again.state.prepare(reference_to(B))


@pytest.mark.parametrize("shared", [True, False])
def test_a_node_of_another_claims_containers_is_held_from_shares_too_but_not_from_admins(
    tmp_path: Path, shared: bool
) -> None:
    other = make_share("b", 6) if shared else make_claim("b", (6,), adminAccess=True)
    node = node_in(tmp_path, A, other)
    node.state.prepare(reference_to(A))
    moved(node, WITHOUT_3)
    if shared:
        with pytest.raises(DeviceHeldError):
            node.state.prepare(reference_to(other))
    else:
        assert node.state.prepare(reference_to(other)).devices[0].minor == 5


def test_a_prepared_claim_whose_new_node_another_holds_waits_for_that_one(tmp_path: Path) -> None:
    low = make_claim("low", (4,))
    node = node_in(tmp_path, A, low)
    for claim in (A, low):
        node.state.prepare(reference_to(claim))
    moved(node, WITHOUT_3)  # GPU 5 is /dev/nvidia4 now, which the containers of `low` have
    assert nodes(node, "a-uid") is None
    assert nodes(node, "low-uid") == ["/dev/nvidia3"]
    with pytest.raises(SetAsideError, match=r"which containers of claim default/low \(UID low-uid\) still have"):
        node.state.prepare(reference_to(A))
    node.state.unprepare(reference_to(low))
    assert node.state.prepare(reference_to(A)).devices[0].minor == 4
    assert nodes(node, "a-uid") == ["/dev/nvidia4"]


def test_two_claims_that_changed_places_wait_for_each_other_until_one_ends(tmp_path: Path) -> None:
    node = node_in(tmp_path, A, B)
    for claim in (A, B):
        node.state.prepare(reference_to(claim))
    moved(node, pool_of(0, 1, 2, 3, 4, 6, 5))
    assert (nodes(node, "a-uid"), nodes(node, "b-uid")) == (None, None)
    node.state.unprepare(reference_to(B))
    node.recovery.follow_devices()
    assert nodes(node, "a-uid") == ["/dev/nvidia6"]


def test_a_claim_whose_gpu_is_gone_is_set_aside_and_served_again_when_it_is_back(tmp_path: Path) -> None:
    node = node_in(tmp_path, A, B, job_mapping=True)
    node.state.prepare(reference_to(A))
    before = node.files()
    moved(node, pool_of(0, 1, 2, 3, 4, 6, 7))
    node.reporter.reconcile()
    assert nodes(node, "a-uid") is None
    assert "jobs/5" not in node.files()
    (trouble,), _ = node.recovery.follow_devices()
    assert f"this node has no device {device_name(5)}" in str(trouble.aside)
    with pytest.raises(SetAsideError, match="has no device"):
        node.state.prepare(reference_to(A))
    assert node.recovery.recover(node.pods.values())  # nothing that a later try could settle
    with pytest.raises(DeviceHeldError, match="/dev/nvidia5"):
        node.state.prepare(reference_to(B))  # its number is that of the lost one now
    moved(node, ALL)
    assert {name: data for name, data in node.files().items() if not name.startswith("jobs")} == before
    assert node.recovery.follow_devices() == ([], [])


def test_numbers_that_come_back_leave_what_was_started_in_between_held(tmp_path: Path) -> None:
    other = make_claim("low", (4,))
    node = node_in(tmp_path, A, other)
    node.state.prepare(reference_to(A))
    moved(node, WITHOUT_3)  # a container may be started here, with /dev/nvidia4
    moved(node, ALL)
    assert nodes(node, "a-uid") == ["/dev/nvidia5"]
    with pytest.raises(DeviceHeldError, match="/dev/nvidia4"):
        node.state.prepare(reference_to(other))


def test_a_number_that_is_not_known_right_now_changes_nothing(tmp_path: Path) -> None:
    node = node_in(tmp_path, A)
    node.state.prepare(reference_to(A))
    before = node.files()
    unknown = {**ALL.gpus, device_name(5): replace(ALL.gpus[device_name(5)], minor=None)}
    moved(node, replace(ALL, gpus=unknown))
    assert node.files() == before


def with_unknown_minor(pool: PublishedPool, gpu: int) -> PublishedPool:
    name = device_name(gpu)
    return replace(pool, gpus={**pool.gpus, name: replace(pool.gpus[name], minor=None)})


def test_a_node_that_is_another_gpus_is_not_kept_while_the_own_number_is_not_known(tmp_path: Path) -> None:
    node_in(tmp_path, A, B).state.prepare(reference_to(A))
    node = node_in(tmp_path, A, B, pool=with_unknown_minor(WITHOUT_3, 5))  # /dev/nvidia5 is GPU 6 now
    node.recovery.recover(node.pods.values())
    assert nodes(node, "a-uid") is None
    with pytest.raises(
        DeviceHeldError, match=r"/dev/nvidia5 now, which containers of claim default/a \(UID a-uid\) still have"
    ):
        node.state.prepare(reference_to(B))
    assert nodes(node, "b-uid") is None
    (trouble,), _ = node.recovery.follow_devices()
    assert f"is not known, so its device node cannot be named, and /dev/nvidia5 is {device_name(6)} now" in str(
        trouble.aside
    )
    moved(node, WITHOUT_3)
    assert nodes(node, "a-uid") == ["/dev/nvidia4"]


@pytest.mark.parametrize("left_by", ["taken", "gone"])
def test_a_claim_that_was_set_aside_stays_so_until_the_number_of_its_gpu_is_told(tmp_path: Path, left_by: str) -> None:
    node = node_in(tmp_path, A)
    node.state.prepare(reference_to(A))
    moved(node, with_unknown_minor(WITHOUT_3, 5) if left_by == "taken" else pool_of(0, 1, 2, 3, 4))
    assert nodes(node, "a-uid") is None
    moved(node, with_unknown_minor(ALL, 5))
    assert nodes(node, "a-uid") is None
    moved(node, ALL)
    assert nodes(node, "a-uid") == ["/dev/nvidia5"]


def test_a_reading_that_the_driver_itself_contradicts_is_not_worked_from(tmp_path: Path) -> None:
    node = node_in(tmp_path, A, B)
    node.state.prepare(reference_to(A))
    node.minors = {
        gpu.pci_bus_id: gpu.minor for gpu in WITHOUT_3.gpus.values() if gpu.pci_bus_id and gpu.minor is not None
    }
    for claim in (A, B):
        with pytest.raises(TemporaryError, match=r"when the GPUs were last read, the driver has /dev/nvidia[45] now"):
            node.state.prepare(reference_to(claim))
    assert nodes(node, "b-uid") is None
    lost = make_claim("lost", (3,))
    node.claims.put(lost)
    with pytest.raises(TemporaryError, match="the driver has no GPU there now"):
        node.state.prepare(reference_to(lost))
    node.pool = WITHOUT_3
    assert node.state.prepare(reference_to(A)).devices[0].minor == 4


def test_a_driver_that_has_no_gpu_any_more_is_not_taken_for_one_that_says_nothing(tmp_path: Path) -> None:
    """An admin bound the last GPU to another driver, or unloaded the driver, and no reading has worked since."""
    late = make_claim("late", (5,))
    node = node_in(tmp_path, A, late)
    node.minors = {}
    with pytest.raises(TemporaryError, match=r"the driver has no GPU there now \(on the node, `readlink /sys/bus/pci"):
        node.state.prepare(reference_to(late))
    assert nodes(node, "late-uid") is None
    node.minors = None
    assert node.state.prepare(reference_to(late)).devices[0].minor == 5


def test_a_driver_that_hangs_holds_up_no_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs() -> dict[str, int]:
        raise TemporaryError("the NVIDIA driver does not let us read")

    node = node_in(tmp_path, A)
    monkeypatch.setattr(node.state._guard, "_read_minors", hangs)
    for _ in range(2):
        assert node.state.prepare(reference_to(A)).devices[0].minor == 5


def test_the_driver_tells_minors_by_pci_address(tmp_path: Path) -> None:
    minors = GpuMinors(str(tmp_path))
    assert minors.read() is None
    for address, text in (
        ("0000:3B:00.0", "Model: \t\t NVIDIA A100\nGPU UUID: \t GPU-1\nDevice Minor: \t 5\nGPU Excluded:\t No\n"),
        ("0000:86:00.0", "Device Minor: \t 12\n"),
        ("0000:af:00.0", "Model: \t unknown\n"),
    ):
        folder = tmp_path / "driver/nvidia/gpus" / address
        folder.mkdir(parents=True)
        (folder / "information").write_text(text)
    (tmp_path / "driver/nvidia/gpus/0000:b0:00.0").mkdir()
    assert minors.read() == {"0000:3b:00.0": 5, "0000:86:00.0": 12}
    shutil.rmtree(tmp_path / "driver/nvidia/gpus/0000:3B:00.0")  # unbound
    assert minors.read() == {"0000:86:00.0": 12}
    shutil.rmtree(tmp_path / "driver")  # unloaded
    assert minors.read() == {}


def test_a_driver_that_hangs_is_waited_for_once_and_not_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_minors, "READ_S", 0.05)
    folder = tmp_path / "driver/nvidia/gpus/0000:3b:00.0"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "information")  # a read of it ends when somebody writes
    minors = GpuMinors(str(tmp_path))
    before = set(threading.enumerate())
    for _ in range(3):
        with pytest.raises(TemporaryError, match="the NVIDIA driver does not let us read"):
            minors.read()
    (hanging,) = (each for each in threading.enumerate() if each.name == "gpu-minors" and each not in before)
    (folder / "information").write_text("Device Minor: \t 5\n")
    hanging.join(30)
    assert not hanging.is_alive()
    monkeypatch.setattr(gpu_minors, "READ_S", 30.0)  # what can be read may take longer on a busy machine
    (folder / "information").unlink()
    (folder / "information").write_text("Device Minor: \t 6\n")
    assert minors.read() == {"0000:3b:00.0": 6}


# MIG

PARENT = gpu_uuid(0)


def mig(uuid: str, gi: int, profile: str, start: int, size: int, caps: tuple[int, int]) -> MigDevice:
    return MigDevice(PARENT, uuid, gi, 0, profile, start, size, access_minors=caps)


def divided(*parts: MigDevice) -> PublishedPool:
    gpu = Gpu(uuid=PARENT, index=0, minor=0, mig_enabled=True)
    return PublishedPool(DRIVER, PoolName(NODE), {device_name(0): gpu}, {part.device_name: part for part in parts})


def mig_claim(name: str, part: MigDevice) -> ResourceClaim:
    result = {"request": "gpus", "driver": DRIVER, "pool": NODE, "device": part.device_name}
    return claim_of(name, {"results": [result]})


OLD = (mig("MIG-a", 7, "1g.5gb", 0, 1, (66, 67)), mig("MIG-b", 8, "1g.5gb", 1, 1, (75, 76)))
NEW = (mig("MIG-c", 7, "1g.5gb", 3, 1, (66, 67)), mig("MIG-d", 8, "1g.5gb", 0, 1, (75, 76)))


def test_a_mig_device_that_was_made_anew_is_followed_and_its_old_nodes_stay_held(tmp_path: Path) -> None:
    first, other = mig_claim("a", OLD[0]), mig_claim("b", NEW[0])
    node = node_in(tmp_path, first, other, pool=divided(*OLD))
    node.state.prepare(reference_to(first))
    assert nodes(node, "a-uid") == ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67"]
    moved(node, divided(*NEW))
    assert nodes(node, "a-uid") == ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap75", "/dev/nvidia-caps/nvidia-cap76"]
    assert [d.uuid for p in node.node_claims.prepared() for d in p.devices] == ["MIG-d"]
    with pytest.raises(
        DeviceHeldError, match=r"nvidia-cap67 now, which containers of claim default/a \(UID a-uid\) still have"
    ):
        node.state.prepare(reference_to(other))


def test_slices_of_a_mig_device_that_is_gone_stay_held(tmp_path: Path) -> None:
    large = mig("MIG-e", 1, "3g.20gb", 0, 4, (12, 13))
    first, over = mig_claim("a", OLD[0]), mig_claim("c", large)
    node = node_in(tmp_path, first, over, pool=divided(*OLD))
    node.state.prepare(reference_to(first))
    moved(node, divided(large))
    assert nodes(node, "a-uid") is None
    with pytest.raises(DeviceHeldError, match=f"as a part of the same GPU, by device {OLD[0].device_name}"):
        node.state.prepare(reference_to(over))
    node.state.unprepare(reference_to(first))
    assert node.state.prepare(reference_to(over)).devices


def test_compute_instances_of_one_gpu_instance_do_not_hold_each_other(tmp_path: Path) -> None:
    parts = [MigDevice(PARENT, f"MIG-{n}", 1, n, "1c.3g.20gb", 0, 4, access_minors=(12, 13 + n)) for n in range(2)]
    claims = [mig_claim(f"c{n}", part) for n, part in enumerate(parts)]
    node = node_in(tmp_path, *claims, pool=divided(*parts))
    for claim in claims:
        node.state.prepare(reference_to(claim))


def test_caps_that_are_another_mig_devices_are_not_kept_while_the_own_are_not_known(tmp_path: Path) -> None:
    first, other = mig_claim("a", OLD[0]), mig_claim("b", NEW[0])
    node = node_in(tmp_path, first, other, pool=divided(*OLD))
    node.state.prepare(reference_to(first))
    moved(node, divided(NEW[0], replace(NEW[1], access_minors=None)))
    assert nodes(node, "a-uid") is None
    with pytest.raises(DeviceHeldError, match="nvidia-cap67"):
        node.state.prepare(reference_to(other))


def test_a_compute_instance_whose_caps_are_not_known_is_not_hindered_by_its_neighbour(tmp_path: Path) -> None:
    parts = [MigDevice(PARENT, f"MIG-{n}", 1, n, "1c.3g.20gb", 0, 4, access_minors=(12, 13 + n)) for n in range(2)]
    first = mig_claim("a", parts[0])
    node = node_in(tmp_path, first, pool=divided(*parts))
    node.state.prepare(reference_to(first))
    before = node.files()
    moved(node, divided(replace(parts[0], access_minors=None), parts[1]))
    assert node.files() == before


def test_a_whole_gpu_at_the_minor_of_a_former_parent_is_held(tmp_path: Path) -> None:
    part = mig_claim("a", OLD[0])
    node = node_in(tmp_path, part, pool=divided(*OLD))
    node.state.prepare(reference_to(part))
    other = make_claim("other", (1,))
    node.claims.put(other)
    parent = Gpu(uuid=PARENT, index=1, minor=1, mig_enabled=True)
    gpus = {device_name(0): parent, device_name(1): Gpu(uuid=gpu_uuid(1), index=0, minor=0)}
    node.pool = PublishedPool(DRIVER, PoolName(NODE), gpus, {m.device_name: m for m in OLD})
    with pytest.raises(DeviceHeldError, match="/dev/nvidia0"):
        node.state.prepare(reference_to(other))


@pytest.mark.parametrize("name", ["a-uid", "low-uid"])
def test_a_disk_that_fails_for_one_claim_grants_nothing_wrong_to_others(tmp_path: Path, name: str) -> None:
    low = make_claim("low", (4,))
    node = node_in(tmp_path, A, low, B)
    for claim in (A, low):
        node.state.prepare(reference_to(claim))
    node.pool = WITHOUT_3
    spec = tmp_path / "cdi" / f"gpu.dracaena.dev-claim_{name}.json"
    spec.unlink()
    spec.mkdir()  # cannot be removed as a file
    _, (failure,) = node.recovery.follow_devices()
    assert isinstance(failure, DracaenaError)
    assert str(spec) in str(failure)
    with pytest.raises(DeviceHeldError, match="/dev/nvidia5"):
        node.state.prepare(reference_to(B))


def claims_with_devices(names: Sequence[str]) -> list[ResourceClaim]:
    return [make_claim(name, (n,)) for n, name in enumerate(names)]


class NoNewSpec(FileSteps):
    """No spec can be put in its place while `full`; removing works, as on a full disk."""

    full = False

    def __init__(self) -> None:
        self.removed: list[str] = []

    def rename(self, source: Path, target: Path, folder: int) -> None:
        if self.full and target.parent.name == "cdi":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().rename(source, target, folder)

    def remove(self, path: Path, folder: int) -> None:
        self.removed.append(path.name)
        super().remove(path, folder)


def test_a_claim_whose_nodes_stay_the_same_has_a_spec_at_each_moment(tmp_path: Path) -> None:
    steps = NoNewSpec()
    node = node_in(tmp_path, A, steps=steps)
    node.state.prepare(reference_to(A))
    before = node.files()
    gpu = ALL.gpus[device_name(5)]
    steps.full = True
    node.pool = replace(ALL, gpus={**ALL.gpus, device_name(5): replace(gpu, index=4)})
    _, (failure,) = node.recovery.follow_devices()
    assert "No space left" in str(failure)
    assert {name: data for name, data in node.files().items() if not name.endswith(".tmp")} == before
    steps.full = False
    assert node.recovery.follow_devices() == ([], [])
    assert nodes(node, "a-uid") == ["/dev/nvidia5"]
    assert [(d.index, d.minor) for p in node.node_claims.prepared() for d in p.devices] == [(4, 5)]
    assert not [name for name in steps.removed if name.endswith(".json")]
    assert node.state.prepare(reference_to(A)).devices[0].index == 4


@pytest.mark.parametrize("where", ["spec", "follow", "held_nodes"])
def test_an_error_of_ours_in_one_claim_fails_that_claim_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    far = make_claim("far", (0,))
    seventh = make_claim("seventh", (7,))
    node = node_in(tmp_path, A, seventh, B, far)
    for claim in (A, seventh):
        node.state.prepare(reference_to(claim))
    module = claim_files if where == "spec" else claim_reconciler
    name = "claim_spec" if where == "spec" else where
    right = getattr(module, name)

    def fails(prepared: PreparedClaim, *rest: Any) -> Any:
        if prepared.claim.uid == "a-uid":
            raise ValueError("an error of ours")
        return right(prepared, *rest)

    monkeypatch.setattr(module, name, fails)
    node.pool = WITHOUT_3
    _, (failure,) = node.recovery.follow_devices()
    assert isinstance(failure, TemporaryError)
    assert "claim default/a cannot be brought in line with its devices: internal error" in str(failure)
    assert nodes(node, "seventh-uid") == ["/dev/nvidia6"]
    assert node.state.prepare(reference_to(far)).devices[0].minor == 0
    for _ in range(2):
        with pytest.raises(TemporaryError, match=r"internal error of the plugin \(ValueError\)"):
            node.state.prepare(reference_to(A))
    with pytest.raises(
        DeviceHeldError, match=r"/dev/nvidia5 now, which containers of claim default/a \(UID a-uid\) still have"
    ):
        node.state.prepare(reference_to(B))
    monkeypatch.undo()
    node.pool = replace(WITHOUT_3)
    assert node.recovery.follow_devices()[1] == []
    assert nodes(node, "a-uid") == ["/dev/nvidia4"]


def test_many_claims_are_followed_by_one_look(tmp_path: Path) -> None:
    """Each prepare asks whether devices moved: of claims that nobody wrote since, it works nothing out again."""
    claims = claims_with_devices("abcdefg")
    node = node_in(tmp_path, *claims)
    for claim in claims:
        node.state.prepare(reference_to(claim))
    before = {name: (tmp_path / name).stat().st_ino for name in node.files()}
    node.recovery.follow_devices()
    node.recovery.follow_devices()
    assert {name: (tmp_path / name).stat().st_ino for name in node.files()} == before
