"""How a program loads its modules: with as little CPU time as possible."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Load modules within this. Structlog comes first, without rich (_load_structlog).

    The cyclic garbage collector is off inside: modules stay, and walking them again and again takes a tenth of the CPU
    time of a start. Afterwards the collector is as it was before.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        _load_structlog()
        yield
    finally:
        if was_enabled:
            gc.enable()


def _load_structlog() -> None:
    """Load structlog as if rich were not installed, for which it looks once, when it is loaded itself.

    It would load it for tracebacks that none of our programs prints (configure_logs wants plain ones): 50 ms of CPU or
    more, a fifth of a start of `dracaena mps`. The demo, for which rich is installed, loads it afterwards.
    """
    if "structlog" in sys.modules or "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]  # so an import of it fails: docs.python.org, sys.modules
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]
