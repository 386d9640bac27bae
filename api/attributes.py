"""The one table of what a device of ours carries in a ResourceSlice. Users' selectors depend on it.

Unprefixed names are in the driver's domain. Names that NVIDIA's driver uses too mean the same here, so that selectors
carry over. The meaning of a name never changes: what changes gets a new name, and what is removed stays unchanged for
one more release. dracaena.api.limits says how many attributes there may be, and how long their texts may be.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dracaena.api.limits import COUNTER_SET_COUNTERS
from dracaena.api.links import MAX_NVLINKS

MAX_NUMA_NODE = 1023
"""Largest value that resource.kubernetes.io/numaNode may have."""

MAX_ORDINAL = 127
"""Of 128 devices: 64 GPUs, more than any machine has, each of them for containers and for virtual machines. That many
have 8,128 pairs of links; decoding and drawing them takes a tenth of a second."""

MAX_MEMORY_SLICES = COUNTER_SET_COUNTERS
"""Of a GPU that is divided on demand: each is a counter of its GPU's set. No GPU has more than 8."""

MAX_BYTES = 2**63 - 1
"""Of memory: beyond it, the API stores another number than was sent."""

_MAX_GENERATION = 99
"""Of NVLink and PCIe: below 10 today."""
_MAX_LANES = 32
"""Of a PCIe link, by its specification."""
_MAX_INT32 = 2**31 - 1
"""The kernel numbers IOMMU groups with an int."""
_MAX_UINT32 = 2**32 - 1
"""Fabric Manager's SDK has an unsigned int for the id of a partition."""
_MAX_MINOR = 255
"""The NVIDIA driver has the 256 minor numbers of one major number."""

STANDARD_DOMAIN = "resource.kubernetes.io"
GPU_TYPE = "gpu"
"""Value of `type` for a whole physical GPU."""
MIG_TYPE = "mig"
"""Value of `type` for a MIG device."""
VFIO_TYPE = "vfio"
"""Value of `type` for a whole GPU that is handed through to a virtual machine."""
VGPU_TYPE = "vgpu"
"""Value of `type` for a part of a GPU that the vGPU manager makes for a virtual machine."""


class AttributeType(Enum):
    """How a value is written in the slice. A value that does not fit is left out; only a TEXT is cut."""

    INT = "int"
    BOOL = "bool"
    STRING = "string"
    """An identifier or compact string: cut off, it would mean something else."""
    TEXT = "text"
    """A string for people, cut at 64 bytes on a character boundary."""
    VERSION = "version"
    """SemVer 2.0.0, made from a vendor's version."""


@dataclass(frozen=True, slots=True)
class AttributeSpec:
    """One row of the table."""

    name: str
    type: AttributeType
    meaning: str
    """With its unit, if it has one."""
    gpu_field: str | None = None
    """Field of dracaena.api.machine.Gpu that it carries as it is; None: the codec computes it."""
    optional: bool = True
    """A device that lacks a required attribute does not decode."""
    most: int | None = None
    """The largest value of an INT; the smallest is 0. Readers of slices rely on it: what is drawn or compared
    costs as much as these values say, and any node can publish any number."""

    def __post_init__(self) -> None:
        if (self.type is AttributeType.INT) != (self.most is not None):
            raise ValueError(f"attribute {self.name}: an INT, and no other type, has a largest value")

    def holds(self, value: int) -> bool:
        """Return whether an INT may have this value."""
        return self.most is not None and 0 <= value <= self.most


_INT, _STRING, _TEXT, _VERSION = AttributeType.INT, AttributeType.STRING, AttributeType.TEXT, AttributeType.VERSION
_BOOL = AttributeType.BOOL

TYPE = AttributeSpec("type", _STRING, "kind of device: `gpu`, `mig`, `vfio` or `vgpu`", optional=False)
UUID = AttributeSpec("uuid", _STRING, "UUID of the device as NVML gives it", "uuid", optional=False)
PRODUCT_NAME = AttributeSpec("productName", _TEXT, "product name as NVML gives it", "product_name")
BRAND = AttributeSpec("brand", _TEXT, "brand, for example Tesla", "brand")
ARCHITECTURE = AttributeSpec("architecture", _TEXT, "architecture, for example Hopper", "architecture")
CUDA_COMPUTE_CAPABILITY = AttributeSpec("cudaComputeCapability", _VERSION, "CUDA compute capability")
CUDA_COMPUTE_CAPABILITY_TEXT = AttributeSpec(
    "cudaComputeCapabilityText",
    _STRING,
    "the same as the driver reports it, for example 9.0",
    "cuda_compute_capability",
)
DRIVER_VERSION = AttributeSpec("driverVersion", _VERSION, "version of the NVIDIA driver")
DRIVER_VERSION_TEXT = AttributeSpec(
    "driverVersionText", _STRING, "the same as the driver reports it, for example 535.104.05"
)
CUDA_DRIVER_VERSION = AttributeSpec("cudaDriverVersion", _VERSION, "CUDA version that the driver supports")
CUDA_DRIVER_VERSION_TEXT = AttributeSpec(
    "cudaDriverVersionText", _STRING, "the same as the driver reports it, for example 12.2"
)
INDEX = AttributeSpec(
    "index", _INT, "NVML index; changes with reboots, no identity", "index", optional=False, most=MAX_ORDINAL
)
MINOR = AttributeSpec("minor", _INT, "number of the device node /dev/nvidia<minor>", "minor", most=_MAX_MINOR)
ORDINAL = AttributeSpec(
    "ordinal",
    _INT,
    "rank by PCI address among all physical GPUs of the node, from 0; those for virtual machines come after the others",
    optional=False,
    most=MAX_ORDINAL,
)
NUMA_NODE = AttributeSpec(f"{STANDARD_DOMAIN}/numaNode", _INT, "NUMA node of the GPU", most=MAX_NUMA_NODE)
PCIE_ROOT = AttributeSpec(f"{STANDARD_DOMAIN}/pcieRoot", _STRING, "PCIe root, `pci<domain>:<bus>`", "pcie_root")
PCI_BUS_ID = AttributeSpec(f"{STANDARD_DOMAIN}/pciBusID", _STRING, "PCI address, `dddd:bb:dd.f`", "pci_bus_id")
NVLINK_GROUP = AttributeSpec(
    "nvlinkGroup",
    _INT,
    "lowest ordinal among the GPUs that NVLinks connect to this one; left out where uncertain",
    most=MAX_ORDINAL,
)
PCIE_SWITCH = AttributeSpec(
    "pcieSwitch",
    _INT,
    "lowest ordinal among the GPUs below the same PCIe switch (PIX); left out where uncertain",
    most=MAX_ORDINAL,
)
HOST_BRIDGE = AttributeSpec(
    "hostBridge",
    _INT,
    "lowest ordinal among the GPUs below the same host bridge (PHB); left out where uncertain",
    most=MAX_ORDINAL,
)
FABRIC_CLIQUE = AttributeSpec(
    "fabricClique", _STRING, "NVLink fabric of several nodes, `<clusterUUID>.<cliqueID>`", "fabric_clique"
)
NVLINK_COUNT = AttributeSpec(
    "nvlinkCount", _INT, "active NVLinks of this GPU to anywhere", "nvlink_count", most=MAX_NVLINKS
)
NVLINK_GENERATION = AttributeSpec(
    "nvlinkGeneration", _INT, "NVLink generation", "nvlink_generation", most=_MAX_GENERATION
)
PCIE_GENERATION = AttributeSpec(
    "pcieGeneration", _INT, "PCIe generation of the GPU's link", "pcie_generation", most=_MAX_GENERATION
)
PCIE_WIDTH = AttributeSpec("pcieWidth", _INT, "PCIe lanes of the GPU's link", "pcie_width", most=_MAX_LANES)
CC_CAPABLE = AttributeSpec("ccCapable", _BOOL, "whether the GPUs of the node can compute confidentially", "cc_capable")
CC_MODE = AttributeSpec("ccMode", _STRING, "mode of confidential computing: `on`, `off` or `devtools`", "cc_mode")
PCIE_LEVELS = AttributeSpec("pcieLevels", _STRING, "PCIe level to each GPU of the node in ordinal order (compact)")
NVLINKS = AttributeSpec("nvlinks", _STRING, "NVLinks to each GPU of the node in ordinal order (compact)")
NIC_LEVELS = AttributeSpec("nicLevels", _STRING, "PCIe level to each NIC of the node (compact)")
GPU_MODULE_ID = AttributeSpec(
    "gpuModuleID",
    _INT,
    "place of the GPU on its board, where Fabric Manager has partitions",
    "module_id",
    most=MAX_ORDINAL,
)
PARTITION_1 = AttributeSpec(
    "partition1", _INT, "Fabric Manager's id of the partition of this GPU alone", most=_MAX_UINT32
)
PARTITION_2 = AttributeSpec(
    "partition2", _INT, "Fabric Manager's id of the partition of 2 GPUs that it is in", most=_MAX_UINT32
)
PARTITION_4 = AttributeSpec(
    "partition4", _INT, "Fabric Manager's id of the partition of 4 GPUs that it is in", most=_MAX_UINT32
)
PARTITION_8 = AttributeSpec(
    "partition8", _INT, "Fabric Manager's id of the partition of 8 GPUs that it is in", most=_MAX_UINT32
)
PARENT_UUID = AttributeSpec("parentUUID", _STRING, "UUID of the GPU that a MIG device is part of", optional=False)
PROFILE = AttributeSpec("profile", _STRING, "profile of a MIG device, for example 1g.10gb", optional=False)
PLACEMENT_START = AttributeSpec(
    "placementStart",
    _INT,
    "first memory slice of a MIG device that is made when a claim gets it",
    most=MAX_MEMORY_SLICES - 1,
)
PLACEMENT_SIZE = AttributeSpec(
    "placementSize", _INT, "number of memory slices of such a device", most=MAX_MEMORY_SLICES
)
VENDOR_ID = AttributeSpec("vendorID", _STRING, "PCI vendor id, `0x10de`")
DEVICE_ID = AttributeSpec("deviceID", _STRING, "PCI device id, for example `0x2330`")
IOMMU_GROUP = AttributeSpec(
    "iommuGroup", _INT, "IOMMU group of a GPU for virtual machines; may change with reboots", most=_MAX_INT32
)
VGPU_TYPE_NAME = AttributeSpec("vgpuType", _STRING, "type of a vGPU, for example `A100-40C`", optional=False)
VGPU_MIG_BACKED = AttributeSpec(
    "vgpuMigBacked", _INT, "1: a vGPU has a GPU instance of its own; 0: it takes turns on the whole GPU", most=1
)
PARENT_PCI_BUS_ID = AttributeSpec("parentPCIBusID", _STRING, "PCI address of the GPU that a vGPU is part of")
MDEV_UUID = AttributeSpec(f"{STANDARD_DOMAIN}/mDevUUID", _STRING, "UUID of the mediated device that a vGPU is")
MDEV_UUID_FOR_KUBEVIRT = AttributeSpec("mdevUUID", _STRING, "the same, under the name by which KubeVirt looks for it")
"""From 1.8 on KubeVirt reads it from the device metadata (KEP-5304), without a domain: the name is no standard yet
(kubernetes/kubernetes issue 135552)."""

GPU_ATTRIBUTES = (
    TYPE, UUID, PRODUCT_NAME, BRAND, ARCHITECTURE, CUDA_COMPUTE_CAPABILITY, CUDA_COMPUTE_CAPABILITY_TEXT,
    DRIVER_VERSION, DRIVER_VERSION_TEXT, CUDA_DRIVER_VERSION, CUDA_DRIVER_VERSION_TEXT, INDEX, MINOR, ORDINAL,
    NUMA_NODE, PCIE_ROOT, PCI_BUS_ID, NVLINK_GROUP, PCIE_SWITCH, HOST_BRIDGE, FABRIC_CLIQUE, NVLINK_COUNT,
    NVLINK_GENERATION, PCIE_GENERATION, PCIE_WIDTH, CC_CAPABLE, CC_MODE, GPU_MODULE_ID, PARTITION_1, PARTITION_2,
    PARTITION_4, PARTITION_8, PCIE_LEVELS, NVLINKS, NIC_LEVELS,
)  # fmt: skip
"""All attributes of a whole GPU, in the order in which they are published. With the two capacities of a shared GPU
there is room for fewer: GIVING_WAY says which are then left out."""

GIVING_WAY = (
    CUDA_COMPUTE_CAPABILITY_TEXT, CUDA_DRIVER_VERSION_TEXT, DRIVER_VERSION_TEXT, PCIE_WIDTH, PCIE_GENERATION,
)  # fmt: skip
"""What is left out of a whole GPU that has more attributes than fit, in this order: what other attributes also say,
then what is the same on all GPUs of such a board."""

PARTITION_SIZES = {1: PARTITION_1, 2: PARTITION_2, 4: PARTITION_4, 8: PARTITION_8}
"""GPUs of a partition → the attribute."""

MIG_ATTRIBUTES = (
    TYPE, UUID, PARENT_UUID, PROFILE, PRODUCT_NAME, BRAND, ARCHITECTURE, CUDA_COMPUTE_CAPABILITY,
    CUDA_COMPUTE_CAPABILITY_TEXT, DRIVER_VERSION, DRIVER_VERSION_TEXT, CUDA_DRIVER_VERSION, CUDA_DRIVER_VERSION_TEXT,
)  # fmt: skip
"""All attributes of a MIG device, in the order in which they are published. Product, brand, architecture and compute
capability are those of its parent."""

MIG_PLACE_ATTRIBUTES = (
    TYPE, PARENT_UUID, PROFILE, PLACEMENT_START, PLACEMENT_SIZE, PRODUCT_NAME, BRAND, ARCHITECTURE,
    CUDA_COMPUTE_CAPABILITY, DRIVER_VERSION, CUDA_DRIVER_VERSION,
)  # fmt: skip
"""All attributes of a MIG device that is made when a claim gets it. It has no UUID before. A GPU has two dozen of them,
so what another attribute also says is left out."""

VFIO_ATTRIBUTES = (
    TYPE, PRODUCT_NAME, VENDOR_ID, DEVICE_ID, IOMMU_GROUP, ORDINAL, NUMA_NODE, PCIE_ROOT, PCI_BUS_ID, PCIE_SWITCH,
    HOST_BRIDGE, CC_MODE, GPU_MODULE_ID, PARTITION_1, PARTITION_2, PARTITION_4, PARTITION_8, PCIE_LEVELS, NVLINKS,
    NIC_LEVELS,
)  # fmt: skip
"""All attributes of a GPU for virtual machines, in the order in which they are published. The NVIDIA driver does not
have it, so what only that driver knows is missing: UUID, memory, NVLinks. The product name comes from a table, the mode
of confidential computing from a label of the Node."""

VGPU_ATTRIBUTES = (
    TYPE, VGPU_TYPE_NAME, VGPU_MIG_BACKED, PARENT_PCI_BUS_ID, MDEV_UUID, MDEV_UUID_FOR_KUBEVIRT, PCI_BUS_ID,
    IOMMU_GROUP, NUMA_NODE, PCIE_ROOT, PCIE_SWITCH, HOST_BRIDGE,
)  # fmt: skip
"""All attributes of a vGPU, in the order in which they are published: either UUID or PCI address; NUMA node, root,
switch and bridge of its GPU, the last two if the NVIDIA driver lists that GPU."""

MEMORY_CAPACITY = "memory"
"""Capacity: the device's memory, a Quantity in bytes."""
CORES_CAPACITY = "cores"
"""Capacity of a GPU that several claims may share: percent of its cores, always ALL_CORES."""
ALL_CORES = 100
"""What the claims of a GPU ask for are ceilings, and sum to at most this."""
MULTIPROCESSORS_CAPACITY = "multiprocessors"
"""Capacity: streaming multiprocessors, a plain number."""
COPY_ENGINES_CAPACITY = "copyEngines"
DECODERS_CAPACITY = "decoders"
ENCODERS_CAPACITY = "encoders"
JPEG_ENGINES_CAPACITY = "jpegEngines"
OFA_ENGINES_CAPACITY = "ofaEngines"
"""Capacities of a MIG device that is made when a claim gets it: engines, plain numbers, including 0."""
SHARED_GPU_CAPACITIES = (MEMORY_CAPACITY, CORES_CAPACITY)
MIG_PLACE_CAPACITIES = (
    MULTIPROCESSORS_CAPACITY, COPY_ENGINES_CAPACITY, DECODERS_CAPACITY, ENCODERS_CAPACITY, JPEG_ENGINES_CAPACITY,
    OFA_ENGINES_CAPACITY, MEMORY_CAPACITY,
)  # fmt: skip
