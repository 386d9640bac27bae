"""How the kernel sees one of our threads."""

from __future__ import annotations

from pathlib import Path


def is_uninterruptible(native_id: int, proc_root: str = "/proc") -> bool:
    """Whether a thread of this process waits in the kernel where no signal reaches it (state D, proc(5)).

    A process with such a thread cannot be killed: it stays until the call returns.
    """
    try:
        stat = (Path(proc_root) / f"self/task/{native_id}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] == ["D"]
