"""What one unit test changes for the whole process, and no other may see."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Commands under test configure logging as their programs do; the next test shall see all lines again."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)
