"""GPUs for virtual machines beside whole GPUs: each class gets its own, and both are chosen by their links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import yaml

from dracaena.api.device_id import DeviceId
from dracaena.api.links import LinkLevel
from dracaena.api.machine import Machine
from dracaena.api.resource_objects import DeviceClass, ResourceClaim
from dracaena.controller.allocation.allocator import Allocator, NoFit
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, blocks, claim, machine, node, pod, pool_slice, request
from support.passthrough import NO_GPUS, on_demand, on_demand_slices, passthrough_gpu, with_passthrough

CLASSES = Path(__file__).resolve().parents[4] / "deploy" / "deviceclasses"
VFIO = f"vfio.{DRIVER}"

HOST = machine("host", blocks(4, inside="PIX", outside="SYS"), product_name="NVIDIA H100 80GB HBM3")
BOTH = with_passthrough(HOST, [passthrough_gpu(n) for n in range(4)])


def split(made: Machine) -> Machine:
    """The same, with the GPUs for virtual machines in two pairs on two sockets."""
    count = made.topology.gpu_count
    apart = {(a, b) for a in (count - 4, count - 3) for b in (count - 2, count - 1)}
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    links = tuple(
        replace(link, level=LinkLevel.SYS) if pair in apart else link
        for pair, link in zip(pairs, made.topology.pairs, strict=True)
    )
    numa = (*made.topology.numa_nodes[:-4], 0, 0, 1, 1)
    return replace(made, topology=replace(made.topology, pairs=links, numa_nodes=numa))


def device_class(name: str, more: Mapping[str, Any] | None = None) -> DeviceClass:
    document = yaml.safe_load((CLASSES / f"{name}.yaml").read_text())
    document["spec"] |= more or {}
    return DeviceClass.from_json(msgspec.json.encode(document))


def cluster(machines: dict[str, Machine], *, held: Sequence[str] = ()) -> Inventory:
    inventory = make_inventory(
        DRIVER,
        nodes=[node(name) for name in machines],
        slices=[pool_slice(name, made) for name, made in machines.items()],
        classes=[device_class(DRIVER), device_class(VFIO)],
    )
    inventory.hold("others", frozenset(DeviceId(DRIVER, "n", name) for name in held))
    return inventory


def decide(inventory: Inventory, *claims: ResourceClaim) -> Any:
    return Allocator().allocate(inventory, pod("p"), claims)


def given(inventory: Inventory, *claims: ResourceClaim) -> list[str]:
    allocation = decide(inventory, *claims)
    assert isinstance(allocation, Allocation), allocation
    return [result.device for entry in allocation.claims for result in entry.results]


def machine_names(*numbers: int) -> list[str]:
    return [passthrough_gpu(n).device_name for n in numbers]


def test_a_class_gets_its_own_kind_and_never_the_other() -> None:
    inventory = cluster({"n": BOTH})
    assert given(inventory, claim("c", request(count=4, device_class=VFIO))) == machine_names(0, 1, 2, 3)
    whole = given(inventory, claim("c", request(count=4)))
    assert all(name.startswith("gpu-") for name in whole)
    for name in (DRIVER, VFIO):
        assert isinstance(decide(inventory, claim("c", request(count=5, device_class=name))), NoFit)


def test_both_can_be_had_in_one_claim() -> None:
    asked = claim("c", request("own", 2), request("vm", 2, VFIO))
    names = given(cluster({"n": BOTH}), asked)
    assert [name.partition("-")[0] for name in names] == ["gpu", "gpu", "vfio", "vfio"]


def test_a_node_without_the_nvidia_driver_gives_its_gpus_to_virtual_machines() -> None:
    alone = with_passthrough(NO_GPUS, [passthrough_gpu(0)])
    assert given(cluster({"n": alone}), claim("c", request(device_class=VFIO))) == machine_names(0)
    assert isinstance(decide(cluster({"n": alone}), claim("c")), NoFit)


def test_the_best_linked_ones_are_given() -> None:
    inventory = cluster({"n": split(BOTH)}, held=machine_names(0))
    assert given(inventory, claim("c", request(count=2, device_class=VFIO))) == machine_names(2, 3)
    assert given(inventory, claim("c", request(device_class=VFIO))) == machine_names(1), "the pair stays whole"


def test_no_nvlink_is_counted_where_none_is_known() -> None:
    parameters = {"apiVersion": "gpu.dracaena.dev/v1alpha1", "kind": "TopologyPolicy", "requirement": "NVLink"}
    linked = device_class(VFIO, {"config": [{"opaque": {"driver": DRIVER, "parameters": parameters}}]})
    inventory = make_inventory(DRIVER, nodes=[node("n")], slices=[pool_slice("n", BOTH)], classes=[linked])
    assert isinstance(decide(inventory, claim("c", request(count=2, device_class=VFIO))), NoFit)


def test_nodes_that_differ_in_addresses_and_groups_alone_are_equal() -> None:
    """Or each node would be searched for itself."""
    other = with_passthrough(HOST, [passthrough_gpu(n + 8, iommu_group=90 + n) for n in range(4)])
    inventory = cluster({"n": BOTH, "other": other})
    assert len(inventory.buckets) == 1


ON_DEMAND = on_demand(HOST)


def on_demand_cluster(*, held: Sequence[str] = ()) -> Inventory:
    """A node whose GPUs are published twice, each pair with one counter (kubelet_plugin.node_devices)."""
    inventory = make_inventory(
        DRIVER,
        nodes=[node("n")],
        slices=on_demand_slices("n", ON_DEMAND),
        classes=[device_class(DRIVER), device_class(VFIO)],
    )
    inventory.hold("others", frozenset(DeviceId(DRIVER, "n", name) for name in held))
    return inventory


def test_a_gpu_that_is_had_in_one_way_is_not_given_in_the_other() -> None:
    whole = [f"gpu-{gpu.uuid.removeprefix('GPU-')}" for gpu in ON_DEMAND.gpus]
    assert given(on_demand_cluster(), claim("c", request(count=4, device_class=VFIO))) == machine_names(0, 1, 2, 3)
    assert given(on_demand_cluster(), claim("c", request(count=4))) == whole
    held = on_demand_cluster(held=[whole[0], *machine_names(1)])
    assert given(held, claim("c", request(count=2, device_class=VFIO))) == machine_names(2, 3)
    assert given(held, claim("c", request(count=2))) == whole[2:]
    for name in (DRIVER, VFIO):
        assert isinstance(decide(held, claim("c", request(count=3, device_class=name))), NoFit)
    both = claim("c", request("own", 2), request("vm", 2, VFIO))
    assert len(given(on_demand_cluster(), both)) == 4
    assert isinstance(decide(on_demand_cluster(), claim("c", request("own", 3), request("vm", 2, VFIO))), NoFit)
