"""Persistence mode of single GPUs by nvidia-smi of the GPU driver.

While nvidia-persistenced runs, that program asks it to open or close a GPU; NVML's own call would not. It finds the
daemon by a socket below its root, so it is run below the driver's root, where the daemon of a driver container is too.
"""

from __future__ import annotations

import sys
from typing import Final

from dracaena.api.errors import TemporaryError
from dracaena.kubelet_plugin.adapters.programs.nvidia_smi import PROGRAM, NvidiaSmiProgram, said

SWITCHED_S: Final = 10.0
"""Longest run. Opening a GPU takes the driver a second or two; kubelet allows a call 45 s."""

_BELOW_ROOT: Final = "import os, sys; os.chroot(sys.argv[1]); os.chdir('/'); os.execv(sys.argv[2], sys.argv[2:])"
_ENVIRONMENT: Final = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C"}


class PersistenceMode(NvidiaSmiProgram):
    """Implements ports.PersistenceModes."""

    def set(self, gpu: str, *, on: bool) -> None:
        """See PersistenceModes."""
        program, command = self._program(), f"`{PROGRAM} -i {gpu} -pm {int(on)}`"
        if program is None:
            raise TemporaryError(f"{command} cannot be run: {self.missing()}")
        line = [str(program), "-i", gpu, "-pm", str(int(on))]
        if self._driver != "/":
            line = [sys.executable, "-I", "-S", "-c", _BELOW_ROOT, self._driver, *line]
        text, code = self._ended(line, _ENVIRONMENT)
        if code != 0:
            raise TemporaryError(f"{command} {said(text, code)}")
