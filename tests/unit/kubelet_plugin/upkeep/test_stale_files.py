"""What a start removes of instances that are no more, and what it leaves (kubelet_plugin.stale_files.py)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dracaena.host.adapters.files.lock import FileLock
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.host.paths import PluginPaths, plugin_paths
from dracaena.kubelet_plugin.upkeep.stale_files import remove_stale_files
from support.plugin import DRIVER
from support.sockets import short_folder


@pytest.fixture
def root() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder


def instance(root: Path, uid: str) -> tuple[PluginPaths, FileLock]:
    """An instance that ran or runs: its sockets, and its lock held."""
    paths = plugin_paths(str(root), DRIVER, uid)
    lock = FileLock(paths.instance_lock)
    assert lock.try_acquire()
    for path in (paths.dra_socket, paths.registration_socket):
        path.parent.mkdir(parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    return paths, lock


def files_of(paths: PluginPaths) -> list[bool]:
    return [path.exists() for path in (paths.instance_lock, paths.dra_socket, paths.registration_socket)]


@pytest.mark.parametrize("dead_uid", ["", "dead", "d" * 60])
def test_lock_and_sockets_go_with_a_free_lock_and_stay_with_a_held_one(root: Path, dead_uid: str) -> None:
    (dead, dead_lock), (living, living_lock), (mine, my_lock) = (instance(root, u) for u in (dead_uid, "living", "me"))
    dead_lock.release()
    remove_stale_files(mine, str(root), DRIVER, ())
    assert files_of(dead) == [False] * 3
    assert files_of(living) == files_of(mine) == [True] * 3
    assert not FileLock(living.instance_lock).try_acquire()
    for lock in (living_lock, my_lock):
        lock.release()


def test_what_is_no_socket_stays_in_place_of_one(root: Path) -> None:
    (dead, dead_lock), (mine, my_lock) = instance(root, "dead"), instance(root, "me")
    dead_lock.release()
    dead.registration_socket.unlink()
    dead.registration_socket.write_text("mine")
    remove_stale_files(mine, str(root), DRIVER, ())
    assert dead.registration_socket.read_text() == "mine"
    my_lock.release()


def test_what_cannot_be_removed_does_not_hinder_the_start(root: Path) -> None:
    mine, my_lock = instance(root, "me")
    (mine.instance_lock.parent / "instance-folder.lock").mkdir()
    (root / "loop").symlink_to("loop")
    folder = DocumentFolder(root / "claims")
    (root / "claims").mkdir()
    (root / "claims" / ".x.json.tmp").write_bytes(b"half")
    remove_stale_files(mine, str(root), DRIVER, ((DocumentFolder(root / "loop"), ""), (folder, "")))
    assert list((root / "claims").iterdir()) == []
    my_lock.release()
