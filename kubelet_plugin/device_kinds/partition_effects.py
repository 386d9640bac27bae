"""Which Fabric Manager partitions the devices of a claim need, as effects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dracaena.api.fabric import FabricPartition
from dracaena.api.names import DeviceName, gpu_device_name
from dracaena.api.resource_objects import Device
from dracaena.api.vgpu import VGPU_PREFIX
from dracaena.kubelet_plugin.device_kinds.device_kind import CannotEnforce
from dracaena.kubelet_plugin.device_kinds.shared_device import shareable_bytes
from dracaena.kubelet_plugin.prepare.effects import FABRIC_PARTITION, Effect
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedDevice, PublishedPool


def partition_effects(devices: Sequence[PreparedDevice], pool: PublishedPool) -> tuple[Effect, ...] | CannotEnforce:
    """Return the partitions that must be active for the devices of a claim, without those for admin access; each once.

    Its whole GPUs and GPUs for virtual machines form one partition if there is one of exactly these GPUs; otherwise
    each gets its own. The GPUs of shares and MIG devices always get their own. vGPUs have none here. Returns why if
    that is not possible.
    """
    fabric = pool.fabric
    needing = [device for device in devices if not device.device.startswith(VGPU_PREFIX)]
    if fabric is None or not needing:
        return ()
    if fabric.problem:
        return CannotEnforce(f"no Fabric Manager partition can be activated: {fabric.problem}")
    modules = [_module(device, pool) for device in needing]
    whole: dict[int, PreparedDevice] = {}
    alone: list[tuple[int, PreparedDevice]] = []
    for device, module in zip(needing, modules, strict=True):
        if module is None:
            return CannotEnforce(f"it is not known which Fabric Manager partitions {device.physical_gpu} is in")
        if _has_all(device, pool):
            whole[module] = device
        else:
            alone.append((module, device))
    together = fabric.exactly(whole)
    found = [*alone] if together is not None else [*sorted(whole.items()), *alone]
    missing = [str(module) for module, _ in found if fabric.of_size(module, 1) is None]
    if missing:
        return CannotEnforce(
            f"Fabric Manager has no partition of module {', '.join(missing)} alone, and none of exactly the GPUs of "
            f"this claim (modules {_text(module for module, _ in found)})"
        )
    effects = {} if together is None else {together.id: _effect(together, whole[min(whole)])}
    for module, device in found:
        partition = fabric.of_size(module, 1)
        if partition is not None:
            effects.setdefault(partition.id, _effect(partition, device))
    return tuple(effects.values())


def is_foreign(device: Device, pool: PublishedPool) -> bool:
    """Whether a published device is, or is a part of, a GPU that somebody else has linked with others."""
    fabric = pool.fabric
    if fabric is None or not fabric.foreign:
        return False
    name, parent = DeviceName(device.name), device.attributes.get("parentUUID")
    if name in pool.passthrough:
        module = pool.passthrough[name].module_id
    else:
        gpu = pool.gpus.get(name if parent is None else gpu_device_name(parent.string or ""))
        module = None if gpu is None else gpu.module_id
    return module in fabric.foreign


def _effect(partition: FabricPartition, device: PreparedDevice) -> Effect:
    return Effect(FABRIC_PARTITION, device.physical_gpu, DeviceName(partition.name))


def _text(modules: Iterable[int]) -> str:
    return " ".join(map(str, sorted(modules)))


def _has_all(device: PreparedDevice, pool: PublishedPool) -> bool:
    """Whether a claim has a whole GPU; a share of all of its memory counts, since no other share fits beside it."""
    if not device.is_whole_gpu or device.share_id is None or device.memory_bytes is None:
        return device.is_whole_gpu
    whole_bytes = pool.gpus[device.device].memory_bytes
    return whole_bytes is not None and device.memory_bytes >= shareable_bytes(whole_bytes)


def _module(device: PreparedDevice, pool: PublishedPool) -> int | None:
    if device.is_passthrough:
        return pool.passthrough[device.device].module_id
    gpu = pool.gpus.get(device.physical_gpu)
    return None if gpu is None else gpu.module_id
