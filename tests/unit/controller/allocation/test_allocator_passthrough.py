"""GPUs for virtual machines beside whole GPUs: each class gets its own, and both are chosen by their links."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from dracaena.api.device_id import DeviceId
from dracaena.api.fabric import HGX_FABRIC
from dracaena.api.links import Link, LinkLevel
from dracaena.api.machine import Machine
from dracaena.api.names import gpu_device_name
from dracaena.api.resource_objects import DeviceClass, ResourceClaim
from dracaena.controller.allocation.allocator import Allocator, NoFit
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, blocks, claim, machine, node, pod, pool_slice, request
from support.passthrough import NO_GPUS, on_demand, on_demand_slices, passthrough_gpu, with_passthrough
from support.seeds import sampled
from support.slow_choice import SlowBox

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


# GPUs that are had in either way are chosen by their links, as all others.

PAIRS = machine(
    "pairs", blocks(2, 2, 2, inside="PIX", outside="SYS", numa=True), product_name=HOST.gpus[0].product_name
)
"""Three pairs on three sockets."""


def in_pairs() -> Machine:
    """Each GPU twice; those for virtual machines are linked as those of the host."""
    made = on_demand(PAIRS)
    links = tuple(
        PAIRS.topology.link(a % 6, b % 6) if a % 6 != b % 6 else NO_LINK for a, b in combinations(range(12), 2)
    )
    numa = PAIRS.topology.numa_nodes * 2
    return replace(made, topology=replace(made.topology, pairs=links, numa_nodes=numa))


NO_LINK = Link(LinkLevel.SYS, 0)
IN_PAIRS = in_pairs()


def pairs_cluster(held: Sequence[tuple[int, str]]) -> Inventory:
    """`held`: GPUs that somebody has, and by which class."""
    inventory = make_inventory(
        DRIVER,
        nodes=[node("n")],
        slices=on_demand_slices("n", IN_PAIRS),
        classes=[device_class(DRIVER), device_class(VFIO)],
    )
    inventory.hold("others", frozenset(DeviceId(DRIVER, "n", name_as(gpu, how)) for gpu, how in held))
    inventory.check()
    return inventory


def name_as(gpu: int, how: str) -> str:
    return gpu_device_name(IN_PAIRS.gpus[gpu].uuid) if how == DRIVER else IN_PAIRS.passthrough[gpu].device_name


@pytest.mark.parametrize("how", [DRIVER, VFIO])
def test_a_gpu_that_may_be_had_in_two_ways_is_chosen_by_its_links(how: str) -> None:
    found = decide(pairs_cluster([(0, VFIO), (3, DRIVER)]), claim("c", request(count=2, device_class=how)))
    assert isinstance(found, Allocation)
    assert [result.device for result in found.claims[0].results] == [name_as(4, how), name_as(5, how)]
    assert found.links == "1 pair PIX"
    assert found.choice.score.free_gpus == 4, "each GPU counts once"


@pytest.mark.parametrize("seed", sampled(range(60), 4, 20))
def test_no_gpu_is_given_twice_and_the_set_is_the_best_of_all(seed: int) -> None:
    chance = random.Random(seed)
    slow = SlowBox(PAIRS.topology, dict(enumerate(PAIRS.gpus)))
    for _ in range(4):
        busy = chance.sample(range(6), chance.randrange(5))
        free = frozenset(range(6)) - set(busy)
        how, count = chance.choice([DRIVER, VFIO]), chance.randrange(1, 5)
        inventory = pairs_cluster([(gpu, chance.choice([DRIVER, VFIO])) for gpu in busy])
        found = decide(inventory, claim("c", request(count=count, device_class=how)))
        if count > len(free):
            assert isinstance(found, NoFit)
            continue
        assert isinstance(found, Allocation)
        expected = slow.best_first(free, [(count, free)])[0][1]
        assert {result.device for result in found.claims[0].results} == {name_as(gpu, how) for gpu in expected}


@pytest.mark.parametrize("seed", sampled(range(60), 4, 20))
def test_requests_of_both_kinds_never_have_one_gpu(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(4):
        busy = chance.sample(range(6), chance.randrange(4))
        own, guest = chance.randrange(1, 4), chance.randrange(1, 4)
        inventory = pairs_cluster([(gpu, chance.choice([DRIVER, VFIO])) for gpu in busy])
        found = decide(inventory, claim("c", request("own", own), request("vm", guest, VFIO)))
        if own + guest > 6 - len(busy):
            assert isinstance(found, NoFit)
            continue
        assert isinstance(found, Allocation)
        given = [result.device for result in found.claims[0].results]
        gpus = [gpu for gpu in range(6) for how in (DRIVER, VFIO) if name_as(gpu, how) in given]
        assert len(set(gpus)) == len(gpus) == own + guest
        assert not set(gpus) & set(busy)


def test_devices_that_leave_something_of_a_counter_are_not_taken_for_one_gpu() -> None:
    pages = on_demand_slices("n", IN_PAIRS)
    inventory = make_inventory(DRIVER, nodes=[node("n")], slices=pages, classes=[device_class(DRIVER)])
    pool = inventory.pool("n")
    assert pool is not None
    assert (len(pool.kind.twins), pool.others) == (6, ())
    replace_in = msgspec.structs.replace
    for each in pages[1].spec.shared_counters:
        each.counters["whole"] = replace_in(each.counters["whole"], value="2")
    inventory = make_inventory(DRIVER, nodes=[node("n")], slices=pages, classes=[device_class(DRIVER)])
    pool = inventory.pool("n")
    assert pool is not None
    assert (pool.kind.twins, len(pool.others)) == ((), 12)


@pytest.mark.parametrize("how", [DRIVER, VFIO])
def test_a_gpu_that_may_be_had_in_two_ways_comes_in_whole_partitions(how: str) -> None:
    board = on_demand(machine("board", blocks(8, inside="NV18", outside="NV18"), nvlink_count=18))
    board = replace(
        board,
        gpus=tuple(replace(gpu, module_id=place) for place, gpu in enumerate(board.gpus, start=1)),
        passthrough=tuple(replace(gpu, module_id=place) for place, gpu in enumerate(board.passthrough, start=1)),
        fabric=HGX_FABRIC,
    )
    inventory = make_inventory(
        DRIVER,
        nodes=[node("n")],
        slices=on_demand_slices("n", board),
        classes=[device_class(DRIVER), device_class(VFIO)],
    )
    inventory.hold("others", frozenset({DeviceId(DRIVER, "n", board.passthrough[0].device_name)}))
    found = decide(inventory, claim("c", request(count=2, device_class=how)))
    assert isinstance(found, Allocation)
    names = [gpu_device_name(gpu.uuid) for gpu in board.gpus] if how == DRIVER else []
    names = names or [gpu.device_name for gpu in board.passthrough]
    assert [result.device for result in found.claims[0].results] == [names[1], names[3]]
    assert found.links == "1 pair NV18, a whole partition"
