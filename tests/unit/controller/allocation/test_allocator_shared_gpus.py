"""Whole GPUs of nodes whose GPUs are given in shares too: chosen as on other nodes, and written as shares of all."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from dracaena.api.machine import Machine
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import Allocator, NoFit
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.result import Allocation, commit, decision_of
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodeState
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, claim, device_class, device_name, holding, node, pod, pool_slice, request
from support.clusters import MACHINES, SMALL, SWITCHED
from support.shares import holding_share, in_shares, share


def cluster(*claims: ResourceClaim, **made: Machine) -> Inventory:
    """Nodes of these names, each with the machine of its name, all GPUs given in shares of 80 GiB."""
    return make_inventory(
        DRIVER,
        nodes=[node(name) for name in made],
        slices=[in_shares(pool_slice(name, one)) for name, one in made.items()],
        claims=claims,
        classes=[device_class()],
    )


def test_a_claim_without_amounts_takes_all_of_its_gpus() -> None:
    inventory = cluster(a=SMALL)
    found = Allocator().allocate(inventory, pod("pod", "c"), [claim("c", request(count=2))])
    assert isinstance(found, Allocation)
    results = found.claims[0].results
    assert [result.consumed_capacity for result in results] == [{"cores": "0", "memory": "80Gi"}] * 2
    assert len({result.share_id for result in results} - {None}) == 2


def test_memory_beyond_whole_mib_is_nobodys() -> None:
    """It is published as it is, and given out in whole ones: who has these has the GPU."""
    item = in_shares(pool_slice("a", SMALL), more_bytes=1000)
    inventory = make_inventory(DRIVER, nodes=[node("a")], slices=[item], classes=[device_class()])
    found = Allocator().allocate(inventory, pod("pod", "c"), [claim("c", request(count=2))])
    assert isinstance(found, Allocation)
    assert [one.consumed_capacity["memory"] for one in found.claims[0].results] == ["80Gi", "80Gi"]
    commit(inventory, found)
    state = inventory.state("a")
    assert isinstance(state, NodeState)
    assert (state.free, state.shares) == (0, ())


def test_nobody_joins_a_gpu_that_somebody_has_whole_beside_a_share() -> None:
    """A decision that is only noted rests as whole GPUs: the note has no amounts."""
    whole = holding(claim("w"), "a", device_name(SMALL, 0))
    part = holding_share("h", "a", device_name(SMALL, 0), {"memory": "10Gi", "cores": "0"})
    for held in ((whole, part), (part, whole)):
        inventory = cluster(*held, a=SMALL)
        found = Allocator().allocate(inventory, pod("pod", "c"), [claim("c", share("s", "1Gi"))])
        assert isinstance(found, Allocation)
        assert [one.device for one in found.claims[0].results] == [device_name(SMALL, 1)]
        two = claim("c", share("s", "1Gi", count=2))
        assert isinstance(Allocator().allocate(inventory, pod("pod", "c"), [two]), NoFit)


def by_uuid(place: int) -> list[dict[str, object]]:
    uuid = SMALL.gpus[place].uuid
    return [{"cel": {"expression": f'device.attributes["{DRIVER}"].uuid == "{uuid}"'}}]


@pytest.mark.parametrize("first_fit", [False, True])
def test_a_share_joins_the_gpu_that_it_names(first_fit: bool) -> None:
    part = holding_share("h", "a", device_name(SMALL, 0), {"memory": "10Gi", "cores": "0"})
    allocator = Allocator(first_fit=first_fit)
    for place in range(2):
        named = claim("c", share("s", "70Gi", selectors=by_uuid(place)))
        found = allocator.allocate(cluster(part, a=SMALL), pod("pod", "c"), [named])
        assert isinstance(found, Allocation)
        assert [one.device for one in found.claims[0].results] == [device_name(SMALL, place)]
    too_much = claim("c", share("s", "71Gi", selectors=by_uuid(0)))
    assert isinstance(allocator.allocate(cluster(part, a=SMALL), pod("pod", "c"), [too_much]), NoFit)
    whole = claim("c", request("w", 1, selectors=by_uuid(0)))
    assert isinstance(allocator.allocate(cluster(part, a=SMALL), pod("pod", "c"), [whole]), NoFit)


def test_without_the_feature_gpus_are_given_whole() -> None:
    allocator = Allocator()
    allocator.serve(replace(Features(), consumable_capacity=False))
    found = allocator.allocate(cluster(a=SMALL), pod("pod", "c"), [claim("c")])
    assert isinstance(found, Allocation)
    (result,) = found.claims[0].results
    assert (result.share_id, result.consumed_capacity) == (None, {})


@pytest.mark.parametrize("seed", range(40))
def test_whole_gpus_are_chosen_as_on_nodes_that_give_no_shares(seed: int) -> None:
    """Shares only take GPUs away; what is left is linked as before, and so is the choice."""
    rng = random.Random(f"whole beside shares {seed}")
    machines = {f"node-{number}": rng.choice(MACHINES) for number in range(rng.randint(1, 5))}
    plain, shared = [], []
    for name, made in machines.items():
        for ordinal in range(len(made.gpus)):
            if rng.random() < 0.4:
                device = device_name(made, ordinal)
                plain.append(holding(claim(f"{name}-{ordinal}"), name, device))
                memory = rng.choice(["80Gi", "20Gi", "1Mi"])
                shared.append(holding_share(f"{name}-{ordinal}", name, device, {"memory": memory, "cores": "5"}))
    without = make_inventory(
        DRIVER,
        nodes=[node(name) for name in machines],
        slices=[pool_slice(name, made) for name, made in machines.items()],
        claims=plain,
        classes=[device_class()],
    )
    beside = cluster(*shared, **machines)
    beside.check()
    for counts in ([1], [2], [3], [4], [8], [2, 2], [1, 3]):
        asked = claim("c", *(request(f"r{place}", count) for place, count in enumerate(counts)))
        one, other = (Allocator().allocate(each, pod("pod", "c"), [asked]) for each in (without, beside))
        if isinstance(one, NoFit):
            assert one == other
            told = [str(Allocator().explain(each, pod("pod", "c"), [asked])) for each in (without, beside)]
            assert told[0] == told[1]
        else:
            assert isinstance(one, Allocation)
            assert isinstance(other, Allocation)
            assert (one.node, one.choice) == (other.node, other.choice)
            assert decision_of(one, one.claims[0]).score == decision_of(other, other.claims[0]).score


def test_nodes_that_differ_in_their_shares_alone_are_one_to_who_wants_whole_gpus() -> None:
    held = [
        holding_share(name, name, device_name(SWITCHED, 0), {"memory": f"{gib}Gi", "cores": "0"})
        for gib, name in enumerate(("a", "b", "c", "d"), start=1)
    ]
    inventory = cluster(*held, a=SWITCHED, b=SWITCHED, c=SWITCHED, d=SWITCHED)
    (by_state,) = inventory.buckets.values()
    (by_free,) = inventory.buckets_by_free_gpus.values()
    assert len(by_state) == 4
    assert list(by_free.values()) == [["a", "b", "c", "d"]]
