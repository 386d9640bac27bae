"""This node's own GPUs: NVML, sysfs and what /proc says about MIG devices, read together."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dracaena.api.machine import Machine
from dracaena.api.vgpu import Vgpu
from dracaena.host.adapters.nvml.library import NvmlLibrary, OnError, Permission, load_library
from dracaena.host.facts.health import GpuEvent, Poll
from dracaena.host.facts.machine import MachineFacts, MigFacts, PassthroughFacts
from dracaena.host.facts.pci import PciAddress, PciFacts
from dracaena.host.facts.troubles import GpuDriverTroubleError, TroubleKind
from dracaena.kubelet_plugin.adapters.kernel.mig_access import MigAccess
from dracaena.kubelet_plugin.adapters.nvml.confidential import confidential_state
from dracaena.kubelet_plugin.adapters.nvml.facts import NvmlReader
from dracaena.kubelet_plugin.adapters.nvml.health import NvmlHealth
from dracaena.kubelet_plugin.adapters.nvml.memory_limits import NvmlMemoryLimits
from dracaena.kubelet_plugin.adapters.nvml.mig_control import NvmlMigControl
from dracaena.kubelet_plugin.adapters.sysfs.devices import Sysfs
from dracaena.kubelet_plugin.adapters.sysfs.pci import SysfsPci
from dracaena.kubelet_plugin.adapters.sysfs.vgpu import SysfsVgpu
from dracaena.kubelet_plugin.discovery.build import Reading, read_facts
from dracaena.kubelet_plugin.discovery.confidential import ConfidentialState
from dracaena.kubelet_plugin.discovery.gpu_list import ALL_WHOLE, GpuList
from dracaena.kubelet_plugin.discovery.vm.passthrough import (
    HandedThrough,
    handed_through,
)
from dracaena.kubelet_plugin.discovery.vm.vgpus import TypesOfGpus, VgpuBus, existing_vgpus, gpus_with_numbered_types
from dracaena.process.clock import Clock, SystemClock

REOPEN_S = 300.0
"""Pause between two openings of NVML while a GPU cannot be named. A reset GPU must be released first, and a GPU that
was removed and added again is bound again: both are noticed at once. This is for changes without such a sign."""

SOURCE = "read from the NVIDIA driver of this machine"


@dataclass(frozen=True, slots=True)
class GuestBuses:
    """What reads the GPUs and parts of GPUs for virtual machines."""

    pci: SysfsPci | None = None
    """Which GPUs are passed through; None: none is."""
    vgpus: SysfsVgpu | None = None
    """Which vGPUs exist; None: none does."""


class NvmlMachine:
    """A machine source that asks the driver each time. For one thread; a call may hang as long as the driver does."""

    def __init__(
        self,
        name: str,
        nvml: NvmlReader,
        sysfs: Sysfs,
        mig_access: MigAccess | None = None,
        clock: Clock | None = None,
        *,
        listens: bool = False,
        gpu_list: GpuList = ALL_WHOLE,
        guests: GuestBuses | None = None,
    ) -> None:
        """`guests` reads what is there for virtual machines; None: nothing is. `gpu_list` says which GPUs
        are passed through when claims get them.

        With `listens` NVML stays open between two calls, so that events are received; otherwise it is closed and
        not in the way of a GPU reset or a change of the MIG mode or the driver.
        """
        self._name = name
        self._nvml = nvml
        self._health = NvmlHealth(nvml.library)
        self._memory_limits = NvmlMemoryLimits(nvml.library, stays_open=listens)
        self._clock = clock or SystemClock()
        self._listens = listens
        self._unnamed = False
        self._bound: frozenset[str] | None = None
        self._closed_s = self._clock.monotonic()
        self._sysfs = sysfs
        self._mig_access = mig_access or MigAccess()
        self._gpu_list = gpu_list
        self._pci_bus, self._vgpus = (None, None) if guests is None else (guests.pci, guests.vgpus)
        self._vgpu_types: TypesOfGpus = {}  # replaced whole
        self._needs_no_driver = False

    @classmethod
    def of_this_node(
        cls,
        name: str,
        *,
        gpu_driver_root: str = "/",
        sys_root: str = "/sys",
        on_error: OnError = lambda _call, _error: None,
        permission: Permission | None = None,
        listens: bool = False,
        mig_profiles: bool = False,
        passthrough: bool = False,
        gpu_list: GpuList = ALL_WHOLE,
        vgpus: bool = False,
        module_ids: bool = False,
    ) -> NvmlMachine:
        """Return the source for the driver below a root. Loads and asks nothing before the first reading."""
        library = NvmlLibrary(lambda: load_library(gpu_driver_root), on_error, permission)
        reader = NvmlReader(library, mig_profiles=mig_profiles, module_ids=module_ids)
        guests = GuestBuses(SysfsPci(sys_root) if passthrough else None, SysfsVgpu(sys_root) if vgpus else None)
        return cls(name, reader, Sysfs(sys_root), listens=listens, gpu_list=gpu_list, guests=guests)

    def read_all(self) -> Reading:
        """Return the machine with what else was read. Raises NvmlError (temporary) or TopologyError."""
        vgpu_bus = VgpuBus() if self._vgpus is None else self._vgpus.read()
        handed = HandedThrough() if self._pci_bus is None else self._handed_through(self._pci_bus, vgpu_bus)
        facts, types = self._driver_facts(handed, vgpu_bus)
        self._vgpu_types = types
        vgpus = existing_vgpus(vgpu_bus, types)
        addresses = [gpu.address for gpu in facts.gpus if gpu.address is not None]
        devices = (self._sysfs.pci_device(address) for address in addresses)
        facts = replace(
            facts,
            mig_devices=self._with_access(facts),
            pci=tuple(device for device in devices if device is not None),
            pci_gpus=self._sysfs.nvidia_gpus(),
            nics=self._sysfs.nics(),
            passthrough=tuple(PassthroughFacts(gpu, self._place(gpu.pci_bus_id)) for gpu in handed.gpus),
            vgpus=tuple(map(self._placed, vgpus.vgpus)),
            vgpu_parents=vgpus.parents,
        )
        reading = read_facts(facts, name=self._name, source=SOURCE)
        return replace(reading, refused=handed.refused, refused_vgpus=vgpus.refused)

    def _handed_through(self, pci_bus: SysfsPci, vgpu_bus: VgpuBus) -> HandedThrough:
        """Return the GPUs for virtual machines. Those of the vGPU manager are never bound to VFIO for a claim."""
        parents = frozenset(map(str, vgpu_bus.parents))
        return handed_through(pci_bus.read(), self._gpu_list, but=parents)

    def _driver_facts(self, handed: HandedThrough, vgpu_bus: VgpuBus) -> tuple[MachineFacts, TypesOfGpus]:
        """Return what the driver says, with the vGPU types that sysfs knows only by number.

        If VFIO drivers and the vGPU manager have all GPUs of the node, the driver may be missing or fail: NVML has
        several errors for a driver without a GPU.
        """
        self._needs_no_driver = False
        try:
            facts = self._nvml.read()
            asked = [gpu for gpu in facts.gpus if gpu.address in gpus_with_numbered_types(vgpu_bus)]
            return facts, {gpu.address: self._nvml.vgpu_types(gpu) for gpu in asked if gpu.address is not None}
        except GpuDriverTroubleError as error:
            is_released = error.reason is TroubleKind.RELEASED
            others = handed.gpus or handed.refused or vgpu_bus.parents
            if is_released or not others or set(self._sysfs.nvidia_gpus()) - vgpu_bus.parents:
                raise
            self._needs_no_driver = True
            return MachineFacts(gpus=()), {}
        finally:
            if not self._listens:
                self._nvml.close()

    def _place(self, pci_bus_id: str) -> PciFacts | None:
        address = PciAddress.parse(pci_bus_id)
        return None if address is None else self._sysfs.pci_device(address)

    def _placed(self, vgpu: Vgpu) -> Vgpu:
        place = self._place(vgpu.parent)
        return vgpu if place is None else replace(vgpu, numa_node=place.numa_node, pcie_root=place.root)

    def read(self) -> Machine:
        """Return the machine as it is now. Raises like read_all()."""
        return self.read_all().machine

    def _with_access(self, facts: MachineFacts) -> tuple[MigFacts, ...]:
        minors = {gpu.uuid: gpu.minor for gpu in facts.gpus}
        return tuple(
            replace(mig, access_minors=self._access_minors(minors[mig.parent_uuid], mig)) for mig in facts.mig_devices
        )

    def _access_minors(self, parent_minor: int | None, mig: MigFacts) -> tuple[int, int] | None:
        if parent_minor is None:
            return None
        return self._mig_access.minors(parent_minor, mig.gpu_instance_id, mig.compute_instance_id)

    def mig_control(self) -> NvmlMigControl:
        """Return what changes the division of the GPUs, for the same thread."""
        return NvmlMigControl(self._nvml.library, listens=self._listens)

    def vgpu_types(self) -> TypesOfGpus:
        """Return the vGPU types that sysfs knows by number, as the driver last reported them. From any thread."""
        return self._vgpu_types

    def access_minors(self, gpu_minor: int, gpu_instance_id: int, compute_instance_id: int) -> tuple[int, int] | None:
        """Return the numbers of the nodes that open a MIG device, as /proc says now. From any thread."""
        return self._mig_access.minors(gpu_minor, gpu_instance_id, compute_instance_id)

    def events(self) -> tuple[GpuEvent, ...]:
        """Return what happened to GPUs since the last call. Raises NvmlError."""
        return () if self._needs_no_driver else self._health.events()

    def poll(self) -> Poll:
        """Return how the GPUs are. Raises NvmlError."""
        if self._needs_no_driver:
            return Poll()
        self._open_anew_if_due()
        poll = self._health.poll()
        self._unnamed = poll.lost is not None or poll.refused is not None
        return poll

    def _open_anew_if_due(self) -> None:
        """Close NVML if it may show an outdated set of GPUs. Only a poll may do this: it registers for events as soon
        as it has reopened NVML, while a reading would leave that to the next poll.

        That is the case if the kernel has bound other devices to the driver since NVML was opened, and from time to
        time while a GPU cannot be named. Earlier events are kept; for a moment none are received.
        """
        now_s, bound = self._clock.monotonic(), self._sysfs.bound_to_gpu_driver()
        other = self._bound is not None and bound != self._bound
        if other or (self._unnamed and now_s - self._closed_s >= REOPEN_S) or not self._nvml.library.is_open:
            self._nvml.close()
            self._closed_s = now_s
        self._bound = bound

    def confidential(self) -> ConfidentialState:
        """Return the mode of confidential computing, and whether the GPUs accept work, as the driver reports it now.
        Raises NvmlError if it cannot be asked.
        """
        if self._needs_no_driver:
            return ConfidentialState()
        was_open = self._nvml.library.is_open
        try:
            self._nvml.library.open()
            return confidential_state(self._nvml.library)
        finally:
            if not (was_open or self._listens):
                self._nvml.close()

    def limit_memory(self, gpu: str, cgroup: str, limit_bytes: int | None) -> None:
        """See NvmlMemoryLimits.set()."""
        self._memory_limits.set(gpu, cgroup, limit_bytes)

    def opened(self) -> int:
        """Return how often the driver was opened. It may have been reloaded in between. From any thread."""
        return self._nvml.library.session

    def doing(self) -> str:
        """Return which call into the driver is running, empty if none is. From any thread."""
        return self._nvml.library.doing()

    def close(self) -> None:
        """Close the driver."""
        self._nvml.close()
