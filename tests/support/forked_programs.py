"""`dracaena` programs as processes forked from one that has loaded their modules, so that each start is spared that.

It is most of the CPU time of a start. All else is as when the command is run: a process in a session of its own, with
its own sockets and locks, that only signals can end. The children of one such process share its seed of hashes. How the
command itself starts is left to the tests that run it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from dracaena.cli.main import main as command
from dracaena.demo.tied import tie_to
from support.reasons import recording

LOADED = (
    *("dracaena.cli.main", "dracaena.cli.controller", "dracaena.cli.kubelet_plugin"),
    *("dracaena.controller.program", "dracaena.kubelet_plugin.program", "dracaena.mps.program"),
    "support.reasons.recording",
)
"""Modules of the programs that tests start."""

Main = Callable[[Sequence[str]], int]
"""Takes the arguments of a command and returns its exit code; a function that can be imported."""

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(list(LOADED))


class ForkedProgram:
    """One `dracaena` process, with what is used of subprocess.Popen. It ends with this process at the latest."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
        main: Main = command,
    ) -> None:
        """Start `main` with these arguments.

        What it prints goes on at the end of `log`; without one, standard error goes to `stderr`, and standard output to
        nobody. `environment` is all of it, by default ours; the official client has read KUBECONFIG before, when it was
        loaded.
        """
        self.stderr: TextIO | None = None
        if log is not None:
            log.touch()
        given = dict(os.environ if environment is None else environment)
        reader, writer = _SERVER.Pipe(duplex=False)
        with reader, writer:
            output = writer if log is None else log
            self._process = _SERVER.Process(
                target=_become, args=(main, tuple(arguments), given, output, recording.FILE), daemon=True
            )
            self._process.start()
            if log is None:
                self.stderr = open(os.dup(reader.fileno()), encoding="utf-8")  # noqa: SIM115 - see communicate()

    @property
    def pid(self) -> int:
        """The process's."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code. Raises subprocess.TimeoutExpired."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired("dracaena", timeout)
        return code

    def communicate(self, timeout: float = 60.0) -> tuple[None, str]:
        """Read standard error to its end, wait for that of the process, and close. Raises subprocess.TimeoutExpired."""
        if self.stderr is None:
            self.wait(timeout)
            return None, ""
        until_s = time.monotonic() + timeout
        text = b""
        with self.stderr:
            while select.select([self.stderr], [], [], max(0.0, until_s - time.monotonic()))[0]:
                more = os.read(self.stderr.fileno(), 1 << 16)
                if not more:
                    self.wait(max(0.0, until_s - time.monotonic()))
                    return None, text.decode()
                text += more
        raise subprocess.TimeoutExpired("dracaena", timeout, stderr=text)

    def send_signal(self, number: int) -> None:
        """Send a signal; nothing happens when the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended just now, and its server has waited for it
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.communicate()


def begin_forked(arguments: Sequence[str], log_path: Path, environment: Mapping[str, str]) -> ForkedProgram:
    """Start one for a DemoCluster (dracaena.demo.programs.Begin)."""
    return ForkedProgram(arguments, log=log_path, environment=environment)


def _become(
    main: Main,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    output: Path | Connection,
    untrue_reasons: Path | None,
) -> None:
    """Run the command in a new process. Reasons that it gives are judged, and untrue ones written to the file."""
    if untrue_reasons is not None:
        recording.install(untrue_reasons)
    tie_to(os.getppid())
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    nothing = os.open(os.devnull, os.O_RDWR)
    if isinstance(output, Path):
        out = err = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    else:
        out, err = nothing, output.fileno()
    for number, descriptor in enumerate((nothing, out, err)):
        os.dup2(descriptor, number)
    sys.argv = ["dracaena", *arguments]
    raise SystemExit(main(arguments))
