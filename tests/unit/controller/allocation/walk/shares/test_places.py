"""Shares and whole GPUs side by side, through the allocator: what is given, and what is said where nothing is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dracaena.api.machine import Machine
from dracaena.api.resource_objects import DeviceResult, ResourceClaim
from dracaena.controller.allocation.allocator import Allocator, NoFit
from dracaena.controller.allocation.explanation import Unsatisfied
from dracaena.controller.allocation.reach import Prospect, Reach
from dracaena.controller.allocation.result import Allocation, allocated_claim, commit
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodeState, claim_holder
from dracaena.controller.simulation import make_inventory
from support.allocation import (
    DRIVER,
    blocks,
    claim,
    device_class,
    device_name,
    machine,
    node,
    own_config,
    pod,
    policy,
    pool_slice,
    request,
)
from support.clusters import BRIDGED, SMALL, SOCKETS, SWITCHED
from support.shares import holding_share, in_shares, share, sharing

NOW = "2026-11-26T00:00:00Z"


def cluster(*claims: ResourceClaim, **made: Machine) -> Inventory:
    """Nodes of these names, each with the machine of its name, all GPUs given in shares of 80 GiB."""
    return make_inventory(
        DRIVER,
        nodes=[node(name) for name in made],
        slices=[in_shares(pool_slice(name, one)) for name, one in made.items()],
        claims=claims,
        classes=[device_class()],
    )


def given(inventory: Inventory, *claims: ResourceClaim, allocator: Allocator | None = None) -> Allocation:
    """Decide for a pod with these claims, and let them hold what they get."""
    user = pod("pod", *(one.metadata.name for one in claims))
    found = (allocator or Allocator()).allocate(inventory, user, claims)
    assert isinstance(found, Allocation), found
    commit(inventory, found)
    inventory.check()
    return found


def refused(inventory: Inventory, *claims: ResourceClaim) -> str:
    user = pod("pod", *(one.metadata.name for one in claims))
    allocator = Allocator()
    assert isinstance(allocator.allocate(inventory, user, claims), NoFit)
    why = allocator.explain(inventory, user, claims)
    assert isinstance(why, Unsatisfied)
    return str(why)


def results(found: Allocation) -> Sequence[DeviceResult]:
    return [result for entry in found.claims for result in entry.results]


def ordinals(found: Allocation) -> list[int]:
    names = found.pool.devices
    return [names.index(result.device) for result in results(found)]


def test_shares_fill_one_gpu_before_they_break_another() -> None:
    inventory = cluster(a=SWITCHED, b=SWITCHED)
    for number, memory in enumerate(("30Gi", "30Gi", "20Gi")):
        found = given(inventory, claim(f"c{number}", share("gpu", memory)))
        assert (found.node, ordinals(found)) == ("a", [0])
    assert given(inventory, claim("next", share("gpu", "1Mi"))).pool.node == "a"
    assert {inventory.state(name).free.bit_count() for name in "ab"} == {6, 8}  # type: ignore[union-attr]


def test_the_gpu_that_a_share_fills_best_comes_first_on_whichever_node() -> None:
    roomy = holding_share("roomy", "a", device_name(SWITCHED, 0), {"memory": "10Gi", "cores": "0"})
    tight = holding_share("tight", "b", device_name(SMALL, 1), {"memory": "55Gi", "cores": "0"})
    inventory = cluster(roomy, tight, a=SWITCHED, b=SMALL)
    found = given(inventory, claim("c", share("gpu", "20Gi")))
    assert (found.node, ordinals(found)) == ("b", [1])
    found = given(inventory, claim("d", share("gpu", "20Gi")))
    assert (found.node, ordinals(found)) == ("a", [0])


def test_ceilings_of_one_gpu_sum_to_all_of_its_cores_at_most() -> None:
    inventory = cluster(a=SMALL)
    assert ordinals(given(inventory, claim("c", share("gpu", "10Gi", 60)))) == [0]
    assert ordinals(given(inventory, claim("d", share("gpu", "10Gi", 60)))) == [1]
    assert ordinals(given(inventory, claim("e", share("gpu", "10Gi", 40)))) == [0]
    assert ordinals(given(inventory, claim("f", share("gpu", "10Gi")))) == [0], "who names no cores gets idle ones"


def test_all_that_a_share_takes_is_said_in_full() -> None:
    (result,) = results(given(cluster(a=SMALL), claim("c", share("gpu", "10000000"))))
    assert result.consumed_capacity == {"cores": "0", "memory": "10Mi"}
    assert result.share_id


def test_a_claim_without_amounts_gets_whole_gpus_and_takes_all_of_them() -> None:
    inventory = cluster(a=SMALL)
    found = given(inventory, claim("c", request(count=2)))
    assert [result.consumed_capacity for result in results(found)] == [{"cores": "0", "memory": "80Gi"}] * 2
    assert len({result.share_id for result in results(found)}) == 2
    assert "0/1 nodes fit: 1 without 1 GiB of memory left on one GPU (a)" in refused(
        inventory, claim("d", share("gpu", "1Gi"))
    )


def test_cores_without_memory_take_the_whole_gpu() -> None:
    (result,) = results(given(cluster(a=SMALL), claim("c", share("gpu", None, 30))))
    assert result.consumed_capacity == {"cores": "30", "memory": "80Gi"}


def test_shares_and_whole_gpus_of_one_pod_are_decided_at_once() -> None:
    inventory = cluster(a=BRIDGED)
    found = given(inventory, claim("c", share("small", "10Gi"), request("large", 2)))
    small = results(found)[0].device
    assert small not in {result.device for result in results(found)[1:]}
    assert "NV12" in found.links
    found = given(inventory, claim("d", request("large", 2)), claim("e", share("small", "10Gi")))
    assert results(found)[-1].device == small


def test_whole_sets_leave_a_place_to_the_shares_of_their_pod() -> None:
    """All four GPUs of one socket would be linked best, and the share would find no place."""
    inventory = cluster(a=SOCKETS)
    found = given(inventory, claim("c", request("large", 3), share("small", "10Gi")))
    assert sorted(ordinals(found)) == [0, 1, 2, 3]
    assert "0/1 nodes fit" in refused(cluster(a=SOCKETS), claim("c", request("large", 4), share("small", "10Gi")))


def test_two_shares_of_one_request_are_of_two_gpus_and_of_two_requests_may_be_of_one() -> None:
    assert ordinals(given(cluster(a=SMALL), claim("c", share("gpu", "10Gi", count=2)))) == [0, 1]
    assert ordinals(given(cluster(a=SMALL), claim("c", share("one", "10Gi"), share("two", "10Gi")))) == [0, 0]
    apart = claim("c", share("one", "10Gi"), share("two", "10Gi"))
    apart.spec["devices"]["constraints"] = [{"distinctAttribute": f"{DRIVER}/uuid"}]
    assert ordinals(given(cluster(a=SMALL), apart)) == [0, 1]
    together = claim("c", share("one", "50Gi"), share("two", "50Gi"))
    together.spec["devices"]["constraints"] = [{"matchAttribute": f"{DRIVER}/uuid"}]
    assert "0/1 nodes fit" in refused(cluster(a=SMALL), together)


def test_a_claim_that_two_pods_name_is_allocated_once() -> None:
    inventory = cluster(a=SMALL)
    shared = claim("shared", share("gpu", "10Gi"))
    found = given(inventory, shared)
    written = allocated_claim(found, found.claims[0], NOW)
    own = claim("own", share("gpu", "10Gi"))
    second = Allocator().allocate(inventory, pod("second", "shared", "own"), [written, own])
    assert isinstance(second, Allocation)
    assert [entry.claim.metadata.name for entry in second.claims] == ["own"]
    assert second.node == found.node


def test_a_share_that_goes_makes_room_and_the_last_one_makes_the_gpu_whole_again() -> None:
    inventory = cluster(a=SMALL)
    claims = [claim(f"c{number}", share("gpu", "40Gi")) for number in range(4)]
    for one in claims:
        given(inventory, one)
    waiting = claim("w", share("gpu", "40Gi"))
    assert "no memory of any GPU is left" in refused(inventory, waiting)
    inventory.release(claim_holder(claims[0]))
    assert Reach(inventory, pod("p", "w"), [waiting]).prospect("a", {}) is Prospect.POSSIBLE
    inventory.release(claim_holder(claims[1]))
    state = inventory.state("a")
    assert isinstance(state, NodeState)
    assert state.free == 0b01


@pytest.mark.parametrize("gib", [1 << 13, 1 << 17, 1 << 32])
def test_whatever_memory_slices_publish_shares_are_placed(gib: int) -> None:
    slices = [in_shares(pool_slice("a", SWITCHED), gib)]
    inventory = make_inventory(DRIVER, nodes=[node("a")], slices=slices, classes=[device_class()])
    assert len(ordinals(given(inventory, claim("c", share("gpu", "1Gi", count=5))))) == 5


class TestPolicies:
    last_eight = machine(
        "last eight",
        blocks(1, 1, 1, 1, 1, 1, 1, 1, 8, inside="NV12", outside="SYS"),
        nvlink_count=12,
        nvlink_generation=4,
    )
    last_pairs = machine(
        "last pairs", blocks(1, 1, 1, 1, 2, 2, inside="NV12", outside="SYS"), nvlink_count=12, nvlink_generation=4
    )

    def linked(self, number: int, count: int) -> ResourceClaim:
        asked = (share(f"r{place}", "30Gi", count=count) for place in range(number))
        return claim("c", *asked, configs=[own_config(policy("NVLink"))])

    @pytest.mark.parametrize("number", [1, 2, 3, 4])
    def test_few_linked_gpus_among_many_are_found(self, number: int) -> None:
        found = ordinals(given(cluster(a=self.last_eight), self.linked(number, 4)))
        assert len(found) == 4 * number
        assert min(found) == 8
        found = ordinals(given(cluster(a=self.last_pairs), self.linked(number, 2)))
        assert len(found) == 2 * number
        assert min(found) == 4

    def test_more_than_the_linked_gpus_have_is_refused_without_doubt(self) -> None:
        told = refused(cluster(a=self.last_eight), self.linked(5, 4))
        assert told == "0/1 nodes fit: 1 without room for everything that the pod requests at once (a)"


def test_requests_that_have_to_agree_find_the_group_with_room() -> None:
    """Six GPUs of two NUMA nodes are in use: the fullest are spread over both, and most ways to begin never agree."""
    made = machine("two nodes", blocks(8, 8, inside="PIX", outside="SYS", numa=True), pcie_generation=4)
    held = [
        holding_share(f"h{place}", "a", device_name(made, place), {"memory": f"{60 - place}Gi", "cores": "0"})
        for place in (0, 1, 2, 8, 9, 10)
    ]
    asked = claim("c", share("one", "10Gi", count=4), share("two", "10Gi", count=4))
    asked.spec["devices"]["constraints"] = [{"matchAttribute": "resource.kubernetes.io/numaNode"}]
    found = ordinals(given(cluster(*held, a=made), asked))
    assert {ordinal // 8 for ordinal in found} in ({0}, {1})
    assert {0, 1, 2} <= set(found)


class TestModes:
    def asking(self, name: str, mode: str | None) -> ResourceClaim:
        return claim(name, share("gpu", "10Gi"), configs=[own_config(sharing(mode))] if mode else [])

    def test_two_modes_never_meet_on_one_gpu(self) -> None:
        inventory = cluster(a=SMALL)
        assert ordinals(given(inventory, self.asking("m", "MPS"))) == [0]
        assert ordinals(given(inventory, self.asking("t", "TimeSlicing"))) == [1]
        assert ordinals(given(inventory, self.asking("n", "MPS"))) == [0]
        told = refused(inventory, self.asking("o", None))
        assert "1 whose GPUs with 10 GiB of memory left are shared in another mode (MPS, TimeSlicing) (a)" in told

    def test_what_a_class_says_of_sharing_holds_where_the_claim_says_nothing(self) -> None:
        inventory = cluster(a=SMALL)
        inventory.set_class(device_class("mps", sharing("MPS")))
        given(inventory, claim("c", share("gpu", "10Gi", device_class="mps")))
        assert ordinals(given(inventory, self.asking("m", "MPS"))) == [0]
        other = claim("d", share("gpu", "1Gi", device_class="mps"), configs=[own_config(sharing("TimeSlicing"))])
        assert ordinals(given(inventory, other)) == [1]

    def test_nobody_joins_a_gpu_on_which_two_modes_have_met(self) -> None:
        held = [
            holding_share(mode, "a", device_name(SMALL, 0), {"memory": "1Gi", "cores": "0"}, mode=mode)
            for mode in ("MPS", "TimeSlicing")
        ]
        assert ordinals(given(cluster(*held, a=SMALL), self.asking("m", "MPS"))) == [1]

    def test_two_modes_of_one_pod_go_to_two_gpus(self) -> None:
        pair = [self.asking("m", "MPS"), self.asking("t", "TimeSlicing")]
        assert ordinals(given(cluster(a=SMALL), *pair)) == [0, 1]


class TestReasons:
    def test_more_than_any_gpu_has_is_said_to_be_so(self) -> None:
        told = refused(cluster(a=SMALL, b=SWITCHED), claim("c", share("gpu", "100Gi")))
        assert told == (
            "0/2 nodes fit: 2 whose GPUs never have 100 GiB of memory (a, b); "
            "no GPU has 100 GiB of memory, the largest has 80 GiB"
        )

    def test_what_is_left_is_said_with_where(self) -> None:
        held = [
            holding_share(f"h{place}", "a", device_name(SMALL, place), {"memory": f"{gib}Gi", "cores": "0"})
            for place, gib in enumerate((68, 79))
        ]
        told = refused(cluster(*held, a=SMALL), claim("c", share("gpu", "20Gi", 30)))
        assert told == (
            "0/1 nodes fit: 1 without 20 GiB of memory and 30 % of the cores left on one GPU (a); "
            "the GPU with most memory left has 12 GiB (on a)"
        )

    def test_too_few_gpus_with_room_for_one_request_are_reported_as_such(self) -> None:
        full = holding_share("h", "a", device_name(SOCKETS, 0), {"memory": "75Gi", "cores": "0"})
        told = refused(cluster(full, a=SOCKETS), claim("c", share("gpu", "10Gi", count=4)))
        assert told == "0/1 nodes fit: 1 with fewer than 4 GPUs with 10 GiB of memory left (a)"

    def test_nodes_whose_setting_is_off_are_distinguished(self) -> None:
        only_shared = [{"cel": {"expression": "device.allowMultipleAllocations == true"}}]
        classes = [device_class(), device_class(f"share.{DRIVER}", selectors=only_shared)]
        asked = claim("c", share("gpu", "20Gi", device_class=f"share.{DRIVER}"))
        plain = pool_slice("plain", SMALL)
        without = make_inventory(DRIVER, nodes=[node("plain")], slices=[plain], classes=classes)
        assert refused(without, asked).endswith("; no GPU of the cluster is available in shares")
        full = [
            holding_share(f"h{place}", "shared", device_name(SMALL, place), {"memory": "70Gi", "cores": "0"})
            for place in range(2)
        ]
        slices = [plain, in_shares(pool_slice("shared", SMALL))]
        beside = make_inventory(
            DRIVER, nodes=[node("plain"), node("shared")], slices=slices, claims=full, classes=classes
        )
        assert refused(beside, asked) == (
            "0/2 nodes fit: 1 whose GPUs are not available in shares (plain); "
            "1 without 20 GiB of memory left on one GPU (shared); "
            "the GPU with most memory left has 10 GiB (on shared)"
        )

    def test_a_decision_says_which_share_it_is(self) -> None:
        inventory = cluster(a=SMALL)
        first = given(inventory, claim("c", share("gpu", "20Gi", 30)))
        assert first.links == "a share of 20 GiB of memory and 30 % of the cores"
        assert given(inventory, claim("d", share("gpu", "20Gi"))).links == "a share of 20 GiB of memory, next to others"
