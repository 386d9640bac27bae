"""A node whose GPUs have modes of confidential computing, and one process of the plugin on it after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.changes.pci_hand import PciHand
from dracaena.kubelet_plugin.labels.cc_mode_changes import CcModeChanges
from dracaena.kubelet_plugin.labels.cc_mode_notes import CcModeNotes
from dracaena.kubelet_plugin.prepare.journals.cc_modes import ModeChange
from support.cc_hardware import CcHardware, FakeCcModes
from support.fake_pci import FakePciBus
from support.fake_pci_drivers import FakePciDrivers
from support.layout_node import OpenLock, StepFolder

HOST, GUEST = "0000:18:00.0", "0000:3b:00.0"
"""A GPU of the NVIDIA driver, and one of VFIO."""
BOUND = {HOST: "nvidia", GUEST: "vfio-pci"}


class SteppedDrivers(FakePciDrivers):
    """Tells of each write to /sys before and after it."""

    step: Callable[[str], None] = staticmethod(lambda _what: None)

    def write(self, gpu: str, path: str, text: str) -> None:
        self.step(f"before writing {path}")
        super().write(gpu, path, text)
        self.step(f"after writing {path}")


class CcNode:
    """A node with two GPUs. start() begins another process of the plugin: files, drivers and GPUs stay as they are."""

    def __init__(self, folder: Path) -> None:
        self.hardware = CcHardware(folder / "tools", *BOUND)
        self.bus = FakePciBus(folder / "sys")
        for number, address in enumerate(BOUND):
            self.bus.add(address, 40 + number, driver="nvidia")
        self.bus.load("vfio_pci")
        self.bus.rebind(GUEST, "vfio-pci")
        self.files = StepFolder(folder / "plugin", synced=False)
        self.user: str | None = None
        """Which claim has something of the node."""
        self.closed: list[str] = []
        """For what the GPU driver was closed."""
        self.boot = 1
        self.start()

    def start(self, step: Callable[[str], None] = lambda _what: None, boot: int | None = None) -> None:
        """`step` is told of each change before and after it, and may end the process by raising."""
        self.boot = self.boot if boot is None else boot
        self.files.step = step
        self.drivers = SteppedDrivers(self.bus)
        self.drivers.step = step
        self.program = FakeCcModes(self.hardware, step)
        self.notes = CcModeNotes(Ledger(self.files, OpenLock(), f"boot-{self.boot}"), OpenLock())
        self.changes = CcModeChanges(
            self.program,
            self.drivers,
            PciHand(self.drivers, self.drivers.holders),
            self._closed,
            self.notes,
            OpenLock(),
        )

    @contextmanager
    def _closed(self, what: str) -> Iterator[None]:
        self.closed.append(what)
        kept, self.drivers.own = self.drivers.own, {}
        try:
            yield
        finally:
            self.drivers.own = kept

    def reboot(self) -> None:
        """Cut the power and start the machine: the GPUs are reset, and those of VFIO are bound as at each boot."""
        for address, mode in self.hardware.after_a_reset().items():
            self.hardware.set(address, mode=mode, pending=None)
        self.bus.boot("nvidia", "vfio_pci")
        self.bus.rebind(GUEST, "vfio-pci")
        self.start(boot=self.boot + 1)

    def change(self, mode: str) -> ModeChange:
        return self.changes.change(mode, list(BOUND), lambda: self.user)

    def go_on(self) -> ModeChange | None:
        """What the next process does with a change that it finds."""
        change = self.notes.read().change
        return None if change is None else self.changes.go_on(change)

    def bound(self) -> dict[str, str | None]:
        return {address: self.bus.driver_of(address) for address in BOUND}
