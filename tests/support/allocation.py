"""Values for tests of the controller: machines drawn as matrices, nodes, slices, claims, pods, classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dracaena.api.decision import Decision, decision_config
from dracaena.api.machine import Gpu, Machine
from dracaena.api.names import DEFAULT_DRIVER_NAME, TAINT_EFFECT, TAINT_VALUE, gpu_device_name, taint_key
from dracaena.api.objects import Node, NodeSpec, ObjectMeta, OwnerReference, Pod, Taint
from dracaena.api.resource_objects import (
    AllocationConfig,
    AllocationResult,
    ConsumerReference,
    DeviceClass,
    ResourceClaim,
    ResourceClaimStatus,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dracaena.api.resourceslice import encode_devices
from dracaena.api.topology import Topology
from dracaena.controller.allocation.request import RequestReader
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import claim_holder
from support.topologies import topology_from_matrix

DRIVER = DEFAULT_DRIVER_NAME
OUR_TAINT = Taint(key=taint_key(DRIVER), value=TAINT_VALUE, effect=TAINT_EFFECT)


def matrix(text: str, numa: Sequence[int | None] | None = None) -> Topology:
    """Read a matrix drawn as text, one row a line, `X` on the diagonal."""
    rows = [line.split() for line in text.strip().splitlines()]
    return topology_from_matrix(rows, numa_nodes=numa)


def blocks(*sizes: int, inside: str, outside: str, numa: bool = False) -> Topology:
    """GPUs in blocks: one token inside a block, one between blocks; each block is a NUMA node if `numa`."""
    block_of = [block for block, size in enumerate(sizes) for _ in range(size)]
    count = len(block_of)
    rows = [
        ["X" if a == b else inside if block_of[a] == block_of[b] else outside for b in range(count)]
        for a in range(count)
    ]
    return topology_from_matrix(rows, numa_nodes=block_of if numa else None)


def machine(name: str, topology: Topology, **traits: Any) -> Machine:
    """A machine whose GPUs have UUIDs of name and ordinal, and all the same traits."""
    tag = sum(name.encode()) * 7919 % 16**8
    gpus = tuple(
        Gpu(uuid=f"GPU-{tag:08x}-0000-0000-0000-{ordinal:012x}", index=ordinal, **traits)
        for ordinal in range(topology.gpu_count)
    )
    return Machine(name, gpus, topology)


def device_name(made: Machine, ordinal: int) -> str:
    return gpu_device_name(made.gpus[ordinal].uuid)


def pool_slice(
    node: str, made: Machine, *, taints: Sequence[Taint] = (OUR_TAINT,), generation: int = 1, **extra: Any
) -> ResourceSlice:
    """The one slice that a node with this machine publishes. `extra`: foreign taints by ordinal as `foreign`."""
    foreign: dict[int, Sequence[Taint]] = extra.get("foreign", {})
    devices = [
        msgspec.structs.replace(device, taints=[*taints, *foreign.get(ordinal, ())])
        for ordinal, device in enumerate(encode_devices(made))
    ]
    return ResourceSlice(
        metadata=ObjectMeta(name=f"{node}-{generation}", uid=f"slice-{node}", resource_version=str(generation)),
        spec=ResourceSliceSpec(
            driver=DRIVER,
            pool=ResourcePool(name=node, generation=generation, resource_slice_count=1),
            node_name=node,
            devices=devices,
        ),
    )


def node(name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> Node:
    return Node(metadata=ObjectMeta(name=name, uid=f"node-{name}", labels=labels or {}), spec=NodeSpec(**spec))


def device_class(name: str = DRIVER, *configs: dict[str, Any], **spec: Any) -> DeviceClass:
    entries = [{"opaque": {"driver": DRIVER, "parameters": parameters}} for parameters in configs]
    return DeviceClass(metadata=ObjectMeta(name=name), spec={**({"config": entries} if entries else {}), **spec})


def requests_of(classes: Iterable[DeviceClass] = ()) -> RequestReader:
    """What reads claims, with these classes."""
    reader = RequestReader(DRIVER)
    for item in classes:
        reader.set_class(item)
    return reader


def give_back(inventory: Inventory, allocation: Allocation) -> None:
    """Give the devices of a decision back that was committed."""
    for entry in allocation.claims:
        inventory.release(claim_holder(entry.claim))


def policy(requirement: str) -> dict[str, Any]:
    return {"apiVersion": "gpu.dracaena.dev/v1alpha1", "kind": "TopologyPolicy", "requirement": requirement}


def request(name: str = "gpus", count: int = 1, device_class: str = DRIVER, **fields: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": device_class, "count": count, **fields}}


def claim(
    name: str, *requests: dict[str, Any], configs: Sequence[dict[str, Any]] = (), owner: Pod | None = None, **meta: Any
) -> ResourceClaim:
    devices: dict[str, Any] = {"requests": list(requests) or [request()]}
    if configs:
        devices["config"] = list(configs)
    owners = [OwnerReference(uid=owner.metadata.uid, kind="Pod", controller=True)] if owner else []
    fields = {"uid": f"uid-{name}", "resource_version": "1", **meta}
    return ResourceClaim(
        metadata=ObjectMeta(name=name, namespace="default", owner_references=owners, **fields),
        spec={"devices": devices},
    )


def own_config(parameters: dict[str, Any], *requests: str) -> dict[str, Any]:
    named = {"requests": list(requests)} if requests else {}
    return {**named, "opaque": {"driver": DRIVER, "parameters": parameters}}


def allocated(base: ResourceClaim, document: dict[str, Any], *consumers: Pod, **meta: Any) -> ResourceClaim:
    """The claim with a status.allocation document, reserved for pods."""
    reserved = [ConsumerReference("pods", pod.metadata.name, pod.metadata.uid) for pod in consumers]
    allocation = msgspec.json.decode(msgspec.json.encode(document), type=AllocationResult)
    status = ResourceClaimStatus(allocation=allocation, reserved_for=reserved)
    metadata = msgspec.structs.replace(base.metadata, **meta)
    return msgspec.structs.replace(base, metadata=metadata, status=status)


def holding(base: ResourceClaim, node_name: str, *devices: str, driver: str = DRIVER) -> ResourceClaim:
    """The claim holding devices of the pool of a node."""
    results = [{"request": "gpus", "driver": driver, "pool": node_name, "device": device} for device in devices]
    rule = {"key": "metadata.name", "operator": "In", "values": [node_name]}
    selector = {"nodeSelectorTerms": [{"matchFields": [rule]}]}
    return allocated(base, {"devices": {"results": results}, "nodeSelector": selector})


def decided(item: ResourceClaim, decision: Decision | None = None) -> ResourceClaim:
    """An allocated claim whose allocation is the controller's own."""
    allocation = item.status.allocation
    assert allocation is not None
    told = decision or Decision(node="", links="", score=(), pod_devices=1)
    entry = msgspec.convert(decision_config(told, DRIVER), AllocationConfig)
    return with_configs(item, *allocation.devices.config, entry)


def with_configs(item: ResourceClaim, *configs: AllocationConfig) -> ResourceClaim:
    """An allocated claim with these configs."""
    replace = msgspec.structs.replace
    allocation = item.status.allocation
    assert allocation is not None
    allocation = replace(allocation, devices=replace(allocation.devices, config=list(configs)))
    return replace(item, status=replace(item.status, allocation=allocation))


def blockers(node_name: str, made: Machine, *ordinals: int) -> Sequence[ResourceClaim]:
    return [holding(claim(f"blocker-{o}"), node_name, device_name(made, o)) for o in ordinals]


def pod(name: str = "pod", *claims: str, templates: Sequence[str] = (), **spec: Any) -> Pod:
    entries = [{"name": f"c{place}", "resourceClaimName": key} for place, key in enumerate(claims)]
    entries += [{"name": key, "resourceClaimTemplateName": key} for key in templates]
    document = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1"},
        "spec": {"resourceClaims": entries, **spec},
        "status": {"phase": "Pending"},
    }
    return msgspec.convert(document, Pod)
