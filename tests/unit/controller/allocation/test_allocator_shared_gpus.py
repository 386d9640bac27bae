"""Whole GPUs of nodes whose GPUs are given in shares too: chosen as on other nodes, and written as shares of all."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Final

import pytest

from dracaena.api.machine import Machine
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import Allocator, NoFit
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.result import Allocation, commit, decision_of
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodeState
from dracaena.controller.simulation import make_inventory
from support.allocation import (
    DRIVER,
    claim,
    device_class,
    device_name,
    holding,
    node,
    own_config,
    pod,
    pool_slice,
    request,
)
from support.clusters import MACHINES, SMALL, SWITCHED
from support.seeds import sampled
from support.shares import holding_share, in_shares, share, sharing


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


def test_nobody_joins_a_gpu_that_somebody_has_whole_next_to_a_share() -> None:
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


def every(name: str, memory: str, **fields: object) -> dict[str, object]:
    """A request for a share of each GPU of a node."""
    wanted = {"capacity": {"requests": {"memory": memory}}, "allocationMode": "All", **fields}
    return {"name": name, "exactly": {"deviceClassName": DRIVER, **wanted}}


class TestModesWithoutAChoice:
    """Where no set is chosen by its links the rules give the first devices that fit: of one mode there, too."""

    MPS: Final = own_config(sharing("MPS"))
    SLICES: Final = own_config(sharing("TimeSlicing"))

    def ask(self, inventory: Inventory, *claims: ResourceClaim, first_fit: bool = False) -> list[str] | NoFit:
        names = [one.metadata.name for one in claims]
        found = Allocator(first_fit=first_fit).allocate(inventory, pod("pod", *names), claims)
        if isinstance(found, NoFit):
            return found
        assert isinstance(found, Allocation), found
        return [result.device for entry in found.claims for result in entry.results]

    def in_mps(self, place: int = 0) -> ResourceClaim:
        return holding_share("h", "a", device_name(SMALL, place), {"memory": "10Gi", "cores": "0"}, mode="MPS")

    def test_shares_of_all_gpus_are_refused_where_one_is_shared_in_another_mode(self) -> None:
        both = [device_name(SMALL, place) for place in range(2)]
        for configs in ([], [self.SLICES]):
            asked = claim("c", every("g", "1Gi"), configs=configs)
            assert self.ask(cluster(a=SMALL), asked) == both
            assert isinstance(self.ask(cluster(self.in_mps(), a=SMALL), asked), NoFit)
            told = Allocator().explain(cluster(self.in_mps(), a=SMALL), pod("pod", "c"), [asked])
            assert "claim default/c, request g: 1 shared in another mode" in str(told)
        same = claim("c", every("g", "1Gi"), configs=[self.MPS])
        assert self.ask(cluster(self.in_mps(), a=SMALL), same) == both

    def test_a_node_without_the_other_mode_serves_shares_of_all_gpus(self) -> None:
        found = self.ask(cluster(self.in_mps(), a=SMALL, b=SMALL), claim("c", every("g", "1Gi")))
        assert isinstance(found, list)
        assert len(found) == 2

    def test_two_modes_of_one_claim_never_meet(self) -> None:
        mine = own_config(sharing("MPS"), "s")
        for requests in ([share("s", "1Gi"), every("g", "1Gi")], [every("g", "1Gi"), share("s", "1Gi")]):
            assert isinstance(self.ask(cluster(a=SMALL), claim("c", *requests, configs=[mine])), NoFit)
            assert isinstance(self.ask(cluster(a=SMALL), claim("c", *requests, configs=[self.MPS])), list)

    def test_first_fit_takes_the_first_gpu_of_the_same_mode(self) -> None:
        zero, one = (device_name(SMALL, place) for place in range(2))
        asked = {mode["opaque"]["parameters"]["sharing"]["strategy"]: mode for mode in (self.MPS, self.SLICES)}
        for mode, expected in (("MPS", zero), ("TimeSlicing", one)):
            item = claim("c", share("s", "1Gi"), configs=[asked[mode]])
            assert self.ask(cluster(self.in_mps(), a=SMALL), item, first_fit=True) == [expected]

    def test_first_fit_keeps_two_modes_of_one_pod_apart(self) -> None:
        zero, one = (device_name(SMALL, place) for place in range(2))
        pair = [claim(f"c{n}", share("s", "1Gi"), configs=[mode]) for n, mode in enumerate((self.MPS, self.SLICES))]
        assert self.ask(cluster(a=SMALL), *pair, first_fit=True) == [zero, one]
        third = claim("d", share("s", "1Gi"))
        assert isinstance(self.ask(cluster(a=SMALL), *pair, third, first_fit=True), NoFit)
        alike = [*pair, claim("d", share("s", "1Gi"), configs=[self.MPS])]
        assert self.ask(cluster(a=SMALL), *alike, first_fit=True) == [zero, one, zero]


def test_a_mode_that_was_tried_without_success_leaves_nothing_behind() -> None:
    anywhere = claim("c0", share("s", "1Gi"), configs=[own_config(sharing("MPS"))])
    named = claim("c1", share("s", "1Gi", selectors=by_uuid(0)), configs=[own_config(sharing("TimeSlicing"))])
    found = Allocator(first_fit=True).allocate(cluster(a=SMALL), pod("pod", "c0", "c1"), [anywhere, named])
    assert isinstance(found, Allocation), found
    assert [entry.results[0].device for entry in found.claims] == [device_name(SMALL, place) for place in (1, 0)]


def first_by_hand(
    in_use: dict[int, tuple[int, str]], wanted: list[tuple[int, int, str]]
) -> tuple[tuple[int, ...], ...] | None:
    """The first sets of GPUs, request by request, where memory suffices and all shares of a GPU have one mode."""
    sets = [itertools.combinations(range(len(SWITCHED.gpus)), count) for _, count, _ in wanted]
    for parts in itertools.product(*sets):
        users = [(place, gib, mode) for part, (gib, _, mode) in zip(parts, wanted, strict=True) for place in part]
        users += [(place, gib, mode) for place, (gib, mode) in in_use.items()]
        gpus = {place for place, _, _ in users}
        if all(
            sum(gib for place, gib, _ in users if place == gpu) <= 80
            and len({mode for place, _, mode in users if place == gpu}) == 1
            for gpu in gpus
        ):
            return parts
    return None


@pytest.mark.parametrize("seed", sampled(range(400), 10, 80))
def test_first_fit_is_the_first_of_all_ways_that_mix_no_modes(seed: int) -> None:
    rng = random.Random(seed)
    modes = ["MPS", "TimeSlicing"]
    count = len(SWITCHED.gpus)
    in_use = {place: (rng.choice([10, 50, 70, 79]), rng.choice(modes)) for place in range(count) if rng.random() < 0.9}
    wanted = [(rng.choice([5, 20, 40]), rng.choice([1, 1, 2]), rng.choice(modes)) for _ in range(rng.randint(1, 3))]
    held = [
        holding_share(f"h{place}", "a", device_name(SWITCHED, place), {"memory": f"{gib}Gi", "cores": "0"}, mode=mode)
        for place, (gib, mode) in in_use.items()
    ]
    claims = [
        claim(f"c{n}", share("s", f"{gib}Gi", count=count), configs=[own_config(sharing(mode))])
        for n, (gib, count, mode) in enumerate(wanted)
    ]
    user = pod("pod", *(one.metadata.name for one in claims))
    found = Allocator(first_fit=True).allocate(cluster(*held, a=SWITCHED), user, claims)
    expected = first_by_hand(in_use, wanted)
    if expected is None:
        assert isinstance(found, NoFit)
        return
    assert isinstance(found, Allocation), found
    names = [device_name(SWITCHED, place) for place in range(count)]
    given = tuple(tuple(names.index(result.device) for result in entry.results) for entry in found.claims)
    assert given == expected


def test_an_amount_below_zero_makes_no_room() -> None:
    odd = holding_share("odd", "a", device_name(SMALL, 0), {"memory": "-500Gi", "cores": "-500"})
    three = claim("c", *(share(name, "79Gi") for name in "stu"))
    assert isinstance(Allocator().allocate(cluster(odd, a=SMALL), pod("pod", "c"), [three]), NoFit)


def test_without_the_feature_gpus_are_given_whole() -> None:
    allocator = Allocator()
    allocator.serve(replace(Features(), consumable_capacity=False))
    found = allocator.allocate(cluster(a=SMALL), pod("pod", "c"), [claim("c")])
    assert isinstance(found, Allocation)
    (result,) = found.claims[0].results
    assert (result.share_id, result.consumed_capacity) == (None, {})


@pytest.mark.parametrize("seed", sampled(range(400), 10, 80))
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
    (by_free,) = inventory.node_buckets.by_free_gpus.values()
    assert len(by_state) == 4
    assert list(by_free.values()) == [["a", "b", "c", "d"]]


@pytest.mark.parametrize("wrong", ["selector", "amount"])
def test_a_share_whose_claim_reads_what_no_gpu_has_learns_the_name(wrong: str) -> None:
    amounts = {"memory": "10Gi"} if wrong == "selector" else {f"{DRIVER}/memory": "10Gi"}
    expression = 'device.attributes["gpu.nvidia.com"].productName == "A100"'
    selectors = [{"cel": {"expression": expression}}] if wrong == "selector" else []
    asked = claim("c", request(count=1, selectors=selectors, capacity={"requests": amounts}))
    told = str(Allocator().explain(cluster(a=SMALL), pod("pod", "c"), [asked]))
    name = "attribute gpu.nvidia.com/productName" if wrong == "selector" else f"capacity {DRIVER}/memory: did you mean"
    assert f"; no GPU has the {name}" in told
