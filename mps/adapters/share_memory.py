"""The tmpfs of each GPU whose shares use protocol 2: in the supervisor's folder, from which containers mount it, and at
/dev/shm for the GPU's daemon and server. What mounts the driver's programs see is decided here too.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from dracaena.api.errors import PermanentError, TemporaryError
from dracaena.api.mps import CLIENT_SHM
from dracaena.mps.adapters.mounts import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_REC,
    leave_mount_namespace,
    mount,
    unmount,
)
from dracaena.mps.planning.places import MpsPlaces
from dracaena.mps.planning.shm import ShmState, shm_options
from dracaena.mps.protocol.v3 import gpu_of

_FLAGS = MS_NOSUID | MS_NODEV | MS_NOEXEC
"""As for any /dev/shm."""

_FOLDER_MODE = 0o755

_MEMORY_LINE = re.compile(r"^MemTotal:\s+(\d+) kB$", re.MULTILINE)


class ShareMemory:
    """Implements dracaena.mps.ports.MpsShm. Used by one thread. `label`: SELinux context of the files, "": none. `at`:
    where daemons and servers see their GPU's; tests whose files are in /dev/shm name another folder.
    """

    def __init__(self, places: MpsPlaces, label: str = "", *, at: str = CLIENT_SHM, proc_root: str = "/proc") -> None:
        self._places = places
        self.at = at
        self._label = label
        self._proc = Path(proc_root)

    def prepare(self) -> None:
        """Make the folder of the mounts, and remove what is no mount of ours. Raises PermanentError.

        Before each GPU had a file system of its own, all segments of the node were in this folder.
        """
        folder = Path(self._places.shm)
        try:
            folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            folder.chmod(_FOLDER_MODE)
            for path in folder.iterdir():
                if gpu_of(path.name) is None:
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        except OSError as error:
            raise PermanentError(f"cannot prepare {error.filename or folder}: {error.strerror}") from error

    def seen(self) -> Mapping[str, ShmState]:
        """See MpsShm."""
        try:
            names = sorted(os.listdir(self._places.shm))  # noqa: PTH208 - names are enough
        except OSError:
            return {}
        gpus = (gpu for gpu in map(gpu_of, names) if gpu is not None)
        return {gpu: ShmState.MOUNTED if self._is_mounted(gpu) else ShmState.FOLDER for gpu in gpus}

    def mount(self, gpu: str) -> None:
        """See MpsShm."""
        if (self._places.root + "/").startswith(self.at + "/"):
            raise PermanentError(
                f"the folder {self._places.root} is in {self.at}, where each daemon sees the shared memory of its GPU "
                "instead: give another --root"
            )
        path = self._places.shm_of(gpu)
        try:
            Path(path).mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            if not self._is_mounted(gpu):
                mount("dracaena-mps", path, "tmpfs", _FLAGS, self._options())
        except OSError as error:
            raise TemporaryError(f"cannot mount a tmpfs at {path}: {error.strerror}") from error
        if not self._host_sees(path):
            self.unmount(gpu)
            raise PermanentError(
                f"a tmpfs mounted at {path} does not appear on the host, where containers get it from: the "
                "supervisor's folder needs mountPropagation: Bidirectional, and a shared mount below it on the host "
                f"(`findmnt -o TARGET,PROPAGATION -T {self._places.root}` must say shared)"
            )

    def unmount(self, gpu: str) -> None:
        """See MpsShm. Removes all mounts there are on one another, and the folder last."""
        path = self._places.shm_of(gpu)
        try:
            while self._is_mounted(gpu):
                unmount(path)
            Path(path).rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            raise TemporaryError(f"cannot unmount {path}: {error.strerror}") from error

    def enter(self, gpu: str, program_root: str) -> None:
        """Give the calling thread, and the programs that it starts, a mount namespace in which a GPU's tmpfs is at
        `at` (of "": none), and there below `program_root` if that will be their root. The supervisor's folder is below
        that root at the same path. Raises OSError.

        The file systems of all GPUs are unmounted elsewhere in it: a daemon that outlives the shares of another GPU
        must not keep their memory.
        """
        leave_mount_namespace()
        root = program_root.rstrip("/")
        if gpu:
            for below in dict.fromkeys(("", root)):
                _bind(self._places.shm_of(gpu), f"{below}{self.at}", 0)
            for mounted, state in self.seen().items():
                if state is ShmState.MOUNTED:
                    unmount(self._places.shm_of(mounted))
        there = Path(f"{root}{self._places.root}")
        if not there.exists() or not there.samefile(self._places.root):
            _bind(self._places.root, str(there), MS_REC)

    def _options(self) -> str:
        found = _MEMORY_LINE.search((self._proc / "meminfo").read_text(encoding="ascii"))
        if found is None:
            raise OSError(errno.EINVAL, f"{self._proc / 'meminfo'} has no line MemTotal")
        gpus = self._proc / "driver/nvidia/gpus"
        try:
            count = len(list(gpus.iterdir()))
        except OSError:
            count = 0
        return shm_options(int(found[1]) << 10, max(count, 1), self._label)

    def _is_mounted(self, gpu: str) -> bool:
        folder = Path(self._places.shm_of(gpu))
        try:
            return folder.stat().st_dev != folder.parent.stat().st_dev
        except FileNotFoundError:
            return False

    def _host_sees(self, path: str) -> bool:
        """Whether the node's first process, which has the host's mounts, sees the same folder at the same path."""
        try:
            return os.path.samestat(os.stat(f"{self._proc}/1/root{path}"), os.stat(path))  # noqa: PTH116 - / is a prefix
        except PermissionError:
            return True  # not to be found out, and no privileged supervisor is refused
        except OSError:
            return False


def _bind(folder: str, target: str, flags: int) -> None:
    Path(target).mkdir(parents=True, exist_ok=True)
    mount(folder, target, "", MS_BIND | flags)
