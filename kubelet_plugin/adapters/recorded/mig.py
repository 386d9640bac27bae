"""MIG instances of a recorded machine's GPUs, one file per GPU: created and destroyed by the rules of a driver.

A file plays the driver's role for a GPU. It outlives the plugin, and a reboot empties it.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from dracaena.api.errors import PermanentError
from dracaena.api.machine import Gpu
from dracaena.api.mig import EmptyGpuInstance, MigDevice
from dracaena.api.mig_geometry import MigPlace, MigPlacement, MigProfile, consumption, counters
from dracaena.kubelet_plugin.discovery.mig.instances import (
    GET_GPU,
    GET_INSTANCE,
    IN_USE,
    NOT_FOUND,
    RESET_REQUIRED,
    GpuInstance,
    MigRefusedError,
)
from dracaena.kubelet_plugin.discovery.mig.on_demand import changes_mode_at_once
from dracaena.kubelet_plugin.ports import DocumentStore, GpuGoneError

NOT_SUPPORTED = "NOT_SUPPORTED"
INVALID_ARGUMENT = "INVALID_ARGUMENT"
INSUFFICIENT_RESOURCES = "INSUFFICIENT_RESOURCES"
CREATE_GPU_INSTANCE = "nvmlDeviceCreateGpuInstanceWithPlacement"

_FIRST_NODE = 3
"""1 and 2 are the nodes for configuring and for monitoring."""
_MOST_INSTANCES = 15
"""GPU instances that the driver numbers on each GPU."""
_NODES = 9
"""Nodes of each GPU instance: its own, and those of up to eight compute instances."""


class _RecordedInstance(msgspec.Struct, frozen=True):
    number: int
    profile: str
    start: int
    size: int
    uuid: str = ""
    """UUID of the MIG device; empty without a compute instance."""

    @property
    def placement(self) -> MigPlacement:
        return MigPlacement(self.start, self.size)


class _RecordedState(msgspec.Struct, frozen=True):
    boot: str
    enabled: bool
    pending: bool
    made: int = 0
    """Number of MIG devices created in this boot, so that no two get one UUID."""
    instances: tuple[_RecordedInstance, ...] = ()


_STATE: Final = msgspec.json.Decoder(_RecordedState)  # inspected by the thread that imports: see kube.client


@dataclass(frozen=True, slots=True)
class DividedGpu:
    """A GPU in its current mode, with its MIG devices by numbers, and its GPU instances without one by start."""

    gpu: Gpu
    migs: tuple[MigDevice, ...] = ()
    empty: tuple[EmptyGpuInstance, ...] = ()


class RecordedMig:
    """Implements MigControl. Callers change one GPU at a time, in whichever process."""

    def __init__(self, read_gpu: Callable[[str], Gpu], files: DocumentStore, boot_id: str) -> None:
        """`read_gpu` returns a GPU of the recorded machine by UUID. Raises GpuGoneError for any other."""
        self._read_gpu = read_gpu
        self._files = files
        self._boot_id = boot_id

    def mode(self, gpu: str) -> tuple[bool, bool]:
        """See MigControl."""
        state = self._load(gpu)
        return state.enabled, state.pending

    def set_mode(self, gpu: str, *, enabled: bool) -> None:
        """See MigControl."""
        state, call = self._load(gpu), "nvmlDeviceSetMigMode"
        if state.instances and not enabled:
            raise MigRefusedError(call, IN_USE)
        at_once = changes_mode_at_once(self._gpu(gpu))
        self._save(gpu, msgspec.structs.replace(state, pending=enabled, enabled=enabled if at_once else state.enabled))
        if not at_once and state.enabled != enabled:
            raise MigRefusedError(call, RESET_REQUIRED)

    def profiles(self, gpu: str) -> tuple[MigProfile, ...]:
        """See MigControl."""
        return self._gpu(gpu).mig_profiles

    def instances(self, gpu: str, profiles: tuple[MigProfile, ...]) -> tuple[GpuInstance, ...]:
        """See MigControl."""
        asked = {profile.name for profile in profiles}
        found = (
            GpuInstance(each.number, each.profile, each.placement, has_compute=bool(each.uuid))
            for each in self._load(gpu).instances
            if each.profile in asked
        )
        return tuple(sorted(found, key=lambda each: each.placement))

    def create_gpu_instance(self, gpu: str, profile: MigProfile, placement: MigPlacement) -> int:
        """See MigControl."""
        state = self._load(gpu)
        if not state.enabled:
            raise MigRefusedError(CREATE_GPU_INSTANCE, NOT_SUPPORTED)
        profiles = self.profiles(gpu)
        known = next((each for each in profiles if each.profile_id == profile.profile_id), None)
        if known is None or placement not in known.placements:
            raise MigRefusedError(CREATE_GPU_INSTANCE, INVALID_ARGUMENT)
        numbers = {each.number for each in state.instances}
        number = next(number for number in range(1, len(numbers) + 2) if number not in numbers)
        instance = _RecordedInstance(number, known.name, placement.start, placement.size)
        if not _fit(profiles, (*state.instances, instance)):
            raise MigRefusedError(CREATE_GPU_INSTANCE, INSUFFICIENT_RESOURCES)
        self._save(gpu, msgspec.structs.replace(state, instances=(*state.instances, instance)))
        return number

    def create_compute_instance(self, gpu: str, gpu_instance_id: int, compute_slices: int) -> None:
        """See MigControl. Creates only one that has all of its GPU instance."""
        state, instance = self._find(gpu, gpu_instance_id)
        profile = next(each for each in self.profiles(gpu) if each.name == instance.profile)
        if profile.compute_slices != compute_slices:
            raise MigRefusedError("nvmlGpuInstanceGetComputeInstanceProfileInfo", NOT_SUPPORTED)
        if instance.uuid:
            raise MigRefusedError("nvmlGpuInstanceCreateComputeInstance", INSUFFICIENT_RESOURCES)
        made = state.made + 1
        identity = f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, f'{self._boot_id}/{gpu}/{made}')}"
        self._put(gpu, msgspec.structs.replace(state, made=made), msgspec.structs.replace(instance, uuid=identity))

    def mig_device(self, gpu: str, gpu_instance_id: int) -> tuple[int, str] | None:
        """See MigControl."""
        _state, instance = self._find(gpu, gpu_instance_id)
        return (0, instance.uuid) if instance.uuid else None

    def destroy_compute_instances(self, gpu: str, gpu_instance_id: int) -> None:
        """See MigControl."""
        state, instance = self._find(gpu, gpu_instance_id)
        self._put(gpu, state, msgspec.structs.replace(instance, uuid=""))

    def destroy_gpu_instance(self, gpu: str, gpu_instance_id: int) -> None:
        """See MigControl."""
        state, instance = self._find(gpu, gpu_instance_id)
        if instance.uuid:
            raise MigRefusedError("nvmlGpuInstanceDestroy", IN_USE)
        left = tuple(each for each in state.instances if each is not instance)
        self._save(gpu, msgspec.structs.replace(state, instances=left))

    def processes(self, gpu: str) -> tuple[int, ...]:
        """See MigControl: nothing runs on a recorded GPU."""
        self._gpu(gpu)
        return ()

    def device_id(self, gpu: str) -> int:
        """See MigControl. Raises PermanentError: recordings do not have it."""
        raise PermanentError(f"recorded GPU {gpu} has no PCI ID: choose a layout without device-filter")

    def as_divided(self, gpu: Gpu) -> DividedGpu:
        """Return a recorded GPU that can be divided as it is now."""
        state, by_name = self._load(gpu.uuid), {profile.name: profile for profile in gpu.mig_profiles}
        found = (_device(gpu, each, by_name[each.profile]) for each in state.instances if each.uuid)
        migs = tuple(sorted(found, key=lambda mig: mig.gpu_instance_id))
        empty = (
            EmptyGpuInstance(gpu.uuid, each.number, each.profile, each.start, each.size)
            for each in state.instances
            if not each.uuid
        )
        by_start = tuple(sorted(empty, key=lambda each: each.start))
        return DividedGpu(replace(gpu, mig_enabled=state.enabled), migs, by_start)

    def _find(self, gpu: str, number: int) -> tuple[_RecordedState, _RecordedInstance]:
        state = self._load(gpu)
        if not state.enabled:
            raise MigRefusedError(GET_INSTANCE, NOT_SUPPORTED)
        instance = next((each for each in state.instances if each.number == number), None)
        if instance is None:
            raise MigRefusedError(GET_INSTANCE, NOT_FOUND)
        return state, instance

    def _put(self, gpu: str, state: _RecordedState, instance: _RecordedInstance) -> None:
        instances = tuple(instance if each.number == instance.number else each for each in state.instances)
        self._save(gpu, msgspec.structs.replace(state, instances=instances))

    def _gpu(self, uuid: str) -> Gpu:
        try:
            return self._read_gpu(uuid)
        except GpuGoneError as error:
            raise MigRefusedError(GET_GPU, NOT_FOUND) from error

    def _load(self, gpu: str) -> _RecordedState:
        recorded = self._gpu(gpu)
        if not recorded.mig_profiles:
            raise MigRefusedError("nvmlDeviceGetMigMode", NOT_SUPPORTED)
        data = self._files.read(_file(gpu))
        try:
            state = None if data is None else _STATE.decode(data)
        except msgspec.DecodeError as error:
            raise PermanentError(
                f"the MIG instances of recorded GPU {gpu} cannot be read ({error}): remove {_file(gpu)} from the "
                "plugin's folder once no claim has a part of that GPU"
            ) from error
        if state is not None and state.boot == self._boot_id:
            return state
        enabled = bool(recorded.mig_enabled)
        return _RecordedState(self._boot_id, enabled, enabled)

    def _save(self, gpu: str, state: _RecordedState) -> None:
        self._files.write(_file(gpu), msgspec.json.encode(state))


def access_minors(gpu_minor: int, gpu_instance_id: int, compute_instance_id: int) -> tuple[int, int]:
    """Return the numbers of the nodes that open a MIG device, as drivers number them (/proc/driver/nvidia-caps)."""
    first = _FIRST_NODE + (gpu_minor * _MOST_INSTANCES + gpu_instance_id) * _NODES
    return first, first + 1 + compute_instance_id


def _device(gpu: Gpu, instance: _RecordedInstance, profile: MigProfile) -> MigDevice:
    return MigDevice(
        parent_uuid=gpu.uuid,
        uuid=instance.uuid,
        gpu_instance_id=instance.number,
        compute_instance_id=0,
        profile=instance.profile,
        start=instance.start,
        size=instance.size,
        memory_bytes=profile.memory_bytes,
        multiprocessors=profile.multiprocessors,
        access_minors=None if gpu.minor is None else access_minors(gpu.minor, instance.number, 0),
    )


def _fit(profiles: Sequence[MigProfile], instances: Sequence[_RecordedInstance]) -> bool:
    """Whether these instances fit on a GPU together."""
    there, by_name = counters(profiles), {profile.name: profile for profile in profiles}
    taken: Counter[str] = Counter()
    for each in instances:
        taken.update(consumption(MigPlace("", by_name[each.profile], each.placement), there))
    return all(taken[name] <= amount for name, amount in there.items())


def _file(gpu: str) -> str:
    return f"{gpu}.json"
