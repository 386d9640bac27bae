"""Changes how a GPU is divided, through NVML. One method call is one step: it takes effect completely or not at all.

MIG device handles exist only for compute instances. So instances are found by walking the GPU instances of every
profile; otherwise what a failed step left would be invisible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from ctypes import byref, c_uint
from typing import Any, TypeVar

import pynvml

from dracaena.api.mig_geometry import MigPlacement, MigProfile
from dracaena.host.adapters.nvml.library import NvmlLibrary, error_name, gpu_handle
from dracaena.host.adapters.nvml.mig import gpu_instances
from dracaena.kubelet_plugin.adapters.nvml.mig_profiles import MigProfileReader
from dracaena.kubelet_plugin.discovery.mig.instances import GpuInstance, MigRefusedError

T = TypeVar("T")

_NOT_SUPPORTED = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED})

_NO_PROCESSES = _NOT_SUPPORTED | {pynvml.NVML_ERROR_NOT_FOUND}
_NO_MIG_DEVICE = frozenset(
    {pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_SUPPORTED}
)
"""Answers for a number without an instance right now, and for a GPU that is not in MIG mode."""

_MOST_INSTANCES = 64
"""More than any GPU has: the driver writes as many handles as there are."""


class NvmlMigControl:
    """Only for the driver's thread. Methods raise MigRefusedError with NVML's error, and NvmlError without a driver.

    `listens`: whether NVML stays open between two calls, as in NvmlMachine.
    """

    def __init__(self, library: NvmlLibrary, *, listens: bool = True) -> None:
        self._library = library
        self._listens = listens

    def mode(self, gpu: str) -> tuple[bool, bool]:
        """Return whether a GPU is in MIG mode, and whether it will be after its next reset."""
        current, pending = self._with(gpu, lambda handle: self._call(pynvml.nvmlDeviceGetMigMode, handle))
        return bool(current), bool(pending)

    def set_mode(self, gpu: str, *, enabled: bool) -> None:
        """Change the mode. Raises MigRefusedError if it is not in force afterwards, whatever the call returned.

        NVML is closed first: our own open handles would block the change.
        """
        self._library.close()
        wanted = pynvml.NVML_DEVICE_MIG_ENABLE if enabled else pynvml.NVML_DEVICE_MIG_DISABLE

        def change(handle: Any) -> None:
            status = self._call(pynvml.nvmlDeviceSetMigMode, handle, wanted)
            if status != pynvml.NVML_SUCCESS:
                raise MigRefusedError("nvmlDeviceSetMigMode", error_name(pynvml.NVMLError(status)))
            current, _pending = self._call(pynvml.nvmlDeviceGetMigMode, handle)
            if current != wanted:
                raise MigRefusedError("nvmlDeviceSetMigMode", "RESET_REQUIRED")

        self._with(gpu, change)

    def profiles(self, gpu: str) -> tuple[MigProfile, ...]:
        """Return how a GPU can be divided, as its driver reports now: completely, or raise MigRefusedError."""

        def read(handle: Any) -> tuple[MigProfile, ...]:
            memory = self._ask(gpu, pynvml.nvmlDeviceGetMemoryInfo, handle, expected=_NOT_SUPPORTED)
            return MigProfileReader(self._ask, gpu, handle, None if memory is None else int(memory.total)).read()

        return self._with(gpu, read)

    def instances(self, gpu: str, profiles: tuple[MigProfile, ...]) -> tuple[GpuInstance, ...]:
        """Return the GPU instances of all profiles, by their start; none while the GPU is not in MIG mode.

        In MIG mode every refusal is an error, NOT_SUPPORTED too: an instance that is overlooked belongs to nobody.
        """

        def walk(handle: Any) -> Iterator[GpuInstance]:
            enabled, _pending = self._call(pynvml.nvmlDeviceGetMigMode, handle)
            for profile in profiles if enabled else ():
                for instance, info in gpu_instances(self._ask, gpu, handle, profile):
                    placement = MigPlacement(int(info.placement.start), int(info.placement.size))
                    has_compute = bool(self._compute_instances(instance))
                    yield GpuInstance(int(info.id), profile.name, placement, has_compute=has_compute)

        found = self._with(gpu, lambda handle: sorted(walk(handle), key=lambda each: each.placement))
        return tuple(found)

    def create_gpu_instance(self, gpu: str, profile: MigProfile, placement: MigPlacement) -> int:
        """Create a GPU instance exactly at this placement; return its number."""
        place = pynvml.c_nvmlGpuInstancePlacement_t(start=placement.start, size=placement.size)
        create = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement

        def make(handle: Any) -> int:
            instance = self._call(create, handle, profile.profile_id, byref(place))
            return int(self._call(pynvml.nvmlGpuInstanceGetInfo, instance).id)

        return self._with(gpu, make)

    def create_compute_instance(self, gpu: str, gpu_instance_id: int, compute_slices: int) -> None:
        """Create the compute instance that has all slices of a GPU instance.

        Some profiles with that many slices are offered and then refused as NOT_SUPPORTED: then the next is tried.
        """
        kinds = range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT)

        def make(handle: Any) -> None:
            instance = self._call(pynvml.nvmlDeviceGetGpuInstanceById, handle, gpu_instance_id)
            last: MigRefusedError | None = None
            for info in filter(None, (self._compute_profile(instance, kind) for kind in kinds)):
                if int(info.sliceCount) != compute_slices:
                    continue
                try:
                    self._call(pynvml.nvmlGpuInstanceCreateComputeInstance, instance, int(info.id))
                    return
                except MigRefusedError as error:
                    if error.reason != "NOT_SUPPORTED":
                        raise
                    last = error
            raise last or MigRefusedError("nvmlGpuInstanceGetComputeInstanceProfileInfo", "NOT_SUPPORTED")

        self._with(gpu, make)

    def mig_device(self, gpu: str, gpu_instance_id: int) -> tuple[int, str] | None:
        """Return the compute instance of a GPU instance and the UUID of its MIG device; None: it has none."""

        def read(handle: Any) -> tuple[int, str] | None:
            instance = self._call(pynvml.nvmlDeviceGetGpuInstanceById, handle, gpu_instance_id)
            for compute in self._compute_instances(instance):
                info = self._call(pynvml.nvmlComputeInstanceGetInfo_v2, compute)
                return int(info.id), str(self._call(pynvml.nvmlDeviceGetUUID, info.device))
            return None

        return self._with(gpu, read)

    def destroy_compute_instances(self, gpu: str, gpu_instance_id: int) -> None:
        """Destroy the compute instances of a GPU instance; it need not have any."""

        def destroy(handle: Any) -> None:
            instance = self._call(pynvml.nvmlDeviceGetGpuInstanceById, handle, gpu_instance_id)
            for compute in self._compute_instances(instance):
                self._call(pynvml.nvmlComputeInstanceDestroy, compute)

        self._with(gpu, destroy)

    def destroy_gpu_instance(self, gpu: str, gpu_instance_id: int) -> None:
        """Destroy a GPU instance that has no compute instance."""

        def destroy(handle: Any) -> None:
            instance = self._call(pynvml.nvmlDeviceGetGpuInstanceById, handle, gpu_instance_id)
            self._call(pynvml.nvmlGpuInstanceDestroy, instance)

        self._with(gpu, destroy)

    def processes(self, gpu: str) -> tuple[int, ...]:
        """Return the PIDs of processes on a GPU and on its MIG devices, ascending."""

        def look(handle: Any) -> set[int]:
            return {pid for device in (handle, *self._mig_handles(gpu, handle)) for pid in self._pids(gpu, device)}

        return tuple(sorted(self._with(gpu, look)))

    def device_id(self, gpu: str) -> int:
        """Return the PCI ID of a GPU: the device in the upper half, its vendor in the lower."""
        return self._with(gpu, lambda handle: int(self._call(pynvml.nvmlDeviceGetPciInfo, handle).pciDeviceId))

    def _pids(self, gpu: str, device: Any) -> Iterator[int]:
        for call in (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses):
            yield from (int(each.pid) for each in self._ask(gpu, call, device, expected=_NO_PROCESSES) or ())

    def _mig_handles(self, gpu: str, handle: Any) -> Iterator[Any]:
        count = self._ask(gpu, pynvml.nvmlDeviceGetMaxMigDeviceCount, handle, expected=_NOT_SUPPORTED) or 0
        call = pynvml.nvmlDeviceGetMigDeviceHandleByIndex
        found = (self._ask(gpu, call, handle, number, expected=_NO_MIG_DEVICE) for number in range(count))
        yield from (device for device in found if device is not None)

    def _compute_profile(self, instance: Any, kind: int) -> Any:
        """Return the profile of a kind of compute instances, None if this GPU instance does not offer it."""
        shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        call = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo
        for version in (2, 1):
            try:
                return self._call(call, instance, kind, shared, version)
            except MigRefusedError as error:
                if error.reason not in ("NOT_SUPPORTED", "INVALID_ARGUMENT", "FUNCTION_NOT_FOUND"):
                    raise
        return None

    def _compute_instances(self, instance: Any) -> list[Any]:
        kinds = range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
        found: dict[int, Any] = {}
        for info in filter(None, (self._compute_profile(instance, kind) for kind in kinds)):
            handles, count = (pynvml.c_nvmlComputeInstance_t * _MOST_INSTANCES)(), c_uint(_MOST_INSTANCES)
            call = pynvml.nvmlGpuInstanceGetComputeInstances
            self._call(call, instance, int(info.id), handles, byref(count))
            for handle in handles[: count.value]:
                found.setdefault(int(self._call(pynvml.nvmlComputeInstanceGetInfo_v2, handle).id), handle)
        return [found[number] for number in sorted(found)]

    def _with(self, gpu: str, work: Callable[[Any], T]) -> T:
        """Run work with a fresh handle of a GPU: handles are valid for one opening of NVML."""
        try:
            self._library.open()
            return work(self._handle(gpu))
        finally:
            if not self._listens:
                self._library.close()

    def _handle(self, gpu: str) -> Any:
        try:
            return gpu_handle(gpu)
        except pynvml.NVMLError as error:
            raise self._refused(pynvml.nvmlDeviceGetHandleByUUID, error) from error

    def _ask(self, device: str, call: Any, *arguments: Any, expected: AbstractSet[int] = frozenset()) -> Any:
        """Return the answer of one call, None if it is refused as expected. Implements nvml.mig.Ask."""
        del device  # the handle is its
        try:
            return call(*arguments)
        except pynvml.NVMLError as error:
            if error.value in expected:
                return None
            raise self._refused(call, error) from error

    def _call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except pynvml.NVMLError as error:
            raise self._refused(call, error) from error

    def _refused(self, call: Callable[..., Any], error: pynvml.NVMLError) -> MigRefusedError:
        self._library.note(call.__name__, error_name(error))
        return MigRefusedError(call.__name__, error_name(error))
