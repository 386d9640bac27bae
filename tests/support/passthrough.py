"""Machines and claims with GPUs for virtual machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import msgspec

from dracaena.api.links import Link, LinkLevel
from dracaena.api.machine import Machine
from dracaena.api.names import PoolName
from dracaena.api.passthrough import PassthroughGpu
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.api.topology import Topology
from dracaena.kubelet_plugin.device_kinds.allocatable import allocatable, counter_pages
from dracaena.kubelet_plugin.device_kinds.device_kind import GpuRoles
from dracaena.kubelet_plugin.node.pool import node_pool
from dracaena.kubelet_plugin.prepare.prepared_claim import PublishedPool
from support.allocation import pool_slice
from support.plugin import DRIVER, NODE, claim_of


def passthrough_gpu(number: int, **changes: Any) -> PassthroughGpu:
    """GPU at bus 0x20 + number, in group 40 + number."""
    known = PassthroughGpu(
        pci_bus_id=f"0000:{0x20 + number:02x}:00.0",
        vendor_id=0x10DE,
        device_id=0x2330,
        iommu_group=40 + number,
        driver="vfio-pci",
        pcie_root="pci0000:20",
        product_name="NVIDIA H100 80GB HBM3",
    )
    return replace(known, **changes)


def with_passthrough(
    machine: Machine, gpus: Sequence[PassthroughGpu], level: LinkLevel = LinkLevel.PIX, numa_node: int | None = 0
) -> Machine:
    """A machine that also has these, on one level with each other and SYS to the others."""
    before, count = len(machine.gpus), len(machine.gpus) + len(gpus)
    pairs = tuple(
        machine.topology.link(a, b)
        if b < before
        else Link(LinkLevel.SYS, 0) if a < before else Link(level, None)
        for a, b in combinations(range(count), 2)
    )  # fmt: skip
    numa = (*machine.topology.numa_nodes, *([numa_node] * len(gpus)))
    nics = tuple(replace(nic, levels=(*nic.levels, *([LinkLevel.SYS] * len(gpus)))) for nic in machine.topology.nics)
    made = replace(machine, passthrough=tuple(gpus), topology=Topology(count, pairs, numa, nics))
    made.check()
    return made


NO_GPUS = Machine("node", (), Topology(0, (), ()))


def passthrough_pool(*gpus: PassthroughGpu) -> PublishedPool:
    """The pool of a node that has nothing else."""
    return node_pool(with_passthrough(NO_GPUS, gpus), DRIVER, PoolName(NODE))


def passthrough_claim(
    name: str = "claim",
    numbers: Sequence[int] = (0,),
    *,
    uid: str = "",
    reserved_for: Mapping[str, str] | None = None,
    **result: Any,
) -> ResourceClaim:
    """An allocated claim for passthrough_gpu(number) of each number."""
    results = [
        {"request": "vm", "driver": DRIVER, "pool": NODE, "device": passthrough_gpu(n).device_name, **result}
        for n in numbers
    ]
    return claim_of(name, {"results": results}, uid=uid, reserved_for=reserved_for)


def on_demand(machine: Machine) -> Machine:
    """The same machine where each GPU, known by an address now, may go to a virtual machine as well."""
    gpus = tuple(replace(gpu, pci_bus_id=f"0000:{0x20 + n:02x}:00.0") for n, gpu in enumerate(machine.gpus))
    twins = [passthrough_gpu(n, driver="nvidia", is_bound=False, on_demand=True) for n in range(len(gpus))]
    return with_passthrough(replace(machine, gpus=gpus), twins)


def on_demand_slices(node: str, machine: Machine) -> list[ResourceSlice]:
    """What a node publishes of a machine of on_demand()."""
    roles = GpuRoles(handed=frozenset(machine.handed_on_demand()))
    pages = allocatable(machine, driver=DRIVER, tainted=True, roles=roles)
    base = pool_slice(node, machine)
    pool = msgspec.structs.replace(base.spec.pool, resource_slice_count=2)
    spec = msgspec.structs.replace(base.spec, devices=[device for page in pages for device in page], pool=pool)
    sets = [each for page in counter_pages(machine, roles, {}) for each in page]
    counters = msgspec.structs.replace(spec, devices=[], shared_counters=sets)
    meta = msgspec.structs.replace(base.metadata, name=f"{base.metadata.name}-counters")
    return [msgspec.structs.replace(base, spec=spec), msgspec.structs.replace(base, metadata=meta, spec=counters)]
