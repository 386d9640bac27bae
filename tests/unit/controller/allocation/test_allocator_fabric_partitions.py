"""Whole decisions on a node where Fabric Manager links whole partitions alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest

from dracaena.api.device_id import DeviceId
from dracaena.api.fabric import FabricPartition, PartitionedFabric
from dracaena.api.machine import Machine
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import Allocator, NoFit
from dracaena.controller.allocation.explanation import Unsatisfied
from dracaena.controller.allocation.result import Allocation, decision_of
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.simulation import make_inventory
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from support.allocation import DRIVER, claim, device_class, device_name, holding, node, pod, policy, pool_slice, request
from support.fake_fabric_manager import HGX_H100
from support.seeds import sampled
from support.slow_fabric_partitions import SlowClaim, SlowPartitionedBox

PLAIN = read_machine("hgx-h100")
FABRIC = PartitionedFabric(tuple(FabricPartition(number, frozenset(HGX_H100[number])) for number in sorted(HGX_H100)))
SHARED = replace(
    PLAIN,
    gpus=tuple(replace(gpu, module_id=place + 1) for place, gpu in enumerate(PLAIN.gpus)),
    fabric=FABRIC,
)
"""Its pairs are GPU0 and GPU2, GPU1 and GPU3, and so on; its quads GPU0-3 and GPU4-7."""
PARTITIONS = frozenset(frozenset(module - 1 for module in modules) for modules in HGX_H100.values())


def cluster(free: Sequence[int], *others: tuple[str, Machine]) -> Inventory:
    """One node with these GPUs free, and others that are empty."""
    machines = {"shared": SHARED, **dict(others)}
    classes = [device_class(), device_class("NVLink", policy("NVLink"))]
    inventory = make_inventory(
        DRIVER,
        nodes=[node(name) for name in machines],
        slices=[pool_slice(name, made) for name, made in machines.items()],
        classes=classes,
    )
    taken = (DeviceId(DRIVER, "shared", device_name(SHARED, gpu)) for gpu in range(8) if gpu not in free)
    inventory.hold("others", frozenset(taken))
    return inventory


def decide(inventory: Inventory, *claims: ResourceClaim) -> Allocation:
    found = Allocator().allocate(inventory, pod("p"), claims)
    assert isinstance(found, Allocation), found
    return found


def gpus_of(allocation: Allocation, place: int = 0) -> tuple[int, ...]:
    names = (result.device for result in allocation.claims[place].results)
    return tuple(sorted(map(allocation.pool.devices.index, names)))


def matching(size: int, *requests: dict[str, object], name: str = "c") -> ResourceClaim:
    made = claim(name, *requests)
    made.spec["devices"]["constraints"] = [{"matchAttribute": f"{DRIVER}/partition{size}"}]
    return made


def test_a_claim_gets_a_whole_partition_and_learns_so() -> None:
    found = decide(cluster([1, 2, 3, 4, 6]), claim("c", request(count=2)))
    assert gpus_of(found) == (1, 3)
    decision = decision_of(found, found.claims[0])
    assert decision.links == "1 pair NV18, a whole partition"
    assert dict(decision.score)["bandwidth_gb_s"] == 450


def test_what_is_no_partition_is_reported_to_have_no_nvlink() -> None:
    found = decide(cluster([0, 1, 4, 5]), claim("c", request(count=2)))
    decision = decision_of(found, found.claims[0])
    assert "NV" not in decision.links
    assert decision.links.endswith("no whole partition")
    assert found.worst_link != "NVLink"


def test_two_requests_of_a_claim_get_one_partition_together() -> None:
    found = decide(cluster([0, 1, 2, 4, 5, 6, 7]), claim("c", request("a", 2), request("b", 2)))
    assert gpus_of(found) == (4, 5, 6, 7)
    assert found.links == "6 pairs NV18, a whole partition"


def test_two_claims_get_a_partition_each() -> None:
    found = decide(cluster([0, 2, 3, 5, 7]), claim("a", request(count=2)), claim("b", request(count=2)))
    assert (gpus_of(found, 0), gpus_of(found, 1)) == ((0, 2), (5, 7))
    assert found.links.startswith("2 pairs NV18, ")
    assert found.links.endswith(", 2 whole partitions")


def test_all_devices_of_a_node_are_its_largest_partition() -> None:
    everything = claim("c", {"name": "all", "exactly": {"deviceClassName": DRIVER, "allocationMode": "All"}})
    assert decide(cluster(range(8)), everything).links == "28 pairs NV18, a whole partition"


def test_a_second_claim_of_a_pod_gets_its_own_partition_next_to_the_first() -> None:
    first = holding(claim("a"), "shared", *(device_name(SHARED, gpu) for gpu in (0, 2)))
    inventory = cluster([1, 3, 4, 5])
    found = decide(inventory, first, claim("b", request(count=2)))
    assert gpus_of(found) == (1, 3)


def test_nvlink_is_required_of_the_set_of_the_claim() -> None:
    wanted = request(count=2, device_class="NVLink")
    assert gpus_of(decide(cluster([0, 1, 4, 6]), claim("c", wanted))) == (4, 6)
    found = Allocator().allocate(cluster([0, 1, 4, 5]), pod("p"), [claim("c", wanted)])
    assert isinstance(found, NoFit)
    told = Allocator().explain(cluster([0, 1, 4, 5]), pod("p"), [claim("c", wanted)])
    assert isinstance(told, Unsatisfied)
    assert "whose free GPUs do not meet requirement NVLink" in str(told)


def test_among_nodes_links_that_are_there_count() -> None:
    """Three GPUs are linked on the machine without partitions alone; two are on both, and the fuller one has them."""
    nodes = ("whole", PLAIN)
    assert decide(cluster([0, 1, 2], nodes), claim("c", request(count=3))).node == "whole"
    assert decide(cluster([0, 1, 2], nodes), claim("c", request(count=2))).node == "shared"


def test_a_constraint_of_the_user_gives_what_is_chosen_without() -> None:
    chance = random.Random(7)
    for _ in range(8):
        free = chance.sample(range(8), chance.randrange(2, 9))
        whole = [gpus for gpus in PARTITIONS if gpus <= set(free)]
        for size in {len(gpus) for gpus in whole} - {1}:
            plain = decide(cluster(free), claim("c", request(count=size)))
            asked = decide(cluster(free), matching(size, request(count=size)))
            assert frozenset(gpus_of(plain)) in PARTITIONS
            assert (gpus_of(asked), asked.choice.score) == (gpus_of(plain), plain.choice.score)


def but(gpu: int) -> list[dict[str, object]]:
    """A selector that reads an identity: such claims are asked of the rules on every node."""
    uuid = SHARED.gpus[gpu].uuid
    return [{"cel": {"expression": f"device.attributes['{DRIVER}'].uuid != '{uuid}'"}}]


def test_where_the_rules_are_asked_partitions_count_too() -> None:
    allocation = decide(cluster([0, 1, 2, 3, 4, 6]), claim("c", request(count=2, selectors=but(4))))
    assert gpus_of(allocation) == (0, 2)
    assert allocation.links == "1 pair NV18, a whole partition"
    nvlink = request(count=2, device_class="NVLink", selectors=but(0))
    assert gpus_of(decide(cluster([0, 1, 2, 3, 5]), claim("c", nvlink))) == (1, 3)
    assert isinstance(Allocator().allocate(cluster([0, 1, 2, 5]), pod("p"), [claim("c", nvlink)]), NoFit)


def test_where_the_rules_are_asked_each_claim_gets_its_partition() -> None:
    claims = [claim(name, request(count=2, selectors=but(1))) for name in "ab"]
    found = decide(cluster([0, 1, 2, 3, 4, 5, 7]), *claims)
    assert {gpus_of(found, 0), gpus_of(found, 1)} == {(0, 2), (5, 7)}
    assert found.links.endswith("2 whole partitions")
    assert found.choice.score.bandwidth_gb_s == 450


def test_what_a_claim_takes_in_any_case_is_part_of_its_set() -> None:
    """Mode All for one GPU, and one more: together they may be a pair."""
    one = [{"cel": {"expression": f"device.attributes['{DRIVER}'].uuid == '{SHARED.gpus[5].uuid}'"}}]
    every = {"name": "all", "exactly": {"deviceClassName": DRIVER, "allocationMode": "All", "selectors": one}}
    found = decide(cluster(range(8)), claim("c", every, request("more")))
    assert gpus_of(found) == (5, 7)
    assert found.links == "1 pair NV18, a whole partition"
    assert found.choice.score.bandwidth_gb_s == 450


def slow() -> SlowPartitionedBox:
    return SlowPartitionedBox(PLAIN.topology, dict(enumerate(PLAIN.gpus)), partitions=PARTITIONS)


def assert_best(free: Sequence[int], *counts: Sequence[int]) -> None:
    """The first of all sets, of one claim for each of `counts`, which are those of its requests."""
    claims = [
        claim(f"c{place}", *(request(f"r{number}", count) for number, count in enumerate(of_claim)))
        for place, of_claim in enumerate(counts)
    ]
    wanted = [SlowClaim([(count, frozenset(free)) for count in of_claim]) for of_claim in counts]
    expected = BOX.choices(frozenset(free), wanted)[0]
    found = decide(cluster(free), *claims)
    gpus = [frozenset(gpus_of(found, place)) for place in range(len(counts))]
    assert frozenset().union(*gpus) == expected.chosen, (free, counts)
    assert sorted(len(each) for each in gpus if each in PARTITIONS) == sorted(
        len(each) for each in expected.sets if each in PARTITIONS
    )


BOX = slow()


@pytest.mark.parametrize("seed", sampled(range(12), 1, 6))
def test_the_best_of_all_sets_is_allocated(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(12):
        free = chance.sample(range(8), chance.randrange(3, 9))
        ways = [((chance.randrange(1, 5),),), ((1, 2),), ((2, 2),), ((1,), (2,)), ((2,), (2,))]
        counts = chance.choice([way for way in ways if sum(map(sum, way)) <= len(free)])
        assert_best(free, *counts)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", range(1, 9))
def test_in_every_state_of_the_board_the_best_of_all_sets_is_allocated(count: int) -> None:
    for size in range(count, 9):
        for free in combinations(range(8), size):
            assert_best(free, (count,))
