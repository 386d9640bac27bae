"""The PCI bus of a kernel below a folder of the test: drivers, IOMMU groups, open handles.

What is read are real files. What is written goes through write(), which does what the kernel does at that file
(drivers/base/bus.c, drivers/pci/pci-driver.c): on a plain file system nobody would answer. Errors are its numbers.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from support.fake_sysfs import add_device

NVIDIA = 0x10DE
H100 = 0x2330
GPU_CLASS = 0x030200
AUDIO_CLASS = 0x040300
BRIDGE_CLASS = 0x060400
NETWORK_CLASS = 0x020000

IDS = {"nvidia": {NVIDIA}, "igb": {0x8086}, "snd_hda_intel": {NVIDIA}, "pcieport": {0x8086}}
"""Vendors that a driver takes by itself. vfio-pci takes what driver_override names it for."""

CLASSES = {"nvidia": 0x03, "snd_hda_intel": 0x04, "igb": 0x02, "pcieport": 0x06}
"""Base class of the devices that a driver takes by itself."""

DRIVER_NAMES = {"vfio_pci": "vfio-pci", "pci_stub": "pci-stub"}
"""Module → driver, where the source of the kernel gives the driver a name of its own; others have KBUILD_MODNAME."""

PAGE_BYTES = 4096


class UnbindHangsError(Exception):
    """The writer waits in the kernel: it is not answered, and no signal reaches it, until all handles are closed."""


class FakePciBus:
    """Devices by address.

    `open_by`: processes with an open handle of one, which the kernel waits for in unbind. `refusing`: drivers whose
    probe fails, with the number of the error. `written`: all writes that the kernel took, in their order.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.open_by: dict[str, list[int]] = {}
        self.refusing: dict[str, int] = {}
        self.written: list[tuple[str, str]] = []
        self._hanging: dict[str, str] = {}  # address → driver that is being taken from it
        for folder in ("bus/pci/devices", "bus/pci/drivers", "kernel/iommu_groups"):
            (root / folder).mkdir(parents=True, exist_ok=True)

    def load(self, module: str) -> None:
        """Load a module. Its driver takes the devices that are its own and have no driver."""
        driver = DRIVER_NAMES.get(module, module)
        folder = self.root / "bus/pci/drivers" / driver
        folder.mkdir(exist_ok=True)
        links = self.root / "module" / module / "drivers"
        links.mkdir(parents=True, exist_ok=True)
        if not (links / f"pci:{driver}").is_symlink():
            (links / f"pci:{driver}").symlink_to(os.path.relpath(folder, links))
        for device in sorted((self.root / "bus/pci/devices").iterdir()):
            self._probe(device.name)

    def unload(self, module: str) -> None:
        """Unload a module whose driver has no device."""
        driver = DRIVER_NAMES.get(module, module)
        (self.root / "module" / module / "drivers" / f"pci:{driver}").unlink(missing_ok=True)
        (self.root / "bus/pci/drivers" / driver).rmdir()

    def driver_of_module(self, module: str) -> str | None:
        """The driver that a loaded module has registered."""
        for link in (self.root / "module" / module / "drivers").glob("pci:*"):
            return link.name.removeprefix("pci:")
        return None

    def close(self, address: str) -> None:
        """Close all handles of a device: an unbind that waited for them goes on."""
        self.open_by.pop(address, None)
        self._hanging.pop(address, None)

    def is_hanging(self, address: str) -> bool:
        """Whether a writer waits for the handles of a device, or of another function of its card."""
        return any(waiting[:-1] == address[:-1] for waiting in self._hanging)

    def end_hanging(self, address: str) -> None:
        """End a writer that waits, where that is possible: its write does nothing."""
        driver = self._hanging.pop(address, None)
        if driver is not None:
            self._bound(address, driver)

    def boot(self, *drivers: str) -> None:
        """Start the machine anew with these modules: every device has the driver that takes it by itself."""
        self.open_by.clear()
        self._hanging.clear()
        for folder in (self.root / "bus/pci/devices").iterdir():
            driver = self.driver_of(folder.name)
            if driver is not None:
                self._unbound(folder.name, driver)
            (folder / "driver_override").write_text("(null)\n")
        for driver in drivers:
            self.load(driver)

    def add(
        self,
        address: str,
        group: int | None,
        *,
        driver: str | None = None,
        bridges: Sequence[str] = ("pci0000:00",),
        numa: int | None = 0,
        ids: tuple[int, int] = (NVIDIA, H100),
        pci_class: int = GPU_CLASS,
    ) -> Path:
        folder = add_device(self.root, bridges, address, numa=numa, vendor=f"0x{ids[0]:04x}")
        self._describe(folder, ids, pci_class)
        if group is not None:
            self._join(folder, group)
        if driver is not None:
            self._bound(address, driver)
        return folder

    def adopt(self, address: str, group: int, ids: tuple[int, int] = (NVIDIA, H100)) -> None:
        """Give a GPU that is there what fake_sysfs leaves out, and a group of its own."""
        folder = self.device(address).resolve()
        self._describe(folder, ids, GPU_CLASS)
        self._join(folder, group)

    def _describe(self, folder: Path, ids: tuple[int, int], pci_class: int) -> None:
        (folder / "device").write_text(f"0x{ids[1]:04x}\n")
        (folder / "class").write_text(f"0x{pci_class:06x}\n")
        (folder / "driver_override").write_text("(null)\n")
        (folder / "modalias").write_text(
            f"pci:v{ids[0]:08X}d{ids[1]:08X}sv{ids[0]:08X}sd00001626bc{pci_class >> 16:02X}"
            f"sc{pci_class >> 8 & 0xFF:02X}i{pci_class & 0xFF:02X}\n"
        )

    def _join(self, folder: Path, group: int) -> None:
        members = self.root / "kernel/iommu_groups" / str(group) / "devices"
        members.mkdir(parents=True, exist_ok=True)
        (members / folder.name).symlink_to(os.path.relpath(folder, members))
        (folder / "iommu_group").symlink_to(os.path.relpath(members.parent, folder))

    def device(self, address: str) -> Path:
        return self.root / "bus/pci/devices" / address

    def driver_of(self, address: str) -> str | None:
        link = self.device(address) / "driver"
        return link.readlink().name if link.is_symlink() else None

    def write(self, path: str, text: str) -> None:
        """Write to a file of /sys, `bus/pci/…`. Raises OSError as the kernel answers, UnbindHangsError if it does not.

        A file that is not there has the error of open().
        """
        *_, owner, attribute = path.split("/")
        value = text.strip()
        folder = (self.root / path).parent
        if not folder.is_dir():
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if attribute == "driver_override":
            if len(text) >= PAGE_BYTES - 1:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
            (self.root / path).write_text(f"{value or '(null)'}\n")
        elif attribute == "drivers_probe":
            if not self.device(value).exists():
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
            self._probe(value)
        elif attribute in ("bind", "unbind") and value in self._hanging:
            raise UnbindHangsError(f"{attribute} of {value} waits for the lock of the device")
        elif attribute == "unbind":
            self._unbind(owner if owner != "driver" else folder.resolve().name, value)
        elif attribute == "bind":
            self._bind(owner, value)
        else:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)
        self.written.append((path, text))

    def rebind(self, address: str, driver: str) -> None:
        """What an admin types to move a device to another driver."""
        before = self.driver_of(address)
        self.write(f"bus/pci/devices/{address}/driver_override", driver)
        if before is not None:
            self.write(f"bus/pci/drivers/{before}/unbind", address)
        self.write("bus/pci/drivers_probe", address)

    def _unbind(self, driver: str, address: str) -> None:
        if self.driver_of(address) != driver:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), address)
        self._unbound(address, driver)  # the links go first, and only then the driver is asked to let go
        if self.open_by.get(address):
            self._hanging[address] = driver
            raise UnbindHangsError(f"unbind of {address} waits for processes {self.open_by[address]}")

    def _bind(self, driver: str, address: str) -> None:
        if not self.device(address).exists() or not self._matches(driver, address):
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), address)
        if self.driver_of(address) is not None:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), address)
        refusal = self._refusal(driver, address)
        if refusal is not None:
            raise OSError(refusal, os.strerror(refusal), address)
        self._bound(address, driver)

    def _probe(self, address: str) -> None:
        """Look for a driver, as drivers_probe and the loading of a module do: that none takes it is no error."""
        if self.driver_of(address) is not None:
            return
        for driver in sorted(entry.name for entry in (self.root / "bus/pci/drivers").iterdir()):
            if self._matches(driver, address) and self._refusal(driver, address) is None:
                self._bound(address, driver)
                return

    def _refusal(self, driver: str, address: str) -> int | None:
        """The error of a driver's probe. VFIO's needs an IOMMU group."""
        if driver not in self.refusing and "vfio" in driver and not (self.device(address) / "iommu_group").exists():
            return errno.EINVAL
        return self.refusing.get(driver)

    def _matches(self, driver: str, address: str) -> bool:
        override = (self.device(address) / "driver_override").read_text().strip()
        if override != "(null)":
            return override == driver
        vendor, pci_class = (int((self.device(address) / name).read_text(), 16) for name in ("vendor", "class"))
        return vendor in IDS.get(driver, ()) and CLASSES.get(driver, pci_class >> 16) == pci_class >> 16

    def _bound(self, address: str, driver: str) -> None:
        folder = self.root / "bus/pci/drivers" / driver
        folder.mkdir(exist_ok=True)
        device = self.device(address)
        (folder / address).symlink_to(os.path.relpath(device.resolve(), folder))
        (device / "driver").symlink_to(os.path.relpath(folder, device.resolve()))

    def _unbound(self, address: str, driver: str) -> None:
        (self.device(address) / "driver").unlink()
        (self.root / "bus/pci/drivers" / driver / address).unlink()
