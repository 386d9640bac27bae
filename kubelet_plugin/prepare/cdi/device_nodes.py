"""Which device nodes a container with GPUs needs, and what is wrong with one that the host has or lacks.

A node is identified by its numbers, not by its name: when its module is reloaded, the driver creates /dev/nvidia-uvm
under another major, and a leftover node opens nothing, or somebody else's device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dracaena.api.names import DeviceName
from dracaena.kubelet_plugin.discovery.vm.passthrough import VFIO_DRIVER
from dracaena.kubelet_plugin.prepare.cdi.spec import DeviceNode
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedDevice

MAKE_ALL = "run nvidia-modprobe or nvidia-smi as root on the node, or keep nvidia-persistenced running"
MAKE_UVM = "run `nvidia-modprobe -c0 -u` as root on the node"
MAKE_CAPABILITIES = "run `nvidia-smi -L` as root on the node"

BIND = "bind the GPU to vfio-pci, and all functions of its IOMMU group with it"

MAKE_VGPU = "make the vGPU again with the same type, or delete the pods"

GPU_DRIVERS = ("nvidia", "nvidia-frontend")
"""Names in /proc/devices; drivers before 550 use the second one."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What the host has at a path, links not followed."""

    is_character_device: bool
    major: int = 0
    minor: int = 0


@dataclass(frozen=True, slots=True)
class WantedNode:
    """A node as the driver makes it."""

    path: str
    drivers: tuple[str, ...]
    """Names of its major in /proc/devices; the first that is listed counts."""
    minor: int | None
    """None: the kernel chooses the number."""
    remedy: str
    """What makes it, as an instruction."""
    required: bool = True
    """Whether a container without it has a GPU that it cannot use."""
    is_made: bool = False
    """Whether the plugin creates it if it is missing, and may: no NVIDIA daemon does so for new MIG devices."""


CONTROL_NODES = (
    WantedNode("/dev/nvidiactl", ("nvidiactl", *GPU_DRIVERS), 255, MAKE_ALL),
    WantedNode("/dev/nvidia-uvm", ("nvidia-uvm",), 0, MAKE_UVM),
    WantedNode("/dev/nvidia-uvm-tools", ("nvidia-uvm",), 1, MAKE_UVM, required=False),
    WantedNode(
        "/dev/nvidia-modeset",
        ("nvidia-modeset", *GPU_DRIVERS),
        254,
        "run `nvidia-modprobe -m` as root on the node",
        required=False,
    ),
)
"""For every container with a GPU. No CUDA program starts without the first two; profilers use the third, programs that
drive displays the fourth, which exists if the module nvidia-modeset is loaded. Minors: nv.h, uvm_ioctl.h."""


IOMMU_NODE = WantedNode(
    "/dev/iommu",
    ("misc",),
    None,
    "this node has no iommufd: run `modprobe iommufd` as root (Linux 6.2, CONFIG_IOMMUFD), or leave "
    "`iommu: IOMMUFD` out of the claim's VfioConfig",
)
"""For every container with a GPU that is opened by iommufd. The kernel chooses its number."""

VFIO_NODE = WantedNode("/dev/vfio/vfio", ("misc",), 196, "run `modprobe vfio` as root on the node")
"""For every container with a GPU for virtual machines: the VFIO container that IOMMU groups are added to. Minor:
VFIO_MINOR of Linux' miscdevice.h."""


@dataclass(frozen=True, slots=True)
class DrmNode:
    """A node below /dev/dri: card0, renderD128."""

    node: DeviceNode
    by_path: str | None = None
    """Name of the link below /dev/dri/by-path that leads to it, if the host has one."""


@dataclass(frozen=True, slots=True)
class ClaimNodes:
    """The device nodes of a claim."""

    control: tuple[DeviceNode, ...] = ()
    devices: Mapping[DeviceName, tuple[DeviceNode, ...]] = field(default_factory=dict)
    drm: Mapping[DeviceName, tuple[DrmNode, ...]] = field(default_factory=dict)


def device_node(path: str, dev_root: str) -> DeviceNode:
    """Return the node of a container path; only a dev_root other than `/` makes the host's path differ."""
    root = dev_root.rstrip("/")
    return DeviceNode(path, f"{root}{path}" if root else None)


def wanted_nodes(device: PreparedDevice, vfio_device: str | None = None) -> tuple[WantedNode, ...]:
    """Return a GPU's own node; for a MIG device its parent's node, and the nodes that open its two instances; for a GPU
    for virtual machines the nodes of VFIO and of its IOMMU group, or those of iommufd and of the GPU, which is named
    `vfio_device` now.
    """
    remedy = MAKE_VGPU if device.is_vgpu else BIND
    if device.iommufd:
        own = () if vfio_device is None else (f"/dev/vfio/devices/{vfio_device}",)
        return (IOMMU_NODE, *(WantedNode(path, ("vfio-dev",), None, remedy) for path in own))
    if device.is_passthrough:
        return (VFIO_NODE, WantedNode(f"/dev/vfio/{device.iommu_group}", ("vfio",), None, remedy))
    gpu = WantedNode(
        f"/dev/nvidia{device.minor}",
        GPU_DRIVERS,
        device.minor,
        f"run `nvidia-modprobe -c{device.minor}` as root on the node, or keep nvidia-persistenced running",
    )
    access = (
        WantedNode(f"/dev/nvidia-caps/nvidia-cap{minor}", ("nvidia-caps",), minor, MAKE_CAPABILITIES, is_made=True)
        for minor in device.access_minors
    )
    return (gpu, *access)


def needs_gpu_driver(devices: Sequence[PreparedDevice]) -> bool:
    """Whether a claim needs the NVIDIA driver of this node: not if all its devices are for virtual machines, which
    bring their own.
    """
    return not all(device.is_passthrough for device in devices)


def has_graphics(device: PreparedDevice) -> bool:
    """Whether the DRM nodes of a GPU belong to a device: to a whole GPU, and to MIG devices with graphics (+gfx)."""
    return (device.is_whole_gpu and not device.is_passthrough) or "gfx" in device.device.split("-")


def plain_nodes(devices: Sequence[PreparedDevice], dev_root: str) -> Mapping[DeviceName, tuple[DeviceNode, ...]]:
    """Return the nodes of devices by their names alone, whatever the host has: for recorded machines."""
    return {
        device.device: tuple(device_node(wanted.path, dev_root) for wanted in wanted_nodes(device))
        for device in devices
    }


def problem(wanted: WantedNode, seen: NodeFacts | None, majors: Mapping[str, int], host_path: str) -> str | None:
    """Return why a node cannot be given to a container, as a sentence with what to do; None if it can.

    `majors` are those of /proc/devices. A driver that is not listed there cannot be compared.
    """
    if seen is None:
        return f"{host_path} is missing: containers would get GPUs that they cannot use; {wanted.remedy}"
    if not seen.is_character_device:
        return f"{host_path} is not a character device: remove it and {wanted.remedy}"
    major = next((majors[name] for name in wanted.drivers if name in majors), seen.major)
    minor = seen.minor if wanted.minor is None else wanted.minor
    if (seen.major, seen.minor) != (major, minor):
        return (
            f"{host_path} is device {seen.major}:{seen.minor}, but the loaded driver has it at {major}:{minor}: "
            f"remove it and {wanted.remedy}"
        )
    return None


def vfio_problem(device: PreparedDevice, driver: str | None, iommu_group: str | None) -> str | None:
    """Return why a GPU cannot be given to a virtual machine as last read, as a sentence with who must act; None if it
    can.

    `driver` and `iommu_group` are what the kernel says now; None: it has none. The node of the group alone proves
    nothing: another device may have that number by now, and a driver may have taken the GPU back.
    """
    where = f"GPU {device.device} at {device.pci_bus_id}"
    if driver is None or VFIO_DRIVER.fullmatch(driver) is None:
        had = f"driver {driver}" if driver else "no driver"
        return f"{where} has {had} now, and had a VFIO driver when the GPUs were last read: {BIND}"
    return _moved(where, device, iommu_group)


def vgpu_problem(device: PreparedDevice, type_id: str | None, iommu_group: str | None) -> str | None:
    """Return why a vGPU cannot be given to a virtual machine as last read, as a sentence with who must act; None if it
    can.

    `type_id` and `iommu_group` are what the kernel says now; None: there is no such vGPU, or it has no group. A virtual
    function that got another type is another vGPU behind the same node.
    """
    where = f"vGPU {device.uuid} of the GPU at {device.pci_bus_id}"
    if type_id is None:
        return f"{where} was there when the GPUs were last read, and is gone: {MAKE_VGPU}"
    if type_id != device.vgpu_type_id:
        return (
            f"{where} was of type {device.vgpu_type_id} when the GPUs were last read, and is of {type_id}: {MAKE_VGPU}"
        )
    return _moved(where, device, iommu_group)


def _moved(where: str, device: PreparedDevice, iommu_group: str | None) -> str | None:
    if iommu_group == str(device.iommu_group):
        return None
    now = f"in IOMMU group {iommu_group}" if iommu_group else "in no IOMMU group"
    return (
        f"{where} was in IOMMU group {device.iommu_group} when the GPUs were last read, and is {now}: waiting for "
        "the next reading"
    )
