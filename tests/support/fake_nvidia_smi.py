"""A driver root with an nvidia-smi that keeps the time slices of its GPUs in files, and what asks it within a test."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

from dracaena.api.config.v1alpha1 import TimeSliceInterval
from dracaena.kubelet_plugin.ports import GpuGoneError, NotOfferedError
from support.gpu_driver_root import put

LIBRARY = "/usr/lib64/libnvidia-ml.so.1"

_PROGRAM = """#!/bin/sh
# nvidia-smi compute-policy -i UUID --list | --set-timeslice=N
cd '{state}' || exit 255
echo "$*|$LD_PRELOAD" >> calls
unset LD_PRELOAD  # the loader complains of it once, at the start, and not at each program that is called below
if [ -e hangs ]; then sleep 60; fi
if [ -e code ]; then cat said; exit "$(cat code)"; fi
if [ ! -e "$3" ]; then echo 'No devices were found'; exit 6; fi
case $4 in
  --list)
    echo '+--------------------------------------+'
    echo '| GPU compute policies:                |'
    echo '| GPU     Name                Value    |'
    echo '|======================================|'
    echo "|   0     Timeslice           $(cat "$3")  |"
    echo '+--------------------------------------+' ;;
  --set-timeslice=0) echo Default > "$3" ;;
  --set-timeslice=1) echo Short > "$3" ;;
  --set-timeslice=2) echo Medium > "$3" ;;
  --set-timeslice=3) echo Long > "$3" ;;
  *) echo 'Invalid combination of input arguments.'; exit 2 ;;
esac
"""


class NvidiaSmiRoot:
    """`root` is the driver's root; the files of the program's state are below `state`, one a GPU."""

    def __init__(self, folder: Path, *gpus: str, root: Path | None = None) -> None:
        """`root`: a driver root that is there already. Its library is replaced by one that a loader takes."""
        self.root, self.state = root or folder / "driver", folder / "state"
        # Empty: a loader that is given it says so and goes on.
        put(self.root, LIBRARY, b"" if root is None else _some_library())
        for gpu in gpus:
            put(self.state, gpu, b"Default\n")
        put(self.root, "usr/bin/nvidia-smi", _PROGRAM.format(state=self.state).encode()).chmod(0o755)

    def interval(self, gpu: str) -> str:
        return (self.state / gpu).read_text().strip()

    def forget(self) -> None:
        """What a driver that is loaded anew does."""
        for gpu in self.state.glob("GPU-*"):
            put(self.state, gpu.name, b"Default\n")

    def calls(self) -> list[str]:
        return (self.state / "calls").read_text().splitlines()

    def fails(self, code: int, said: str) -> None:
        """Answer each call with this exit code."""
        put(self.state, "code", str(code).encode())
        put(self.state, "said", said.encode())


def _some_library() -> bytes:
    """Return a library that this process has loaded."""
    ctypes.CDLL("libm.so.6")
    maps = Path("/proc/self/maps").read_text(encoding="ascii").split()
    paths = (word for word in maps if word.startswith("/"))
    return Path(next(path for path in paths if "/libm.so" in path or "/libm-" in path)).read_bytes()


class FakeTimeSlices:
    """Implements TimeSliceSetter. `before_each` is called before each change and after it."""

    def __init__(self, **intervals: TimeSliceInterval) -> None:
        self.intervals = dict(intervals)
        self.before_each: Callable[[], None] = lambda: None
        self.problem: str | None = None
        """Why nobody can set or read them."""
        self.readable = True

    def read(self, gpu: str) -> TimeSliceInterval | None:
        self._look_for(gpu)
        return self.intervals[gpu] if self.readable else None

    def set(self, gpu: str, interval: TimeSliceInterval) -> None:
        self._look_for(gpu)
        self.before_each()
        self.intervals[gpu] = interval
        self.before_each()

    def _look_for(self, gpu: str) -> None:
        if self.problem is not None:
            raise NotOfferedError(self.problem)
        if gpu not in self.intervals:
            raise GpuGoneError(f"no GPU {gpu}")
