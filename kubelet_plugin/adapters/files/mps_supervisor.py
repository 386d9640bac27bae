"""Whether an MPS supervisor runs on this node: it holds a lock while it lives."""

from __future__ import annotations

from pathlib import Path

from dracaena.api.mps import LOCK
from dracaena.host.adapters.files.lock import is_held


def supervisor_runs(root: Path) -> bool:
    """Whether one holds its lock now. One that starts in just these microseconds retries."""
    return is_held(root / LOCK)
