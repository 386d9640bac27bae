"""Real programs that end in time, take too long, or cannot be started."""

from __future__ import annotations

import os
import select
import subprocess
from pathlib import Path

import pytest

from dracaena.kubelet_plugin.adapters.programs.child_process import printed_by

LONG_S = 30.0


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def test_what_a_program_prints_comes_with_its_exit_status_and_its_errors_where_they_are_wanted() -> None:
    script = shell("printf one; printf two >&2; exit 3")
    assert printed_by(script, LONG_S) == (b"one", 3)
    assert printed_by(script, LONG_S, with_errors=True) == (b"onetwo", 3)
    assert printed_by(shell("kill -SEGV $$"), LONG_S) == (b"", -11)


def test_a_program_gets_its_own_environment_and_nothing_to_read() -> None:
    assert printed_by(["/usr/bin/env"], LONG_S) == (b"", 0)
    assert printed_by(["/usr/bin/env"], LONG_S, {"LC_ALL": "C"}) == (b"LC_ALL=C\n", 0)
    assert printed_by(["/bin/cat"], LONG_S) == (b"", 0)


def test_a_program_that_takes_too_long_is_ended_with_what_it_started(tmp_path: Path) -> None:
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    held = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            printed_by(shell(f"(echo started; exec sleep 600) > {fifo} & wait"), 1.0, {"PATH": os.defpath})
        seen = select.poll()
        seen.register(held, 0)
        assert seen.poll(LONG_S * 1000) == [(held, select.POLLHUP)], "what it started goes on"
        assert os.read(held, 100) == b"started\n"
    finally:
        os.close(held)


def test_a_program_that_cannot_be_started_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        printed_by([str(tmp_path / "none")], LONG_S)
