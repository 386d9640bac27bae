"""The vGPUs of a kernel below a folder of the test: types, mediated devices, virtual functions with types.

What is read are real files, as the kernel's mdev core and NVIDIA's vGPU manager lay them out. What is written goes
through FakeVgpus.write(), which does what they do at that file. Errors are the kernel's numbers.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dracaena.api.vgpu import is_mdev_uuid
from support.fake_pci import FakePciBus, UnbindHangsError

HEADER = "ID    : vGPU Name\n"
MDEV_DRIVER = "nvidia-vgpu-vfio"


@dataclass(frozen=True, slots=True)
class FakeType:
    """A type of vGPU, with how many of it a GPU has room for."""

    number: int
    name: str
    framebuffer_mib: int
    most: int
    slices: int = 0
    """Of the GPU instance that each has; 0: time-sliced."""

    @property
    def description(self) -> str:
        return (
            f"num_heads=4, frl_config=60, framebuffer={self.framebuffer_mib}M, max_resolution=5120x2880, "
            f"max_instance={self.most}\n"
        )


T4_TYPES = (FakeType(222, "GRID T4-1B", 1024, 16), FakeType(231, "GRID T4-2Q", 2048, 8))
A100_TYPES = (FakeType(468, "NVIDIA A100-4C", 4096, 10), FakeType(475, "NVIDIA A100-1-5C", 4864, 7))
A100_MIG_TYPES = (
    FakeType(475, "NVIDIA A100-1-5C", 4864, 7, 1),
    FakeType(476, "NVIDIA A100-2-10C", 9856, 3, 2),
    FakeType(477, "NVIDIA A100-3-20C", 19_968, 2, 3),
)
"""What an A100 offers in MIG mode."""
H200_TYPES = (FakeType(1428, "NVIDIA H200X-141C", 144_384, 1), FakeType(1414, "NVIDIA H200X-1-18C", 18_432, 7))


MIG_SLICES = 7


def room(one: FakeType, made: Sequence[FakeType]) -> int:
    """How many more of a type a GPU has room for beside what is made. Time-sliced ones are of one type; MIG-backed ones
    can be beside each other while there are slices for them.
    """
    most = one.most - sum(each == one for each in made)
    if all(each == one for each in made):
        return max(0, most)
    if not one.slices or not all(each.slices for each in made):
        return 0
    return max(0, min(most, (MIG_SLICES - sum(each.slices for each in made)) // one.slices))


class FakeVgpus:
    """The vGPU manager on a PCI bus."""

    def __init__(self, bus: FakePciBus) -> None:
        self.bus = bus
        self.root = bus.root
        self.open_by: set[str] = set()
        """Identities of vGPUs that a virtual machine has: they cannot be removed."""
        self.waits = False
        """Whether removing an open vGPU waits in the kernel until it is closed, as mediated devices do; else it is
        refused."""
        self.is_late = False
        """Whether what is removed is there until come()."""
        self.written: list[tuple[str, str]] = []
        """All writes that the kernel took, in their order."""
        self._waiting: dict[str, str] = {}  # path → text
        self._waiting_late: dict[str, str] = {}
        self._types: dict[str, tuple[FakeType, ...]] = {}
        self._next_group = 100

    def add_gpu(self, address: str, types: Sequence[FakeType], *, mdev: bool = True, group: int = 1) -> Path:
        """A GPU that the vGPU manager has. With `mdev` it makes mediated devices, else its functions have types."""
        folder = self.bus.add(address, group, driver="nvidia")
        self._types[address] = tuple(types)
        if mdev:
            self._register(address, address)
        return folder

    def take_gpu(self, address: str, types: Sequence[FakeType], functions: int) -> list[str]:
        """Let the vGPU manager have a GPU that is there, by virtual functions; return these."""
        self._types[address] = tuple(types)
        return self.add_functions(address, functions)

    def add_functions(self, gpu: str, count: int, *, mdev: bool = False) -> list[str]:
        """What sriov-manage does: virtual functions, each in a group of its own, on which vGPUs can be."""
        made = []
        for number in range(count):
            address = f"{gpu[:-4]}{number // 8 + 4:02x}.{number % 8}"
            folder = self.bus.add(address, self._group(), driver="nvidia")
            (folder / "physfn").symlink_to(f"../{gpu}")
            (self.bus.device(gpu) / f"virtfn{number}").symlink_to(f"../{address}")
            self._types[address] = self._types[gpu]
            made.append(address)
            if mdev:
                self._register(address, gpu)
            else:
                (folder / "nvidia").mkdir()
                (folder / "nvidia/current_vgpu_type").write_text("0\n")
        self._count(gpu)
        self._list_creatable(gpu)
        return made

    def write(self, path: str, text: str) -> None:
        """Write to a file of /sys. Raises OSError as the kernel answers."""
        value = text.strip()
        parts = path.split("/")
        identity = parts[-3] if parts[-1] == "current_vgpu_type" else parts[-2]
        if self.waits and identity in self.open_by:
            self._waiting[path] = text
            raise UnbindHangsError(f"{path} waits until {identity} is closed")
        if self.is_late and value in ("0", "1"):
            self._waiting_late[path] = text
        elif parts[-1] == "create":
            self._create(parts[-4], parts[-2], value)
        elif parts[-1] == "remove" and value == "1":
            self._remove(parts[-2])
        elif parts[-1] == "current_vgpu_type":
            self._set_type(parts[-3], value)
        else:
            raise OSError(errno.EACCES, "no such attribute can be written", path)
        self.written.append((path, value))

    def is_hanging(self) -> bool:
        """Whether a writer waits in the kernel."""
        return bool(self._waiting)

    def close(self, identity: str) -> None:
        """Let a virtual machine end: what waited for it goes on."""
        self.open_by.discard(identity)
        waiting, self._waiting = self._waiting, {}
        for path, text in waiting.items():
            self.write(path, text)

    def come(self) -> None:
        """Let what was removed be gone."""
        late, self._waiting_late, self.is_late = self._waiting_late, {}, False
        for path, text in late.items():
            self.write(path, text)

    def boot(self) -> None:
        """Start the machine anew: no vGPU outlives that, and whoever enables virtual functions does so again."""
        self.open_by.clear()
        self._waiting.clear()
        self._waiting_late.clear()
        for link in list((self.root / "bus/mdev/devices").glob("*")):
            self._remove(link.name)
        for file in self.root.glob("bus/pci/devices/*/nvidia/current_vgpu_type"):
            file.write_text("0\n")
        for gpu in {self.gpu_of(name) for name in self._types}:
            self._list_creatable(gpu)

    def there(self, gpu: str) -> dict[str, str]:
        """Return the vGPUs of a GPU: identity → name of its type, without its maker."""
        found = {}
        for function in [gpu, *self._functions(gpu)]:
            folder = self.bus.device(function)
            for link in sorted(folder.resolve().glob("*/mdev_type")):
                found[link.parent.name] = (link / "name").read_text().split()[-1]
            file = folder / "nvidia/current_vgpu_type"
            number = file.read_text().strip() if file.exists() else "0"
            if number != "0":
                found[function] = next(one.name.split()[-1] for one in self._types[gpu] if str(one.number) == number)
        return found

    def create(self, function: str, type_number: int, uuid: str) -> str:
        """Make a mediated device; return its UUID."""
        self.write(f"bus/pci/devices/{function}/mdev_supported_types/nvidia-{type_number}/create", uuid)
        return uuid

    def set_type(self, function: str, type_number: int) -> str:
        """Make a virtual function a vGPU, or none with 0; return its address."""
        self.write(f"bus/pci/devices/{function}/nvidia/current_vgpu_type", str(type_number))
        return function

    def mdev(self, uuid: str) -> Path:
        return self.root / "bus/mdev/devices" / uuid

    def gpu_of(self, function: str) -> str:
        physical = self.bus.device(function) / "physfn"
        return physical.readlink().name if physical.is_symlink() else function

    def _group(self) -> int:
        self._next_group += 1
        return self._next_group

    def _register(self, function: str, gpu: str) -> None:
        """The mdev core's files for the types of one parent."""
        links = self.root / "class/mdev_bus"
        links.mkdir(parents=True, exist_ok=True)
        device = self.bus.device(function).resolve()
        (links / function).symlink_to(os.path.relpath(device, links))
        for one in self._types[gpu]:
            folder = device / "mdev_supported_types" / f"nvidia-{one.number}"
            (folder / "devices").mkdir(parents=True)
            (folder / "name").write_text(f"{one.name}\n")
            (folder / "description").write_text(one.description)
            (folder / "device_api").write_text("vfio-pci\n")
            (folder / "available_instances").write_text(f"{one.most}\n")

    def _create(self, function: str, type_name: str, uuid: str) -> None:
        device = self.bus.device(function).resolve()
        folder = device / "mdev_supported_types" / type_name
        if not folder.is_dir():
            raise OSError(errno.ENOENT, "no such type")
        if not is_mdev_uuid(uuid):
            raise OSError(errno.EINVAL, "no UUID")
        if self.mdev(uuid).is_symlink():
            raise OSError(errno.EEXIST, "there is such a device")
        if int((folder / "available_instances").read_text()) < 1:
            raise OSError(errno.ENOSPC, "no room for another one")
        made = device / uuid
        made.mkdir()
        (made / "mdev_type").symlink_to(f"../mdev_supported_types/{type_name}")
        (made / "nvidia").mkdir()
        (made / "nvidia/vgpu_params").write_text("\n")
        links = self.root / "bus/mdev/devices"
        links.mkdir(parents=True, exist_ok=True)
        (links / uuid).symlink_to(os.path.relpath(made, links))
        driver = self.root / "bus/mdev/drivers" / MDEV_DRIVER
        driver.mkdir(parents=True, exist_ok=True)
        (made / "driver").symlink_to(os.path.relpath(driver, made))
        self._join(made, self._group(), "vfio-noiommu")
        (folder / "devices" / uuid).symlink_to(os.path.relpath(made, folder / "devices"))
        self._count(self.gpu_of(function))

    def _remove(self, uuid: str) -> None:
        if uuid in self.open_by:
            raise OSError(errno.EBUSY, "a virtual machine has it")
        made = self.mdev(uuid).resolve()
        if not self.mdev(uuid).is_symlink():
            raise OSError(errno.ENODEV, "no such device")
        shutil.rmtree((made / "iommu_group").resolve())
        ((made / "mdev_type").resolve() / "devices" / uuid).unlink()
        self.mdev(uuid).unlink()
        shutil.rmtree(made)
        self._count(self.gpu_of(made.parent.name))

    def _set_type(self, function: str, value: str) -> None:
        if function in self.open_by:
            raise OSError(errno.EPERM, "a virtual machine has it")
        gpu, current = self.gpu_of(function), self.bus.device(function) / "nvidia/current_vgpu_type"
        if value != "0" and value not in self._creatable(gpu):
            current.write_text("0\n")
            raise OSError(errno.EINVAL, "no such type can be made now")
        if value != "0" and current.read_text().strip() != "0":
            raise OSError(errno.EINVAL, "it has a type")
        current.write_text(f"{value}\n")
        self._list_creatable(gpu)

    def _join(self, device: Path, number: int, name: str) -> None:
        group = self.root / "kernel/iommu_groups" / str(number)
        (group / "devices").mkdir(parents=True)
        (group / "name").write_text(f"{name}\n")
        (group / "devices" / device.name).symlink_to(os.path.relpath(device, group / "devices"))
        (device / "iommu_group").symlink_to(os.path.relpath(group, device))

    def _functions(self, gpu: str) -> list[str]:
        return sorted(link.readlink().name for link in self.bus.device(gpu).glob("virtfn*"))

    def _count(self, gpu: str) -> None:
        """Write how many of each type can still be made, on all functions of a GPU."""
        functions = [gpu, *self._functions(gpu)]
        devices = [self.bus.device(function).resolve() for function in functions]
        names = [link.resolve().name for device in devices for link in device.glob("*/mdev_type")]
        made = [one for name in names for one in self._types[gpu] if f"nvidia-{one.number}" == name]
        for device in devices:
            is_function, is_full = device.name != gpu, bool(list(device.glob("*/mdev_type")))
            for one in self._types[gpu]:
                file = device / "mdev_supported_types" / f"nvidia-{one.number}" / "available_instances"
                if file.exists():
                    left = 0 if is_function and is_full else room(one, made)
                    file.write_text(f"{min(left, 1) if is_function else left}\n")

    def _creatable(self, gpu: str) -> Mapping[str, FakeType]:
        used = [(self.bus.device(f) / "nvidia/current_vgpu_type").read_text().strip() for f in self._functions(gpu)]
        made = [one for number in used for one in self._types[gpu] if str(one.number) == number]
        return {str(one.number): one for one in self._types[gpu] if room(one, made)}

    def _list_creatable(self, gpu: str) -> None:
        for function in self._functions(gpu):
            file = self.bus.device(function) / "nvidia/current_vgpu_type"
            if not file.exists():
                continue
            there = self._creatable(gpu) if file.read_text().strip() == "0" else {}
            lines = "".join(f"{number:<5} : {one.name}\n" for number, one in there.items())
            (file.parent / "creatable_vgpu_types").write_text(HEADER + lines)
