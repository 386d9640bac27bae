"""Folders for unix sockets: pytest's own are too long for the kernel's 107 bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def short_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:
        yield Path(folder)
