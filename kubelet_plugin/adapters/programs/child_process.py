"""Programs with a deadline: the output of one that ends in time, and the end of one that does not."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

KILL_S: Final = 2.0
"""A killed process ends within milliseconds, unless it waits in the kernel, where no signal reaches it."""


def printed_by(
    command: Sequence[str], limit_s: float, environment: Mapping[str, str] | None = None, *, with_errors: bool = False
) -> tuple[bytes, int]:
    """Return a program's output and exit status; `with_errors`: including its standard error, in order.

    `environment` is its whole environment. Raises OSError if it cannot be started, and subprocess.TimeoutExpired after
    `limit_s`: then it was killed, or left behind if it cannot be killed.
    """
    child = subprocess.Popen(  # noqa: S603 - the callers' programs, no shell
        command,
        env=environment or {},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if with_errors else subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        printed, _ = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        kill(child)
        if child.stdout is not None:
            child.stdout.close()
        raise
    return printed, child.returncode


def kill(child: subprocess.Popen[bytes]) -> bool:
    """Kill the leader of a session with its children; False if it has not ended after KILL_S."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    try:
        child.wait(KILL_S)
    except subprocess.TimeoutExpired:
        return False
    return True
