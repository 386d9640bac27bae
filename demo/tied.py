"""`python -m dracaena.demo.tied PARENT_PID ARGUMENTS...`: runs `dracaena`, and the kernel kills it with its parent.

The demo's programs have sessions of their own, so no signal of a terminal reaches them: without this they would survive
when the demo is killed. Linux only (prctl(2), PR_SET_PDEATHSIG); elsewhere just the command.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1
"""linux/prctl.h."""


def tie_to(parent_pid: int) -> None:
    """Have the kernel send SIGKILL to this process when the thread that started it ends.

    Not SIGTERM: the API server ended with the parent, so nothing could be ended in order. Ends this process at once
    if the parent is already gone.
    """
    prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
    if prctl is None:
        return
    if prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        raise SystemExit(1)  # it ended before the kernel knew


if __name__ == "__main__":
    tie_to(int(sys.argv.pop(1)))
    # By name, as on a command line: the command is made of this package, not the other way round.
    runpy.run_module("dracaena.cli.main", run_name="__main__", alter_sys=True)
