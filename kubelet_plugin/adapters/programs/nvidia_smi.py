"""Time slices by nvidia-smi of the GPU driver: NVML has no call for them.

The program is run from the driver's root, together with that driver's own NVML library. It opens the driver for some
tenths of a second, so it first checks whether somebody waits for the driver to be released.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import PurePosixPath
from typing import Final

from dracaena.api.config.v1alpha1 import TimeSliceInterval
from dracaena.api.errors import TemporaryError
from dracaena.host.adapters.gpu_driver.root import GpuDriverRoot
from dracaena.kubelet_plugin.adapters.programs.child_process import printed_by
from dracaena.kubelet_plugin.device_kinds.time_slice import interval_in
from dracaena.kubelet_plugin.ports import GpuGoneError, NotOfferedError

PROGRAM: Final = "nvidia-smi"
PROGRAM_FOLDERS: Final = ("/usr/bin", "/usr/local/bin", "/opt/bin", "/usr/sbin", "/bin", "/sbin", "/usr/lib/wsl/lib")
"""Where distributions and driver installers put the driver's programs, in the order in which they are searched."""
LIBRARY: Final = "libnvidia-ml.so.1"

ANSWER_S: Final = 15.0
"""Some tenths of a second, and some seconds for each GPU of the node without persistence mode. A prepare runs it
twice within kubelet's 45 s."""

NUMBERS: Final = {each: number for number, each in enumerate(TimeSliceInterval)}
"""What --set-timeslice takes: DEFAULT 0, SHORT 1, MEDIUM 2, LONG 3."""

_GONE: Final = frozenset({6, 9, 15})
"""Exit codes of its manual: the object was not found, the driver is not loaded, the GPU has fallen off the bus."""
_NOT_OFFERED: Final = {
    2: "this driver does not know the command, which came with R455: install a newer driver",
    3: "this product has no time slices that can be set: take another GPU, or another strategy",
    4: "only root may: the kubelet plugin must run privileged",
    13: "this driver is too old for it: install a newer one",
}


class NvidiaSmiProgram:
    """The program of one driver. From any thread; keeps no state."""

    def __init__(
        self,
        driver_root: str,
        *,
        in_use: Callable[[], AbstractContextManager[None]],
        answer_s: float = ANSWER_S,
    ) -> None:
        """`driver_root` is where this process sees the driver's root. `in_use` announces for a block that the program
        has the driver open (GpuDriverRelease.in_program).
        """
        self._driver = driver_root
        self._in_use = in_use
        self._answer_s = answer_s

    def missing(self) -> str | None:
        """Return why it cannot be run, None if it can. Costs a few file system look-ups."""
        if self._program() is not None:
            return None
        return (
            f"no {PROGRAM} below {self._driver} (searched {', '.join(PROGRAM_FOLDERS)}): install the NVIDIA driver "
            "with its utilities, or name its folder in driver-root"
        )

    def _program(self) -> PurePosixPath | None:
        return GpuDriverRoot(self._driver).program(PROGRAM, PROGRAM_FOLDERS)

    def _ended(self, line: Sequence[str], environment: Mapping[str, str]) -> tuple[str, int]:
        """Run it to its end while the driver may be open, and return what it says and its exit code. It is killed after
        a time limit, and left behind if it cannot be killed.
        """
        with self._in_use():
            try:
                printed, code = printed_by(line, self._answer_s, environment, with_errors=True)
            except OSError as error:
                raise TemporaryError(f"cannot run {line[0]}: {error.strerror}") from error
            except subprocess.TimeoutExpired as error:
                raise TemporaryError(
                    f"{PROGRAM} does not answer within {self._answer_s:g} s: look at `dmesg`"
                ) from error
        return printed.decode("utf-8", "backslashreplace"), code


def said(text: str, code: int) -> str:
    """Return what the program says of a failure, in one line."""
    return f"says: {' '.join(text.split())[-200:] or 'nothing'} (exit code {code})"


class NvidiaSmi(NvidiaSmiProgram):
    """Implements dracaena.kubelet_plugin.ports.TimeSliceSetter."""

    def read(self, gpu: str) -> TimeSliceInterval | None:
        """See TimeSliceSetter."""
        return interval_in(self._run(gpu, "--list"))

    def set(self, gpu: str, interval: TimeSliceInterval) -> None:
        """See TimeSliceSetter."""
        self._run(gpu, f"--set-timeslice={NUMBERS[interval]}")

    def _run(self, gpu: str, option: str) -> str:
        line, environment = self._call(["compute-policy", "-i", gpu, option])
        text, code = self._ended(line, environment)
        command = f"`{PROGRAM} compute-policy -i {gpu} {option}`"
        if code == 0:
            return text
        if code in _GONE:
            raise GpuGoneError(f"{command} {said(text, code)}")
        if code in _NOT_OFFERED:
            raise NotOfferedError(f"{_NOT_OFFERED[code]}: {command} {said(text, code)}")
        raise TemporaryError(f"{command} {said(text, code)}")

    def _call(self, arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        program = self._program()
        if program is None:
            raise NotOfferedError(self.missing() or f"{PROGRAM} has just appeared; retrying")
        root = GpuDriverRoot(self._driver)
        environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C"}
        library = None if self._driver == "/" else root.library(LIBRARY)
        if library is not None:
            environment["LD_PRELOAD"] = str(root.on_disk(library))
        return [str(root.on_disk(program)), *arguments], environment
