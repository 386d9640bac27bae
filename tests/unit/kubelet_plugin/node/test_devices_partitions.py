"""GPUs in a partition of Fabric Manager's that somebody else activated are offered to nobody."""

from __future__ import annotations

from dataclasses import replace

from dracaena.api.fabric import FabricPartition, PartitionedFabric
from dracaena.api.machine import Machine
from dracaena.kubelet_plugin.node.devices import FABRIC_PARTITION, FOREIGN
from support.machines import divided_machine
from support.passthrough import passthrough_gpu, with_passthrough
from support.plugin import DRIVER
from support.published import Node


def board(*foreign: int) -> Machine:
    """Modules 1 and 2 are a GPU and one that is divided, module 3 is for virtual machines."""
    machine = with_passthrough(divided_machine(), [replace(passthrough_gpu(7), module_id=3)])
    gpus = tuple(replace(gpu, module_id=gpu.index + 1) for gpu in machine.gpus)
    partitions = (FabricPartition(0, frozenset({1, 2, 3})),)
    return replace(machine, gpus=gpus, fabric=PartitionedFabric(partitions, foreign=frozenset(foreign)))


def tainted(node: Node) -> dict[str, int]:
    found: dict[str, int] = {}
    for device in node.devices_published:
        kind = device.attributes["type"].string or ""
        taints = [(t.key, t.value, t.effect) for t in device.taints]
        found[kind] = found.get(kind, 0) + taints.count((f"{DRIVER}/{FABRIC_PARTITION}", FOREIGN, "NoSchedule"))
    return found


def test_a_gpu_that_somebody_else_linked_is_tainted_with_its_parts() -> None:
    node = Node()
    for foreign, expected in (
        ((), {"gpu": 0, "mig": 0, "vfio": 0}),
        ((1,), {"gpu": 1, "mig": 0, "vfio": 0}),
        ((2, 3), {"gpu": 0, "mig": 3, "vfio": 1}),
        ((), {"gpu": 0, "mig": 0, "vfio": 0}),
    ):
        node.devices.take(board(*foreign))
        assert tainted(node) == expected
