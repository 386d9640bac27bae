"""Claims and pools with vGPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dracaena.api.machine import Machine
from dracaena.api.names import PoolName
from dracaena.api.resource_objects import ResourceClaim
from dracaena.api.vgpu import Vgpu
from dracaena.kubelet_plugin.node.pool import node_pool
from dracaena.kubelet_plugin.prepare.prepared_claim import PublishedPool
from support.passthrough import NO_GPUS, passthrough_gpu
from support.plugin import DRIVER, NODE, claim_of


def mediated(number: int, **changes: Any) -> Vgpu:
    """A mediated device of the GPU that is passthrough_gpu(0) while VFIO has it, in group 100 + number."""
    known = Vgpu(
        identity=f"aa618089-8b16-4d01-a136-25a0f3c7312{number}",
        parent=passthrough_gpu(0).pci_bus_id,
        type_id="nvidia-475",
        type_name="NVIDIA A100-1-5C",
        iommu_group=100 + number,
        framebuffer_bytes=4864 << 20,
        numa_node=1,
        pcie_root="pci0000:20",
    )
    return replace(known, **changes)


def virtual_function(number: int, **changes: Any) -> Vgpu:
    """A virtual function with a type, of the same GPU, in group 200 + number."""
    known = replace(
        mediated(0),
        identity=f"0000:20:04.{number}",
        type_id="1414",
        type_name="NVIDIA H200X-1-18C",
        iommu_group=200 + number,
    )
    return replace(known, **changes)


def with_vgpus(machine: Machine, *vgpus: Vgpu) -> Machine:
    """A machine that also has these; the vGPU manager has their GPUs."""
    made = replace(machine, vgpus=vgpus, vgpu_parents=frozenset(vgpu.parent for vgpu in vgpus))
    made.check()
    return made


def vgpu_pool(*vgpus: Vgpu, machine: Machine = NO_GPUS) -> PublishedPool:
    """The pool of a node that also has these."""
    return node_pool(with_vgpus(machine, *vgpus), DRIVER, PoolName(NODE))


def vgpu_claim(
    name: str = "claim",
    vgpus: Sequence[Vgpu] = (mediated(0),),
    *,
    uid: str = "",
    reserved_for: Mapping[str, str] | None = None,
    **result: Any,
) -> ResourceClaim:
    """An allocated claim for these."""
    results = [{"request": "vm", "driver": DRIVER, "pool": NODE, "device": one.device_name, **result} for one in vgpus]
    return claim_of(name, {"results": results}, uid=uid, reserved_for=reserved_for)
