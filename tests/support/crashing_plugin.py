"""A plugin that is killed in the middle: `python -m support.crashing_plugin FOLDER prepare|unprepare`.

For each step of file work it forks a child that works below FOLDER/<step> and kills itself there with SIGKILL: no
handler, no buffer, no clean-up. Prints the number of steps. Forking from one plain process is quick and, as it has
no threads, safe.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from dracaena.kubelet_plugin.adapters.files import FileSteps
from support.plugin import FakeClaims, FakePods, PluginNode, make_claim, make_pod, reference_to

CLAIM = make_claim(devices=(0, 1), reserved_for={"pod": "pod-uid"})
REFERENCE = reference_to(CLAIM)


class KilledAt(FileSteps):
    """Ends the process before its n-th step, a write in the middle of it."""

    def __init__(self, step: int) -> None:
        self._left = step

    def write(self, descriptor: int, data: bytes) -> None:
        if self._left == 1:
            os.write(descriptor, data[: len(data) // 2])
        self._step()
        super().write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        self._step()
        super().fsync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._step()
        super().remove(path)

    def _step(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def node_in(folder: Path, steps: FileSteps | None = None) -> PluginNode:
    return PluginNode(folder, FakeClaims(CLAIM), FakePods(make_pod()), steps=steps or FileSteps())


def _work(folder: Path, operation: str, step: int) -> None:
    if operation == "unprepare":
        node_in(folder).state.prepare(REFERENCE)
        node_in(folder, KilledAt(step)).state.unprepare(REFERENCE)
    else:
        node_in(folder, KilledAt(step)).state.prepare(REFERENCE)


def _killed(folder: Path, operation: str, step: int) -> bool:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _work(folder, operation, step)
            status = 0
        finally:
            os._exit(status)
    _, result = os.waitpid(child, 0)
    if os.WIFSIGNALED(result) and os.WTERMSIG(result) == signal.SIGKILL:
        return True
    if os.waitstatus_to_exitcode(result) != 0:
        raise RuntimeError(f"the child of step {step} failed")
    return False


if __name__ == "__main__":
    step = 1
    while _killed(Path(sys.argv[1]) / str(step), sys.argv[2], step):
        step += 1
    sys.stderr.write(f"{step - 1}\n")
