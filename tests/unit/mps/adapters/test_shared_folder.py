"""The supervisor's folder on a real disk, as crashes, other programs and a careless hand leave it."""

from __future__ import annotations

import errno
import os
import resource
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from dracaena.api import mps
from dracaena.api.errors import DracaenaError, PermanentError, TemporaryError
from dracaena.api.mps import MpsNodeStatus, MpsPhase, MpsShareStatus
from dracaena.host.adapters.files import whole_files
from dracaena.mps.adapters.shared_folder import SharedFolder
from dracaena.mps.planning.places import MpsPlaces
from dracaena.mps.planning.state import ComputeMode, ModeJournal, PipesState

GPU = "GPU-11111111-2222-3333-4444-555555555555"
SHARE = "s_0123456789abcdef"


@pytest.fixture
def folder(tmp_path: Path) -> SharedFolder:
    made = SharedFolder(MpsPlaces(str(tmp_path)))
    made.prepare()
    return made


def test_clients_of_any_user_can_walk_to_their_pipes_and_make_none(folder: SharedFolder, tmp_path: Path) -> None:
    folder.make_folders(GPU)
    for path in (tmp_path / "pipe", next((tmp_path / "pipe").iterdir())):
        assert path.stat().st_mode & 0o777 == 0o755
    assert folder.folders() == (GPU,)
    folder.remove_folders(GPU)
    folder.remove_folders(GPU)
    assert folder.folders() == ()
    assert list((tmp_path / "log").iterdir()) == []


def test_the_journal_is_kept_and_an_entry_that_is_torn_says_nothing(folder: SharedFolder, tmp_path: Path) -> None:
    entry = ModeJournal(GPU, "boot", ComputeMode.PROHIBITED)
    folder.write_journal(entry)
    for name, data in (("torn", b'{"gpu":"x"'), ("odd", b'{"gpu":"x","boot_id":"b","previous":"SOMETIMES"}')):
        (tmp_path / "journal" / f"{name}.json").write_bytes(data)
    assert folder.journal() == {GPU: entry}
    assert [path.name for path in (tmp_path / "journal").iterdir()] == [f"{GPU}.json"]
    folder.remove_journal(GPU)
    assert folder.journal() == {}


class LooksThatFail(AbstractContextManager[None]):
    """No file can be opened in this block: this process has as many open as it may."""

    def __enter__(self) -> None:
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken = os.open("/", os.O_RDONLY)  # the lowest number that is free
        os.close(taken)
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken, self._limits[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)


def test_what_cannot_be_read_for_a_moment_is_kept(folder: SharedFolder, tmp_path: Path) -> None:
    entry = ModeJournal(GPU, "boot", ComputeMode.DEFAULT)
    status = MpsShareStatus(request="d", phase=MpsPhase.PENDING, gpu=GPU)
    node = MpsNodeStatus(boot_id="b", protocol=3, message="", multi_user=True)
    folder.write_journal(entry)
    folder.write_status(SHARE, status)
    folder.write_node(node)
    for look in (folder.journal, folder.statuses, folder.read_node):
        with LooksThatFail(), pytest.raises(TemporaryError, match="Too many open files"):
            look()
    assert folder.journal() == {GPU: entry}
    assert folder.statuses() == {SHARE: status}
    assert folder.read_node() == node


@pytest.mark.parametrize("errno_", [errno.EMFILE, errno.EIO, errno.EACCES])
def test_a_file_that_cannot_be_opened_is_not_removed(
    folder: SharedFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, errno_: int
) -> None:
    """The folder can be listed, and the file in it cannot be opened."""
    folder.write_journal(ModeJournal(GPU, "boot", ComputeMode.DEFAULT))
    folder.write_status(SHARE, MpsShareStatus(request="d", phase=MpsPhase.PENDING, gpu=GPU))
    before = sorted(tmp_path.rglob("*.json"))
    open_ = os.open

    def failing(path: str | Path, *rest: Any, **more: Any) -> int:
        if str(path).endswith(".json"):
            raise OSError(errno_, os.strerror(errno_))
        return open_(path, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing)
        for look in (folder.journal, folder.statuses):
            with pytest.raises(DracaenaError):
                look()
    assert sorted(tmp_path.rglob("*.json")) == before


def test_changes_of_requests_are_seen(folder: SharedFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_files, "TICK_NS", -(10**15))  # nothing counts as written just now
    assert folder.requests() == {}
    path = tmp_path / mps.REQUESTS / f"{SHARE}.json"
    path.write_bytes(b"{}")
    assert folder.requests_changed()
    first = folder.requests()[SHARE]
    assert first.request is None
    assert str(path) in first.problem
    path.write_bytes(b"{ }")
    assert [folder.requests_changed() for _ in range(2)] == [True, True], "until they are read"
    assert folder.requests()[SHARE].digest != first.digest
    path.unlink()
    assert folder.requests_changed()
    assert folder.requests() == {}
    assert not folder.requests_changed()


def test_a_request_that_has_not_changed_is_read_once(
    folder: SharedFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_files, "TICK_NS", -(10**15))  # nothing counts as written just now
    (tmp_path / mps.REQUESTS / f"{SHARE}.json").write_bytes(b"{}")
    first = folder.requests()
    with monkeypatch.context() as patch:
        patch.setattr(whole_files.DocumentFolder, "read", lambda *_: pytest.fail("it is read again"))
        assert folder.requests() == first


def test_a_request_that_is_a_link_or_a_folder_hurts_no_other(folder: SharedFolder, tmp_path: Path) -> None:
    (tmp_path / mps.REQUESTS / "s_0000000000000000.json").symlink_to("/etc/passwd")
    (tmp_path / mps.REQUESTS / "s_0000000000000001.json").mkdir()
    found = folder.requests()
    assert list(found) == ["s_0000000000000000"]
    assert "it is a link" in found["s_0000000000000000"].problem


def test_a_status_that_cannot_be_read_is_removed(folder: SharedFolder, tmp_path: Path) -> None:
    status = MpsShareStatus(request="d", phase=MpsPhase.PENDING, gpu=GPU)
    folder.write_status(SHARE, status)
    (tmp_path / mps.STATUS / "s_0000000000000000.json").write_bytes(b"{")
    (tmp_path / mps.STATUS / ".s_x.json.tmp").write_bytes(b"half")
    folder.prepare()
    assert folder.statuses() == {SHARE: status}
    assert [path.name for path in (tmp_path / mps.STATUS).iterdir()] == [f"{SHARE}.json"]
    folder.remove_status(SHARE)
    assert folder.statuses() == {}


def test_a_pipe_folder_is_there_once_all_folders_are(folder: SharedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    mkdir = Path.mkdir

    def once(path: Path, *rest: Any, **more: Any) -> None:
        made.append(path)
        if len(made) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        mkdir(path, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", once)
        with pytest.raises(PermanentError):
            folder.make_folders(GPU)
    assert folder.folders() == ()


@pytest.fixture
def pipes(folder: SharedFolder, tmp_path: Path) -> Path:
    """The pipe folder of a GPU whose daemon has made two named pipes, and a file that is none."""
    folder.make_folders(GPU)
    (made,) = (tmp_path / "pipe").iterdir()
    for name in ("control", "log"):
        os.mkfifo(made / name)
    (made / "pid").touch()
    return made


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())


def test_pipes_are_kept_all_or_none(folder: SharedFolder, pipes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder.pipes(GPU) is PipesState.UNKEPT
    link, linked = os.link, 0

    def once(*paths: Any, **more: Any) -> None:
        nonlocal linked
        linked += 1
        if linked > 1:
            raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))
        link(*paths, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", once)
        with pytest.raises(TemporaryError):
            folder.keep_pipes(GPU)
    assert folder.pipes(GPU) is PipesState.UNKEPT
    folder.keep_pipes(GPU)
    assert folder.pipes(GPU) is PipesState.KEPT


def test_pipes_of_the_next_daemon_take_the_place_of_those_that_were_kept(folder: SharedFolder, pipes: Path) -> None:
    folder.keep_pipes(GPU)
    (pipes / "log").unlink()
    assert folder.pipes(GPU) is PipesState.CHANGED
    folder.keep_pipes(GPU)
    assert folder.pipes(GPU) is PipesState.KEPT


@pytest.mark.parametrize("how", ["in place", "removed", "a file", "a folder", "a link to a folder", "half put back"])
def test_pipes_are_put_back_whatever_took_their_place(
    folder: SharedFolder, pipes: Path, tmp_path: Path, how: str
) -> None:
    folder.keep_pipes(GPU)
    control, others = pipes / "control", tmp_path / "others"
    (others / "file").mkdir(parents=True)
    if how != "in place":
        control.unlink()
    if how == "a file":
        control.touch()
    elif how == "a folder":
        (control / "file").mkdir(parents=True)
    elif how == "a link to a folder":
        control.symlink_to(others)
    elif how == "half put back":
        (pipes / ".control.kept").touch()
    folder.restore_pipes(GPU)
    assert folder.pipes(GPU) is PipesState.KEPT
    assert (names(pipes), names(others)) == (["control", "log", "pid"], ["file"])


def test_with_its_folders_nothing_of_a_gpu_is_left(folder: SharedFolder, pipes: Path, tmp_path: Path) -> None:
    folder.keep_pipes(GPU)
    (tmp_path / "kept" / f".{pipes.name}").mkdir()
    folder.remove_folders(GPU)
    assert [names(tmp_path / each) for each in ("pipe", "log", "kept")] == [[], [], []]


def test_a_torn_node_status_is_as_none(folder: SharedFolder, tmp_path: Path) -> None:
    (tmp_path / mps.NODE_STATUS).write_bytes(b'{"boot_id":')
    assert folder.read_node() is None


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PermanentError, match=r"cannot make .*file"):
        SharedFolder(MpsPlaces(str(tmp_path / "file"))).prepare()
