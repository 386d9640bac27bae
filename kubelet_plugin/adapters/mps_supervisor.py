"""Whether an MPS supervisor runs on this node: it holds a lock as long as it lives."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from dracaena.api.mps import LOCK


def supervisor_runs(root: Path) -> bool:
    """Whether one holds its lock now; a file that cannot be opened is held by nobody.

    The lock is tried as a shared one for some microseconds. A supervisor that starts in just those tries again.
    """
    try:
        descriptor = os.open(root / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
