"""In processes of their own: signals belong to a whole process."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

BEFORE_THE_WAIT = """
import os, signal, threading
from dracaena.process.ending import hold_end_signals, wait_for_end_signal
hold_end_signals()
threading.Thread(target=threading.Event().wait, daemon=True).start()
os.kill(os.getpid(), signal.{name})
print(wait_for_end_signal().name)
"""

DURING_THE_WAIT = """
from dracaena.process.ending import hold_end_signals, wait_for_end_signal
hold_end_signals()
print("waiting", flush=True)
print(wait_for_end_signal().name)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_that_comes_before_the_wait_is_not_lost(name: str) -> None:
    code = BEFORE_THE_WAIT.format(name=name)
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == f"{name}\n"


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_wait_ends_it(sent: signal.Signals) -> None:
    command = [sys.executable, "-P", "-c", DURING_THE_WAIT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "waiting\n"
        program.send_signal(sent)
        assert program.stdout.read() == f"{sent.name}\n"
    assert program.returncode == 0


FROM_WITHIN = """
import threading
from dracaena.process.ending import end_this_process, hold_end_signals, wait_for_end_signal
hold_end_signals()
threading.Thread(target=end_this_process).start()
print(wait_for_end_signal().name)
"""


def test_a_program_can_end_itself_from_any_of_its_threads() -> None:
    command = [sys.executable, "-P", "-c", FROM_WITHIN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "SIGTERM\n"
