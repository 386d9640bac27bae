"""The cluster that manifests of the pages are simulated on: it has all that any of them asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import msgspec

from dracaena.api.confidential import CC_ON
from dracaena.api.machine import Machine
from dracaena.api.mig import MigDevice
from dracaena.api.names import DEFAULT_DRIVER_NAME
from dracaena.api.resource_objects import ResourceSliceSpec
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.device_kinds.allocatable import allocatable, counter_pages, slice_specs
from dracaena.kubelet_plugin.device_kinds.device_kind import GpuRoles
from dracaena.kubelet_plugin.device_kinds.shared_device import shared_device
from support.machines import plain_machine
from support.passthrough import NO_GPUS, passthrough_gpu, with_passthrough
from support.vgpus import mediated, with_vgpus

NODES: Final = ("worker-1", "worker-2", "machines-1", "guest-1")
"""A node of eight whole GPUs, one of eight GPUs of which three are divided, one with two GPUs for virtual machines, of
which one computes confidentially, and a vGPU, and one with a GPU that computes confidentially.
"""

GPU_BYTES: Final = 85_520_809_984
"""Memory of each whole GPU."""

_GIB: Final = 1 << 30
_PROFILES: Final = (
    (0, "1g.10gb", 0, 1, 10, 14),
    (0, "1g.10gb", 1, 1, 10, 14),
    (0, "1g.10gb+me", 2, 1, 10, 14),
    (0, "3g.40gb", 4, 4, 40, 42),
    (1, "2g.20gb", 0, 2, 20, 28),
    (1, "2g.20gb", 2, 2, 20, 28),
    (1, "1g.10gb", 4, 1, 10, 14),
    (2, "7g.80gb", 0, 8, 80, 98),
)
"""Of each MIG device the ordinal of its GPU, profile, first memory slice, their number, GiB and multiprocessors."""


def page_cluster(*, shared: bool = False) -> list[dict[str, Any]]:
    """Return the cluster's ResourceSlices as documents, as the plugins of its nodes would publish them.

    With `shared`, claims may share the GPUs of the first node.
    """
    confidential = replace(passthrough_gpu(1), cc_mode=CC_ON)
    for_machines = with_passthrough(NO_GPUS, [passthrough_gpu(0), confidential])
    for_machines = with_vgpus(for_machines, mediated(0, parent="0000:41:00.0"))
    machines = {"worker-1": _whole(), "worker-2": divided_machine(), "machines-1": for_machines}
    machines["guest-1"] = plain_machine(1, minor=0, cc_capable=True, cc_mode="on")
    slices = [_slice(name, machine) for name, machine in machines.items()]
    if shared:
        devices = msgspec.convert(slices[0]["spec"], ResourceSliceSpec).devices
        slices[0]["spec"]["devices"] = [msgspec.to_builtins(shared_device(device, GPU_BYTES)) for device in devices]
    return slices


def node_divided_on_demand() -> list[dict[str, Any]]:
    """Return the ResourceSlices of another node, as documents: its GPUs are divided when claims ask for it."""
    machine = read_machine("hgx-h100")
    uuids = frozenset(gpu.uuid for gpu in machine.gpus)
    roles = GpuRoles(divided=uuids)
    devices = allocatable(machine, driver=DEFAULT_DRIVER_NAME, tainted=True, roles=roles)
    contents = [{"devices": msgspec.to_builtins(page)} for page in devices]
    contents += [{"sharedCounters": msgspec.to_builtins(page)} for page in counter_pages(machine, roles, {})]
    pool = {"name": "worker-3", "generation": 1, "resourceSliceCount": len(contents)}
    base = {"driver": DEFAULT_DRIVER_NAME, "nodeName": "worker-3", "pool": pool}
    return [_about(f"worker-3-{number}") | {"spec": base | page} for number, page in enumerate(contents)]


def _about(name: str) -> dict[str, Any]:
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}}


def _slice(node: str, machine: Machine) -> dict[str, Any]:
    """Return the one slice of a node; a GPU that is divided is not published beside its parts."""
    (spec,) = slice_specs(machine, driver=DEFAULT_DRIVER_NAME, node_name=node, tainted=True)
    divided = {gpu.uuid for gpu in machine.gpus if gpu.mig_enabled}
    document = msgspec.to_builtins(spec)
    uuids = (one["attributes"].get("uuid", {}).get("string") for one in document["devices"])
    document["devices"] = [one for one, uuid in zip(document["devices"], uuids, strict=True) if uuid not in divided]
    return _about(node) | {"spec": document}


def _whole() -> Machine:
    recorded = read_machine("dgx-a100")
    topology = replace(recorded.topology, numa_nodes=tuple(ordinal // 4 for ordinal in range(8)))
    gpus = tuple(
        replace(gpu, product_name="NVIDIA H100 80GB HBM3", architecture="Hopper", memory_bytes=GPU_BYTES)
        for gpu in recorded.gpus
    )
    return replace(recorded, gpus=gpus, topology=topology)


def divided_machine() -> Machine:
    """Return a node of eight GPUs, of which three are divided into MIG devices that an admin made."""
    whole = _whole()
    ordinals = {ordinal for ordinal, *_ in _PROFILES}
    gpus = tuple(
        replace(gpu, uuid=gpu.uuid[:-4] + "0002", mig_enabled=True if ordinal in ordinals else None)
        for ordinal, gpu in enumerate(whole.gpus)
    )
    parts = tuple(
        MigDevice(
            parent_uuid=gpus[ordinal].uuid,
            uuid=f"MIG-00000000-0000-4000-8000-{number:012x}",
            gpu_instance_id=number,
            compute_instance_id=0,
            profile=profile,
            start=start,
            size=size,
            memory_bytes=gib * _GIB - 256 * (1 << 20),
            multiprocessors=processors,
            access_minors=(2 * number, 2 * number + 1),
        )
        for number, (ordinal, profile, start, size, gib, processors) in enumerate(_PROFILES)
    )
    return replace(whole, gpus=gpus, mig_devices=parts)
