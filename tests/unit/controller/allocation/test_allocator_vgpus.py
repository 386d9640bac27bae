"""vGPUs beside whole GPUs: each class gets its own, and constraints join them by their GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import yaml

from dracaena.api.machine import Machine
from dracaena.api.resource_objects import DeviceClass, ResourceClaim
from dracaena.controller.allocation.allocator import Allocator, NoFit
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, blocks, claim, machine, node, pod, pool_slice, request
from support.passthrough import NO_GPUS
from support.vgpus import mediated, with_vgpus

CLASSES = Path(__file__).resolve().parents[4] / "deploy" / "deviceclasses"
VGPU = f"vgpu.{DRIVER}"
OTHER = "0000:40:00.0"
HOST = machine("host", blocks(2, inside="PIX", outside="SYS"))
BOTH = with_vgpus(HOST, mediated(0), mediated(1, parent=OTHER), mediated(2, parent=OTHER))


def device_class(name: str) -> DeviceClass:
    return DeviceClass.from_json(msgspec.json.encode(yaml.safe_load((CLASSES / f"{name}.yaml").read_text())))


def cluster(machines: dict[str, Machine]) -> Inventory:
    return make_inventory(
        DRIVER,
        nodes=[node(name) for name in machines],
        slices=[pool_slice(name, made) for name, made in machines.items()],
        classes=[device_class(DRIVER), device_class(VGPU)],
    )


def decide(inventory: Inventory, *claims: ResourceClaim) -> Any:
    return Allocator().allocate(inventory, pod("p"), claims)


def given(inventory: Inventory, *claims: ResourceClaim) -> list[str]:
    allocation = decide(inventory, *claims)
    assert isinstance(allocation, Allocation), allocation
    return sorted(result.device for entry in allocation.claims for result in entry.results)


def test_a_class_gets_its_own_kind_and_never_the_other() -> None:
    inventory = cluster({"n": BOTH})
    every = sorted(mediated(n).device_name for n in range(3))
    assert given(inventory, claim("c", request(count=3, device_class=VGPU))) == every
    assert all(name.startswith("gpu-") for name in given(inventory, claim("c", request(count=2))))
    assert isinstance(decide(inventory, claim("c", request(count=3))), NoFit)
    assert isinstance(decide(inventory, claim("c", request(count=4, device_class=VGPU))), NoFit)


def test_a_node_with_nothing_but_vgpus_gives_them() -> None:
    inventory = cluster({"n": with_vgpus(NO_GPUS, mediated(0))})
    assert given(inventory, claim("c", request(device_class=VGPU))) == [mediated(0).device_name]


def test_two_of_one_gpu_can_be_asked_for() -> None:
    together = [{"matchAttribute": f"{DRIVER}/parentPCIBusID"}]
    asked = claim("c", request(count=2, device_class=VGPU))
    spec = {"devices": {**asked.spec["devices"], "constraints": together}}
    asked = msgspec.structs.replace(asked, spec=spec)
    assert given(cluster({"n": BOTH}), asked) == [mediated(1).device_name, mediated(2).device_name]


def test_nodes_that_differ_in_identities_alone_are_equal() -> None:
    """Or each node would be searched for itself."""
    other = with_vgpus(HOST, *(mediated(n + 5, parent=f"0000:7{min(n, 1)}:00.0", iommu_group=n) for n in range(3)))
    assert len(cluster({"n": BOTH, "other": other}).buckets) == 1
