from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from dracaena.api.errors import PermanentError, TemporaryError
from dracaena.host.adapters.files.whole_files import TICK_NS, DocumentFolder, DocumentTree, FileSteps


class FailAt(FileSteps):
    """Fails one step with an errno."""

    def __init__(self, step: str, number: int = errno.ENOSPC) -> None:
        self._step = step
        self._error = OSError(number, os.strerror(number))

    def _fail(self, step: str) -> None:
        if step == self._step:
            raise self._error

    def write(self, descriptor: int, data: bytes) -> None:
        if self._step == "write":
            os.write(descriptor, data[:3])  # a disk that fills up takes the beginning
        self._fail("write")
        super().write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        self._fail("fsync")
        super().fsync(descriptor)

    def rename(self, source: Path, target: Path, folder: int) -> None:
        self._fail("rename")
        super().rename(source, target, folder)

    def remove(self, path: Path, folder: int) -> None:
        self._fail("remove")
        super().remove(path, folder)


def test_written_content_is_read_back_and_the_folder_is_made(tmp_path: Path) -> None:
    folder = DocumentFolder(tmp_path / "a" / "b", mode=0o640)
    folder.write("x.json", b"1")
    assert folder.read("x.json") == b"1"
    assert stat.S_IMODE((tmp_path / "a" / "b" / "x.json").stat().st_mode) == 0o640


@pytest.mark.parametrize("step", ["write", "rename"])
@pytest.mark.parametrize("new", [b"shorter", b"longer than it was before", b"o" * 4096])
def test_on_a_full_disk_a_file_is_overwritten_within_its_space_if_that_was_asked_for(
    tmp_path: Path, step: str, new: bytes
) -> None:
    DocumentFolder(tmp_path).write("x.json", b"the old content")
    folder = DocumentFolder(tmp_path, steps=FailAt(step), synced=False, in_place_if_full=True)
    folder.write("x.json", new)
    assert folder.read("x.json") == new.ljust(len(b"the old content"), b"\n")
    assert [each.name for each in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_what_has_no_room_in_place_is_refused_and_leaves_the_old_file(tmp_path: Path, number: int) -> None:
    DocumentFolder(tmp_path).write("x.json", b"old")
    room = (tmp_path / "x.json").stat().st_blocks * 512
    folder = DocumentFolder(tmp_path, steps=FailAt("write", number), in_place_if_full=True)
    for name, data in (("x.json", b"o" * (room + 1)), ("new.json", b"new")):
        with pytest.raises((TemporaryError, PermanentError), match=f"cannot write {tmp_path}/{name}: "):
            folder.write(name, data)
    if number == errno.EROFS:
        with pytest.raises(PermanentError):
            folder.write("x.json", b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("x.json", b"old")]


@pytest.mark.parametrize("make", [Path.symlink_to, Path.hardlink_to])
def test_nothing_is_overwritten_in_place_that_has_another_name(
    tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"old")
    make(tmp_path / "x.json", other)
    with pytest.raises((TemporaryError, PermanentError)):
        DocumentFolder(tmp_path, steps=FailAt("write"), in_place_if_full=True).write("x.json", b"new")
    assert other.read_bytes() == b"old"


@pytest.mark.parametrize("step", ["write", "fsync", "rename"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, step: str) -> None:
    DocumentFolder(tmp_path).write("x.json", b"old")
    with pytest.raises(TemporaryError, match=f"cannot write {tmp_path}/x.json: No space left on device"):
        DocumentFolder(tmp_path, steps=FailAt(step)).write("x.json", b"new content")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("x.json", b"old")]


def test_a_content_is_synced_before_it_is_put_in_its_place_and_its_name_after_that(tmp_path: Path) -> None:
    class Watched(FileSteps):
        seen: tuple[str, ...] = ()

        def write(self, descriptor: int, data: bytes) -> None:
            self.seen += ("write",)
            super().write(descriptor, data)

        def fsync(self, descriptor: int) -> None:
            self.seen += ("fsync",)

        def rename(self, source: Path, target: Path, folder: int) -> None:
            self.seen += ("rename",)
            super().rename(source, target, folder)

    steps = Watched()
    DocumentFolder(tmp_path, steps=steps).write("x.json", b"1")
    assert steps.seen == ("write", "fsync", "rename", "fsync")


@pytest.mark.parametrize(("refused", "told"), [(errno.EINVAL, False), (errno.EOPNOTSUPP, False), (errno.EIO, True)])
def test_a_file_system_that_cannot_sync_a_folder_takes_files_all_the_same(
    tmp_path: Path, refused: int, told: bool
) -> None:
    class NoFolders(FileSteps):
        def fsync(self, descriptor: int) -> None:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise OSError(refused, os.strerror(refused))

    with pytest.raises(TemporaryError) if told else nullcontext():
        DocumentFolder(tmp_path, steps=NoFolders()).write("x.json", b"1")
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_what_is_not_synced_is_put_in_its_place_as_well_without_a_wait_for_the_disk(tmp_path: Path) -> None:
    class Unsynced(FileSteps):
        def fsync(self, descriptor: int) -> None:
            raise AssertionError("a call of kubelet must not wait for the disk")

    for in_place in (False, True):
        folder = DocumentFolder(tmp_path / str(in_place), steps=Unsynced(), synced=False, in_place=in_place)
        folder.write("x.json", b"first")
        folder.write("x.json", b"2")
        assert folder.read("x.json") == b"2"
    tree = DocumentTree(tmp_path / "tree", steps=Unsynced(), synced=False)
    tree.write("a/x.json", b"1")
    assert tree.read("a/x.json") == b"1"


def test_a_folder_that_somebody_removed_is_made_again(tmp_path: Path) -> None:
    folder = DocumentFolder(tmp_path / "a" / "b")
    folder.write("x.json", b"1")
    (tmp_path / "a" / "b" / "x.json").unlink()
    (tmp_path / "a" / "b").rmdir()
    folder.write("x.json", b"2")
    assert folder.read("x.json") == b"2"


def test_two_writes_in_one_tick_of_the_clock_have_two_stamps(tmp_path: Path) -> None:
    folder, path = DocumentFolder(tmp_path), tmp_path / "x.json"
    for content in (b"1", b"2") * 20:  # the same inode and size, and mostly the same times
        path.write_bytes(content)
        before = folder.stamps(".json")
        path.write_bytes(content[::-1])
        assert folder.stamps(".json") != before


def test_a_file_that_rests_keeps_its_stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = DocumentFolder(tmp_path)
    folder.write("x.json", b"1")
    later_ns = time.time_ns() + 2 * TICK_NS
    monkeypatch.setattr(time, "time_ns", lambda: later_ns)
    assert folder.stamps(".json") == folder.stamps(".json") != {}


def test_a_marked_folder_loses_its_mark_with_each_change_of_its_files(tmp_path: Path) -> None:
    folder, other = DocumentFolder(tmp_path), DocumentFolder(tmp_path)
    by_somebody = tmp_path / "by somebody"
    changes: list[Callable[[], object]] = [
        lambda: other.write("x.json", b"1"),
        lambda: other.write("x.json", b"2"),
        lambda: other.remove("x.json"),
        by_somebody.touch,
        by_somebody.unlink,
    ]
    for change in changes * 10:
        mark = folder.set_mark()
        assert mark is not None
        assert folder.mark() == mark
        change()
        assert folder.mark() != mark


def test_a_folder_that_is_not_there_has_no_mark(tmp_path: Path) -> None:
    folder = DocumentFolder(tmp_path / "none")
    assert (folder.set_mark(), folder.mark()) == (None, None)


def test_a_read_only_disk_needs_somebody_to_act(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b"1")
    with pytest.raises(PermanentError, match=r"cannot remove .*x.json: Read-only file system"):
        DocumentFolder(tmp_path, steps=FailAt("remove", errno.EROFS)).remove("x.json")


def test_on_a_read_only_disk_a_file_that_is_not_there_is_fine(tmp_path: Path) -> None:
    DocumentFolder(tmp_path, steps=FailAt("remove", errno.EROFS)).remove("x.json")


def test_a_link_that_leads_nowhere_is_removed(tmp_path: Path) -> None:
    (tmp_path / "x.json").symlink_to("nowhere")
    DocumentFolder(tmp_path).remove("x.json")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_way_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "podlist.json").mkdir()
    with pytest.raises(PermanentError, match=r"cannot write .*/podlist.json: Is a directory"):
        DocumentFolder(tmp_path).write("podlist.json", b"[]")
    assert [p.name for p in tmp_path.iterdir()] == ["podlist.json"]


def test_a_file_in_the_way_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "claims").write_bytes(b"")
    with pytest.raises(PermanentError, match=r"cannot write .*/claims/x.json"):
        DocumentFolder(tmp_path / "claims").write("x.json", b"1")


def test_equal_content_is_not_written_again(tmp_path: Path) -> None:
    folder = DocumentFolder(tmp_path)
    assert folder.write_if_changed("x.json", b"1")
    inode = (tmp_path / "x.json").stat().st_ino
    assert not folder.write_if_changed("x.json", b"1")
    assert (tmp_path / "x.json").stat().st_ino == inode
    assert folder.write_if_changed("x.json", b"2")


def test_what_is_not_there_reads_as_nothing_and_removes_fine(tmp_path: Path) -> None:
    folder = DocumentFolder(tmp_path / "gone")
    assert folder.read("x.json") is None
    assert folder.names(".json") == ()
    folder.remove("x.json")
    assert not (tmp_path / "gone").exists()


def test_names_are_sorted_and_half_written_files_are_none(tmp_path: Path) -> None:
    for name in ("b.json", "a.json", ".c.json.tmp", ".d.json", "e.json.broken"):
        (tmp_path / name).write_bytes(b"")
    assert DocumentFolder(tmp_path).names(".json") == ("a.json", "b.json")


def test_what_a_crash_left_half_written_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / ".x.json.tmp").write_bytes(b"a much longer half of a file")
    DocumentFolder(tmp_path).write("x.json", b"1")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("x.json", b"1")]


def test_half_written_files_of_one_beginning_are_removed_and_all_others_stay(tmp_path: Path) -> None:
    names = (".a-1.json.tmp", ".a-2.json.tmp", ".b.json.tmp", ".a-3.json", "a-4.json.tmp", "a-5.json")
    for name in names:
        (tmp_path / name).write_bytes(b"")
    assert DocumentFolder(tmp_path).remove_half_written("a-") == names[:2]
    assert {path.name for path in tmp_path.iterdir()} == set(names[2:])
    assert DocumentFolder(tmp_path / "gone").remove_half_written() == ()


def test_in_place_a_reader_that_mounted_the_single_file_sees_what_is_written(tmp_path: Path) -> None:
    files = DocumentFolder(tmp_path / "x", in_place=True)
    files.write("a", b"first, and long")
    with (tmp_path / "x" / "a").open("rb") as mounted:
        for data in (b"second", b"the third is longer", b""):
            files.write("a", data)
            mounted.seek(0)
            assert mounted.read() == data
    assert stat.S_IMODE((tmp_path / "x" / "a").stat().st_mode) == 0o644
    assert files.names("") == ("a",)


def test_in_place_a_reader_that_keeps_the_lock_does_not_hold_up_the_writer(tmp_path: Path) -> None:
    files = DocumentFolder(tmp_path, in_place=True)
    files.write("a", b"old")
    with (tmp_path / ".a.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        files.write("a", b"new")
    assert files.read("a") == b"new"


def test_in_place_a_folder_in_the_way_of_a_file_is_named_and_nothing_stays_open(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(PermanentError, match=r"cannot write .*/a: Is a directory"):
        DocumentFolder(tmp_path, in_place=True).write("a", b"x")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
