"""Whole GPUs for virtual machines: a VFIO driver of the kernel has them, and no NVIDIA driver sees them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dracaena.api.names import DeviceName

NVIDIA_VENDOR_ID = 0x10DE

DEVICE_PREFIX = "vfio-"
"""How the names of their devices begin."""


_NAME = re.compile(r"vfio-([0-9a-f]{4})-([0-9a-f]{2})-([0-9a-f]{2})-([0-7])", re.ASCII)
_PCI_BUS_ID = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_NOT_IN_RESOURCES = re.compile(r"[^A-Za-z0-9]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class PassthroughGpu:
    """One such GPU, as sysfs describes it. It has no UUID, which only the NVIDIA driver could tell."""

    pci_bus_id: str
    """`dddd:bb:dd.f`, lower-case hex: the identity of the device."""
    vendor_id: int
    device_id: int
    iommu_group: int
    """The smallest set of devices that a virtual machine can be given. It contains only functions of this GPU."""
    driver: str
    """The driver that has it: `vfio-pci`, or a variant of it for this product. On demand it may be another, or none."""
    pcie_root: str | None = None
    """`pci<domain>:<bus>` (attribute resource.kubernetes.io/pcieRoot)."""
    product_name: str | None = None
    """As NVML calls the product; None: its device id is not in our table."""
    is_bound: bool = True
    """Whether a VFIO driver has it now."""
    on_demand: bool = False
    """Whether it is bound when a claim gets it, and unbound afterwards: otherwise the NVIDIA driver may have it."""
    cc_mode: str | None = None
    """One of dracaena.api.confidential.CC_MODES, according to a label of the Node; None: unknown."""
    module_id: int | None = None
    """Like Gpu.module_id, from when the NVIDIA driver had the GPU; None: not read since the node came up."""

    @property
    def device_name(self) -> DeviceName:
        """Name in the ResourceSlice."""
        return passthrough_device_name(self.pci_bus_id)

    @property
    def resource(self) -> str:
        """Name of the product as a virtual machine of KubeVirt asks for it: `nvidia.com/H100_80GB_HBM3`, and
        `nvidia.com/10DE_2330` for a product without a name.
        """
        product = (self.product_name or "").removeprefix("NVIDIA ")
        ids = f"{self.vendor_id:04X}_{self.device_id:04X}"
        return f"nvidia.com/{_NOT_IN_RESOURCES.sub('_', product) or ids}"


def pci_bus_id_in(name: str) -> str | None:
    """Return the PCI address in the name of such a device; None for any other name."""
    match = _NAME.fullmatch(name)
    return None if match is None else f"{match[1]}:{match[2]}:{match[3]}.{match[4]}"


def is_pci_bus_id(name: str) -> bool:
    """Whether podlist.json and annotations name such a GPU in this form. No other GPU is named like that."""
    return _PCI_BUS_ID.fullmatch(name) is not None


def passthrough_device_name(pci_bus_id: str) -> DeviceName:
    """Return `vfio-<PCI address>` with dashes, a DNS label."""
    return DeviceName(DEVICE_PREFIX + pci_bus_id.replace(":", "-").replace(".", "-"))


def hexadecimal_id(number: int) -> str:
    """Return a vendor or device id as sysfs writes it, `0x10de`."""
    return f"0x{number:04x}"
