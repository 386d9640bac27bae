"""Full and read-only disks, folders where files should be: one claim fails, says where, and no other does."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.errors import DracaenaError, PermanentError, TemporaryError
from dracaena.host.adapters.files.whole_files import FileSteps
from support.full_disk import FullDisk
from support.mig_claims import Claims
from support.mig_node import mig_node
from support.plugin import FakeClaims, FakePods, PluginNode, make_claim, make_pod, reference_to

CLAIM = make_claim(devices=(0, 1), reserved_for={"pod": "pod-uid"})
OTHER = make_claim("other", (2,))
FOLDERS = ("claims", "cdi", "metadata", "pod-resources")
FILES = (
    "claims/claim-uid.json",
    "cdi/gpu.dracaena.dev-claim_claim-uid.json",
    "metadata/default_claim/gpus/metadata.json",
    "cdi/gpu.dracaena.dev_metadata_claim-uid_gpus.json",
)


class Refusing(FileSteps):
    """A disk that refuses each change from the n-th on, all steps counted, below the folder of a name."""

    def __init__(self, code: int, *, after: int = 0, below: Path | None = None) -> None:
        self.left, self._code, self._below = after, code, below

    def write(self, descriptor: int, data: bytes) -> None:
        self._step(Path(f"/proc/self/fd/{descriptor}").readlink())
        super().write(descriptor, data)

    def rename(self, source: Path, target: Path, folder: int) -> None:
        self._step(target)
        super().rename(source, target, folder)

    def remove(self, path: Path, folder: int) -> None:
        if self._code == errno.EROFS:
            self._step(path)
        super().remove(path, folder)

    def _step(self, path: Path) -> None:
        if self._below is not None and self._below not in path.parents:
            return
        if self.left == 0:
            raise OSError(self._code, os.strerror(self._code), str(path))
        self.left -= 1


def node_in(folder: Path, steps: FileSteps | None = None, **changes: Any) -> PluginNode:
    given = {"device_metadata": True, **changes}
    return PluginNode(folder, FakeClaims(CLAIM, OTHER), FakePods(make_pod()), steps=steps or FileSteps(), **given)


def files_of(node: PluginNode, uid: bytes) -> list[str]:
    """Which files, but for podlist.json, speak of a claim."""
    return [name for name, data in node.files().items() if uid in data or uid.decode() in name]


@pytest.mark.parametrize(
    "changes", range(10)
)  # six files, each is written and renamed; the last, "done", fits in its predecessor
def test_a_disk_that_fills_up_at_any_change_leaves_nothing_of_the_claim_and_others_alone(
    tmp_path: Path, changes: int
) -> None:
    node_in(tmp_path).state.prepare(reference_to(OTHER))
    kept = files_of(node_in(tmp_path), b"other-uid")
    node = node_in(tmp_path, Refusing(errno.ENOSPC, after=changes))
    with pytest.raises(TemporaryError, match=r"cannot write .*: No space left on device"):
        node.state.prepare(reference_to(CLAIM))
    assert [name for name in files_of(node, b"claim-uid") if "podlist" not in name] == []
    assert not [name for name in node.files() if name.endswith(".tmp")]
    assert files_of(node, b"other-uid") == kept
    again = node_in(tmp_path)
    again.state.prepare(reference_to(CLAIM))
    again.state.unprepare(reference_to(CLAIM))
    assert files_of(again, b"other-uid") == kept


@pytest.mark.parametrize("what", ["part", "whole"])
def test_a_claim_of_a_gpu_that_is_divided_on_demand_ends_on_a_full_disk(tmp_path: Path, what: str) -> None:
    with mig_node() as mig:
        claims = Claims(tmp_path, mig)
        claim = claims.claim("one", claims.place("1g.10gb", 0) if what == "part" else claims.gpus[0])
        claims.node.state.prepare(reference_to(claim))
        claims.restart(FullDisk(0))
        claims.node.state.unprepare(reference_to(claim))
        assert mig.hardware.layout(0) == []
        assert not mig.hardware.gpus[0].mode
        assert files_of(claims.node, b"one") == []


def test_on_a_full_disk_that_cannot_be_written_over_what_leaves_nothing_ends_and_the_rest_waits(tmp_path: Path) -> None:
    with mig_node() as mig:
        claims = Claims(tmp_path, mig)
        part, whole = claims.claim("part", claims.place("1g.10gb", 0)), claims.claim("whole", claims.gpus[1])
        for claim in (part, whole):
            claims.node.state.prepare(reference_to(claim))
        claims.restart(FullDisk(0, overwrites=False))
        claims.node.state.unprepare(reference_to(whole))
        assert files_of(claims.node, b"whole") == []
        with pytest.raises(TemporaryError, match="No space left on device"):
            claims.node.state.unprepare(reference_to(part))
        assert mig.hardware.layout(0) == [("1g.10gb", 0, 1)], "what was not written down was not done"
        claims.restart()
        claims.node.state.unprepare(reference_to(part))
        assert mig.hardware.layout(0) == []


def test_a_claim_that_cannot_end_yet_does_not_count_as_prepared_on_a_full_disk_either(tmp_path: Path) -> None:
    with mig_node() as mig:
        claims = Claims(tmp_path, mig)
        claim = claims.claim("one", claims.place("1g.10gb", 0))
        claims.node.state.prepare(reference_to(claim))
        claims.restart(FullDisk(0))
        mig.hardware.gpus[0].instances[1].busy = True
        with pytest.raises(TemporaryError, match="IN_USE"):
            claims.node.state.unprepare(reference_to(claim))
        claims.restart(FullDisk(0))
        assert claims.done() == []
        mig.hardware.gpus[0].instances[1].busy = False
        claims.node.state.unprepare(reference_to(claim))
        assert mig.hardware.layout(0) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_read_only_folder_fails_the_claim_by_its_path_and_it_is_prepared_once_mended(
    tmp_path: Path, folder: str
) -> None:
    node = node_in(tmp_path, Refusing(errno.EROFS, below=tmp_path / folder))
    with pytest.raises(PermanentError, match=rf"cannot write {tmp_path}/{folder}/.*: Read-only file system"):
        node.state.prepare(reference_to(CLAIM))
    with pytest.raises(PermanentError, match="Read-only"):  # and again: nothing was left that would hinder
        node.state.prepare(reference_to(CLAIM))
    mended = node_in(tmp_path)
    assert mended.state.prepare(reference_to(CLAIM)).devices
    mended.state.unprepare(reference_to(CLAIM))
    assert files_of(mended, b"claim-uid") == []


@pytest.mark.parametrize("name", FILES)
def test_a_folder_where_a_file_of_one_claim_should_be_fails_that_claim_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir(parents=True)
    node = node_in(tmp_path)
    with pytest.raises(PermanentError, match=rf"{tmp_path}/{name}: Is a directory"):
        node.state.prepare(reference_to(CLAIM))
    assert node.state.prepare(reference_to(OTHER)).devices
    assert node.recovery.recover(node.pods.values())
    node.sweeper.sweep()
    node.reporter.reconcile()
    node.state.unprepare(reference_to(OTHER))
    (tmp_path / name).rmdir()
    assert node.state.prepare(reference_to(CLAIM)).devices


def test_a_folder_where_podlist_json_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "pod-resources/podlist.json").mkdir(parents=True)
    node = node_in(tmp_path)
    with pytest.raises(DracaenaError, match=rf"{tmp_path}/pod-resources/podlist.json: Is a directory"):
        node.state.prepare(reference_to(CLAIM))
    assert files_of(node, b"claim-uid") == []
