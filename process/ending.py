"""How a long-running program learns that it has to end: SIGTERM from kubelet or systemd, SIGINT from a terminal.

The signals are blocked and waited for, not handled. A handler that sets an Event has two gaps: it may run while the
main thread holds the Event's lock, and a signal between the last check and the wait wakes nothing.
"""

from __future__ import annotations

import os
import signal

END_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})


def hold_end_signals() -> None:
    """Keep SIGTERM and SIGINT pending from now on. Call it in the main thread before any other thread is started."""
    signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)


def end_this_process() -> None:
    """Wake wait_for_end_signal() from any thread, because the program itself found that it must end."""
    os.kill(os.getpid(), signal.SIGTERM)


def wait_for_end_signal() -> signal.Signals:
    """Wait for one of these signals since hold_end_signals(), and return it."""
    return signal.Signals(signal.sigwait(END_SIGNALS))
