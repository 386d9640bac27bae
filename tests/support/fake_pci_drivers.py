"""PciDrivers on the PCI bus of a test: one process of the plugin after the other, killed before or after any write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dracaena.api.errors import TemporaryError
from dracaena.kubelet_plugin.adapters.sysfs.pci import SysfsPci
from dracaena.kubelet_plugin.discovery.vm.passthrough import PciBus
from dracaena.kubelet_plugin.discovery.vm.vfio_drivers import VfioDriver, best_vfio_module
from dracaena.kubelet_plugin.ports import OpeningProcess, WriteHangsError
from support.fake_pci import FakePciBus, UnbindHangsError
from support.killed_steps import StopError

PERSISTENCED = 99_999
"""Process of nvidia-persistenced."""


@dataclass
class FakePciDrivers:
    """`left`: how many steps the process lives, of two for each write: before the kernel sees it, and after.

    `can_end`: a write that waits can be ended, as where the kernel is interrupted; else it takes effect later.
    """

    bus: FakePciBus
    aliases: Sequence[str] = ()
    left: int = 1 << 30
    can_end: bool = False
    before_write: Callable[[str], None] = lambda _path: None
    """Called with the path of each write."""
    unanswered: Callable[[str], bool] = lambda _path: False
    """Whether a write to a path takes effect and is then taken for one that was ended."""
    closed: int = 0
    """How often the plugin let go of the GPU driver."""
    persistence_problem: str = ""
    """Why nvidia-smi does not switch persistence mode of any GPU."""
    own: dict[str, list[int]] = field(default_factory=dict)
    """By address: processes of ours that have the GPU open, unless they let go of the driver."""

    def read(self) -> PciBus:
        return SysfsPci(str(self.bus.root)).read()

    def override(self, address: str) -> str | None:
        text = (self.bus.device(address) / "driver_override").read_text().strip()
        return None if text == "(null)" else text

    def vfio_driver(self, address: str) -> VfioDriver:
        module = best_vfio_module((self.bus.device(address) / "modalias").read_text().strip(), self.aliases)
        return VfioDriver(module, self.bus.driver_of_module(module))

    def is_loaded(self, driver: str) -> bool:
        return (self.bus.root / "bus/pci/drivers" / driver).is_dir()

    def has_iommufd(self) -> bool:
        return (self.bus.root / "class/misc/iommu").is_dir()

    def is_writing(self, gpu: str) -> bool:
        return self.bus.is_hanging(gpu)

    def write(self, gpu: str, path: str, text: str) -> None:
        if self.is_writing(gpu):
            raise WriteHangsError(f"an earlier write for the GPU at {gpu} has not ended")
        self._count()
        self.before_write(path)
        try:
            self.bus.write(path, text)
        except UnbindHangsError as error:
            if self.can_end:
                self.bus.end_hanging(text.strip())
                raise TemporaryError(f"writing {text!r} to {path} took 10 s and was ended") from error
            raise WriteHangsError(f"writing {text!r} to {path} waits in the kernel") from error
        if self.unanswered(path):
            raise TemporaryError(f"writing {text!r} to {path} took 10 s and was ended")
        self._count()

    def holders(self, address: str, _group: int | None) -> tuple[OpeningProcess, ...]:
        own = self.own.get(address, [])
        pids = sorted([*self.bus.open_by.get(address, []), *own])
        return tuple(OpeningProcess(pid, "nvidia-persiste" if pid == PERSISTENCED else "python") for pid in pids)

    def set(self, gpu: str, *, on: bool) -> None:
        """See PersistenceModes: nvidia-persistenced opens a GPU that the NVIDIA driver has, and closes it."""
        self._count()
        if self.persistence_problem:
            raise TemporaryError(self.persistence_problem)
        opened = self.bus.open_by.setdefault(gpu, [])
        if on and PERSISTENCED not in opened:
            assert self.bus.driver_of(gpu) == "nvidia"
            opened.append(PERSISTENCED)
        elif not on and PERSISTENCED in opened:
            opened.remove(PERSISTENCED)
        self._count()

    def without_gpu_driver(self, _what: str, work: Callable[[], None]) -> None:
        """What the plugin's processes do while the driver is lent: none of them has a GPU open."""
        self.closed += 1
        kept, self.own = self.own, {}
        try:
            work()
        finally:
            self.own = kept

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise StopError
