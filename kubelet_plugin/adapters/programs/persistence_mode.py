"""Persistence mode of single GPUs by nvidia-smi of the GPU driver.

While nvidia-persistenced runs, that program asks it to open or close a GPU; NVML's own call would not. It finds the
daemon by a socket below its root, so it is run below the driver's root, where the daemon of a driver container is too.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Final

from dracaena.api.errors import TemporaryError
from dracaena.host.adapters.gpu_driver.root import GpuDriverRoot
from dracaena.kubelet_plugin.adapters.programs import nvidia_smi
from dracaena.kubelet_plugin.adapters.programs.child_process import printed_by

ANSWER_S: Final = 10.0
"""Longest run. Opening a GPU takes the driver a second or two; kubelet allows a call 45 s."""

_BELOW_ROOT: Final = "import os, sys; os.chroot(sys.argv[1]); os.chdir('/'); os.execv(sys.argv[2], sys.argv[2:])"
_ENVIRONMENT: Final = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C"}


class PersistenceMode:
    """Implements ports.PersistenceModes. From any thread."""

    def __init__(
        self,
        driver_root: str,
        *,
        refusal: Callable[[], str | None],
        use: Callable[[], nvidia_smi.DriverUse],
        answer_s: float = ANSWER_S,
    ) -> None:
        """See NvidiaSmi."""
        self._driver = driver_root
        self._refusal = refusal
        self._use = use
        self._answer_s = answer_s

    def set(self, gpu: str, *, on: bool) -> None:
        """See PersistenceModes."""
        command = f"`{nvidia_smi.PROGRAM} -i {gpu} -pm {int(on)}`"
        root = GpuDriverRoot(self._driver)
        found = (root.resolve(f"{folder}/{nvidia_smi.PROGRAM}") for folder in nvidia_smi.PROGRAM_FOLDERS)
        program = next((str(path) for path in found if path is not None), None)
        if program is None:
            raise TemporaryError(f"{command} cannot be run: there is no such program below {self._driver}")
        line = [program, "-i", gpu, "-pm", str(int(on))]
        if self._driver != "/":
            line = [sys.executable, "-I", "-S", "-c", _BELOW_ROOT, self._driver, *line]
        with nvidia_smi.driver_in_use(self._use(), self._refusal):
            try:
                printed, code = printed_by(line, self._answer_s, _ENVIRONMENT, with_errors=True)
            except OSError as error:
                raise TemporaryError(f"{command} cannot be run: {error.strerror}") from error
            except subprocess.TimeoutExpired as error:
                raise TemporaryError(f"{command} does not answer within {self._answer_s:g} s") from error
        if code != 0:
            said = " ".join(printed.decode("utf-8", "backslashreplace").split())[-200:] or "nothing"
            raise TemporaryError(f"{command} says: {said} (exit code {code})")
