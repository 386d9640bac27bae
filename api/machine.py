"""The facts about one machine: what a node's GPUs are and how they are linked, but not what is in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dracaena.api.fabric import PartitionedFabric
from dracaena.api.mig import EmptyGpuInstance, MigDevice
from dracaena.api.mig_geometry import MigProfile
from dracaena.api.passthrough import PassthroughGpu
from dracaena.api.topology import Topology, TopologyError
from dracaena.api.vgpu import Vgpu


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical GPU. A field is None if the driver or the text does not say: it is left out, never invented."""

    uuid: str
    """`GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` (nvmlDeviceGetUUID): the identity of the device."""
    index: int
    """NVML index, or the GPU's number in an imported matrix. Changes with drivers and reboots; never an identity."""
    minor: int | None = None
    """Number of the device node /dev/nvidia<minor> (nvmlDeviceGetMinorNumber)."""
    product_name: str | None = None
    brand: str | None = None
    architecture: str | None = None
    cuda_compute_capability: str | None = None
    """`major.minor`, for example `9.0`."""
    memory_bytes: int | None = None
    pci_bus_id: str | None = None
    """`dddd:bb:dd.f`, lower-case hex (attribute resource.kubernetes.io/pciBusID)."""
    pcie_root: str | None = None
    """`pci<domain>:<bus>` (attribute resource.kubernetes.io/pcieRoot)."""
    pcie_generation: int | None = None
    pcie_width: int | None = None
    """PCIe lanes."""
    nvlink_count: int | None = None
    """Active NVLinks of this GPU to anywhere; with NVSwitches every pair shows this whole count."""
    nvlink_generation: int | None = None
    fabric_clique: str | None = None
    """`<clusterUUID>.<cliqueID>` of a multi-node NVLink fabric (nvmlDeviceGetGpuFabricInfoV)."""
    mig_enabled: bool | None = None
    """Whether the GPU is divided into MIG devices now (nvmlDeviceGetMigMode) and so cannot be used as a whole."""
    cc_capable: bool | None = None
    """Whether it can compute confidentially (nvmlSystemGetConfComputeCapabilities)."""
    cc_mode: str | None = None
    """One of dracaena.api.confidential.CC_MODES (nvmlSystemGetConfComputeState)."""
    mig_profiles: tuple[MigProfile, ...] = ()
    """How it can be divided; empty: not at all, or unknown."""
    module_id: int | None = None
    """Its place on the board, by which Fabric Manager knows it; only read if that has partitions."""


@dataclass(frozen=True, slots=True)
class Machine:
    """All physical GPUs of one node in ordinal order (rank by PCI address) with their links.

    GPUs that are passed through to virtual machines have the ordinals after all others, again by PCI address.
    """

    name: str
    """Name of the recording or the node; not an identity."""
    gpus: tuple[Gpu, ...]
    topology: Topology
    driver_version: str | None = None
    """As the driver reports it, for example `535.104.05` (nvmlSystemGetDriverVersion)."""
    cuda_driver_version: str | None = None
    """`major.minor`, for example `12.2`."""
    source: str = ""
    """Where a recording comes from, in words."""
    mig_devices: tuple[MigDevice, ...] = ()
    """Existing MIG devices, by parent in ordinal order, then by GPU instance and compute instance."""
    empty_gpu_instances: tuple[EmptyGpuInstance, ...] = ()
    """By parent in ordinal order, then by start. Only read of GPUs whose division is the plugin's task; recordings do
    not have them."""
    passthrough: tuple[PassthroughGpu, ...] = ()
    """GPUs that a VFIO driver has, or may be given when a claim gets them, by PCI address. Those of the latter that the
    NVIDIA driver has now are also among `gpus`, and a second time in the topology."""
    vgpus: tuple[Vgpu, ...] = ()
    """By GPU, then by identity. They are parts of GPUs and no rows of the topology."""
    vgpu_parents: frozenset[str] = frozenset()
    """PCI addresses of the GPUs that the vGPU manager has: only vGPUs of them can be given."""
    fabric: PartitionedFabric | None = None
    """None: no partitions have to be activated."""

    def partitions(self) -> tuple[frozenset[int], ...]:
        """Return the sets of GPUs, by ordinal, that Fabric Manager links if one claim has all of a set and nothing else
        here, including sets of one GPU. Empty: links do not depend on who has the GPUs. A program is on the host or in
        a virtual machine, so a GPU that may be in either is in sets of both kinds.
        """
        if self.fabric is None:
            return ()
        every = [(gpu.module_id for gpu in self.gpus), (gpu.module_id for gpu in self.passthrough)]
        places = [enumerate(every[0]), enumerate(every[1], start=len(self.gpus))]
        known = ({place: module for place, module in of_kind if module is not None} for of_kind in places)
        return tuple(gpus for modules in known for gpus in self.fabric.sets_of(modules))

    def handed_on_demand(self) -> Mapping[str, PassthroughGpu]:
        """Return, by UUID, the GPUs of the NVIDIA driver that may go to virtual machines instead, as the devices that
        they then are. A GPU that is divided into MIG devices may not.
        """
        by_address = {gpu.pci_bus_id: gpu for gpu in self.passthrough if gpu.on_demand}
        return {
            gpu.uuid: by_address[gpu.pci_bus_id]
            for gpu in self.gpus
            if gpu.pci_bus_id in by_address and not gpu.mig_enabled
        }

    def check(self) -> None:
        """State the invariants; raise TopologyError naming the first that does not hold."""
        count = len(self.gpus) + len(self.passthrough)
        if count != self.topology.gpu_count:
            raise TopologyError(f"{self.name}: {count} GPUs, links of {self.topology.gpu_count}")
        # Two GPUs with one minor would be one device node: a claim for one of them would get the other.
        for what in ("uuid", "index", "minor", "pci_bus_id"):
            values = [getattr(gpu, what) for gpu in self.gpus if getattr(gpu, what) is not None]
            if len(set(values)) != len(values):
                raise TopologyError(f"{self.name}: two GPUs share one {what}: {sorted(map(str, values))}")
        addresses = [gpu.pci_bus_id for gpu in self.gpus]
        if None not in addresses and addresses != sorted(map(str, addresses)):
            raise TopologyError(f"{self.name}: GPUs are not in the order of their PCI addresses")
        handed = [gpu.pci_bus_id for gpu in self.passthrough]
        if handed != sorted(set(handed)):
            raise TopologyError(f"{self.name}: GPUs handed through are not in the order of their PCI addresses")
        bound = {gpu.pci_bus_id for gpu in self.passthrough if gpu.is_bound}
        both = sorted(bound.intersection(str(address) for address in addresses))
        if both:
            raise TopologyError(f"{self.name}: the NVIDIA driver and a VFIO driver both show the GPU at {both[0]}")
        self._check_mig_devices()
        self._check_vgpus(handed)
        self.topology.check()

    def _check_vgpus(self, handed: Sequence[str]) -> None:
        identities = [vgpu.identity for vgpu in self.vgpus]
        if len(set(identities)) != len(identities):
            raise TopologyError(f"{self.name}: two vGPUs share one identity: {sorted(identities)}")
        both = sorted(self.vgpu_parents.union(vgpu.parent for vgpu in self.vgpus).intersection(handed))
        if both:
            raise TopologyError(f"{self.name}: the vGPU manager and a VFIO driver both show the GPU at {both[0]}")

    def _check_mig_devices(self) -> None:
        ordinals = {gpu.uuid: ordinal for ordinal, gpu in enumerate(self.gpus)}
        strangers = sorted(mig.uuid for mig in self.mig_devices if mig.parent_uuid not in ordinals)
        if strangers:
            raise TopologyError(f"{self.name}: MIG device {strangers[0]} has no parent among the GPUs")
        for what in ("uuid", "device_name"):
            if len({getattr(mig, what) for mig in self.mig_devices}) != len(self.mig_devices):
                raise TopologyError(f"{self.name}: two MIG devices share one {what.replace('_', ' ')}")
        places = [(ordinals[mig.parent_uuid], mig.gpu_instance_id, mig.compute_instance_id) for mig in self.mig_devices]
        if places != sorted(places):
            raise TopologyError(f"{self.name}: MIG devices are not in the order of their parents and instances")
