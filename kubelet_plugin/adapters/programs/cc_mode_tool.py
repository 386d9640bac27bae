"""Runs NVIDIA's program that reads and switches modes of confidential computing, one GPU and one process at a time.

The program is the admin's own copy: it writes registers of the GPU's firmware, which this code never does. It runs in a
session of its own and is killed with all that it started. A reset may wait in the kernel, where no signal reaches it:
so the program holds the lock file of its GPU (sysfs.driver_files), which shows later callers that it still runs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dracaena.api.errors import TemporaryError
from dracaena.api.passthrough import NVIDIA_VENDOR_ID, hexadecimal_id
from dracaena.host.adapters.files.whole_files import refuse_place_of_others, refuse_what_others_may_write
from dracaena.kubelet_plugin.adapters.programs.child_process import kill
from dracaena.kubelet_plugin.adapters.sysfs import files as sysfs_files
from dracaena.kubelet_plugin.adapters.sysfs.driver_files import gpu_writing
from dracaena.kubelet_plugin.discovery.cc_mode_tool import (
    is_unsupported,
    mode_in,
    protected_pcie_in,
    query_options,
    shown,
    switch_options,
)
from dracaena.kubelet_plugin.ports import NotOfferedError, WriteHangsError

QUERY_S: Final = 30.0
"""Longest query of a mode: it starts Python and waits until the GPU's firmware has booted, which takes some seconds."""
SWITCH_S: Final = 120.0
"""Longest switch of one GPU with its reset, which takes some ten seconds; the firmware then boots once more."""
MOST_BYTES: Final = 1 << 20
"""Most output that is read; it prints some lines for each device of the bus."""
MOST_PLACES: Final = 10_000
"""Most files and folders next to the program that are checked; NVIDIA's program has some hundreds."""


class CcModeTool:
    """Implements ports.CcModeProgram. From any thread."""

    def __init__(
        self,
        program: str,
        locks: Path,
        *,
        sys_root: str = "/sys",
        query_s: float = QUERY_S,
        switch_s: float = SWITCH_S,
    ) -> None:
        """`program` is a path as this process sees it, `locks` the folder of lock files of PciDriverFiles."""
        self._program = program
        self._devices = Path(sys_root) / "bus/pci/devices"
        self._locks = locks
        self._query_s = query_s
        self._switch_s = switch_s

    def missing(self) -> str | None:
        """See CcModeProgram."""
        path = Path(self._program)
        if not self._program:
            return "setting cc-mode-tool is empty, and a change that was begun needs it: name NVIDIA's program again"
        if not path.is_file():
            return (
                f"{self._program}, which setting cc-mode-tool names, is not a file here: mount NVIDIA's gpu-admin-tools"
            )
        if path.suffix != ".py" and not os.access(path, os.X_OK):
            return f"{self._program}, which setting cc-mode-tool names, may not be run: `chmod +x` it"
        try:
            self._refuse_program_of_others(path)
        except OSError as error:
            return f"{self._program}, which setting cc-mode-tool names, is not run as root: {error.strerror}"
        return None

    def _refuse_program_of_others(self, program: Path) -> None:
        """Raise OSError if users other than root may write what would run as root: the program and, if it is written in
        Python, everything next to it, where Python looks for modules first.
        """
        refuse_what_others_may_write(program)
        if program.suffix != ".py":
            return
        folder = program.resolve().parent
        refuse_place_of_others(folder, sticky_is_fine=False)
        beside = (Path(place, name) for place, folders, files in os.walk(folder) for name in (*folders, *files))
        for number, each in enumerate(beside):
            if number == MOST_PLACES:
                raise OSError(errno.EFBIG, f"{folder} has more than {MOST_PLACES} files: give it a folder of its own")
            if not each.resolve().is_relative_to(folder):
                raise OSError(errno.EPERM, f"{each} leads out of its folder: put a copy in its place")
            if each.exists():  # a link may be broken
                refuse_place_of_others(each, sticky_is_fine=False)

    def query(self, address: str) -> str:
        """See CcModeProgram."""
        said, code = self._run(address, query_options(address), self._query_s)
        mode = mode_in(said, address)
        if protected_pcie_in(said):
            raise NotOfferedError(
                f"the GPU at {address} is in protected PCIe mode, which covers several GPUs with their NVSwitches: "
                "take all of them out of it with NVIDIA's program (--set-ppcie-mode=off)"
            )
        if code == 0 and mode is not None:
            return mode
        raise self._refusal(address, "--query-cc-mode", said, code)

    def switch(self, address: str, mode: str) -> None:
        """See CcModeProgram."""
        said, code = self._run(address, switch_options(address, mode), self._switch_s)
        if code != 0:
            raise self._refusal(address, f"--set-cc-mode={mode}", said, code)

    def _refusal(self, address: str, option: str, said: str, code: int) -> TemporaryError | NotOfferedError:
        text = f"`{Path(self._program).name} {option}` of the GPU at {address} says: {shown(said)} (exit code {code})"
        return NotOfferedError(text) if code != 0 and is_unsupported(said) else TemporaryError(text)

    def _refuse_namesakes(self, address: str) -> None:
        """Refuse a GPU whose address is part of another device's. The program takes every NVIDIA device whose address
        contains the given one, and refuses if it finds two; but if the GPU itself is gone, it would find only the
        other.
        """
        for name in sysfs_files.names(self._devices):
            if address in name and name != address and self._is_of_nvidia(name):
                raise NotOfferedError(
                    f"NVIDIA's program cannot be given the GPU at {address} alone, because it searches for parts of "
                    f"addresses and {name} is there too: use nodes where no GPU's address is part of another's"
                )

    def _is_of_nvidia(self, name: str) -> bool:
        return sysfs_files.text(self._devices / name / "vendor") == hexadecimal_id(NVIDIA_VENDOR_ID)

    def _run(self, address: str, options: tuple[str, ...], limit_s: float) -> tuple[str, int]:
        self._refuse_namesakes(address)
        # Our Python runs a program in Python, whose modules are next to it; -B leaves no files there.
        start = [sys.executable, "-E", "-s", "-B"] if self._program.endswith(".py") else []
        with gpu_writing(self._locks, address) as lock, _memory_file() as said:
            try:
                child = subprocess.Popen(  # noqa: S603 - the program that the settings name, no shell
                    [*start, self._program, *options],
                    env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    pass_fds=(lock,),
                    start_new_session=True,
                )
            except OSError as error:
                raise TemporaryError(f"cannot run {self._program}: {error.strerror}") from error
            try:
                code = child.wait(limit_s)
            except subprocess.TimeoutExpired:
                if not kill(child):
                    raise WriteHangsError(
                        f"process {child.pid} ({self._program}) waits in the kernel and cannot be ended: look at "
                        "`dmesg`; a GPU whose reset does not end needs a restart of the node"
                    ) from None
                raise TemporaryError(
                    f"`{' '.join([Path(self._program).name, *options])}` took {limit_s:g} s and was ended"
                ) from None
            return os.pread(said, MOST_BYTES, 0).decode("utf-8", "replace"), code


@contextlib.contextmanager
def _memory_file() -> Iterator[int]:
    """Yield a file for a program's output, which it can keep writing if we are killed: a pipe without a reader would
    end it, perhaps between a write to the GPU and the reset.
    """
    file = os.memfd_create("cc-mode-tool", os.MFD_CLOEXEC)
    try:
        yield file
    finally:
        os.close(file)
