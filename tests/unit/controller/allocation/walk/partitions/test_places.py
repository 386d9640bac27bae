"""Parts of GPUs and whole GPUs side by side, through the allocator: what is given, and what is said of the rest."""

from __future__ import annotations

from typing import Any

import pytest

from dracaena.api.machine import Machine
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import Allocator, NoFit
from dracaena.controller.allocation.explanation import Unsatisfied
from dracaena.controller.allocation.result import Allocation, commit
from dracaena.controller.allocation.score import choices, cuts
from dracaena.controller.allocation.score.choices import Engine
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodeState, claim_holder
from dracaena.controller.allocation.walk import places
from dracaena.controller.allocation.walk.partitions import places as part_places
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, blocks, claim, device_class, holding, machine, node, pod, request
from support.clusters import SMALL, SWITCHED
from support.mig_nodes import MIG, mig_classes, mig_slices, part, part_name
from support.mig_tables import A30, A100, MigPart, Product

PAIRS = machine("pairs", blocks(2, 2, inside="NV12", outside="SYS"), nvlink_count=12, nvlink_generation=4)
ONE = machine("one", blocks(1, inside="X", outside="X"), pcie_generation=4)


def cluster(*claims: ResourceClaim, product: Product = A100, **made: Machine) -> Inventory:
    """Nodes of these names, each with the machine of its name, all GPUs cut on demand."""
    return make_inventory(
        DRIVER,
        nodes=[node(name) for name in made],
        slices=[page for name, one in made.items() for page in mig_slices(name, one, [product] * len(one.gpus))],
        claims=claims,
        classes=mig_classes(),
    )


def given(inventory: Inventory, name: str, *requests: dict[str, Any], allocator: Allocator | None = None) -> list[str]:
    """Decide for a pod with one claim, let it hold what it gets, and return node, GPU or profile, and start of each."""
    asked = claim(name, *requests)
    found = (allocator or Allocator()).allocate(inventory, pod("pod", name), [asked])
    assert isinstance(found, Allocation), found
    commit(inventory, found)
    inventory.check()
    told = []
    for result in found.claims[0].results:
        ordinals = [at for at, device in enumerate(found.pool.devices) if device and device[4:] in result.device]
        place = "" if result.device.startswith("gpu-") else result.device.removeprefix("mig-")[37:]
        told.append(f"{found.node} {ordinals[0]} {place}".rstrip())
    return told


def refused(inventory: Inventory, *requests: dict[str, Any], **constraint: str) -> str:
    asked = claim("asked", *requests)
    if constraint:
        asked.spec["devices"]["constraints"] = [constraint]
    allocator = Allocator()
    assert isinstance(allocator.allocate(inventory, pod("pod", "asked"), [asked]), NoFit)
    why = allocator.explain(inventory, pod("pod", "asked"), [asked])
    assert isinstance(why, Unsatisfied)
    return str(why)


def profile(name: str) -> list[dict[str, Any]]:
    """The selector of a profile."""
    return [{"cel": {"expression": f'device.attributes["{DRIVER}"].profile == "{name}"'}}]


def free(inventory: Inventory, name: str) -> int:
    state = inventory.state(name)
    assert isinstance(state, NodeState)
    return state.free


def test_seven_small_parts_fill_one_gpu_of_the_cluster_and_start_0_comes_last() -> None:
    inventory, allocator = cluster(a=PAIRS, b=PAIRS), Allocator()
    told = [given(inventory, f"c{n}", part("r", "1g.10gb"), allocator=allocator)[0] for n in range(8)]
    assert [one.split()[:2] for one in told] == [["a", "0"]] * 7 + [["a", "1"]]
    assert [one[-1] for one in told] == ["6", "4", "5", "0", "1", "2", "3", "6"]


def test_a_part_takes_the_whole_gpu_from_sets_and_gives_it_back() -> None:
    inventory = cluster(a=PAIRS)
    given(inventory, "c", part("r", "1g.10gb"))
    assert free(inventory, "a") == 0b1110
    assert given(inventory, "w", request("w", 2)) == ["a 2", "a 3"]
    inventory.release(claim_holder(claim("c")))
    inventory.release(claim_holder(claim("w")))
    assert free(inventory, "a") == 0b1111
    given(inventory, "all", request("w", 4))
    assert "without room on a GPU for the requested part" in refused(inventory, part("r", "1g.10gb"))


def test_the_gpu_whose_loss_hurts_the_links_least_is_broken_first() -> None:
    lone = machine("lone", blocks(2, 1, inside="NV12", outside="SYS"), nvlink_count=12, nvlink_generation=4)
    assert given(cluster(a=lone), "c", part("r", "3g.40gb")) == ["a 2 3g-40gb-4"]
    assert given(cluster(a=SWITCHED, b=ONE), "c", part("r", "3g.40gb")) == ["b 0 3g-40gb-4"]


def test_a_gpu_in_use_on_any_node_comes_before_a_fresh_one() -> None:
    used = holding(claim("used"), "b", part_name(PAIRS, 3, MigPart("1g.10gb", 6, 1, 1)))
    inventory = cluster(used, a=ONE, b=PAIRS)
    assert given(inventory, "c", part("r", "2g.20gb")) == ["b 3 2g-20gb-4"]


def test_no_damage_is_worked_out_for_gpus_that_need_not_be_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each GPU is a way of its own where parts have to be of one GPU, and most of them would break a fresh one."""
    used = holding(claim("used"), "a", part_name(PAIRS, 3, MigPart("1g.10gb", 6, 1, 1)))
    inventory = cluster(used, a=PAIRS)
    asked = claim("c", part("r", "1g.10gb"), part("s", "2g.20gb"))
    asked.spec["devices"]["constraints"] = [{"matchAttribute": f"{DRIVER}/parentUUID"}]
    monkeypatch.delattr(Engine, "damages")
    found = Allocator().allocate(inventory, pod("pod", "c"), [asked])
    assert isinstance(found, Allocation)
    assert {result.device for result in found.claims[0].results} == {
        part_name(PAIRS, 3, MigPart("1g.10gb", 0, 1, 1)),
        part_name(PAIRS, 3, MigPart("2g.20gb", 2, 2, 2)),
    }


def test_parts_and_whole_gpus_of_one_pod_lie_on_one_node_and_the_whole_ones_are_linked() -> None:
    inventory = cluster(a=PAIRS)
    told = given(inventory, "c", part("r", "4g.40gb"), request("w", 2), part("s", "3g.40gb"))
    assert told == ["a 0 4g-40gb-0", "a 2", "a 3", "a 0 3g-40gb-4"]


def test_slices_of_instances_that_are_not_ours_are_left_alone() -> None:
    foreign = {0: [MigPart("3g.40gb", 4, 4, 3)]}
    inventory = make_inventory(
        DRIVER, nodes=[node("a")], slices=mig_slices("a", ONE, [A100], foreign=foreign), classes=mig_classes()
    )
    assert free(inventory, "a") == 0
    assert given(inventory, "c", part("r", "1g.10gb")) == ["a 0 1g-10gb-0"]
    assert "without room on a GPU" in refused(inventory, part("r", "3g.40gb"))


def test_a_profile_that_no_gpu_has_is_said_with_those_that_there_are() -> None:
    told = refused(cluster(a=PAIRS, product=A30), part("r", "1g.10gb"))
    assert "no GPU can be cut into what request r selects, but into 1g.6gb, 2g.12gb, 4g.24gb" in told


def test_more_whole_gpus_than_any_node_has_are_reported_by_number() -> None:
    """Also where their GPUs can be cut; a request that parts match too may be served by so many of those."""
    inventory = cluster(a=PAIRS, b=ONE)
    told = refused(inventory, request("w", 5))
    assert told == "0/2 nodes fit: no node has 5 GPUs, the largest has 4; 2 with fewer than 5 GPUs (a, b)"
    asked = claim("asked", request("any", 9, "any"))
    anything = device_class("any", selectors=[{"cel": {"expression": f'device.driver == "{DRIVER}"'}}])
    pages = mig_slices("a", ONE, [A100])
    both = make_inventory(DRIVER, nodes=[node("a")], slices=pages, classes=[anything])
    why = Allocator().explain(both, pod("pod", "asked"), [asked])
    assert isinstance(why, Unsatisfied)
    assert "the largest has" not in str(why)


def test_a_count_that_no_layout_holds_is_said() -> None:
    told = refused(cluster(a=ONE), part("r", "3g.40gb", 3))
    assert "without room on their GPUs for the 3 requested parts" in told
    assert "no node has room for the 3 requested parts, even with all of its GPUs free" in told
    told = refused(cluster(a=PAIRS), part("r", "1g.10gb", 8), matchAttribute=f"{DRIVER}/parentUUID")
    assert "no node has room for the 8 requested parts" in told
    assert "even with" not in refused(
        cluster(holding(claim("h"), "a", part_name(ONE, 0, MigPart("1g.10gb", 0, 1, 1))), a=ONE), part("r", "7g.80gb")
    )


def test_a_request_that_names_no_profile_gets_the_largest_part_of_those_that_cost_least() -> None:
    """Beside 1g.10gb at 6 the last slice of memory is of use to nobody."""
    assert given(cluster(a=SMALL), "c", request("r", 1, MIG))[0].endswith("1g-20gb-6")


def test_nodes_that_are_cut_alike_share_one_kind_whatever_their_names() -> None:
    inventory = cluster(a=PAIRS, b=PAIRS)
    (kind,) = inventory.buckets
    assert len(kind.partitions.gpus) == 4
    assert not kind.partitions.has_more
    assert len({one.geometry for one in kind.partitions.gpus}) == 1


def test_who_names_a_gpu_gets_the_best_part_of_that_one() -> None:
    inventory = cluster(a=PAIRS, b=ONE)
    chosen = f'device.attributes["{DRIVER}"].parentUUID == "{PAIRS.gpus[2].uuid}"'
    wanted = request("r", 1, MIG, selectors=[{"cel": {"expression": chosen}}, *profile("1g.10gb")])
    assert given(inventory, "c", wanted) == ["a 2 1g-10gb-6"]


def test_a_pool_that_is_overdrawn_gives_no_parts() -> None:
    """Somebody else wrote two allocations that do not go together."""
    parts = (MigPart("4g.40gb", 0, 4, 4), MigPart("2g.20gb", 0, 2, 2))
    claims = [holding(claim(f"c{at}"), "a", part_name(PAIRS, 0, one)) for at, one in enumerate(parts)]
    assert refused(cluster(*claims, a=PAIRS), part("r", "1g.10gb"))


EIGHT = machine("eight", blocks(8, inside="NV12", outside="NV12"), nvlink_count=12, nvlink_generation=4)
EIGHT_PAIRS = machine(
    "eight-pairs", blocks(*[2] * 8, inside="NV12", outside="SYS"), nvlink_count=12, nvlink_generation=4
)
SIXTEEN = machine("sixteen", blocks(16, inside="NV12", outside="NV12"), nvlink_count=12, nvlink_generation=4)


def steps(inventory: Inventory, *requests: dict[str, Any], allocator: Allocator | None = None) -> int:
    """What a decision is charged."""
    asking = allocator or Allocator()
    asked = claim("asked", *requests)
    found = asking.allocate(inventory, pod("pod", "asked"), [asked])
    assert isinstance(found, Allocation), found
    return sum(asking.effort.spent.values())


@pytest.mark.parametrize("count", [7, 8, 14])
def test_requests_for_one_part_each_cost_little_more_than_one_request_for_as_many(count: int) -> None:
    inventory = cluster(a=EIGHT)
    one_by_one = steps(inventory, *(part(f"r{number}", "1g.10gb") for number in range(count)))
    assert one_by_one < steps(inventory, part("r", "1g.10gb", count)) + 500 * count


def test_requests_for_one_part_each_get_what_one_request_for_as_many_gets() -> None:
    one_by_one = given(cluster(a=EIGHT), "c", *(part(f"r{number}", "1g.10gb") for number in range(9)))
    assert sorted(one_by_one) == sorted(given(cluster(a=EIGHT), "c", part("r", "1g.10gb", 9)))
    # In the order of the requests: GPU by GPU, on each the lower places first.
    assert one_by_one == sorted(one_by_one)


def test_sets_of_fresh_gpus_that_are_alike_are_scored_and_cut_once() -> None:
    """Breaking any 4 of these 16 does the same damage; each of the 1,820 sets took some thousand steps."""
    assert steps(cluster(a=SIXTEEN), part("r", "7g.80gb", 4)) < 10_000


def test_parts_of_many_whole_gpus_next_to_many_others_are_decided_in_their_time() -> None:
    """Beside each of 70 sets of 4 the damage of 495 sets of 4 others was worked out: 1.4 million steps."""
    assert steps(cluster(a=SIXTEEN), request("w", 4), part("r", "7g.80gb", 4)) < 100_000


def test_sets_of_fresh_gpus_are_charged_as_they_are_scored_and_the_next_try_goes_on() -> None:
    inventory, allocator = cluster(a=EIGHT_PAIRS), Allocator()
    asked, tries, most = claim("asked", part("r", "7g.80gb", 4)), 0, 5_000
    while not isinstance(found := _within(allocator, inventory, asked, most), Allocation):
        tries += 1
        assert tries < 6, found
    # Of each pair none, one or both: 266 sets. Each is worth its steps, and none is scored twice.
    assert tries == 266 * choices.DAMAGE_STEPS // most


def _within(allocator: Allocator, inventory: Inventory, asked: ResourceClaim, most: int) -> object:
    """Try for so many steps."""
    spent = 0

    def is_over(steps: int) -> bool:
        nonlocal spent
        spent += steps
        return spent >= most

    return allocator.allocate(inventory, pod("pod", "asked"), [asked], is_over=is_over)


def test_equal_gpus_of_which_a_request_may_have_only_some_are_not_alike() -> None:
    """Of the two pairs that are broken with least damage only the second serves the pod."""
    is_one_of = " || ".join(f'device.attributes["{DRIVER}"].parentUUID == "{PAIRS.gpus[at].uuid}"' for at in (2, 3))
    named = request("r", 1, MIG, selectors=[{"cel": {"expression": is_one_of}}, *profile("7g.80gb")])
    told = given(cluster(a=PAIRS), "c", named, part("s", "7g.80gb"))
    assert {one.split()[1] for one in told} == {"2", "3"}


def test_what_was_worked_out_for_a_node_in_the_same_state_is_not_worked_out_again() -> None:
    allocator, requests = Allocator(), [part("r", "7g.80gb", 4), part("s", "1g.10gb")]
    first = steps(cluster(a=SIXTEEN), *requests, allocator=allocator)
    assert steps(cluster(b=SIXTEEN), *requests, allocator=allocator) < first / 10


def test_nothing_is_called_impossible_where_ways_were_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [part("r", "1g.10gb", 3), part("s", "2g.20gb"), part("t", "1g.20gb")]
    impossible = [part("r", "3g.40gb", 5), part("s", "2g.20gb", 3)]
    assert "no node has room for the 8 requested parts" in refused(cluster(a=SMALL), *impossible)
    monkeypatch.setattr(cuts, "MAX_CUTS", 2)
    assert len(given(cluster(a=SMALL), "c", *requests)) == 5
    assert "room" not in refused(cluster(a=SMALL), *impossible)


def test_a_node_is_asked_where_sets_of_whole_gpus_were_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best pair holds the one GPU that can be cut; the sets behind it were not tried."""
    made = machine("three", blocks(1, 2, inside="NV12", outside="SYS"), nvlink_count=12, nvlink_generation=4)

    def inventory() -> Inventory:
        slices = mig_slices("a", made, [None, None, A100])
        return make_inventory(DRIVER, nodes=[node("a")], slices=slices, classes=mig_classes())

    expected = given(inventory(), "c", part("r", "7g.80gb"), request("w", 2))
    monkeypatch.setattr(places, "MAX_SETS", 1)
    assert given(inventory(), "c", part("r", "7g.80gb"), request("w", 2)) == expected


def test_tables_of_many_geometries_are_forgotten_and_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices that are made up may have any number; what is chosen does not depend on what is remembered."""
    monkeypatch.setattr(part_places, "MOST_TABLES", 1)
    allocator = Allocator()
    for _ in range(2):
        inventory = make_inventory(
            DRIVER,
            nodes=[node("a"), node("b")],
            slices=[*mig_slices("a", ONE, [A100]), *mig_slices("b", ONE, [A30])],
            classes=mig_classes(),
        )
        assert given(inventory, "x", part("p", "1g.10gb"), allocator=allocator) == ["a 0 1g-10gb-6"]
        assert given(inventory, "y", part("p", "1g.6gb"), allocator=allocator) == ["b 0 1g-6gb-0"]
