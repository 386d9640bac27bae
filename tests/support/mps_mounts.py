"""The real tmpfs of GPUs where a test may mount; plain folders where it may not, and then nobody sees a tmpfs."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from dracaena.api.mps import CLIENT_SHM
from dracaena.mps.adapters.mounts import MS_NOEXEC, mount, unmount
from dracaena.mps.adapters.share_memory import ShareMemory
from dracaena.mps.planning.places import MpsPlaces
from dracaena.mps.planning.shm import ShmState


@functools.cache
def why_no_mounts() -> str:
    """Why this process may mount nothing, "" if it may."""
    if os.geteuid() != 0:
        return "mounts need root"
    with tempfile.TemporaryDirectory() as folder:
        try:
            mount("test", folder, "tmpfs", MS_NOEXEC, "size=4096")
        except OSError as error:
            return f"this container may not mount: {error.strerror}"
        unmount(folder)
    return ""


needs_mounts = pytest.mark.skipif(bool(why_no_mounts()), reason=why_no_mounts())


class PlainFolders(ShareMemory):
    """Stands in for it: a folder counts as mounted while it has a mark in it."""

    def seen(self) -> Mapping[str, ShmState]:
        marked = {gpu: (Path(self._places.shm_of(gpu)) / ".mounted").exists() for gpu in super().seen()}
        return {gpu: ShmState.MOUNTED if is_marked else ShmState.FOLDER for gpu, is_marked in marked.items()}

    def mount(self, gpu: str) -> None:
        folder = Path(self._places.shm_of(gpu))
        folder.mkdir(exist_ok=True)
        (folder / ".mounted").touch()

    def unmount(self, gpu: str) -> None:
        folder = Path(self._places.shm_of(gpu))
        (folder / ".mounted").unlink(missing_ok=True)
        folder.rmdir()

    def enter(self, gpu: str, program_root: str) -> None:
        pass


def share_memory(places: MpsPlaces) -> ShareMemory:
    """Daemons see it elsewhere than at /dev/shm if the test's own files are there."""
    at = f"{places.root}/daemon-shm" if places.root.startswith(f"{CLIENT_SHM}/") else CLIENT_SHM
    return PlainFolders(places, at=at) if why_no_mounts() else ShareMemory(places, at=at)


def unmount_all(places: MpsPlaces) -> None:
    shm = share_memory(places)
    for gpu in shm.seen():
        shm.unmount(gpu)
