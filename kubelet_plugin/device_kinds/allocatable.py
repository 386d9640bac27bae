"""From a machine to the pool that its node publishes: devices, taint, counter sets, pages."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dracaena.api import limits
from dracaena.api.machine import Machine
from dracaena.api.names import TAINT_EFFECT, TAINT_VALUE, gpu_device_name, taint_key
from dracaena.api.objects import Taint
from dracaena.api.resource_objects import CounterSet, Device, ResourcePool, ResourceSliceSpec
from dracaena.api.resourceslice import mig_counter_set, whole_counter_set
from dracaena.kubelet_plugin.device_kinds.device_kind import NO_ROLES, GpuRoles
from dracaena.kubelet_plugin.device_kinds.table import PUBLISHED

DEVICES_PER_SLICE = limits.SLICE_ADVANCED_DEVICES
"""Whether devices have taints depends on the node's allocator. Always the smaller number: otherwise a node that changes
its allocator would need another number of slices."""

SETS_PER_SLICE = limits.SLICE_COUNTER_SETS

FIRST_GENERATION = 1
"""Generation of a pool that was never published."""


def allocatable(
    machine: Machine, *, driver: str, tainted: bool, roles: GpuRoles = NO_ROLES
) -> tuple[tuple[Device, ...], ...]:
    """Return the devices of the node's pool in pages, one per slice: kind by kind, GPUs in ordinal order.

    `tainted` adds to each device the taint that keeps kube-scheduler from allocating it. A machine without GPUs has one
    empty page, to state that its pool is empty. Equal input gives equal pages.
    """
    taints = [Taint(taint_key(driver), TAINT_VALUE, TAINT_EFFECT)] if tainted else []
    devices = tuple(
        msgspec.structs.replace(device, taints=taints) for kind in PUBLISHED for device in kind.publish(machine, roles)
    )
    starts = range(0, max(len(devices), 1), DEVICES_PER_SLICE)
    return tuple(devices[start : start + DEVICES_PER_SLICE] for start in starts)


def counter_pages(
    machine: Machine, roles: GpuRoles, taken: Mapping[str, Mapping[str, int]]
) -> tuple[tuple[CounterSet, ...], ...]:
    """Return the counter sets of GPUs with several devices in pages, one per slice, GPUs in ordinal order.

    `taken` is how much of each GPU, by UUID, is not available to claims (mig.on_demand.taken_by_others).
    """
    sets = tuple(
        mig_counter_set(gpu, taken.get(gpu.uuid, {})) if gpu.uuid in roles.divided else whole_counter_set(gpu)
        for gpu in machine.gpus
        if gpu.uuid in roles.counted
    )
    return tuple(sets[start : start + SETS_PER_SLICE] for start in range(0, len(sets), SETS_PER_SLICE))


def slice_specs(
    machine: Machine, *, driver: str, node_name: str, tainted: bool, roles: GpuRoles = NO_ROLES
) -> tuple[ResourceSliceSpec, ...]:
    """Return the specs of all slices of the node's pool, in page order, in its first generation.

    The pool is named like the node. A publisher sets the generation by what is published already. GPUs in MIG mode are
    left out, as on a real node: no claim can get one as a whole. Pages keep their place.
    """
    divided = {gpu_device_name(gpu.uuid) for gpu in machine.gpus if gpu.mig_enabled}
    every = allocatable(machine, driver=driver, tainted=tainted, roles=roles)
    pages = [[device for device in page if device.name not in divided] for page in every]
    pool = ResourcePool(name=node_name, generation=FIRST_GENERATION, resource_slice_count=len(pages))
    return tuple(ResourceSliceSpec(driver=driver, pool=pool, node_name=node_name, devices=page) for page in pages)
