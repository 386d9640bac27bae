"""Gangs from pods and claims: one pod gets what it would get alone, and what is no gang for us is said."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from bench.machines import recorded
from dracaena.api.device_id import DeviceId
from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import Allocator, NoFit
from dracaena.controller.allocation.effort import at_most, never
from dracaena.controller.allocation.gang.domains import Domains
from dracaena.controller.allocation.gang.gang_allocator import (
    MOST_MEMBERS,
    GangAllocation,
    GangAllocator,
    GangRules,
)
from dracaena.controller.allocation.gang.question import GangRefusal, Rails
from dracaena.controller.allocation.request import RefusalKind, Refused
from dracaena.controller.allocation.result import Allocation, commit
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.simulation import make_inventory
from support import mig_tables
from support.allocation import (
    DRIVER,
    blocks,
    claim,
    device_class,
    give_back,
    machine,
    node,
    pod,
    pool_slice,
    request,
)
from support.clusters import CLASSES, put_into_cliques, random_claims, random_cluster, random_pod
from support.inventories import filled
from support.mig_nodes import mig_classes, mig_slices
from support.random_gangs import rails_by_ordinal
from support.seeds import sampled

NO_DOMAINS = Domains((), {})


def hgx(count: int, *, cliques: int = 0) -> Inventory:
    """Nodes n0, n1, … of 8 GPUs behind NVSwitches; `cliques`: nodes of one clique, 0: none is in one."""
    inventory = Inventory(DRIVER)
    inventory.set_class(device_class())
    made = recorded("hgx-h100").machine
    for place in range(count):
        gpus = tuple(
            replace(
                gpu,
                uuid=f"GPU-{place:08x}-0000-4000-8000-{gpu.index:012x}",
                fabric_clique=f"c.{place // cliques}" if cliques else None,
            )
            for gpu in made.gpus
        )
        inventory.set_node(node(f"n{place}", labels={"kubernetes.io/hostname": f"n{place}"}))
        inventory.change_slice(None, pool_slice(f"n{place}", replace(made, gpus=gpus)))
    return inventory


def clique_of(inventory: Inventory, name: str) -> str | None:
    location = inventory.locations.location(name)
    return None if location is None else location[-1]


def racks(inventory: Inventory, size: int, racks_of_block: int = 2) -> Domains:
    paths = {}
    for name in inventory.nodes.names:
        rack = int(name[1:]) // size
        block = f"b{rack // racks_of_block}"
        paths[name] = (block, f"{block}/r{rack}", clique_of(inventory, name))
    return Domains(("block", "rack"), paths)


def members(count: int, gpus: int, name: str = "p", **spec: Any) -> list[tuple[Pod, list[ResourceClaim]]]:
    return [(pod(f"{name}{place}", **spec), [claim(f"{name}{place}", request(count=gpus))]) for place in range(count)]


def priced(inventory: Inventory) -> GangAllocator:
    allocator = Allocator()
    allocator.reprice(inventory, (16, 16, 16))
    return GangAllocator(allocator)


def planned(found: object) -> GangAllocation:
    assert isinstance(found, GangAllocation), found
    return found


@pytest.mark.parametrize("seed", sampled(range(20_000), 150, 2_000))
def test_a_gang_of_one_pod_gets_what_the_pod_gets_alone(seed: int) -> None:
    rng = random.Random(seed)
    cluster = random_cluster(rng)
    if rng.random() < 0.4:
        put_into_cliques(rng, cluster)
    inventory = filled(Inventory(DRIVER), nodes=cluster.nodes, slices=cluster.slices.values(), classes=CLASSES)
    inventory.hold("x", cluster.held)
    one, claims = random_pod(rng), random_claims(rng, cluster)
    alone, gangs = Allocator(), Allocator()
    prices = rng.randrange(20), rng.randrange(20), rng.randrange(20)
    if rng.random() < 0.8:
        for each in (alone, gangs):
            each.reprice(inventory, prices)
    single = alone.allocate(inventory, one, claims)
    paths = {name: (rng.choice(["r0", "r1", None]), clique_of(inventory, name)) for name in inventory.nodes.names}
    found = GangAllocator(gangs).allocate(inventory, [(one, claims)], Domains(("rack",), paths))
    if isinstance(found, Refused) and found.kind is RefusalKind.UNSUPPORTED:
        return  # it asks for more than whole GPUs, or has some already
    if not isinstance(single, Allocation):
        assert not isinstance(found, GangAllocation)
        return
    (got,) = planned(found).allocations
    assert (got.node, got.claims, got.choice) == (single.node, single.claims, single.choice)


def test_a_gang_goes_into_the_smallest_domain_that_holds_it() -> None:
    inventory = hgx(8)
    domains, gangs = racks(inventory, 2), priced(inventory)
    assert planned(gangs.allocate(inventory, members(2, 4), domains)).plan.height == 0
    assert planned(gangs.allocate(inventory, members(2, 8), domains)).plan.domain == "b0/r0"
    four = planned(gangs.allocate(inventory, members(4, 8), domains))
    assert (domains.names[four.plan.height], four.plan.domain, four.plan.holding) == ("block", "b0", 2)
    assert [one.node for one in four.allocations] == ["n0", "n1", "n2", "n3"]
    assert domains.names[planned(gangs.allocate(inventory, members(8, 8), domains)).plan.height] == "cluster"


def test_the_fewest_cliques_come_before_the_fewest_racks() -> None:
    inventory = hgx(8, cliques=2)
    cliques = {name: clique_of(inventory, name) for name in inventory.nodes.names}
    # Two racks with three nodes each would do, and would be three cliques.
    rack = {"n0": "r0", "n1": "r1", "n2": "r1", "n3": "r1", "n4": "r2", "n5": "r2", "n6": "r2", "n7": "r3"}
    domains = Domains(("rack",), {name: (rack[name], cliques[name]) for name in rack})
    found = planned(priced(inventory).allocate(inventory, members(4, 8), domains))
    assert found.plan.parts == (2, 2)
    assert len({cliques[one.node] for one in found.allocations}) == 2


def test_members_that_ask_for_different_things_are_one_decision() -> None:
    inventory = hgx(4)
    gang = [*members(1, 1, "leader"), *members(3, 8, "worker")]
    found = planned(priced(inventory).allocate(inventory, gang, racks(inventory, 4)))
    assert len({one.node for one in found.allocations}) == 4
    assert [one.choice.mask.bit_count() for one in found.allocations] == [1, 8, 8, 8]
    assert isinstance(
        priced(inventory).allocate(inventory, [*gang, *members(1, 8, "more")], racks(inventory, 4)), GangRefusal
    )


def test_a_part_of_a_gang_is_never_placed_and_each_level_says_how_close_it_comes() -> None:
    inventory = hgx(4)
    found = priced(inventory).allocate(inventory, members(5, 8), racks(inventory, 2))
    assert isinstance(found, GangRefusal)
    assert [(level.name, level.domains, level.holding, level.room_pods) for level in found.levels] == [
        ("node", 4, 0, 1),
        ("rack", 2, 0, 2),
        ("block", 1, 0, 4),
        ("cluster", 1, 0, 4),
    ]
    assert str(found).startswith("4 pods of 5 would fit in the cluster; block: 0 of 1 have room for all")


def test_a_refusal_counts_the_domains_that_are_full_and_says_nothing_of_levels_within_one_without_room() -> None:
    inventory = hgx(4)
    for name in ("n0", "n1"):
        found = priced(inventory).allocate(inventory, members(1, 8, name), racks(inventory, 2), fixed=(name,))
        commit(inventory, planned(found).allocations[0])
    refused = priced(inventory).allocate(inventory, members(3, 8), racks(inventory, 2))
    assert str(refused) == (
        "2 pods of 3 would fit in the cluster; block: 0 of 1 have room for all, the best for 2; "
        "rack: 0 of 2 have room for all, the best for 2; node: 0 of 4 have room for all, the best for 1"
    )
    too_large = priced(inventory).allocate(inventory, members(2, 9), racks(inventory, 2))
    assert str(too_large) == "the cluster has room for none of its 2 pods"
    in_a_rack = priced(inventory).allocate(inventory, members(2, 9), racks(inventory, 2), GangRules(required=1))
    assert str(in_a_rack) == "each rack has room for none of its 2 pods"


def test_a_required_level_is_not_left() -> None:
    inventory = hgx(4)
    rules = GangRules(required=1)
    found = priced(inventory).allocate(inventory, members(3, 8), racks(inventory, 2), rules)
    assert isinstance(found, GangRefusal)
    assert str(found).startswith("2 pods of 3 would fit in the best rack (b0/r0)")


def test_cpu_and_anti_affinity_limit_how_many_a_node_takes() -> None:
    inventory = hgx(4)
    term = {"labelSelector": {"matchLabels": {"job": "a"}}, "topologyKey": "kubernetes.io/hostname"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    gang = members(4, 2, affinity=apart)
    labelled = [
        (msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, labels={"job": "a"})), claims)
        for one, claims in gang
    ]
    found = planned(priced(inventory).allocate(inventory, labelled, racks(inventory, 4)))
    assert len({one.node for one in found.allocations}) == 4


def test_members_that_run_in_different_domains_of_the_required_level_are_said_to_be_in_none() -> None:
    inventory = hgx(4)
    domains = racks(inventory, 2)
    apart = priced(inventory).allocate(inventory, members(2, 8), domains, GangRules(required=1), fixed=("n0", "n3"))
    assert str(apart) == "the members that run already are in no domain of the required level"


def test_members_that_stay_decide_the_domain() -> None:
    inventory = hgx(8)
    domains, gangs = racks(inventory, 2), priced(inventory)
    found = planned(gangs.allocate(inventory, members(1, 8), domains, fixed=("n5",)))
    assert found.plan.domain == "n5"
    commit(inventory, found.allocations[0])
    found = planned(gangs.allocate(inventory, members(1, 8, "q"), domains, fixed=("n5",)))
    assert (found.plan.domain, found.allocations[0].node) == ("b1/r2", "n4")


def test_required_rails_are_the_same_on_every_node() -> None:
    inventory = hgx(2)
    pools = [inventory.pool(name) for name in inventory.nodes.names]
    for pool, ordinals in zip(pools, ((0, 1, 2), (5, 6, 7)), strict=True):
        assert pool is not None
        held = {DeviceId(DRIVER, pool.pool, str(pool.devices[ordinal])) for ordinal in ordinals}
        inventory.hold(f"x/{pool.node}", frozenset(held))
    rules = GangRules(rails=Rails.REQUIRED, rails_of=rails_by_ordinal)
    gangs = priced(inventory)
    found = planned(gangs.allocate(inventory, members(2, 2), NO_DOMAINS, rules))
    assert found.plan.rails == (3, 4)
    assert [(one.node, one.choice.mask) for one in found.allocations] == [("n0", 0b11000), ("n1", 0b11000)]
    refused = gangs.allocate(inventory, members(2, 3), NO_DOMAINS, rules)
    assert isinstance(refused, GangRefusal)


def test_preferred_rails_cost_no_bandwidth() -> None:
    inventory = hgx(2)
    rules = GangRules(rails=Rails.PREFERRED, rails_of=rails_by_ordinal)
    for name, ordinals in (("n0", (0, 1, 2)), ("n1", (5, 6, 7))):
        pool = inventory.pool(name)
        assert pool is not None
        held = {DeviceId(DRIVER, pool.pool, str(pool.devices[ordinal])) for ordinal in ordinals}
        inventory.hold(f"x/{name}", frozenset(held))
    found = planned(priced(inventory).allocate(inventory, members(2, 4), NO_DOMAINS, rules))
    assert found.plan.rails is None
    found = planned(priced(inventory).allocate(inventory, members(4, 2), NO_DOMAINS, rules))
    assert {one.choice.score.bandwidth_gb_s for one in found.allocations} == {450}


def test_two_pods_that_take_anything_share_a_gpu_that_is_whole_or_in_parts() -> None:
    # kubernetes/kubernetes#138765: pod by pod the first takes the whole, and nothing is left for the second.
    product = next(one for one in vars(mig_tables).values() if isinstance(one, mig_tables.Product))
    one_gpu = machine("one", blocks(1, inside="PIX", outside="PIX"))
    inventory = make_inventory(
        DRIVER,
        nodes=[node("n1")],
        slices=mig_slices("n1", one_gpu, [product]),
        classes=[*mig_classes(), device_class("any")],
    )
    gang = [(pod(name), [claim(name, request(device_class="any"))]) for name in ("a", "b")]
    alone = Allocator()
    first = alone.allocate(inventory, *gang[0])
    assert isinstance(first, Allocation)
    commit(inventory, first)
    assert isinstance(alone.allocate(inventory, *gang[1]), NoFit)
    give_back(inventory, first)
    found = planned(GangAllocator(Allocator()).allocate(inventory, gang, NO_DOMAINS))
    devices = [one.claims[0].results[0].device for one in found.allocations]
    assert len(set(devices)) == 2
    for one in found.allocations:
        commit(inventory, one)
    inventory.check()


def test_what_is_no_gang_of_whole_gpus_is_said() -> None:
    inventory = hgx(2)
    gang = [(pod(f"p{n}"), [claim(f"p{n}", request(allocationMode="All", count=0))]) for n in range(3)]
    found = priced(inventory).allocate(inventory, gang, NO_DOMAINS)
    assert isinstance(found, Refused)
    assert "only pods that ask for whole GPUs are decided together" in found.text


def test_a_gang_beyond_all_measure_is_refused_unread() -> None:
    one = members(1, 1)[0]
    found = priced(hgx(1)).allocate(hgx(1), [one] * (MOST_MEMBERS + 1), NO_DOMAINS)
    assert isinstance(found, Refused)
    assert found.kind is RefusalKind.LIMIT


def test_a_decision_that_takes_too_long_is_refused_or_as_good_as_it_got() -> None:
    inventory = hgx(8)
    found = priced(inventory).allocate(inventory, members(60, 1), racks(inventory, 2), is_over=lambda _steps: True)
    assert isinstance(found, Refused)
    assert found.kind is RefusalKind.TOO_LONG


def test_many_kinds_of_pods_are_refused_or_end_in_time() -> None:
    inventory = hgx(8)
    sizes = (1, 2, 3, 4, 5, 6, 7, 8)
    found = priced(inventory).allocate(
        inventory,
        [one for size in sizes for one in members(1, size, f"s{size}-")],
        NO_DOMAINS,
        is_over=at_most(200_000, never),
    )
    assert isinstance(found, GangAllocation)
    ninth = [(one, [claim("ninth", request(count=1), request("b", 1))]) for one, _ in members(1, 1, "ninth")]
    gang = [one for size in sizes for one in members(1, size, f"s{size}-")] + ninth
    refused = priced(inventory).allocate(inventory, gang, NO_DOMAINS)
    assert isinstance(refused, Refused)
    assert refused.text == "its pods are of 9 kinds: at most 8 are placed at once"


def test_a_plan_that_is_found_when_time_is_up_is_taken() -> None:
    inventory = hgx(8)
    gang = [*members(8, 1, "a"), *members(8, 2, "b"), *members(4, 4, "c")]
    cut = set()
    for steps in range(2_000, 60_000, 2_000):
        found = priced(inventory).allocate(inventory, gang, racks(inventory, 4), is_over=at_most(steps, never))
        cut.add(found.plan.cut_off if isinstance(found, GangAllocation) else None)
        if isinstance(found, GangAllocation):
            assert len(found.allocations) == len(gang)
        else:
            assert isinstance(found, Refused)
            assert found.kind is RefusalKind.TOO_LONG
    assert None in cut
    assert False in cut


def test_nothing_changes_before_somebody_commits() -> None:
    inventory = hgx(4)
    before = {name: inventory.state(name) for name in inventory.nodes.names}
    priced(inventory).allocate(inventory, members(3, 8), racks(inventory, 2))
    assert before == {name: inventory.state(name) for name in inventory.nodes.names}
    inventory.check()
