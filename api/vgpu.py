"""vGPUs for virtual machines: parts of a GPU that NVIDIA's vGPU manager divides, each behind a device of the kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dracaena.api.names import DeviceName
from dracaena.api.passthrough import is_pci_bus_id

VGPU_PREFIX = "vgpu-"
"""How the names of their devices begin."""

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_FUNCTION = re.compile(r"([0-9a-f]{4})-([0-9a-f]{2})-([0-9a-f]{2})-([0-7])", re.ASCII)
_MAKER = re.compile(r"(?:NVIDIA|GRID) ", re.ASCII)
_TYPE = re.compile(
    r"(?P<product>[A-Za-z0-9](?:[A-Za-z0-9 ._-]*?[A-Za-z0-9])??)(?:-(?P<slices>[1-9]))?"
    r"-(?P<gb>[0-9]{1,4})(?P<series>[ABCQ][0-9]?)(?P<attribute>ME|NOME|MEALL|GFX)?",
    re.ASCII,
)
_ATTRIBUTE = re.compile(r"(?<=[0-9ABCQ])(?:ME|NOME|MEALL|GFX)$", re.ASCII)
_GB = 1 << 30


@dataclass(frozen=True, slots=True)
class VgpuType:
    """A type of vGPU according to its name: `<GPU>-<GB><series>`, MIG-backed `<GPU>-<slices>-<GB><series>`."""

    name: str
    """Without `NVIDIA ` or `GRID ` before it: `A100-40C`, `RTX 6000 Ada-48Q`."""
    slices: int | None
    """Compute slices of the GPU instance that each vGPU has of its own; None: they take turns on the whole GPU."""
    framebuffer_bytes: int | None
    """According to the name, which is exact only for time-sliced types; 0 in a name stands for 512 MiB."""

    @property
    def is_mig_backed(self) -> bool:
        """Whether each has a GPU instance of its own."""
        return self.slices is not None

    @property
    def short_name(self) -> str:
        """Return the last word of the name, as vgpu-device-manager's files have it: `Ada-48Q`."""
        return self.name.rsplit(" ", 1)[-1]

    @property
    def without_attribute(self) -> str:
        """Return the short name without `ME`, `NOME`, `MEALL` or `GFX`."""
        return _ATTRIBUTE.sub("", self.short_name)


def vgpu_type(name: str) -> VgpuType | None:
    """Read the name of a type as the driver writes it, `NVIDIA A100-1-5C`; None for any other text."""
    plain = _MAKER.sub("", name, count=1) if _MAKER.match(name) else name
    match = _TYPE.fullmatch(plain)
    if match is None or len(plain) > 64:
        return None
    slices = None if match["slices"] is None else int(match["slices"])
    size = int(match["gb"]) * _GB or _GB // 2
    return VgpuType(plain, slices, size if slices is None else None)


@dataclass(frozen=True, slots=True)
class Vgpu:
    """One vGPU that exists."""

    identity: str
    """UUID of the mediated device, or PCI address of the virtual function."""
    parent: str
    """PCI address of the physical GPU."""
    type_id: str
    """As in the kernel's files: `nvidia-222` for a mediated device, `1414` for a virtual function."""
    type_name: str
    """As the driver writes it: `NVIDIA A100-1-5C`."""
    iommu_group: int
    framebuffer_bytes: int | None = None
    """None: unknown."""
    numa_node: int | None = None
    """Of the GPU."""
    pcie_root: str | None = None
    """Of the GPU."""

    @property
    def device_name(self) -> DeviceName:
        """Name in the ResourceSlice."""
        return vgpu_device_name(self.identity)

    @property
    def is_mediated(self) -> bool:
        """Whether it is a mediated device of the kernel (mdev); else it is a virtual function with a type."""
        return is_mdev_uuid(self.identity)

    @property
    def type(self) -> VgpuType:
        """What its name says."""
        found = vgpu_type(self.type_name)
        assert found is not None
        return found

    @property
    def resource(self) -> str:
        """Name of the type as a virtual machine of KubeVirt asks for it: `nvidia.com/NVIDIA_A100-1-5C`."""
        return f"nvidia.com/{self.type_name.replace(' ', '_')}"


def is_mdev_uuid(name: str) -> bool:
    """Whether a name is the bare UUID of a mediated device. UUIDs of GPUs have `GPU-` or `MIG-` before them."""
    return _UUID.fullmatch(name) is not None


def is_of_virtual_machine(name: str) -> bool:
    """Whether podlist.json and annotations name devices of virtual machines like this: by PCI address or bare UUID."""
    return is_pci_bus_id(name) or is_mdev_uuid(name)


def vgpu_identity_in(name: str) -> str | None:
    """Return the identity of a vGPU in the name of its device; None for any other name."""
    if not name.startswith(VGPU_PREFIX):
        return None
    rest = name.removeprefix(VGPU_PREFIX)
    match = _FUNCTION.fullmatch(rest)
    if match is not None:
        return f"{match[1]}:{match[2]}:{match[3]}.{match[4]}"
    return rest if is_mdev_uuid(rest) else None


def vgpu_device_name(identity: str) -> DeviceName:
    """Return `vgpu-<UUID>` or `vgpu-<PCI address>` with dashes, a DNS label."""
    return DeviceName(VGPU_PREFIX + identity.replace(":", "-").replace(".", "-"))
