"""After a power cut any file may be torn, since none is synced: the next boot refuses nothing and gives nothing twice.

A torn file is empty, half there, or its length in zeros. CDI specs are kept here, as below /etc/cdi; in /var/run they
are gone with the boot, which the tests do as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from dracaena.kubelet_plugin.claims.last_guard import DeviceHeldError
from dracaena.kubelet_plugin.store.claims import BOOT_MARK
from support.plugin import FakeClaims, FakePods, PluginNode, make_claim, make_pod, reference_to

CLAIM = make_claim(devices=(0, 1), reserved_for={"pod": "pod-uid"})
LATER = make_claim("later", (0,))
"""Has a device of the first: allocated once that is gone."""

TORN: Mapping[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "half": lambda data: data[: len(data) // 2],
    "zeros": lambda data: bytes(len(data)),
}

FILES = (
    "claims/claim-uid.json",
    BOOT_MARK,
    "cdi/gpu.dracaena.dev-claim_claim-uid.json",
    "cdi/gpu.dracaena.dev_metadata_claim-uid_gpus.json",
    "metadata/default_claim/gpus/metadata.json",
    "pod-resources/podlist.json",
    "jobs/0",
)
"""One of each kind that is written for a claim."""


def node_in(folder: Path, boot_id: str, *, gone: bool = False) -> PluginNode:
    claims = FakeClaims(LATER) if gone else FakeClaims(CLAIM, LATER)
    pods = FakePods() if gone else FakePods(make_pod())
    return PluginNode(folder, claims, pods, boot_id=boot_id, device_metadata=True, job_mapping=True)


def started(node: PluginNode) -> PluginNode:
    """Do what a start does before it serves, and what its threads do then."""
    for files in (node.checkpoint_files, node.podlist, node.specs, node.documents, node.jobs):
        files.remove_half_written()
    node.recovery.enter_boot()
    return node


def looked_after(node: PluginNode) -> PluginNode:
    node.recovery.recover(node.pods.values())
    node.sweeper.sweep()
    node.reporter.reconcile()
    return node


def power_cut(folder: Path, torn: str, *names: str) -> None:
    """Prepare in a first boot, then tear files; a half-written one is there too."""
    node = looked_after(started(node_in(folder, "boot-1")))
    node.state.prepare(reference_to(CLAIM))
    node.reporter.reconcile()
    assert set(FILES) <= set(node.files())
    for name in names:
        (folder / name).write_bytes(TORN[torn]((folder / name).read_bytes()))
    (folder / "claims/.other-uid.json.tmp").write_bytes(b"")


def whole(folder: Path) -> dict[str, bytes]:
    """What a second boot has when nothing was torn."""
    node = looked_after(started(node_in(folder, "boot-2")))
    node.state.prepare(reference_to(CLAIM))
    return looked_after(node).files()


@pytest.mark.parametrize("torn", TORN)
@pytest.mark.parametrize("names", [*((name,) for name in FILES), FILES], ids=" ".join)
def test_a_torn_file_keeps_no_pod_of_the_next_boot_from_its_devices(
    tmp_path: Path, names: tuple[str, ...], torn: str
) -> None:
    power_cut(tmp_path / "cut", torn, *names)
    with capture_logs() as logs:
        node = started(node_in(tmp_path / "cut", "boot-2"))
        assert node.state.prepare(reference_to(CLAIM)).devices
        looked_after(node)
    assert node.files() == whole(tmp_path / "whole")
    assert not [line for line in logs if line["log_level"] == "error"]
    with pytest.raises(DeviceHeldError):
        node.state.prepare(reference_to(LATER))


@pytest.mark.parametrize("torn", TORN)
@pytest.mark.parametrize("specs_stay", [True, False])
def test_what_a_torn_checkpoint_held_is_free_in_the_next_boot(tmp_path: Path, torn: str, *, specs_stay: bool) -> None:
    power_cut(tmp_path, torn, *FILES[:1])
    if not specs_stay:
        for spec in (tmp_path / "cdi").iterdir():
            spec.unlink()
    node = started(node_in(tmp_path, "boot-2", gone=True))
    assert node.state.prepare(reference_to(LATER)).devices


def test_what_a_checkpoint_held_that_is_gone_is_free_in_the_next_boot(tmp_path: Path) -> None:
    """A power cut may leave no file at all; what holds a device in the boot that lost it does not in the next one."""
    power_cut(tmp_path, "half", FILES[2])
    node = looked_after(started(node_in(tmp_path, "boot-2")))
    node.state.prepare(reference_to(CLAIM))
    (tmp_path / FILES[0]).unlink()
    with pytest.raises(DeviceHeldError):
        started(node_in(tmp_path, "boot-2", gone=True)).state.prepare(reference_to(LATER))
    node = started(node_in(tmp_path, "boot-3", gone=True))
    assert node.state.prepare(reference_to(LATER)).devices
    assert not set(node.files()) & set(FILES[2:5])


@pytest.mark.parametrize("torn", TORN)
@pytest.mark.parametrize("names", [*((name,) for name in FILES), FILES], ids=" ".join)
def test_no_torn_file_stays_when_nobody_asks_for_its_claim(tmp_path: Path, names: tuple[str, ...], torn: str) -> None:
    power_cut(tmp_path, torn, *names)
    with capture_logs() as logs:
        node = looked_after(started(node_in(tmp_path, "boot-2", gone=True)))
    kept = {BOOT_MARK: b"boot-2\n", "pod-resources/podlist.json": b"[]\n", "jobs/0": b"", "jobs/1": b""}
    assert node.files() == kept
    assert not [line for line in logs if line["log_level"] == "error"]


@pytest.mark.parametrize("boot_id", ["boot-1", "boot-2"])
def test_a_checkpoint_that_broke_where_it_may_hold_devices_still_holds_them(tmp_path: Path, boot_id: str) -> None:
    """In the same boot, and where the mark of the boot is gone."""
    power_cut(tmp_path, "half", FILES[0])
    if boot_id == "boot-2":
        (tmp_path / FILES[1]).unlink()
    node = started(node_in(tmp_path, boot_id))
    with pytest.raises(DeviceHeldError):
        node.state.prepare(reference_to(LATER))
    assert node.state.prepare(reference_to(CLAIM)).devices
    assert (tmp_path / f"{FILES[0]}.broken").exists()


def test_what_breaks_after_the_start_in_a_boot_is_no_left_over_of_the_one_before(tmp_path: Path) -> None:
    power_cut(tmp_path, "half", FILES[2])
    node = started(node_in(tmp_path, "boot-2"))
    node.state.prepare(reference_to(CLAIM))
    (tmp_path / FILES[0]).write_bytes(b"")
    again = started(node_in(tmp_path, "boot-2"))
    with pytest.raises(DeviceHeldError):
        again.state.prepare(reference_to(LATER))


def test_a_mark_that_cannot_be_set_does_not_keep_the_plugin_from_starting(tmp_path: Path) -> None:
    (tmp_path / BOOT_MARK).mkdir()
    node = node_in(tmp_path, "boot-1")
    with capture_logs() as logs:
        node.recovery.enter_boot()
    assert [line["log_level"] for line in logs] == ["warning"]
    assert f"{tmp_path}/{BOOT_MARK}: Is a directory" in logs[0]["error"]
