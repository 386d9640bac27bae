"""Runs nvidia-cuda-mps-control of the GPU driver.

The program belongs to the driver, and so to the driver's own C library: if the driver's root is not ours, it runs in a
chroot of that root, with our folder at the same path. If the driver's folder is not a whole root, it runs outside, with
the driver's programs and libraries in its paths.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from dracaena.host.adapters.gpu_driver.root import GpuDriverRoot
from dracaena.mps.ports import ControlError, ControlSilentError, DaemonGoneError, MissingProgram
from dracaena.mps.protocol.seen import ControlCommand

PROGRAM = "nvidia-cuda-mps-control"
PROGRAM_FOLDERS = ("/usr/bin", "/usr/local/bin", "/bin", "/opt/bin", "/usr/local/nvidia/bin", "/run/nvidia/bin")
"""Where distributions and driver installers put the driver's programs, in the order in which they are searched."""

CUDA_LIBRARY = "libcuda.so.1"
"""Library that the MPS server loads."""

ANSWER_S = 3.0
"""A command takes some milliseconds; `quit -t` gets its own time on top. Three timeouts in a row still fit into the
45 s of kubelet."""

QUIT_S = 10.0
"""The daemon gives its servers 5 s to end."""

KILL_S = 1.0
"""A process that is killed ends within milliseconds, unless it hangs in the driver."""

MOST_BYTES = 1 << 20
"""An answer lists some hundred processes. Anything longer is not an answer."""

_NO_DAEMON_DOCUMENTED = "cannot find mps control daemon"
_NO_DAEMON = (_NO_DAEMON_DOCUMENTED, "failed to connect", "connection refused", "is not running")
"""What the program prints if no daemon listens. The first is the documented form, the others come from reports."""

_LOG = "start.log"


class ControlProgram:
    """Implements dracaena.mps.ports.MpsControl. `driver_root` is where this process sees the driver's root."""

    def __init__(
        self,
        driver_root: str,
        root: str,
        enter: Callable[[str, str], None],
        *,
        answer_s: float = ANSWER_S,
        kill_s: float = KILL_S,
    ) -> None:
        """`root` is the supervisor's folder. `enter` gives the calling thread, and the programs that it starts, the
        mounts that they need: the /dev/shm of a GPU, if one is named, and our folder below the one that is to be their
        root; it raises OSError.
        """
        self._driver = driver_root
        self._root = root
        self._enter = enter
        self._answer_s, self._kill_s = answer_s, kill_s
        self._hung: list[subprocess.Popen[bytes]] = []
        """Processes that SIGKILL has not ended yet."""

    def missing(self) -> MissingProgram | None:
        """See MpsControl."""
        if self._program() is not None:
            return None
        if GpuDriverRoot(self._driver).library(CUDA_LIBRARY) is None:
            return MissingProgram(
                f"waiting for the NVIDIA driver: no {CUDA_LIBRARY} and no {PROGRAM} below {self._driver}; install the "
                "driver, or name its folder in driver-root-mount",
                passes=True,
            )
        return MissingProgram(
            f"this node's GPU driver has no {PROGRAM} below {self._driver} (searched {', '.join(PROGRAM_FOLDERS)}): "
            "install the driver with its compute utilities, or name its folder in driver-root-mount",
            passes=False,
        )

    def run(self, command: ControlCommand, pipes: str) -> str:
        """See MpsControl."""
        line, environment = self._call(command)
        environment["CUDA_MPS_PIPE_DIRECTORY"] = pipes
        limit_s = QUIT_S if "quit" in str(command) or "-q" in command.arguments else self._answer_s
        call = partial(
            self._ended, line, environment, command.standard_input.encode(), subprocess.PIPE, limit_s,
            f"{PROGRAM} does not answer `{command}` within {limit_s:g} s (pipe folder {pipes})",
        )  # fmt: skip
        data, code = self._with_mounts("", call)
        return _answer(command, data, code)

    def start(self, command: ControlCommand, pipes: str, logs: str, gpu: str) -> None:
        """See MpsControl."""
        line, environment = self._call(command)
        environment |= {"CUDA_MPS_PIPE_DIRECTORY": pipes, "CUDA_MPS_LOG_DIRECTORY": logs}
        if gpu:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        # A file, not a pipe: the daemon inherits it, and a pipe would stay open as long as the daemon lives.
        log = Path(logs) / _LOG
        try:
            with log.open("wb") as output:
                call = partial(
                    self._ended, line, environment, None, output, self._answer_s,
                    f"{PROGRAM} does not start within {self._answer_s:g} s",
                )  # fmt: skip
                _, code = self._with_mounts(gpu, call)
        except OSError as error:
            raise ControlError(f"cannot open {log}: {error.strerror}") from error
        if code != 0:
            said = _last_line(log) or "nothing"
            raise ControlError(f"{PROGRAM} cannot start a daemon (exit code {code}): {said}")

    def _with_mounts(self, gpu: str, call: Callable[[], tuple[bytes, int]]) -> tuple[bytes, int]:
        """Run in a thread of its own, whose mounts are its own and end with the last of its programs; without a thread
        if no mounts are needed.

        No mount is made in the driver's root for longer: it would keep the folder of a driver container that is removed
        and made again, and the new one would not be seen.
        """
        root = self._driver if self._is_root_of_programs() else "/"
        if not gpu and _is_same(f"{root}{self._root}", self._root):
            return call()

        def inside() -> tuple[bytes, int]:
            try:
                self._enter(gpu, root)
            except OSError as error:
                raise ControlError(
                    f"cannot give the driver's programs what they need at {error.filename}: {error.strerror}"
                ) from error
            return call()

        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="mps-daemon") as thread:
            return thread.submit(inside).result()

    def _ended(
        self, line: list[str], environment: dict[str, str], given: bytes | None, output: IO[bytes] | int,
        limit_s: float, silent: str,
    ) -> tuple[bytes, int]:  # fmt: skip
        """Run the driver's program to its end, and return its output (nothing if that goes to a file) and its exit
        code. After a time limit it is killed, and left behind if even that does not end it.
        """
        self._hung = [each for each in self._hung if each.poll() is None]
        try:
            started = subprocess.Popen(  # noqa: S603 - the driver's own program, no shell
                line,
                env=environment,
                stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ControlError(f"cannot run {line[0]}: {error.strerror}") from error
        try:
            data, _ = started.communicate(given, timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            raise ControlSilentError(silent + self._what_is_left(started)) from error
        return data or b"", started.returncode

    def _what_is_left(self, killed: subprocess.Popen[bytes]) -> str:
        """Return a text about a process that SIGKILL does not end: the supervisor's only thread cannot wait for it."""
        for pipe in (killed.stdin, killed.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what it has not read of its input
                    pipe.close()
        try:
            killed.wait(timeout=self._kill_s)
        except subprocess.TimeoutExpired:
            self._hung.append(killed)
            return f", and process {killed.pid} hangs in the kernel: look at `dmesg`"
        return ""

    def last_words(self, logs: str) -> str:
        """See MpsControl."""
        return _last_line(Path(logs) / "control.log")

    def _program(self) -> PurePosixPath | None:
        return GpuDriverRoot(self._driver).program(PROGRAM, PROGRAM_FOLDERS)

    def _call(self, command: ControlCommand) -> tuple[list[str], dict[str, str]]:
        program = self._program()
        if program is None:
            missing = self.missing()
            raise ControlError(missing.message if missing is not None else f"{PROGRAM} has just appeared: retrying")
        inside = self._is_root_of_programs()
        if self._driver == "/" or inside:
            path = ":".join(PROGRAM_FOLDERS)
            prefix = ["chroot", self._driver] if inside else []
            return [*prefix, str(program), *command.arguments], {"PATH": f"{path}:/usr/sbin:/sbin"}
        root = GpuDriverRoot(self._driver)
        on_disk = root.on_disk(program)
        environment = {"PATH": f"{on_disk.parent}:/usr/bin:/bin"}
        library = root.library(CUDA_LIBRARY)
        if library is not None:
            environment["LD_LIBRARY_PATH"] = str(root.on_disk(library).parent)
        return [str(on_disk), *command.arguments], environment

    def _is_root_of_programs(self) -> bool:
        """Whether programs run in a chroot of the driver's root: it is not ours, and a whole one."""
        return self._driver != "/" and Path(f"{self._driver}/bin/sh").exists()


def _is_same(folder: str, other: str) -> bool:
    try:
        return Path(folder).samefile(other)
    except OSError:
        return False


def _answer(command: ControlCommand, data: bytes, code: int) -> str:
    if len(data) > MOST_BYTES:
        raise ControlError(f"{PROGRAM} answers `{command}` with {len(data)} bytes, expected at most {MOST_BYTES}")
    text = data.decode("utf-8", "backslashreplace")
    if not command.quotes_users and _says_no_daemon(text.lower(), code):
        raise DaemonGoneError(f"{PROGRAM} says: {' '.join(text.split())[:200]}")
    if code != 0:
        said = " ".join(text.split())[:200] or "nothing"
        raise ControlError(f"{PROGRAM} refuses `{command}` (exit code {code}): {said}")
    return text


def _says_no_daemon(text: str, code: int) -> bool:
    """Whether the program says that no daemon listens. A daemon's answer may contain such words too, but not first."""
    if code == 0:
        return text.lstrip().startswith(_NO_DAEMON_DOCUMENTED)
    return any(words in text for words in _NO_DAEMON)


def _last_line(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            lines = file.read(4096).decode("utf-8", "backslashreplace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1][:200] if lines else ""
