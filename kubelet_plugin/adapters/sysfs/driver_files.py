"""Writes the files of /sys by which a PCI function changes its driver, each in a process of its own.

A write to `unbind` waits in the kernel, where no signal reaches it, until nobody has the device open. A child process
does it, because the writer would be stuck with it. The child holds a lock file of its GPU while it exists: that shows a
later attempt, in whatever process, that an earlier write may still take effect.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dracaena.api.errors import TemporaryError
from dracaena.kubelet_plugin.adapters.programs.child_process import kill
from dracaena.kubelet_plugin.adapters.sysfs.files import names
from dracaena.kubelet_plugin.adapters.sysfs.pci import SysfsPci
from dracaena.kubelet_plugin.discovery.vm.passthrough import VFIO_DRIVER, PciBus
from dracaena.kubelet_plugin.discovery.vm.vfio_drivers import VfioDriver, best_vfio_module
from dracaena.kubelet_plugin.ports import WriteHangsError

WRITES: Final = "writes"
"""Folder of the lock files, below the plugin's folder of GPU locks."""
WRITE_S: Final = 10.0
"""Longest that one write may take. The NVIDIA driver releases a GPU within a second or two, and VFIO takes as long to
reset it; kubelet allows a call 45 s."""
_PCI_DRIVER: Final = "pci:"
"""Before the names of a module's PCI drivers in /sys/module/<module>/drivers."""
MOST_ALIAS_BYTES: Final = 16 << 20
"""Longest modules.alias that is read. Those of distributions have 1 to 2 MiB."""

_CHILD: Final = """
import os, sys
try:
    file = os.open(sys.argv[1], os.O_WRONLY | os.O_CLOEXEC)
    os.write(file, sys.argv[2].encode())
except OSError as error:
    os._exit(error.errno if 0 < (error.errno or 0) < 255 else 255)
os._exit(0)
"""
"""Its exit status is the number of the error, 0 for none."""


class PciDriverFiles:
    """Implements ports.PciDrivers below `root`, normally /sys. From any thread."""

    def __init__(
        self, locks: Path, root: str = "/sys", *, modules: str = "/lib/modules", write_s: float = WRITE_S
    ) -> None:
        """`locks` is a folder for lock files, one for each GPU that was ever bound. `modules` is the host's folder of
        kernel modules, as this process sees it.
        """
        self._locks = locks
        self._root = Path(root)
        self._modules = Path(modules)
        self._write_s = write_s
        self._pci = SysfsPci(root)

    def read(self) -> PciBus:
        """See PciDrivers."""
        return self._pci.read()

    def override(self, address: str) -> str | None:
        """See PciDrivers."""
        text = self._text(address, "driver_override")
        return None if text in ("", "(null)") else text

    def vfio_driver(self, address: str) -> VfioDriver:
        """See PciDrivers."""
        file = self._modules / platform.release() / "modules.alias"
        try:
            with file.open(encoding="ascii", errors="replace") as opened:
                text = opened.read(MOST_ALIAS_BYTES)
        except OSError:
            text = ""
        module = best_vfio_module(self._text(address, "modalias"), text.splitlines())
        return VfioDriver(module, self._driver_of(module))

    def _driver_of(self, module: str) -> str | None:
        """Return the name of the VFIO driver that a module has registered, None if it has not.

        The kernel links a module's drivers below the module. Where it does not, as for some drivers that are built in,
        the driver has the name of the module, or that name with dashes.
        """
        linked = names(self._root / "module" / module / "drivers")
        registered = [name.removeprefix(_PCI_DRIVER) for name in linked if name.startswith(_PCI_DRIVER)]
        registered = [name for name in registered if VFIO_DRIVER.fullmatch(name) is not None]
        return next(filter(self.is_loaded, [*registered, module, module.replace("_", "-")]), None)

    def is_loaded(self, driver: str) -> bool:
        """See PciDrivers."""
        return (self._root / "bus/pci/drivers" / driver).is_dir()

    def has_iommufd(self) -> bool:
        """See PciDrivers."""
        return (self._root / "class/misc/iommu").is_dir()

    def is_writing(self, gpu: str) -> bool:
        """See SysfsWrites."""
        try:
            with gpu_writing(self._locks, gpu):
                return False
        except WriteHangsError:
            return True

    def write(self, gpu: str, path: str, text: str) -> None:
        """See SysfsWrites."""
        with gpu_writing(self._locks, gpu) as lock:
            file = str(self._root / path)
            command = [sys.executable, "-I", "-S", "-c", _CHILD, file, text]
            try:
                child = subprocess.Popen(  # noqa: S603 - our own program, no shell
                    command, env={}, stdin=subprocess.DEVNULL, pass_fds=(lock,), start_new_session=True
                )
            except OSError as error:
                raise TemporaryError(f"cannot start a process that writes {file}: {error.strerror}") from error
            try:
                status = child.wait(self._write_s)
            except subprocess.TimeoutExpired:
                if kill(child):
                    raise TemporaryError(f"writing {text!r} to {file} took {self._write_s:g} s and was ended") from None
                raise WriteHangsError(
                    f"writing {text!r} to {file} waits in the kernel: process {child.pid} cannot be ended before "
                    "everything that has the GPU open is closed"
                ) from None
        if status != 0:
            raise OSError(status, os.strerror(status) if status > 0 else f"ended by signal {-status}", file)

    def _text(self, address: str, attribute: str) -> str:
        try:
            return (self._root / "bus/pci/devices" / address / attribute).read_text("ascii", "replace").strip()
        except OSError:
            return ""


@contextlib.contextmanager
def gpu_writing(locks: Path, gpu: str) -> Iterator[int]:
    """Hold the lock file of a GPU, by its address, for a block that changes it, and yield its descriptor for the child
    process, which may outlive the block. Raises WriteHangsError while an earlier child exists, or TemporaryError.
    """
    file = locks / f"{gpu}.lock"
    try:
        locks.mkdir(parents=True, exist_ok=True)
        lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise TemporaryError(f"cannot open lock file {file}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise WriteHangsError(
                f"an earlier write for the GPU at {gpu} has not ended: look for its process in state D"
            ) from error
        yield lock
    finally:
        os.close(lock)
