"""What another user put into a folder that we write to as root: links, pipes, folders (whole_files.py)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dracaena.api.errors import PermanentError
from dracaena.host.adapters.files.lock import FileLock
from dracaena.host.adapters.files.whole_files import DocumentFolder, DocumentTree

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be led to write what others may not")


def victim_in(folder: Path) -> Path:
    victim = folder / "victim"
    victim.write_text("precious")
    victim.chmod(0o600)
    return victim


def untouched(victim: Path) -> bool:
    return victim.read_text() == "precious" and victim.stat().st_mode & 0o777 == 0o600


def link(place: Path, victim: Path) -> None:
    place.symlink_to(victim)


def hard_link(place: Path, victim: Path) -> None:
    place.hardlink_to(victim)


@pytest.mark.parametrize("plant", [link, hard_link])
@pytest.mark.parametrize("name", [".0.tmp", "0"])
def test_a_planted_link_is_replaced_and_its_target_stays(
    tmp_path: Path, name: str, plant: Callable[[Path, Path], None]
) -> None:
    victim, jobs = victim_in(tmp_path), tmp_path / "jobs"
    jobs.mkdir()
    plant(jobs / name, victim)
    files = DocumentFolder(jobs, synced=False)
    assert files.write_if_changed("0", b"default/pod/main\n")
    assert untouched(victim)
    assert (jobs / "0").read_bytes() == b"default/pod/main\n"
    assert not (jobs / "0").is_symlink()
    assert sorted(path.name for path in jobs.iterdir()) == ["0"]


@pytest.mark.parametrize("plant", [link, hard_link])
@pytest.mark.parametrize("name", ["podlist.json", ".podlist.json.lock"])
def test_a_file_that_is_written_in_place_is_not_another_users(
    tmp_path: Path, name: str, plant: Callable[[Path, Path], None]
) -> None:
    victim, folder = victim_in(tmp_path), tmp_path / "folder"
    folder.mkdir()
    plant(folder / name, victim)
    with pytest.raises(PermanentError, match="cannot write"):
        DocumentFolder(folder, synced=False, in_place=True).write("podlist.json", b"[]\n")
    assert untouched(victim)


def test_a_look_at_a_folder_follows_no_link(tmp_path: Path) -> None:
    victim = victim_in(tmp_path)
    (tmp_path / ".try.tmp").symlink_to(victim)
    DocumentFolder(tmp_path).try_to_write()
    assert untouched(victim)


def test_a_link_or_a_pipe_is_not_read(tmp_path: Path) -> None:
    victim = victim_in(tmp_path)
    (tmp_path / "link").symlink_to(victim)
    os.mkfifo(tmp_path / "pipe")  # without a writer an open for reading would wait for ever
    for name, problem in (("link", "it is a link"), ("pipe", "it is not a plain file")):
        with pytest.raises(PermanentError, match=f"cannot read {tmp_path}/{name}: {problem}"):
            DocumentFolder(tmp_path).read(name)


def test_a_pipe_in_the_place_of_a_file_is_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "0")
    DocumentFolder(tmp_path).write_if_changed("0", b"x")
    assert (tmp_path / "0").read_bytes() == b"x"


def test_a_lock_file_is_not_made_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "serialize.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermanentError, match="cannot open lock file"):
        FileLock(tmp_path / "serialize.lock").try_acquire()
    assert not (tmp_path / "elsewhere").exists()


def test_a_link_that_comes_while_we_write_is_replaced(tmp_path: Path) -> None:
    """The folder is given to another between our looks: the file still goes into the folder that was opened."""
    victim, jobs, elsewhere = victim_in(tmp_path), tmp_path / "jobs", tmp_path / "elsewhere"
    elsewhere.mkdir()
    jobs.mkdir()

    class Moved(DocumentFolder):
        def _create(self, name: str, folder: int) -> int:
            jobs.rename(tmp_path / "moved")
            jobs.symlink_to(elsewhere)
            return super()._create(name, folder)

    Moved(jobs, synced=False).write("0", b"x")
    assert list(elsewhere.iterdir()) == []
    assert untouched(victim)
    assert (tmp_path / "moved" / "0").read_bytes() == b"x"


@as_root
@pytest.mark.parametrize("place", ["above", "above/jobs"])
@pytest.mark.parametrize(("owner", "mode"), [(NOBODY, 0o755), (0, 0o777), (0, 0o757)])
def test_a_folder_that_others_could_exchange_is_refused(tmp_path: Path, place: str, owner: int, mode: int) -> None:
    jobs = tmp_path / "above" / "jobs"
    jobs.mkdir(parents=True)
    os.chown(tmp_path / place, owner, 0)
    (tmp_path / place).chmod(mode)
    expected = f"cannot write .*{tmp_path}/{place} " if owner else f"cannot write .*may write to {tmp_path}/{place} "
    with pytest.raises(PermanentError, match=expected):
        DocumentFolder(jobs).write("0", b"x")
    with pytest.raises(PermanentError, match=f"cannot write to {jobs}"):
        DocumentFolder(jobs).try_to_write()
    with pytest.raises(PermanentError, match="cannot write"):
        DocumentTree(jobs).write("a/0", b"x")
    assert not (jobs / "0").exists()


@as_root
def test_a_link_that_another_user_owns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "jobs").symlink_to("real")
    DocumentFolder(tmp_path / "jobs").write("0", b"x")
    os.lchown(tmp_path / "jobs", NOBODY, 0)
    with pytest.raises(PermanentError, match=f"{tmp_path}/jobs belongs to user {NOBODY}"):
        DocumentFolder(tmp_path / "jobs").write("0", b"x")


@as_root
def test_a_sticky_folder_of_roots_serves(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    DocumentFolder(tmp_path / "jobs").write("0", b"x")
    DocumentFolder(tmp_path).write("0", b"x")
