"""What is prepared: claims with their devices as this node has them, and the pool that they come from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dracaena.api.fabric import PartitionedFabric
from dracaena.api.machine import Gpu
from dracaena.api.mig import MigDevice
from dracaena.api.mig_geometry import MigPlace
from dracaena.api.names import ClaimUid, DeviceName, GpuUuid, PodUid, PoolName, gpu_device_name
from dracaena.api.passthrough import DEVICE_PREFIX, PassthroughGpu
from dracaena.api.resource_objects import DeviceAttribute
from dracaena.api.vgpu import VGPU_PREFIX, Vgpu
from dracaena.kubelet_plugin.prepare.cdi.spec import NO_EDITS, Edits
from dracaena.kubelet_plugin.prepare.effects import Effect

NO_MINOR = -1
"""Minor of a GPU that was never seen: no container can have got its node from us."""

_MIG_NAME = re.compile("mig-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-.+")
"""Device names of MIG devices (dracaena.api.mig): the UUID of the parent stands second."""


def gpu_of_part(device: DeviceName) -> DeviceName:
    """Return the device name of the whole GPU that a device is or is a part of, by its name alone."""
    if not device.startswith("mig-"):  # quicker: each claim of the node is asked at each prepare
        return device
    part = _MIG_NAME.fullmatch(device)
    return device if part is None else gpu_device_name(part[1])


@dataclass(frozen=True, slots=True)
class ClaimReference:
    """How kubelet refers to a claim: namespace, name and UID. Only the UID is an identity."""

    namespace: str
    name: str
    uid: ClaimUid

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def told_to(self, reader: ClaimReference) -> str:
        """Return how this claim is named to the users of another one: across namespaces only by its UID, by which an
        admin finds it, since users of one namespace need not know what is in another. A claim known only from its
        checkpoint may have no name.
        """
        if self.name and self.namespace == reader.namespace:
            return f"claim {self} (UID {self.uid})"
        return f"a claim of another namespace (UID {self.uid})" if self.name else f"claim UID {self.uid}"


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One result of the claim's allocation that is ours."""

    request: str
    """As in the result: `request` or `request/subrequest`."""
    pool: PoolName
    device: DeviceName
    uuid: GpuUuid
    minor: int
    """Number of /dev/nvidia<minor>, for a MIG device its parent's. No identity: it may change whenever the driver is
    reloaded (prepare.moved_devices)."""
    admin_access: bool = False
    share_id: str | None = None
    access_minors: tuple[int, ...] = ()
    """Of a MIG device: numbers of the /dev/nvidia-caps/nvidia-cap<n> that open it."""
    parent_uuid: GpuUuid | None = None
    """Of a MIG device: the GPU that it is a part of."""
    index: int | None = None
    """NVML index of the GPU or parent; None: the node lacks the device now."""
    gpu_instance_id: int | None = None
    """Of a MIG device: its GPU instance, the number by which DCGM knows it. None as for `index`."""
    pci_bus_id: str | None = None
    """Of the GPU or the parent, also of a vGPU's, `dddd:bb:dd.f`; None: not known."""
    start: int | None = None
    """Of a MIG device: the first memory slice of its GPU instance; None: not known."""
    size: int | None = None
    """Of a MIG device: how many slices that has; None: not known."""
    memory_bytes: int | None = None
    """Of a share: the GPU memory that it consumes by the allocation; None: not known, so it counts as all."""
    cores: int = 0
    """Of a share: the percent of the GPU's cores that it may use at most; 0: no ceiling."""
    iommu_group: int | None = None
    """Of a GPU for virtual machines: number of /dev/vfio/<number>; None: no VFIO driver has it now."""
    resource: str = ""
    """Of such a GPU: what KubeVirt calls the product (api.passthrough), or the type of vGPU (api.vgpu)."""
    iommufd: bool = False
    """Of such a GPU: whether it is opened by iommufd instead of its group."""
    edits: Edits = NO_EDITS
    """What its containers get besides its device nodes, of what was made for it."""
    vgpu_type_id: str = ""
    """Of a vGPU: its type as the kernel has it, `nvidia-222` or `1414`."""

    @property
    def physical_gpu(self) -> DeviceName:
        """Device name of the whole GPU that this is or is a part of.

        Derived from the device name alone, so it is also known for devices that a broken checkpoint left.
        """
        return gpu_of_part(self.device)

    @property
    def is_whole_gpu(self) -> bool:
        """Whether this is not a part of a GPU."""
        return self.physical_gpu == self.device

    @property
    def is_passthrough(self) -> bool:
        """Whether this is a GPU for virtual machines, or a vGPU. The `uuid` of such a GPU is its PCI address, because
        its UUID is not known here. That of a vGPU is the UUID of its mediated device, or the PCI address of its
        function.
        """
        return self.device.startswith((DEVICE_PREFIX, VGPU_PREFIX))

    @property
    def is_vgpu(self) -> bool:
        """Whether this is a part of a GPU that the vGPU manager has."""
        return self.device.startswith(VGPU_PREFIX)

    @property
    def key(self) -> tuple[str, DeviceName, str | None]:
        """Identifies the device among those of its claim."""
        return (self.request, self.device, self.share_id)

    @property
    def request_name(self) -> str:
        """The name that kubelet compares with the request of a container: a sub-request counts as its request."""
        return self.request.partition("/")[0]

    def goes_with(self, other: PreparedDevice) -> bool:
        """Whether another claim may hold `other` at the same time, whatever GPU that is on.

        True if either is for admin access (KEP-4381), or if both are shares of one device (KEP-5075, shareID). A share
        does not go with the whole device, whose holder was promised all of it.
        """
        if self.admin_access or other.admin_access:
            return True
        return self.device == other.device and self.share_id is not None and other.share_id is not None


@dataclass(frozen=True, slots=True)
class ClaimMetadata:
    """What the device metadata of a claim needs besides its devices (prepare.reports.device_metadata)."""

    pod_claim_name: str | None
    """Name in pod.spec.resourceClaims of a claim that was generated for its pod."""


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """A claim with its devices on this node, in the order of the allocation."""

    claim: ClaimReference
    devices: tuple[PreparedDevice, ...]
    consumers: tuple[PodUid, ...] = ()
    """Pods in status.reservedFor when the claim was prepared; more may have come since."""
    metadata: ClaimMetadata | None = None
    """None: it has no device metadata."""
    former: tuple[PreparedDevice, ...] = ()
    """Its devices with their former numbers: containers that were started then still have those nodes."""
    wants: tuple[Effect, ...] = ()
    """What has to be changed on the node for it, in order; not how far that got (changes.ledger)."""
    in_guest: bool = False
    """Whether its pods run in virtual machines of their own, by their RuntimeClass."""

    def check(self) -> None:
        """Check the invariants; raise ValueError naming the first that does not hold."""
        if not self.devices:
            raise ValueError(f"claim {self.claim} is prepared without a device")
        uuids: dict[DeviceName, GpuUuid] = {}
        for device in self.devices:
            if uuids.setdefault(device.device, device.uuid) != device.uuid:
                raise ValueError(f"claim {self.claim}: device {device.device} stands for two GPUs")


@dataclass(frozen=True, slots=True)
class PublishedPool:
    """What this node publishes: its driver and pool, and the GPU behind each device name."""

    driver: str
    name: PoolName
    gpus: Mapping[DeviceName, Gpu]
    """All physical GPUs, also those that are divided into MIG devices."""
    mig_devices: Mapping[DeviceName, MigDevice] = field(default_factory=dict)
    attributes: Mapping[DeviceName, Mapping[str, DeviceAttribute]] = field(default_factory=dict)
    """Of each device, as in its ResourceSlice."""
    gpu_driver_version: str | None = None
    """None: not known."""
    mig_places: Mapping[DeviceName, MigPlace] = field(default_factory=dict)
    """Where MIG devices are made when claims get them."""
    switched: frozenset[DeviceName] = frozenset()
    """Whole GPUs whose MIG mode the plugin changes, so that they can be used whole or divided."""
    passthrough: Mapping[DeviceName, PassthroughGpu] = field(default_factory=dict)
    """GPUs that a VFIO driver has."""
    vgpus: Mapping[DeviceName, Vgpu] = field(default_factory=dict)
    vgpu_parents: frozenset[str] = frozenset()
    """PCI addresses of the GPUs that the vGPU manager has."""
    fabric: PartitionedFabric | None = None
    """None: no partitions have to be activated."""
    vanished: Mapping[DeviceName, str] = field(default_factory=dict)
    """Place → UUID of a MIG device that was made there for a claim and is gone."""


def why_not_in_pool(name: DeviceName, pool: PublishedPool) -> str:
    """Return the reason for a device that the node lacks."""
    count = len(pool.gpus) + len(pool.mig_devices) + len(pool.passthrough) + len(pool.vgpus)
    return f"this node has no device {name} (it has {count} devices)"


def why_the_vgpu_managers(gpu: Gpu, pool: PublishedPool) -> str | None:
    """Return why containers can get nothing of a GPU, because the vGPU manager has it; None if it has not."""
    if gpu.pci_bus_id is None or gpu.pci_bus_id not in pool.vgpu_parents:
        return None
    return (
        f"the vGPU manager has GPU {gpu.uuid} at {gpu.pci_bus_id}: virtual machines get vGPUs of it, and the driver of "
        "the host has no CUDA for containers"
    )
