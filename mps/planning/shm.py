"""The /dev/shm that a GPU's server and its clients of protocol 2 have in common: a tmpfs for each GPU."""

from __future__ import annotations

from enum import Enum
from typing import Final

SHM_MODE: Final = 0o1777
"""Like any /dev/shm: processes of any user make segments, and only their owners remove them."""

MEMORY_PARTS: Final = 2
"""All of these file systems of a node together hold at most 1/2 of its memory, which is the kernel's own limit for one
tmpfs. What a pod leaves in one stays there until the GPU's last share has ended, and is charged to no pod any more."""

MOST_FILES: Final = 1 << 18
"""Files in one of them. A segment is a file; a large training job has thousands. The kernel takes about 1 KiB of memory
for each, however empty it is: 256 MiB in all, which the size does not count."""

_PAGE_BYTES: Final = 4096


class ShmState(Enum):
    """What was seen of a GPU's tmpfs."""

    NONE = "none"
    FOLDER = "folder"
    """The folder exists, and nothing is mounted on it: somebody was killed between the two."""
    MOUNTED = "mounted"


def shm_options(memory_bytes: int, gpus: int, label: str) -> str:
    """Return the mount options of a tmpfs on a node with this much memory and this many GPUs, at least one. `label` is
    the SELinux context of its files, "" for none.
    """
    size_bytes = memory_bytes // MEMORY_PARTS // gpus // _PAGE_BYTES * _PAGE_BYTES
    options = f"size={size_bytes},nr_inodes={MOST_FILES},mode={SHM_MODE:o}"
    return f'{options},context="{label}"' if label else options
