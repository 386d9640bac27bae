"""Small clusters as `dracaena demo` observes them: one node of three GPUs, pods and their claims."""

from __future__ import annotations

import dataclasses

import msgspec
from msgspec.structs import replace

from dracaena.api.machine import Gpu, Machine
from dracaena.api.mig import mig_device_name
from dracaena.api.names import DEFAULT_DRIVER_NAME, gpu_device_name
from dracaena.api.objects import ObjectMeta, Pod, PodCondition, PodResourceClaim, PodSpec, PodStatus
from dracaena.api.resource_objects import (
    AllocatedDevices,
    AllocationResult,
    ConsumerReference,
    DeviceResult,
    ResourceClaim,
    ResourceClaimStatus,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dracaena.api.resourceslice import encode_devices, encode_mig_places
from dracaena.demo.observation import Observation, read_observation
from dracaena.kube.events import Event, EventSource, Subject
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from support.topologies import topology_from_matrix

TOPOLOGY = topology_from_matrix([["X", "NV2", "SYS"], ["NV2", "X", "PIX"], ["SYS", "PIX", "X"]])
UUIDS = [f"GPU-0000000{n}-0000-0000-0000-000000000000" for n in range(3)]
MACHINE = Machine("m", tuple(Gpu(uuid, index=10 + n) for n, uuid in enumerate(UUIDS)), TOPOLOGY)
GPU_BYTES = 16 << 30
SHARED_MACHINE = Machine("m", tuple(dataclasses.replace(gpu, memory_bytes=GPU_BYTES) for gpu in MACHINE.gpus), TOPOLOGY)


def slice_of(node: str, generation: int = 1, machine: Machine = MACHINE) -> ResourceSlice:
    spec = ResourceSliceSpec(
        DEFAULT_DRIVER_NAME,
        ResourcePool(node, generation, 1),
        node_name=node,
        devices=list(encode_devices(machine)),
    )
    return ResourceSlice(metadata=ObjectMeta(name=f"{node}-{generation}"), spec=spec)


CUT_MACHINE = read_machine("h100-x1")
SMALL, LARGE = (mig_device_name(CUT_MACHINE.gpus[0].uuid, *place) for place in (("1g.10gb", 6), ("3g.40gb", 0)))
"""Two parts of its GPU, by device name."""


def cut_slice(node: str) -> ResourceSlice:
    """What a node publishes whose GPU is cut on demand; the counters do not matter to who observes."""
    whole = slice_of(node, machine=CUT_MACHINE)
    devices = [*whole.spec.devices, *encode_mig_places(CUT_MACHINE, CUT_MACHINE.gpus[0])]
    return replace(whole, spec=replace(whole.spec, devices=devices))


def part(name: str, device: str, uuid: str = "", *, pod: str = "p1") -> ResourceClaim:
    """A claim for a part; its UUID is told once it is made."""
    found = claim(name, 0, pod=pod, count=1)
    result = DeviceResult("gpus", DEFAULT_DRIVER_NAME, "n1", device)
    allocation = AllocationResult(devices=AllocatedDevices(results=[result]))
    entry = {"driver": DEFAULT_DRIVER_NAME, "pool": "n1", "device": device, "data": {"uuid": uuid}}
    told = [msgspec.Raw(msgspec.json.encode(entry))] if uuid else []
    return replace(found, status=replace(found.status, allocation=allocation, devices=told))


def claim(name: str, *ordinals: int, pod: str = "p1", count: int = 2) -> ResourceClaim:
    results = [DeviceResult("gpus", DEFAULT_DRIVER_NAME, "n1", gpu_device_name(UUIDS[n])) for n in ordinals]
    allocation = AllocationResult(devices=AllocatedDevices(results=results)) if ordinals else None
    reserved = [ConsumerReference("pods", pod, f"{pod}-uid")] if ordinals and pod else []
    exactly = {"deviceClassName": "c", "count": count}
    return ResourceClaim(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"{name}-uid"),
        spec={"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}},
        status=ResourceClaimStatus(allocation=allocation, reserved_for=reserved),
    )


def share(name: str, ordinal: int, memory: str, cores: int, *, pod: str = "p1") -> ResourceClaim:
    """A claim for a part of a GPU of SHARED_MACHINE."""
    whole = claim(name, ordinal, pod=pod, count=1)
    result = DeviceResult(
        "gpus",
        DEFAULT_DRIVER_NAME,
        "n1",
        gpu_device_name(UUIDS[ordinal]),
        share_id=f"share-of-{name}",
        consumed_capacity={"memory": memory, "cores": str(cores)},
    )
    allocation = AllocationResult(devices=AllocatedDevices(results=[result]))
    return replace(whole, status=replace(whole.status, allocation=allocation))


def pod(name: str, claim_name: str, *, node: str = "", phase: str = "Pending") -> Pod:
    entry = PodResourceClaim("gpus", resource_claim_name=claim_name)
    waiting = PodCondition("PodScheduled", "False", "Unschedulable", "no node")
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"{name}-uid"),
        spec=PodSpec(node_name=node, resource_claims=[entry]),
        status=PodStatus(phase=phase, conditions=[] if node else [waiting]),
    )


def event(about: str, component: str, message: str, second: int) -> Event:
    return Event(
        metadata=ObjectMeta(name=f"e{second}", namespace="default"),
        involved_object=Subject(uid=about),
        type="Warning",
        message=message,
        source=EventSource(component),
        last_timestamp=f"2026-01-01T00:00:0{second}Z",
    )


def one_pod(the_pod: Pod, *claims: ResourceClaim, events: tuple[Event, ...] = ()) -> Observation:
    return read_observation([slice_of("n1")], claims, [the_pod], events)
