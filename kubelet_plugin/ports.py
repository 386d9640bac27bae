"""What the services need from outside, as small Protocols. adapters/ implements them; tests have their own."""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from dracaena.api.config.v1alpha1 import TimeSliceInterval
from dracaena.api.errors import PermanentError, TemporaryError
from dracaena.api.mig_geometry import MigPlacement, MigProfile
from dracaena.api.names import ClaimUid, PodUid
from dracaena.api.objects import Node, Pod
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.kubelet_plugin.discovery.fabric_partitions import FabricAnswer
from dracaena.kubelet_plugin.discovery.mig.instances import GpuInstance
from dracaena.kubelet_plugin.discovery.vm.passthrough import PciBus
from dracaena.kubelet_plugin.discovery.vm.vfio_drivers import VfioDriver
from dracaena.kubelet_plugin.prepare.cdi.device_nodes import ClaimNodes
from dracaena.kubelet_plugin.prepare.cdi.gpu_driver_files import GpuDriverEdits
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference, PreparedDevice, PublishedPool


class ClaimGoneError(PermanentError):
    """The claim that kubelet asks for no longer exists, or another one has its name."""


class ClaimReader(Protocol):
    """Reads claims from the API, bypassing any cache."""

    def read_claim(self, reference: ClaimReference) -> ResourceClaim:
        """Return the claim with this UID. Raises ClaimGoneError, or TemporaryError if the API does not answer."""
        ...

    def find_claim(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return the claim of this name, whichever UID it has; None: there is none. Raises TemporaryError."""
        ...


class ClaimStatusWriter(Protocol):
    """Writes status.devices of claims."""

    def set_devices(self, claim: ResourceClaim, devices: Sequence[msgspec.Raw | Mapping[str, Any]]) -> None:
        """Set the list, provided that the claim has not changed since it was read.

        Raises PermanentError if the API server rejects the content, TemporaryError for everything else, including a
        changed claim.
        """
        ...


class PodAccess(Protocol):
    """Reads single pods and writes their annotations. Both raise TemporaryError if the API does not answer."""

    def read_pod(self, namespace: str, name: str) -> Pod | None:
        """Return a pod of this node as it is now, None if there is none."""
        ...

    def annotate_pod(self, pod: Pod, annotations: Mapping[str, str | None]) -> None:
        """Set annotations; None removes one. A pod that is gone by now is fine."""
        ...


class PodCache(Protocol):
    """The pods of this node as the watch last reported them."""

    @property
    def synced(self) -> bool:
        """Whether the first list is in."""
        ...

    def get(self, key: str) -> Pod | None:
        """Return the pod with this key (`namespace/name`), if there is one."""
        ...

    def values(self) -> tuple[Pod, ...]:
        """Return all of them, sorted by key."""
        ...


class SliceCache(Protocol):
    """The ResourceSlices of this driver and node as the watch last reported them."""

    @property
    def synced(self) -> bool:
        """Whether the first list is in."""
        ...

    def values(self) -> tuple[ResourceSlice, ...]:
        """Return all of them, sorted by key."""
        ...


class SliceAccess(Protocol):
    """Reads and writes the ResourceSlices of this driver and node. All methods raise KubeError."""

    def read_node(self) -> Node:
        """Return this node: the owner of its slices."""
        ...

    def list_slices(self) -> tuple[ResourceSlice, ...]:
        """Return all slices as they are now, bypassing any cache."""
        ...

    def create_slice(self, document: Mapping[str, Any]) -> ResourceSlice:
        """Create a slice and return what the server kept of it."""
        ...

    def update_slice(self, published: ResourceSlice, spec: Mapping[str, Any]) -> ResourceSlice:
        """Set the spec of a slice and return what the server kept. Raises ConflictError if it has changed."""
        ...

    def delete_slice(self, published: ResourceSlice) -> None:
        """Delete a slice; one that is gone is fine. Raises ConflictError if it has changed since it was read."""
        ...


class WriteTurn(Protocol):
    """The right to write this node's slices, until the end of a block."""

    @property
    def may_land(self) -> int | None:
        """The highest generation that another instance, or an earlier attempt, has sent and that may still be stored, 0
        if it is unknown; None if there is none."""
        ...

    def sends(self, generation: int) -> None:
        """Announce that a slice of this generation is about to be sent, or one deleted. Raises TemporaryError if a
        newer instance has begun to write: then send nothing."""
        ...

    def is_settled(self) -> None:
        """Record that all writes were answered, and that any that may still be stored has an outdated generation."""
        ...


class Writers(Protocol):
    """The instances of this plugin that write this node's slices."""

    def hold(self) -> AbstractContextManager[WriteTurn | None]:
        """Hold the right to write for a block; None if a newer instance has it. Waits for an older one."""
        ...


class DocumentStore(Protocol):
    """Files of one folder, replaced as a whole. Methods raise DracaenaError naming the path."""

    def names(self, suffix: str) -> tuple[str, ...]:
        """Return the names of all files with this ending, sorted."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return a file's content, None if there is no such file."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Replace a file."""
        ...

    def write_if_changed(self, name: str, data: bytes) -> bool:
        """Replace a file unless it already has this content; return whether it was written."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is fine."""
        ...


class TouchableStore(DocumentStore, Protocol):
    """A DocumentStore whose files show readers when they were last checked."""

    def touch(self, name: str) -> None:
        """Set the modification time of an existing file to now."""
        ...


class StampedStore(DocumentStore, Protocol):
    """A DocumentStore that knows which files changed without reading them."""

    def stamps(self, suffix: str) -> Mapping[str, Hashable]:
        """Return the files with this ending, sorted by name, each with a value that changes with every write."""
        ...

    def set_mark(self) -> Hashable | None:
        """Mark the folder and return the mark, a different one each time; None if it cannot be marked."""
        ...

    def mark(self) -> Hashable | None:
        """Return the mark. It differs from the one that was set once a file has been made, replaced or removed."""
        ...


@dataclass(frozen=True, slots=True)
class ClaimFailure:
    """One claim failed; the text goes to kubelet and from there to the pod's Events."""

    error: str


@dataclass(frozen=True, slots=True)
class KubeletView:
    """What kubelet says of itself at one moment."""

    run: str
    """Different after each start of kubelet."""
    claims: frozenset[ClaimUid]
    """Claims of our driver that its active pods have."""


class KubeletWitness(Protocol):
    """Asks kubelet which claims it knows."""

    def look(self) -> KubeletView:
        """Return its view. Raises TemporaryError with the reason if that is not known: kubelet does not answer, or its
        node is not ready, so that kubelet may not know its pods yet.
        """
        ...


class EffectPendingError(TemporaryError):
    """An effect is being made and not ready yet. What was done stays, and kubelet's next call goes on from there."""


class GpuGoneError(TemporaryError):
    """The driver does not have this GPU, is not loaded, or is about to be unloaded: what was set there is lost too."""


class NotOfferedError(PermanentError):
    """The product, the driver or the node cannot do it; the text says who must act."""


class WriteHangsError(TemporaryError):
    """A write to /sys has not returned, and may take effect later; the text names the process that is stuck in it."""


@dataclass(frozen=True, slots=True, order=True)
class OpeningProcess:
    """A process that has a GPU open."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"{self.command or 'process'} (PID {self.pid})"


class SysfsWrites(Protocol):
    """Writes files of /sys for GPUs, each in bounded time. From any thread."""

    def is_writing(self, gpu: str) -> bool:
        """Whether an earlier write for a GPU, by its address, has not returned yet."""
        ...

    def write(self, gpu: str, path: str, text: str) -> None:
        """Write to a file of /sys for a GPU. Raises OSError with the kernel's error number, TemporaryError if the write
        timed out and was ended, and WriteHangsError if it could not be ended, or an earlier one is still running.
        """
        ...


class PciDrivers(SysfsWrites, Protocol):
    """Reads and changes which driver of the kernel has a PCI function. From any thread."""

    def read(self) -> PciBus:
        """Return NVIDIA's GPUs and what shares an IOMMU group with them, as they are now."""
        ...

    def override(self, address: str) -> str | None:
        """Return the only driver that a function may get (driver_override), None where any may have it."""
        ...

    def vfio_driver(self, address: str) -> VfioDriver:
        """Return the VFIO driver that a function needs, and whether it is loaded."""
        ...

    def is_loaded(self, driver: str) -> bool:
        """Whether the kernel has a PCI driver of this name."""
        ...

    def has_iommufd(self) -> bool:
        """Whether the kernel offers iommufd (/dev/iommu)."""
        ...


class PersistenceModes(Protocol):
    """Has nvidia-persistenced open and close single GPUs. From any thread; takes seconds."""

    def set(self, gpu: str, *, on: bool) -> None:
        """Switch persistence mode of a GPU, by its address; in that mode already is fine. Raises TemporaryError."""
        ...


class MigControl(Protocol):
    """Changes how GPUs are divided, and reads what they are and who uses them (adapters.nvml.mig_control). For the
    driver's thread; methods raise MigRefusedError. GPUs go by their UUIDs.
    """

    def mode(self, gpu: str) -> tuple[bool, bool]:
        """Return whether a GPU is in MIG mode, and whether it will be after its next reset."""
        ...

    def set_mode(self, gpu: str, *, enabled: bool) -> None:
        """Change the mode, and verify that it is in force."""
        ...

    def profiles(self, gpu: str) -> tuple[MigProfile, ...]:
        """Return how a GPU can be divided, as its driver reports now."""
        ...

    def instances(self, gpu: str, profiles: tuple[MigProfile, ...]) -> tuple[GpuInstance, ...]:
        """Return all GPU instances, including those without a compute instance."""
        ...

    def create_gpu_instance(self, gpu: str, profile: MigProfile, placement: MigPlacement) -> int:
        """Create one exactly at this placement; return its number."""
        ...

    def create_compute_instance(self, gpu: str, gpu_instance_id: int, compute_slices: int) -> None:
        """Create the compute instance that has all slices of a GPU instance."""
        ...

    def mig_device(self, gpu: str, gpu_instance_id: int) -> tuple[int, str] | None:
        """Return the compute instance of a GPU instance, and the UUID of its MIG device."""
        ...

    def destroy_compute_instances(self, gpu: str, gpu_instance_id: int) -> None:
        """Destroy the compute instances of a GPU instance."""
        ...

    def destroy_gpu_instance(self, gpu: str, gpu_instance_id: int) -> None:
        """Destroy a GPU instance without a compute instance."""
        ...

    def processes(self, gpu: str) -> tuple[int, ...]:
        """Return the PIDs of processes on a GPU and its MIG devices."""
        ...

    def device_id(self, gpu: str) -> int:
        """Return the PCI ID of a GPU, as device filters of MIG layouts have it."""
        ...


class FabricCode(enum.IntEnum):
    """Answers of Fabric Manager that are not plain failures (fmReturn_t)."""

    SUCCESS = 0
    NOT_SUPPORTED = -3
    """Fabric Manager is not in its shared NVSwitch mode."""
    UNINITIALIZED = -4
    """When deactivating: the partition is not active."""
    IN_USE = -7
    """When activating: the partition is active, or one of its GPUs is in another active one."""
    NOT_CONFIGURED = -8
    """It is starting, or waits to be told which partitions are active."""
    RESOURCE_IN_USE = -12
    PARTITION_ID_IN_USE = -17
    RESOURCE_USED_IN_THIS_PARTITION = -23
    RESOURCE_USED_IN_ANOTHER_PARTITION = -24


NOT_ACTIVATED: Final = frozenset(
    {
        FabricCode.IN_USE,
        FabricCode.RESOURCE_IN_USE,
        FabricCode.PARTITION_ID_IN_USE,
        FabricCode.RESOURCE_USED_IN_THIS_PARTITION,
        FabricCode.RESOURCE_USED_IN_ANOTHER_PARTITION,
    }
)
"""Answers to an activation that did nothing, since somebody has the partition or one of its GPUs, or perhaps since
persistence mode keeps one initialised. The last four came with the headers of driver 575; it is not known which calls
on one host give them."""


class FabricManagerError(TemporaryError):
    """Fabric Manager refuses a call, or gives no answer; `code` is fmReturn_t, None without an answer: then the call
    may still take effect.
    """

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class FabricManager(Protocol):
    """Asks Fabric Manager. From any thread. A call takes a tenth of a second, at most some seconds; all raise
    FabricManagerError.
    """

    def read(self) -> FabricAnswer:
        """Return its partitions as they are now."""
        ...

    def activate(self, partition: int) -> None:
        """Link the GPUs of a partition, by its id."""
        ...

    def deactivate(self, partition: int) -> None:
        """Unlink the GPUs of a partition, by its id."""
        ...

    def set_active(self, partitions: Sequence[int]) -> None:
        """Tell it which partitions are active, after it was restarted in its restart mode."""
        ...


class CcModeProgram(Protocol):
    """Reads and switches the mode of confidential computing of GPUs that no driver but VFIO has, by PCI address. From
    any thread. Errors name the GPU and the program's message: NotOfferedError if it is impossible, or needs an admin
    first; TemporaryError for everything else, including WriteHangsError while a started program cannot be ended.
    """

    def missing(self) -> str | None:
        """Return why modes cannot be read or switched on this node, None if they can."""
        ...

    def query(self, address: str) -> str:
        """Return the mode that a GPU is in, one of CC_MODES. Takes seconds."""
        ...

    def switch(self, address: str, mode: str) -> None:
        """Switch a GPU, and reset it so that the mode is active. Takes up to two minutes. query() then returns the
        actual mode.
        """
        ...


class TimeSliceSetter(Protocol):
    """Reads and sets how long a process may use a GPU before others get their turn. Calls take tenths of a second, some
    seconds without persistence mode. All raise GpuGoneError, NotOfferedError, or TemporaryError for what may pass.
    """

    def read(self, gpu: str) -> TimeSliceInterval | None:
        """Return the interval of a GPU, by UUID; None: the driver's answer is not understood."""
        ...

    def set(self, gpu: str, interval: TimeSliceInterval) -> None:
        """Set the interval of a GPU."""
        ...


class PodCgroups(Protocol):
    """The cgroups of this node's pods."""

    def of_pod(self, uid: PodUid) -> str | None:
        """Return the folder of a pod's cgroup, None while there is none."""
        ...


class NodeLock(Protocol):
    """Orders all changes of this node's claims, across threads and instances of the plugin."""

    def hold(self, within_s: float | None = None) -> AbstractContextManager[None]:
        """Hold it for a block. Raises TemporaryError if it cannot be acquired in time (None: the lock's default; 0: do
        not wait). Not re-entrant.
        """
        ...


Ask = Callable[[str, Callable[[], object], float], object]
"""Runs a call in the driver's thread within a number of seconds (LiveMachine.ask): the call's name, the call."""

LimitMemory = Callable[[str, str, int | None], None]
"""Limits the processes below a cgroup to bytes of a GPU, which are also reserved for them: UUID of the GPU, folder of
the cgroup, bytes; None: no limit and no reservation. From any thread; waits for the driver. Raises GpuGoneError,
NotOfferedError, or TemporaryError for what may pass."""

ReadClaimNodes = Callable[[Sequence[PreparedDevice]], ClaimNodes]
"""Reads which device nodes the host has right now for a claim's devices. Raises TemporaryError if one is wrong."""

ReadPool = Callable[[], PublishedPool]
"""Returns at once this node's devices as last read. Raises TemporaryError before the first reading."""

ReadGpuDriverEdits = Callable[[], GpuDriverEdits]
"""Returns what containers get of the installed driver. Raises TemporaryError if there is none."""

ReadMinors = Callable[[], Mapping[str, int] | None]
"""Reads which minor the driver gave to each GPU that it has, by PCI address (`dddd:bb:dd.f`); None if nothing says.

Raises TemporaryError if the driver does not answer."""
