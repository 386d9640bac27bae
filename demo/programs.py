"""Processes of the `dracaena` command: started, watched and ended through their own handles."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from dracaena.api.errors import TemporaryError

STOP_S = 5.0
"""Seconds from SIGTERM to SIGKILL: both programs end within one; the rest is for a loaded machine."""

TAIL_LINES = 15
"""Number of log lines that an error quotes: enough for a program's last message and the lines before it."""

_COMMAND = (sys.executable, "-P", "-m", "dracaena.demo.tied")
"""Runs `dracaena` so that it ends with its parent. -P: the working folder is not searched for modules, whatever it
contains."""


class ProgramEndedError(TemporaryError):
    """A program that should be running has ended; str() has the end of its log."""


class Running(Protocol):
    """A process that was started, as subprocess.Popen is one."""

    @property
    def returncode(self) -> int | None:
        """The exit code as of the last poll() or wait(), negative for a signal."""
        ...

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code. Raises subprocess.TimeoutExpired."""
        ...

    def terminate(self) -> None:
        """Send SIGTERM."""
        ...

    def kill(self) -> None:
        """Send SIGKILL."""
        ...


Begin = Callable[[Sequence[str], Path, Mapping[str, str]], Running]
"""Starts `dracaena` with these arguments in a session of its own, output to the end of a log, in this environment."""


def begin_command(arguments: Sequence[str], log_path: Path, environment: Mapping[str, str]) -> Running:
    """Run the command, tied to the life of this process."""
    with log_path.open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - our own command, no shell
            [*_COMMAND, str(os.getpid()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the demo; it then ends its programs in order
        )


class ProgramProcess:
    """One `dracaena` process whose output goes to a file. After its end the same arguments can be started again."""

    def __init__(self, name: str, arguments: Sequence[str], log_path: Path, *, begin: Begin = begin_command) -> None:
        self.name = name
        self.log_path = log_path
        self._arguments = tuple(arguments)
        self._begin = begin
        self._process: Running | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process; its log is appended to.

        Where the kernel can do it (Linux), the process is killed when the calling thread ends: call it in a thread that
        lives as long as the process is to.
        """
        if self.is_running:
            raise AssertionError(f"{self.name} is already running")
        self._process = self._begin(self._arguments, self.log_path, _environment(os.environ))

    def request_stop(self) -> None:
        """Send SIGTERM and return at once."""
        if self._process is not None and self.is_running:
            self._process.terminate()

    def stop(self) -> int | None:
        """End the process in order, by force after STOP_S; return its exit code, None if it is not running."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.terminate()
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def kill(self) -> None:
        """End the process with SIGKILL, as a crash does, and wait until it is gone."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def check(self) -> None:
        """Raise ProgramEndedError when the process has ended by itself, not by stop() or kill()."""
        if self._process is not None and not self.is_running:
            raise ProgramEndedError(
                f"{self.name} ended with {self._process.returncode}; the end of {self.log_path}:\n{self.log_tail()}"
            )

    def log_tail(self) -> str:
        """Return the last lines of the log, indented."""
        try:
            lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            lines = []
        return "\n".join(f"    {line}" for line in lines[-TAIL_LINES:]) or "    (empty)"


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without settings of Dracaena, which would apply to every program."""
    return {key: value for key, value in environment.items() if not key.startswith("DRACAENA_")}
