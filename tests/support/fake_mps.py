"""A driver root with a fake nvidia-cuda-mps-control, and a fake CUDA client that connects to it."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from support.mps_model import CLIENTS_R590, CONNECTION_FAILED

_PROGRAM = Path(__file__).with_name("fake_mps_control.py")


ANSWER_S = 60.0
"""Until a client gives up: longer than any machine that runs other tests too keeps a daemon waiting."""


class FakeMps:
    """`mode` is what the program does at each call: works, hang, rubbish, dies (at start), refuses (to start)."""

    def __init__(self, folder: Path, gpus: tuple[str, ...], newest: int = 3) -> None:
        self.root = folder
        self._settings = folder / "fake-mps"
        self._values: dict[str, object] = {"mode": "works", "gpus": gpus, "newest": newest, "clients": CLIENTS_R590}
        program = folder / "usr" / "bin" / "nvidia-cuda-mps-control"
        program.parent.mkdir(parents=True)
        # The name in argv[0] is what a process table shows. -I -S: nothing of the test's environment, and a fast start.
        program.write_text(
            f'#!/bin/bash\nexport FAKE_MPS="{self._settings}"\n'
            f'exec -a nvidia-cuda-mps-control "{os.path.realpath(sys.executable)}" -I -S "{_PROGRAM}" "$@"\n'
        )
        program.chmod(0o755)
        self._write()

    def set(self, **values: object) -> None:
        self._values |= values
        self._write()

    def _write(self) -> None:
        half = self._settings.with_suffix(".half")
        texts = {name: ",".join(value) if isinstance(value, tuple) else value for name, value in self._values.items()}
        half.write_text("".join(f"{name} {text}\n" for name, text in texts.items()))
        half.replace(self._settings)


class FakeCudaClient:
    """A process that initialises CUDA with a pipe folder. It leaves when it is closed."""

    def __init__(self, pipes: str, pid: int, uid: int = 0) -> None:
        self._peer = socket.socket(socket.AF_UNIX)
        self._peer.settimeout(ANSWER_S)
        try:
            self._peer.connect(f"{pipes}/control")
            self._peer.sendall(f"{{'client': {pid}, 'uid': {uid}}}\n".encode())
            self.code = int(self._peer.makefile().readline())
        except (OSError, ValueError):
            self.code = CONNECTION_FAILED
        if self.code:
            self.close()  # the program would end with that error

    def fault(self) -> None:
        """Make a fatal fault."""
        self._peer.sendall(b"{'fault': True}\n")

    def close(self) -> None:
        """End."""
        self._peer.close()
