"""Which GPUs of a PCI bus can be passed through to virtual machines, and why others that seem to qualify cannot."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dracaena.api.machine import Gpu, Machine
from dracaena.api.passthrough import NVIDIA_VENDOR_ID, PassthroughGpu, hexadecimal_id
from dracaena.host.facts.pci import PciAddress
from dracaena.host.facts.troubles import Trouble, TroubleKind, trouble
from dracaena.kubelet_plugin.discovery.gpu_list import ALL_WHOLE, GpuList
from dracaena.kubelet_plugin.discovery.vm.pci_products import PCI_PRODUCTS

VFIO_DRIVER: Final = re.compile(r"(?:[a-z0-9]+[-_])*vfio[-_]pci", re.ASCII)
"""Names of the drivers of vfio-pci and of its variants (nvgrace_gpu_vfio_pci), which have dashes or underscores."""

NO_IOMMU: Final = "vfio-noiommu"
"""Name of a group that VFIO invents without an IOMMU (enable_unsafe_noiommu_mode): it protects nothing."""

_NO_GPU: Final = "the setting `gpus` selects it, and this node has no GPU of NVIDIA's there"

_GPU_CLASSES: Final = (0x0300, 0x0302)
"""VGA and 3D controllers."""
_BRIDGE: Final = 0x0604
"""PCI to PCI bridges stay with the host, whoever has their group (Linux, driver-api/vfio)."""


@dataclass(frozen=True, slots=True)
class PciFunction:
    """One function of the PCI bus."""

    address: PciAddress
    vendor_id: int
    device_id: int
    pci_class: int
    """Base class and subclass, without the programming interface: 0x0302."""
    driver: str | None = None
    iommu_group: int | None = None
    is_virtual: bool = False
    """Whether it is a virtual function of another one."""
    virtual_functions: int = 0
    """How many virtual functions of it there are (sriov_numvfs)."""
    has_console: bool = False
    """Whether firmware and kernel use it as the console (boot_vga)."""

    @property
    def is_gpu(self) -> bool:
        """Whether it is a physical NVIDIA GPU."""
        return self.vendor_id == NVIDIA_VENDOR_ID and self.pci_class in _GPU_CLASSES and not self.is_virtual

    @property
    def has_vfio_driver(self) -> bool:
        """Whether a VFIO driver has it."""
        return self.driver is not None and VFIO_DRIVER.fullmatch(self.driver) is not None

    def __str__(self) -> str:
        """Return it in a form that admins can search for, `0000:18:00.1 (0x10de:0x22ba, driver snd_hda_intel)`."""
        ids = f"{hexadecimal_id(self.vendor_id)}:{hexadecimal_id(self.device_id)}"
        return f"{self.address} ({ids}, {f'driver {self.driver}' if self.driver else 'no driver'})"


@dataclass(frozen=True, slots=True)
class IommuGroup:
    """One group of the IOMMU."""

    members: tuple[str, ...]
    """Names of its devices, sorted; on the PCI bus that is their address."""
    name: str | None = None
    """The name that its creator gave it; groups of an IOMMU usually have none."""


@dataclass(frozen=True, slots=True, order=True)
class RefusedGpu:
    """A GPU that a VFIO driver has, or may have, and that is not offered."""

    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class PciBus:
    """NVIDIA's GPUs, what shares a group with them, and those that could not be read."""

    functions: Mapping[PciAddress, PciFunction] = field(default_factory=dict)
    groups: Mapping[int, IommuGroup] = field(default_factory=dict)
    unreadable: tuple[RefusedGpu, ...] = ()


@dataclass(frozen=True, slots=True)
class HandedThrough:
    """What a bus has for virtual machines."""

    gpus: tuple[PassthroughGpu, ...] = ()
    """By PCI address."""
    refused: tuple[RefusedGpu, ...] = ()
    """By PCI address."""


def handed_through(
    bus: PciBus,
    gpu_list: GpuList = ALL_WHOLE,
    *,
    but: Collection[str] = (),
) -> HandedThrough:
    """Return the GPUs that a VFIO driver has or may get on demand, and those of them that are refused.

    A virtual machine gets a whole IOMMU group, since the devices in it can reach each other's memory. So a group may
    hold only the functions of one GPU, each with a VFIO driver or with none, and bridges. The functions of GPUs that
    the list gives to passthrough are bound when a claim gets them, except GPUs at the addresses `but`, which something
    else has. A word of the list that selects no GPU here is refused too, because whoever set it expects one.
    """
    gpus, refused = [], list(bus.unreadable)
    for address in sorted(bus.functions):
        function = bus.functions[address]
        is_asked = gpu_list.binds_function(str(address), function.device_id) and str(address) not in but
        if not function.is_gpu or not (function.has_vfio_driver or is_asked):
            continue
        reason = why_not_on_demand(function, bus) if is_asked else _why_refused(function, bus, on_demand=False)
        if reason is None:
            gpus.append(_gpu(function, on_demand=is_asked))
        else:
            refused.append(RefusedGpu(str(address), reason))
    there = {each.address for each in refused}
    for address, function in bus.functions.items():
        if function.is_gpu:
            there |= {str(address), PCI_PRODUCTS.get(function.device_id, "").lower()}
    refused += [RefusedGpu(word, _NO_GPU) for word in gpu_list.bound_words() - there]
    return HandedThrough(tuple(gpus), tuple(sorted(refused)))


def _gpu(function: PciFunction, *, on_demand: bool) -> PassthroughGpu:
    assert function.iommu_group is not None
    return PassthroughGpu(
        pci_bus_id=str(function.address),
        vendor_id=function.vendor_id,
        device_id=function.device_id,
        iommu_group=function.iommu_group,
        driver=function.driver or "",
        product_name=PCI_PRODUCTS.get(function.device_id),
        is_bound=function.has_vfio_driver,
        on_demand=on_demand,
    )


def why_not_on_demand(gpu: PciFunction, bus: PciBus) -> str | None:
    """Return why a GPU cannot be bound to a VFIO driver, whatever driver it has now, together with all other functions
    of its group, which must be its own; None if it can.
    """
    if gpu.virtual_functions:
        return f"it has {gpu.virtual_functions} virtual functions: write 0 to its sriov_numvfs first"
    if gpu.has_console:
        return "it drives the display of the machine (boot_vga): use another GPU for that, or another one for this"
    return _why_refused(gpu, bus, on_demand=True)


def divided_by_mig(machine: Machine) -> tuple[RefusedGpu, ...]:
    """Return the GPUs that would be bound on demand but are in MIG mode, by PCI address. Only an admin may end that
    mode: the virtual machine would get the whole GPU, and the admin's MIG devices would be lost.
    """
    gpus = {gpu.pci_bus_id: gpu for gpu in machine.gpus}
    handed = (gpus.get(each.pci_bus_id) for each in machine.passthrough if each.on_demand and not each.is_bound)
    found = ((gpu, why_divided_by_mig(gpu)) for gpu in handed if gpu is not None)
    return tuple(RefusedGpu(str(gpu.pci_bus_id), reason) for gpu, reason in found if reason is not None)


def passthrough_trouble(refused: RefusedGpu) -> Trouble:
    """Return what an admin is told about a GPU that is not offered."""
    text = f"the GPU at {refused.address} is not published for virtual machines: {refused.reason}"
    return trouble(TroubleKind.PASSTHROUGH_REFUSED, text, refused.address)


def why_divided_by_mig(gpu: Gpu) -> str | None:
    """Return why a GPU cannot be bound because it is divided, as last read; None if it is not."""
    if not gpu.mig_enabled:
        return None
    return (
        f"GPU {gpu.uuid} is in MIG mode, which an admin changes and not a claim, and a virtual machine gets a GPU "
        f"whole: `nvidia-smi -i {gpu.pci_bus_id} -mig 0` on the node, or select other GPUs as passthrough in `gpus`"
    )


def functions_of_gpu(gpu: PciFunction, bus: PciBus) -> tuple[PciFunction, ...]:
    """Return what a virtual machine gets with a GPU: all functions of its group except bridges, the GPU first."""
    group = None if gpu.iommu_group is None else bus.groups.get(gpu.iommu_group)
    members = () if group is None else members_of([group])
    found = (bus.functions.get(address) for address in members if address != gpu.address)
    return (gpu, *(each for each in found if each is not None and each.pci_class != _BRIDGE))


def _why_refused(gpu: PciFunction, bus: PciBus, *, on_demand: bool) -> str | None:
    if not gpu.address.is_short:
        return "its PCI domain has more than 16 bits, which resource.kubernetes.io/pciBusID has no form for"
    group = None if gpu.iommu_group is None else bus.groups.get(gpu.iommu_group)
    if group is None:
        return "it is in no IOMMU group: turn the IOMMU on in the firmware and for the kernel (intel_iommu=on on Intel)"
    if group.name == NO_IOMMU:
        return (
            f"IOMMU group {gpu.iommu_group} is one of VFIO without an IOMMU: its virtual machine could write to all of "
            "the host's memory; turn the IOMMU on, and enable_unsafe_noiommu_mode of module vfio off"
        )
    if str(gpu.address) not in group.members:
        return f"IOMMU group {gpu.iommu_group} does not list it: sysfs was read while the group changed"
    found = (_why_not_with(gpu, member, bus, on_demand=on_demand) for member in group.members)
    return "; ".join(reason for reason in found if reason is not None) or None


def _why_not_with(gpu: PciFunction, member: str, bus: PciBus, *, on_demand: bool) -> str | None:
    """Return why a GPU cannot be given away together with one device of its group, None if it can."""
    address = PciAddress.parse(member)
    other = None if address is None else bus.functions.get(address)
    if other is None:
        return f"IOMMU group {gpu.iommu_group} also holds {member[:80]!r}, of which nothing is known"
    if other.pci_class == _BRIDGE or other.address == gpu.address:
        return None
    if not gpu.address.same_card(other.address) or other.is_virtual:
        return (
            f"IOMMU group {gpu.iommu_group} also holds {other}, which is not part of this GPU, and whoever gets the "
            "group gets both: move one of the two to another slot, or turn on ACS in the firmware"
        )
    if on_demand or other.driver is None or other.has_vfio_driver:
        return None
    return f"its function {other} is in the same IOMMU group: bind that to vfio-pci too"


def members_of(bus_groups: Iterable[IommuGroup]) -> Sequence[PciAddress]:
    """Return the PCI addresses of all devices in these groups, sorted, each once."""
    found = (PciAddress.parse(member) for group in bus_groups for member in group.members)
    return sorted({address for address in found if address is not None})
