"""The hardware of one node, and what runs on it beside the plugins: GPUs, PCI bus, Fabric Manager, MPS, the driver.

It acts as the kernel, NVIDIA's driver and Fabric Manager do. Each change is a step at which the plugin may be killed,
before it and after it, and may fail once: it did nothing, or `late` what it was asked for and said nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations
from pathlib import Path

from dracaena.api.config.v1alpha1 import TimeSliceInterval
from dracaena.api.errors import TemporaryError
from dracaena.api.links import Link, LinkLevel
from dracaena.api.machine import Gpu, Machine
from dracaena.api.mig import EmptyGpuInstance, MigDevice
from dracaena.api.mig_geometry import MigPlacement, MigProfile
from dracaena.api.topology import Topology
from dracaena.kubelet_plugin.adapters.sysfs.pci import SysfsPci
from dracaena.kubelet_plugin.discovery.mig.instances import GET_INSTANCE, NOT_FOUND, GpuInstance, MigRefusedError
from dracaena.kubelet_plugin.discovery.vm.passthrough import handed_through
from support.cc_hardware import CcHardware
from support.fake_fabric_manager import FakeFabricManager
from support.fake_memory_limits import CgroupTree, FakeLimiter
from support.fake_mig import FakeGpuInstance, FakeMigHardware
from support.fake_nvidia_smi import FakeTimeSlices
from support.fake_pci import AUDIO_CLASS, NVIDIA, FakePciBus
from support.fake_pci_drivers import FakePciDrivers
from support.gpu_lists import gpu_list
from support.mig_geometries import divisible_machine
from support.mig_node import access_minors

HOST = ("nvidia", "snd_hda_intel")
"""The drivers of a GPU and of its sound card that the host has."""
MODULES = (3, 1, 4, 2)
"""Module ids in the order of the PCI addresses, which is another one on real boards too."""
PARTITIONS = {1: (1, 2, 3, 4), 3: (1, 3), 4: (2, 4), 7: (1,), 8: (2,), 9: (3,), 10: (4,)}
"""As Fabric Manager divides half of an HGX board."""

APPLY, UNDO = "apply", "undo"
LATE = "late "


class Trips:
    """Where a change of the node stops: `step` may kill the plugin, `fails` holds what fails once."""

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        self.fails: set[str] = set()

    def change(self, what: str, work: Callable[[], None]) -> None:
        """Do a change that is called so: `time slice`, `PCI write`. Raises TemporaryError where it fails."""
        late = f"{LATE}{what}"
        self._step()
        if what in self.fails:
            self.fails.discard(what)
            raise TemporaryError(f"{what} fails")
        work()
        self._step()
        if late in self.fails:
            self.fails.discard(late)
            raise TemporaryError(f"{what}: no answer")


class PlayedMig:
    """MigControl: NVML's calls that divide GPUs."""

    def __init__(self, hardware: FakeMigHardware, trips: Trips) -> None:
        self._hardware, self._trips = hardware, trips
        self._ordinals = {gpu.uuid: n for n, gpu in enumerate(hardware.machine.gpus)}

    def mode(self, gpu: str) -> tuple[bool, bool]:
        found = self._hardware.gpus[self._ordinals[gpu]]
        return found.mode, found.pending

    def set_mode(self, gpu: str, *, enabled: bool) -> None:
        found = self._hardware.gpus[self._ordinals[gpu]]
        if found.instances and not enabled:
            raise MigRefusedError("nvmlDeviceSetMigMode", "IN_USE")

        def change() -> None:
            found.mode = found.pending = enabled

        self._trips.change("MIG mode", change)

    def profiles(self, gpu: str) -> tuple[MigProfile, ...]:
        return self._hardware.machine.gpus[self._ordinals[gpu]].mig_profiles

    def instances(self, gpu: str, profiles: tuple[MigProfile, ...]) -> tuple[GpuInstance, ...]:
        names = {profile.name for profile in profiles}
        found = [
            GpuInstance(number, each.profile.name, each.placement, has_compute=bool(each.compute))
            for number, each in self._hardware.gpus[self._ordinals[gpu]].instances.items()
            if each.profile.name in names
        ]
        return tuple(sorted(found, key=lambda each: each.placement))

    def create_gpu_instance(self, gpu: str, profile: MigProfile, placement: MigPlacement) -> int:
        ordinal = self._ordinals[gpu]
        if self._hardware.refusal(ordinal, profile, placement) is not None:
            raise MigRefusedError("nvmlDeviceCreateGpuInstanceWithPlacement", "INSUFFICIENT_RESOURCES")
        number = self._hardware.free_number(ordinal)

        def make() -> None:
            self._hardware.gpus[ordinal].instances[number] = FakeGpuInstance(profile, placement)

        self._trips.change("MIG instance", make)
        return number

    def create_compute_instance(self, gpu: str, gpu_instance_id: int, compute_slices: int) -> None:
        del compute_slices
        found = self._instance(gpu, gpu_instance_id)
        if found.compute:
            raise MigRefusedError("nvmlGpuInstanceCreateComputeInstance", "INSUFFICIENT_RESOURCES")
        uuid = self._hardware.new_uuid()
        self._trips.change("MIG compute instance", lambda: found.compute.update({0: uuid}))

    def mig_device(self, gpu: str, gpu_instance_id: int) -> tuple[int, str] | None:
        return next(iter(self._instance(gpu, gpu_instance_id).compute.items()), None)

    def destroy_compute_instances(self, gpu: str, gpu_instance_id: int) -> None:
        found = self._instance(gpu, gpu_instance_id)
        if found.compute:
            self._trips.change("MIG compute instance's end", found.compute.clear)

    def destroy_gpu_instance(self, gpu: str, gpu_instance_id: int) -> None:
        if self._instance(gpu, gpu_instance_id).compute:
            raise MigRefusedError("nvmlGpuInstanceDestroy", "IN_USE")
        instances = self._hardware.gpus[self._ordinals[gpu]].instances
        self._trips.change("MIG instance's end", lambda: instances.__delitem__(gpu_instance_id))

    def processes(self, gpu: str) -> tuple[int, ...]:
        return tuple(self._hardware.gpus[self._ordinals[gpu]].pids)

    def device_id(self, gpu: str) -> int:
        return self._hardware.gpus[self._ordinals[gpu]].device_id

    def _instance(self, gpu: str, number: int) -> FakeGpuInstance:
        found = self._hardware.gpus[self._ordinals[gpu]].instances.get(number)
        if found is None:
            raise MigRefusedError(GET_INSTANCE, NOT_FOUND)
        return found


class PlayedDrivers(FakePciDrivers):
    """FakePciDrivers whose steps are those of the node."""

    step: Callable[[], None] = staticmethod(lambda: None)

    def _count(self) -> None:
        self.step()


class PlayedHardware:
    """GPUs with all that changes them. `driver_has` are those that the NVIDIA driver shows, by ordinal."""

    def __init__(self, folder: Path, count: int, step: Callable[[], None]) -> None:
        self.trips = Trips(step)
        plain = divisible_machine(count)
        self.gpus = tuple(
            dataclasses.replace(gpu, pci_bus_id=f"0000:{0x18 + gpu.index:02x}:00.0", module_id=MODULES[gpu.index])
            for gpu in plain.gpus
        )
        self.plain = dataclasses.replace(plain, gpus=self.gpus, driver_version="615.10")
        self.mig = FakeMigHardware(self.plain)
        self.bus = FakePciBus(folder / "sys")
        for number, address in enumerate(self.addresses()):
            self.bus.add(address, 40 + number, driver="nvidia")
            ids = (NVIDIA, 0x22BA)
            self.bus.add(sound(address), 40 + number, driver="snd_hda_intel", ids=ids, pci_class=AUDIO_CLASS)
        self.bus.load("vfio_pci")
        self.drivers = PlayedDrivers(self.bus)
        self.drivers.step = step
        self.manager = FakeFabricManager(partitions={i: m for i, m in PARTITIONS.items() if max(m) <= count})
        self.slices, self.limiter = FakeTimeSlices(), FakeLimiter()
        self.tree = CgroupTree(folder / "cgroup")
        self.modes: CcHardware | None = None
        """The GPUs' modes of confidential computing, where there are any."""
        self.numbers = list(range(count))
        """Minor and index of each GPU, by ordinal."""
        self.load()

    def addresses(self) -> list[str]:
        return [str(gpu.pci_bus_id) for gpu in self.gpus]

    def load(self) -> None:
        """The GPU driver is loaded: it has forgotten what it was told, and MIG devices are gone."""
        uuids = [gpu.uuid for gpu in self.gpus]
        self.limiter.gpus = set(uuids)
        self.limiter.limits.clear()
        self.slices.intervals = dict.fromkeys(uuids, TimeSliceInterval.DEFAULT)

    def minors(self) -> Mapping[str, int]:
        """What /proc/driver/nvidia/gpus says."""
        return {a: n for a, n in zip(self.addresses(), self.numbers, strict=True) if self.bus.driver_of(a) == "nvidia"}

    def machine(self) -> Machine:
        """What a reading finds."""
        modes = {} if self.modes is None else self.modes.modes()
        gpus = tuple(
            dataclasses.replace(
                gpu,
                index=number,
                minor=number,
                mig_enabled=self.mig.gpus[gpu.index].mode,
                cc_mode=modes.get(str(gpu.pci_bus_id)),
                cc_capable=True if modes else None,
            )
            for gpu, number in zip(self.gpus, self.numbers, strict=True)
            if self.bus.driver_of(str(gpu.pci_bus_id)) == "nvidia"
        )
        handed = handed_through(SysfsPci(str(self.bus.root)).read(), gpu_list(passthrough="all")).gpus
        count = len(gpus) + len(handed)
        pairs = tuple(Link(LinkLevel.SYS, 18 if b < len(gpus) else None) for _, b in combinations(range(count), 2))
        return dataclasses.replace(
            self.plain,
            gpus=gpus,
            topology=Topology(count, pairs, (None,) * count),
            passthrough=handed,
            mig_devices=tuple(self._mig_devices(gpus)),
            empty_gpu_instances=tuple(self._empty(gpus)),
        )

    def _mig_devices(self, gpus: Sequence[Gpu]) -> list[MigDevice]:
        return [
            MigDevice(
                gpu.uuid, uuid, number, compute, each.profile.name, each.placement.start, each.placement.size,
                each.profile.memory_bytes, each.profile.multiprocessors, access_minors(gpu.minor or 0, number, compute),
            )
            for gpu in gpus
            for number, each in sorted(self.instances(gpu.uuid).items())
            for compute, uuid in sorted(each.compute.items())
        ]  # fmt: skip

    def _empty(self, gpus: Sequence[Gpu]) -> list[EmptyGpuInstance]:
        return [
            EmptyGpuInstance(gpu.uuid, number, each.profile.name, each.placement.start, each.placement.size)
            for gpu in gpus
            for number, each in sorted(self.instances(gpu.uuid).items())
            if not each.compute
        ]

    def instances(self, uuid: str) -> dict[int, FakeGpuInstance]:
        return next(self.mig.gpus[n].instances for n, gpu in enumerate(self.gpus) if gpu.uuid == uuid)

    # nvidia-smi and the driver's limits

    def read(self, gpu: str) -> TimeSliceInterval | None:
        return self.slices.read(gpu)

    def set(self, gpu: str, interval: TimeSliceInterval) -> None:
        self.trips.change("time slice", lambda: self.slices.set(gpu, interval))

    def limit(self, gpu: str, cgroup: str, limit_bytes: int | None) -> None:
        self.trips.change("memory limit", lambda: self.limiter.limit(gpu, cgroup, limit_bytes))

    # what is left

    def left(self, admins: Collection[str] = ()) -> list[str]:
        """What nobody uses and a plugin has changed; `admins` are the addresses that an admin has bound to VFIO."""
        bound = [
            f"{address}: {drivers}"
            for address in self.addresses()
            if address not in admins and (drivers := self.drivers_of(address)) != HOST
        ]
        overrides = [a for a in self.addresses() if a not in admins and self.drivers.override(a) is not None]
        slices = [f"{gpu}: {each.value}" for gpu, each in self.slices.intervals.items() if each.value != "Default"]
        limits = [f"limit {gpu} {cgroup}" for gpu, cgroup in self.limiter.limits]
        return [*bound, *(f"override of {a}" for a in overrides), *slices, *limits]

    def drivers_of(self, address: str) -> tuple[str | None, str | None]:
        return self.bus.driver_of(address), self.bus.driver_of(sound(address))


def sound(address: str) -> str:
    """The address of a GPU's sound card."""
    return f"{address[:-1]}1"
