"""Which devices of this node can be given to containers at all, by published name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from dracaena.api.machine import Machine
from dracaena.api.names import DeviceName, PoolName, gpu_device_name
from dracaena.api.resource_objects import Device
from dracaena.kubelet_plugin.device_kinds.table import kind_of
from dracaena.kubelet_plugin.discovery.mig.on_demand import NOT_DIVIDED, DividedGpus, places_of
from dracaena.kubelet_plugin.prepare.prepared_claim import PublishedPool


def node_pool(
    machine: Machine,
    driver: str,
    name: PoolName,
    pages: Sequence[Sequence[Device]] = (),
    divided: DividedGpus = NOT_DIVIDED,
    vanished: Mapping[DeviceName, str] = MappingProxyType({}),
) -> PublishedPool:
    """Return the pool that prepare works with: all GPUs and MIG devices of the node by device name.

    `pages` are the devices with their published attributes, `divided` the GPUs that are divided on demand, `vanished`
    the places on them where MIG devices of claims are gone, with their UUIDs.
    """
    on_demand = [place for gpu in machine.gpus if gpu.uuid in divided.uuids for place in places_of(gpu)]
    return PublishedPool(
        driver,
        name,
        gpus=MappingProxyType({gpu_device_name(gpu.uuid): gpu for gpu in machine.gpus}),
        mig_devices=MappingProxyType({mig.device_name: mig for mig in machine.mig_devices}),
        attributes=MappingProxyType({DeviceName(d.name): d.attributes for page in pages for d in page}),
        gpu_driver_version=machine.driver_version,
        mig_places=MappingProxyType({place.device_name: place for place in on_demand}),
        switched=frozenset(gpu_device_name(uuid) for uuid in divided.switched),
        passthrough=MappingProxyType({gpu.device_name: gpu for gpu in machine.passthrough}),
        vgpus=MappingProxyType({vgpu.device_name: vgpu for vgpu in machine.vgpus}),
        vgpu_parents=machine.vgpu_parents,
        fabric=machine.fabric,
        vanished=vanished,
    )


def preparable_pages(
    pages: Sequence[Sequence[Device]], pool: PublishedPool
) -> tuple[tuple[tuple[Device, ...], ...], Mapping[DeviceName, str]]:
    """Return the pages without devices that cannot be prepared for any claim, and why each of those is left out.

    Such a device would only strand pods: it has no known device node, or it is a GPU that is divided into MIG devices.
    Pages keep their position, even if they are empty.
    """
    names = [DeviceName(device.name) for page in pages for device in page]
    reasons = {name: kind_of(name).obstacle(name, pool) for name in names}
    skipped = {name: reason for name, reason in reasons.items() if reason is not None}
    return tuple(tuple(device for device in page if device.name not in skipped) for page in pages), skipped
