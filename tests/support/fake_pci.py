"""The PCI bus of a kernel below a folder of the test: drivers, IOMMU groups, open handles.

What is read are real files. What is written goes through write(), which does what the kernel does at that file: on a
plain file system nobody would answer. Errors are the kernel's numbers.
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


class FakePciBus:
    """Devices by address. `open_by`: processes with an open handle of one, which the kernel waits for in unbind."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.open_by: dict[str, list[int]] = {}
        for folder in ("bus/pci/devices", "bus/pci/drivers", "kernel/iommu_groups"):
            (root / folder).mkdir(parents=True, exist_ok=True)

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
        (folder / "device").write_text(f"0x{ids[1]:04x}\n")
        (folder / "class").write_text(f"0x{pci_class:06x}\n")
        (folder / "driver_override").write_text("(null)\n")
        if group is not None:
            members = self.root / "kernel/iommu_groups" / str(group) / "devices"
            members.mkdir(parents=True, exist_ok=True)
            (members / address).symlink_to(os.path.relpath(folder, members))
            (folder / "iommu_group").symlink_to(os.path.relpath(members.parent, folder))
        if driver is not None:
            self._bound(address, driver)
        return folder

    def device(self, address: str) -> Path:
        return self.root / "bus/pci/devices" / address

    def driver_of(self, address: str) -> str | None:
        link = self.device(address) / "driver"
        return link.readlink().name if link.is_symlink() else None

    def write(self, path: str, text: str) -> None:
        """Write to a file of /sys, `bus/pci/…`. Raises OSError as the kernel answers."""
        *_, owner, attribute = path.split("/")
        value = text.strip()
        if attribute == "driver_override":
            (self.root / path).write_text(f"{value or '(null)'}\n")
        elif attribute == "drivers_probe":
            self._probe(value)
        elif attribute == "unbind":
            self._unbind(owner if owner != "driver" else self.driver_of(value), value)
        elif attribute == "bind":
            self._bind(owner, value)
        else:
            raise OSError(errno.EACCES, "no such attribute can be written", path)

    def rebind(self, address: str, driver: str) -> None:
        """What an admin types to move a device to another driver."""
        before = self.driver_of(address)
        self.write(f"bus/pci/devices/{address}/driver_override", driver)
        if before is not None:
            self.write(f"bus/pci/drivers/{before}/unbind", address)
        self.write("bus/pci/drivers_probe", address)

    def _unbind(self, driver: str | None, address: str) -> None:
        if driver is None or self.driver_of(address) != driver:
            raise OSError(errno.ENODEV, "the device has another driver")
        if self.open_by.get(address):
            raise TimeoutError(f"unbind of {address} waits for processes {self.open_by[address]}")
        (self.device(address) / "driver").unlink()
        (self.root / "bus/pci/drivers" / driver / address).unlink()

    def _bind(self, driver: str, address: str) -> None:
        if not self.device(address).exists() or not self._matches(driver, address):
            raise OSError(errno.ENODEV, "the driver does not take the device")
        if self.driver_of(address) is not None:
            raise OSError(errno.EBUSY, "the device has a driver")
        self._bound(address, driver)

    def _probe(self, address: str) -> None:
        if self.driver_of(address) is not None:
            return
        folder = self.root / "bus/pci/drivers"
        known = [entry.name for entry in folder.iterdir()]
        taking = next((driver for driver in sorted(known) if self._matches(driver, address)), None)
        if taking is not None:
            self._bound(address, taking)

    def _matches(self, driver: str, address: str) -> bool:
        override = (self.device(address) / "driver_override").read_text().strip()
        if override != "(null)":
            return override == driver
        vendor = int((self.device(address) / "vendor").read_text(), 16)
        return vendor in IDS.get(driver, ())

    def _bound(self, address: str, driver: str) -> None:
        folder = self.root / "bus/pci/drivers" / driver
        folder.mkdir(exist_ok=True)
        device = self.device(address)
        (folder / address).symlink_to(os.path.relpath(device.resolve(), folder))
        (device / "driver").symlink_to(os.path.relpath(folder, device.resolve()))
