"""Mounts through libc: Python has no calls for them.

mount(2), umount2(2) and unshare(2) of Linux; the numbers are those of <linux/mount.h> and <linux/sched.h>, the same on
all architectures that have NVIDIA's driver.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

MS_NOSUID: Final = 1 << 1
MS_NODEV: Final = 1 << 2
MS_NOEXEC: Final = 1 << 3
MS_BIND: Final = 1 << 12
MS_REC: Final = 1 << 14
MS_SLAVE: Final = 1 << 19
_MNT_DETACH: Final = 1 << 1
_UMOUNT_NOFOLLOW: Final = 1 << 3
_CLONE_NEWNS: Final = 0x00020000

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mount. Raises OSError with the target as its filename."""
    done = _libc.mount(
        source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), options.encode() or None
    )
    _raise_if(done, target)


def unmount(target: str) -> None:
    """Unmount what was mounted last at a path, also while files in it are open: it is freed when these are closed.
    Raises OSError; EINVAL: nothing is mounted there.
    """
    _raise_if(_libc.umount2(target.encode(), _MNT_DETACH | _UMOUNT_NOFOLLOW), target)


def leave_mount_namespace() -> None:
    """Give the calling thread a mount namespace of its own, a copy of the process's. Mounts made in it are seen in no
    other; what is mounted or unmounted outside is followed where the mounts are shared. Raises OSError.
    """
    _raise_if(_libc.unshare(_CLONE_NEWNS), "/")
    mount("none", "/", "", MS_REC | MS_SLAVE)


def _raise_if(failed: int, path: str) -> None:
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
