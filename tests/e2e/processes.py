"""Programs that are started, restarted, killed and ended by their own handles; what they print goes to a file each."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

STOP_S = 20.0
"""Seconds from SIGTERM to SIGKILL: all but kube-apiserver end within two; the rest is for a loaded machine."""

TAIL_LINES = 15
"""Lines of a log that an error quotes."""

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """In a new process: ask the kernel to end it when its parent is gone, even by SIGKILL (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def uninterrupted() -> Iterator[Callable[[], None]]:
    """Let SIGINT and SIGTERM come only when it is left: one that comes while a process is started would raise before
    there is anything to end. Yield what a new process has to call, because it inherits that. Main thread only."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})

    def let_them_come() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        yield let_them_come
    finally:
        let_them_come()


def end_group(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """End a process that leads its session, and all that it started, with SIGKILL."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class ProgramEndedError(Exception):
    """A program that should run has ended; str() holds the end of its log."""


class Program:
    """One program with its command line. Ends with this process at the latest, because its namespace does."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        logs: Path,
        *,
        environment: Mapping[str, str] | None = None,
        stop_s: float = STOP_S,
    ) -> None:
        self.name = name
        self.log = logs / f"{name}.log"
        self._command = [str(part) for part in command]
        self._environment = {**os.environ, **(environment or {})}
        self._stop_s = stop_s
        self._process: subprocess.Popen[bytes] | None = None
        self._is_wanted = False
        self._log_began = 0

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def was_started(self) -> bool:
        """Whether it was ever started."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """The process id of the last start."""
        assert self._process is not None
        return self._process.pid

    def start(self, *more: str) -> None:
        """Start it, this time with `more` arguments; its log goes on where it was."""
        if self.is_running:
            raise ProgramEndedError(f"{self.name} runs already")
        self._is_wanted = True
        with self.log.open("ab") as log:
            self._log_began = log.tell()
            self._process = subprocess.Popen(
                [*self._command, *more],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for the tests, which then end the programs in order
            )

    def stop(self) -> None:
        """End it in order with SIGTERM, by force after stop_s."""
        self._is_wanted = False
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(self._stop_s)
        except subprocess.TimeoutExpired:
            self.kill()

    @contextmanager
    def restarted_with(self, *more: str) -> Iterator[None]:
        """Run it with further arguments inside the block, as before after it."""
        self.stop()
        self.start(*more)
        try:
            yield
        finally:
            self.stop()
            self.start()

    def kill(self) -> None:
        """End it and the helpers it started with SIGKILL, as a crash does."""
        self._is_wanted = False
        if self._process is None or self._process.poll() is not None:
            return
        end_group(self._process)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let it stand still inside the block: it keeps its connections and answers nothing."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)

    def check(self) -> None:
        """Raise ProgramEndedError when it was started and has ended by itself."""
        if self._process is not None and self._is_wanted and not self.is_running:
            raise ProgramEndedError(
                f"{self.name} ended with {self._process.returncode}; the end of {self.log}:\n{self.tail()}"
            )

    def log_size(self) -> int:
        """Return how many bytes the log has now, for tail(since)."""
        return self.log.stat().st_size if self.log.exists() else 0

    def tail(self, since: int = 0) -> str:
        """Return the last lines that were logged, only those after byte `since`."""
        return "\n".join(self._logged(since).splitlines()[-TAIL_LINES:])

    def logged(self) -> str:
        """Return all that was logged since the last start."""
        return self._logged(self._log_began)

    def _logged(self, since: int) -> str:
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(since)
            return log.read().decode("utf-8", errors="replace")
