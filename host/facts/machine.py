"""What the driver and the kernel report about one node, unjudged: numbers and texts.

None always means that they did not report it; MachineFacts.left_out says why.
"""

from __future__ import annotations

from dataclasses import dataclass

from dracaena.api.mig import EmptyGpuInstance, MigAttributes
from dracaena.api.mig_geometry import MigProfile
from dracaena.api.passthrough import PassthroughGpu
from dracaena.api.vgpu import Vgpu
from dracaena.host.facts.pci import PciAddress, PciFacts

NOT_SUPPORTED = "NOT_SUPPORTED"
FUNCTION_NOT_FOUND = "FUNCTION_NOT_FOUND"
NO_PERMISSION = "NO_PERMISSION"
LASTING = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, NO_PERMISSION, "ARGUMENT_VERSION_MISMATCH", "DEPRECATED"})
"""Reasons that last until hardware, driver or rights change. Any other may pass, so reading again is worth it."""


@dataclass(frozen=True, slots=True, order=True)
class LeftOut:
    """One question that got no answer."""

    device: str
    """`GPU 3`, `MIG 1 of GPU 0`, or `driver`."""
    call: str
    """NVML's function."""
    reason: str
    """NVML's error without its prefix, for example `NOT_SUPPORTED`."""

    @property
    def may_pass(self) -> bool:
        """Whether the same call may succeed later by itself."""
        return self.reason not in LASTING

    def __str__(self) -> str:
        return f"{self.device}: {self.call} says {self.reason}"


@dataclass(frozen=True, slots=True)
class NvLinkFacts:
    """One NVLink of a GPU. A link that the GPU does not have is not listed."""

    link: int
    active: bool | None
    remote_type: int | None = None
    """nvmlIntNvLinkDeviceType_t: 0 GPU, 1 CPU (IBM NPU), 2 switch."""
    remote_address: PciAddress | None = None
    version: int | None = None
    """nvmlNvlinkVersion_t, which is not the generation."""


@dataclass(frozen=True, slots=True)
class FabricFacts:
    """nvmlGpuFabricInfo: the NVLink fabric of several nodes, as far as this GPU has joined it."""

    state: int
    """nvmlGpuFabricState_t: 3 is completed."""
    status: int
    """nvmlReturn_t of the registration, meaningful when completed."""
    cluster_uuid: str
    clique_id: int


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One physical GPU. Enumerations are NVML's numbers."""

    index: int
    uuid: str
    address: PciAddress | None = None
    minor: int | None = None
    product_name: str | None = None
    brand: int | None = None
    architecture: int | None = None
    cuda_compute_capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    pcie_generation: int | None = None
    """The highest that GPU and slot support together: the current one drops while the GPU idles."""
    pcie_width: int | None = None
    nvlinks: tuple[NvLinkFacts, ...] | None = None
    """Empty: the GPU has none. None: the driver cannot say."""
    fabric: FabricFacts | None = None
    mig_enabled: bool | None = None
    mig_profiles: tuple[MigProfile, ...] = ()
    """How it can be divided; empty: not at all, not reported, or not asked."""
    module_id: int | None = None
    """nvmlDeviceGetModuleId; also None if it was not asked."""


@dataclass(frozen=True, slots=True)
class MigFacts:
    """One existing MIG device: a compute instance within a GPU instance of its parent."""

    parent_uuid: str
    uuid: str
    gpu_instance_id: int
    compute_instance_id: int
    profile: str | None = None
    """As the driver writes it: `1g.5gb`, `1c.3g.20gb`, `1g.10gb+me`."""
    start: int | None = None
    """First memory slice of the GPU instance."""
    size: int | None = None
    """Memory slices of the GPU instance."""
    memory_bytes: int | None = None
    multiprocessors: int | None = None
    access_minors: tuple[int, int] | None = None
    """Of /dev/nvidia-caps/nvidia-cap<n>: for the GPU instance, for the compute instance."""
    attributes: MigAttributes | None = None


@dataclass(frozen=True, slots=True)
class PairLevel:
    """nvmlDeviceGetTopologyCommonAncestor of two GPUs, addressed by UUID."""

    one: str
    other: str
    level: int
    """nvmlGpuTopologyLevel_t."""


@dataclass(frozen=True, slots=True)
class NicFacts:
    """A network card."""

    name: str
    pci: PciFacts


@dataclass(frozen=True, slots=True)
class PassthroughFacts:
    """A GPU that a VFIO driver has."""

    gpu: PassthroughGpu
    pci: PciFacts | None
    """None: it disappeared between two reads."""


@dataclass(frozen=True, slots=True)
class ConfidentialFacts:
    """What NVML reports about confidential computing, for all GPUs of a node together. Numbers are NVML's."""

    gpus_capable: int | None = None
    """NVML_CC_SYSTEM_GPUS_CC_*: 0 not capable, 1 capable."""
    feature: int | None = None
    """NVML_CC_SYSTEM_FEATURE_*: 0 disabled, 1 enabled."""
    dev_tools: int | None = None
    """NVML_CC_SYSTEM_DEVTOOLS_MODE_*: 0 off, 1 on."""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Everything that one reading gave, in the order in which it was read."""

    gpus: tuple[GpuFacts, ...]
    pair_levels: tuple[PairLevel, ...] = ()
    mig_devices: tuple[MigFacts, ...] = ()
    empty_gpu_instances: tuple[EmptyGpuInstance, ...] = ()
    """Of GPUs whose profiles were asked for."""
    driver_version: str | None = None
    cuda_driver_version: int | None = None
    """1000 × major + 10 × minor (nvmlSystemGetCudaDriverVersion)."""
    pci: tuple[PciFacts, ...] = ()
    """What sysfs reports about the GPUs."""
    pci_gpus: tuple[PciAddress, ...] = ()
    """NVIDIA's GPUs on the PCI bus that no other driver has, whether NVML lists them or not."""
    nics: tuple[NicFacts, ...] = ()
    passthrough: tuple[PassthroughFacts, ...] = ()
    """GPUs that a VFIO driver has, by PCI address."""
    confidential: ConfidentialFacts = ConfidentialFacts()
    vgpus: tuple[Vgpu, ...] = ()
    """By GPU, then by identity, with the places of their GPUs."""
    vgpu_parents: frozenset[PciAddress] = frozenset()
    """GPUs that the vGPU manager has."""
    left_out: tuple[LeftOut, ...] = ()
