from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.device_id import DeviceId
from dracaena.api.machine import Machine
from dracaena.api.objects import Node, Pod, Taint
from dracaena.api.resource_objects import AllocationResult, ResourceClaim, ResourceSlice
from dracaena.api.topology import Topology
from dracaena.controller.allocation.allocator import Allocator, NoFit, Settled
from dracaena.controller.allocation.explanation import Unsatisfied
from dracaena.controller.allocation.request import Refused
from dracaena.controller.allocation.result import Allocation, allocation_document, decision_of
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.simulation import make_inventory
from support.allocation import (
    DRIVER,
    blocks,
    claim,
    device_class,
    device_name,
    holding,
    machine,
    matrix,
    node,
    pod,
    policy,
    pool_slice,
    request,
)
from support.machines import topologies

CLASSES = [device_class(), *(device_class(name, policy(name)) for name in ("NVLink", "PIX", "PXB", "PHB", "NODE"))]

SEVEN = machine("seven", blocks(3, 4, inside="PIX", outside="PHB"), pcie_generation=4, pcie_width=16)
VOLTA = machine(
    "volta",
    matrix("""
    X   NV1 NV1 NV2 NV2 SYS SYS SYS
    NV1 X   NV2 NV1 SYS NV2 SYS SYS
    NV1 NV2 X   NV2 SYS SYS NV1 SYS
    NV2 NV1 NV2 X   SYS SYS SYS NV1
    NV2 SYS SYS SYS X   NV1 NV1 NV2
    SYS NV2 SYS SYS NV1 X   NV2 NV1
    SYS SYS NV1 SYS NV1 NV2 X   NV2
    SYS SYS SYS NV1 NV2 NV1 NV2 X
    """),
    nvlink_count=6,
    nvlink_generation=2,
    pcie_generation=3,
)
# Bridges join GPUs of different sockets; the sockets have 3 and 5 GPUs.
BRIDGED = machine(
    "bridged",
    matrix(
        """
        X    NODE NODE NV12 SYS  SYS  SYS  SYS
        NODE X    NODE SYS  NV12 SYS  SYS  SYS
        NODE NODE X    SYS  SYS  NV12 SYS  SYS
        NV12 SYS  SYS  X    NODE NODE NODE NODE
        SYS  NV12 SYS  NODE X    NODE NODE NODE
        SYS  SYS  NV12 NODE NODE X    NODE NODE
        SYS  SYS  SYS  NODE NODE NODE X    NV12
        SYS  SYS  SYS  NODE NODE NODE NV12 X
        """,
        numa=[0, 0, 0, 1, 1, 1, 1, 1],
    ),
    nvlink_count=12,
    nvlink_generation=4,
    pcie_generation=5,
)
ALL_SYS = machine(
    "all-sys", blocks(8, inside="SYS", outside="SYS"), pcie_generation=4
)  # fmt: skip
SWITCHED = machine("switched", blocks(8, inside="NV18", outside="NV18"), nvlink_count=18, nvlink_generation=4)


def with_numa(made: Machine, numa: Sequence[int | None]) -> Machine:
    topology = Topology(made.topology.gpu_count, made.topology.pairs, tuple(numa))
    return Machine(made.name, made.gpus, topology)


def cluster(
    machines: dict[str, Machine],
    *,
    taken: Mapping[str, Sequence[int]] | None = None,
    nodes: Sequence[Node] = (),
    slices: Sequence[ResourceSlice] = (),
) -> Inventory:
    """A cluster of these machines by node name; `taken` are ordinals in use."""
    used = [
        DeviceId(DRIVER, name, device_name(machines[name], ordinal))
        for name, ordinals in (taken or {}).items()
        for ordinal in ordinals
    ]
    inventory = make_inventory(
        DRIVER,
        nodes=nodes or [node(name) for name in machines],
        slices=slices or [pool_slice(name, made) for name, made in machines.items()],
        classes=CLASSES,
    )
    inventory.hold("others", frozenset(used))
    return inventory


def decide(inventory: Inventory, *claims: ResourceClaim, on: Pod | None = None) -> Any:
    return Allocator().allocate(inventory, on or pod("p"), claims)


def why(inventory: Inventory, *claims: ResourceClaim, on: Pod | None = None) -> str:
    """Why a pod fits nowhere."""
    assert isinstance(decide(inventory, *claims, on=on), NoFit)
    found = Allocator().explain(inventory, on or pod("p"), claims)
    assert isinstance(found, Unsatisfied)
    return str(found)


def chosen(inventory: Inventory, *claims: ResourceClaim, on: Pod | None = None) -> tuple[str, tuple[int, ...]]:
    """Node and ordinals of all claims."""
    allocation = decide(inventory, *claims, on=on)
    assert isinstance(allocation, Allocation), allocation
    names = [result.device for entry in allocation.claims for result in entry.results]
    return allocation.node, tuple(sorted(allocation.pool.devices.index(name) for name in names))


def free_after(made: Machine, *free: int) -> dict[str, Sequence[int]]:
    return {"n": [ordinal for ordinal in range(len(made.gpus)) if ordinal not in free]}


@pytest.mark.parametrize(
    ("made", "free", "count", "expected"),
    [
        # The 7-GPU box: PIX among 0-2 and among 3-6, PHB between.
        (SEVEN, range(7), 1, (0,)),
        (SEVEN, range(7), 2, (0, 1)),
        (SEVEN, range(7), 3, (0, 1, 2)),
        (SEVEN, range(7), 4, (3, 4, 5, 6)),
        (SEVEN, [0, 1, 3, 4, 5, 6], 2, (0, 1)),
        (SEVEN, [0, 3, 4, 5], 3, (3, 4, 5)),
        # DGX-1V: quads with three NVLinks a GPU are whole, double links pair up.
        (VOLTA, range(8), 2, (0, 3)),
        (VOLTA, range(8), 4, (0, 1, 2, 3)),
        (VOLTA, [1, 2, 4, 7], 2, (1, 2)),
        (VOLTA, [0, 1, 4, 5, 6, 7], 4, (4, 5, 6, 7)),
        # H100-PCIe with bridges: the fastest pairs cross sockets. Without 6 and 7 no socket has four.
        (BRIDGED, range(8), 2, (0, 3)),
        (BRIDGED, [0, 1, 2, 3], 2, (0, 3)),
        (BRIDGED, [0, 3, 6], 1, (6,)),
        # Only NUMA tells sockets apart.
        (with_numa(ALL_SYS, [0, 0, 1, 1, 1, 1, 0, 0]), range(8), 4, (0, 1, 6, 7)),
        (with_numa(ALL_SYS, [0, 0, 1, 1, 1, 1, 0, 0]), [1, 2, 3, 4, 6], 3, (2, 3, 4)),
        (with_numa(ALL_SYS, [0, 0, 1, 1, 1, 1, 0, 0]), [0, 2, 3], 2, (2, 3)),
        # Behind switches everything is equal: the first.
        (SWITCHED, [1, 3, 5, 6, 7], 4, (1, 3, 5, 6)),
    ],
)
def test_the_best_set_of_known_boxes(made: Machine, free: Sequence[int], count: int, expected: tuple[int, ...]) -> None:
    inventory = cluster({"n": made}, taken=free_after(made, *free))
    assert chosen(inventory, claim("c", request(count=count))) == ("n", expected)


def test_the_pod_goes_where_its_gpus_are_linked_best() -> None:
    machines = {"a": SEVEN, "b": VOLTA, "c": SWITCHED}
    assert chosen(cluster(machines), claim("c", request(count=4)))[0] == "c"


def test_one_gpu_is_taken_where_it_does_the_least_damage() -> None:
    machines = {"a": SWITCHED, "b": VOLTA}
    assert chosen(cluster(machines, taken={"b": [0, 1, 2, 3, 4, 5, 6]}), claim("c"))[0] == "b"


def test_of_equal_sets_the_fuller_node_is_taken_then_the_first_name() -> None:
    machines = {"a": SWITCHED, "b": SWITCHED, "c": SWITCHED}
    asked = claim("c", request(count=2))
    assert chosen(cluster(machines), asked)[0] == "a"
    # Both leave as many groups as before; the one with fewer free GPUs is taken.
    assert chosen(cluster(machines, taken={"a": [7], "b": [0], "c": [0, 1, 2, 3, 4]}), asked)[0] == "c"


def test_a_requirement_forbids_what_is_linked_worse() -> None:
    inventory = cluster({"n": BRIDGED}, taken=free_after(BRIDGED, 0, 1, 2, 3))
    assert chosen(inventory, claim("c", request(count=2, device_class="NVLink"))) == ("n", (0, 3))
    assert why(inventory, claim("c", request(count=3, device_class="NVLink"))) == (
        "0/1 nodes fit: no node could serve it with all of its GPUs free; "
        "1 whose GPUs do not meet requirement NVLink (n)"
    )


def test_only_requirements_that_can_fail_are_named_when_they_do() -> None:
    inventory = cluster({"n": BRIDGED}, taken=free_after(BRIDGED, 0, 1, 2, 3))
    strict, any_one = claim("c", request(count=3, device_class="NVLink")), claim("d", request(count=1))
    assert why(inventory, strict, any_one).endswith("1 whose GPUs do not meet requirement NVLink (n)")


def test_a_requirement_prefers_a_legal_set_to_a_better_linked_one() -> None:
    """PIX pairs on node a; faster NVLinks on node b, but not enough of them in one group."""
    machines = {"a": SEVEN, "b": BRIDGED}
    assert chosen(cluster(machines), claim("c", request(count=4, device_class="PIX"))) == ("a", (3, 4, 5, 6))


def test_claims_of_one_pod_share_the_best_set_and_each_gets_its_best_part() -> None:
    inventory = cluster({"n": BRIDGED}, taken=free_after(BRIDGED, 0, 1, 3, 4, 6))
    allocation = decide(inventory, claim("x", request("r", 2)), claim("y", request("r", 2)))
    assert isinstance(allocation, Allocation)
    parts = [
        tuple(allocation.pool.devices.index(result.device) for result in entry.results) for entry in allocation.claims
    ]
    assert parts == [(0, 3), (1, 4)]


def test_requirements_of_two_claims_hold_for_each_part_alone() -> None:
    inventory = cluster({"n": BRIDGED})
    two = [claim(name, request(count=2, device_class="NVLink")) for name in ("x", "y")]
    allocation = decide(inventory, *two)
    assert isinstance(allocation, Allocation)
    assert isinstance(decide(inventory, claim("z", request(count=4, device_class="NVLink"))), NoFit)


def test_all_claims_are_on_one_node_or_nothing_is_given() -> None:
    inventory = cluster({"a": SEVEN, "b": SEVEN})
    refused = why(inventory, claim("x", request(count=4)), claim("y", request(count=4)))
    assert refused == "0/2 nodes fit: no node has 8 GPUs, the largest has 7; 2 with fewer than 8 GPUs (a, b)"


def test_an_allocated_claim_of_the_pod_pins_the_node() -> None:
    inventory = cluster({"a": SWITCHED, "b": SEVEN})
    pinned = holding(claim("x"), "b", device_name(SEVEN, 0))
    assert chosen(inventory, pinned, claim("y"))[0] == "b"


def test_gpus_join_those_that_the_pod_holds_already() -> None:
    """Alone the pair (0, 1) would be as good, and come first."""
    inventory = cluster({"n": SEVEN}, taken={"n": [3, 4]})
    held = holding(claim("x"), "n", device_name(SEVEN, 3), device_name(SEVEN, 4))
    assert chosen(inventory, claim("y", request(count=2))) == ("n", (0, 1))
    assert chosen(inventory, held, claim("y", request(count=2))) == ("n", (5, 6))
    allocation = decide(inventory, held, claim("y", request(count=2)))
    assert isinstance(allocation, Allocation)
    decision = decision_of(allocation, allocation.claims[0])
    assert (decision.links, decision.pod_devices) == ("6 pairs PIX", 4)


def test_a_pod_whose_claims_are_all_allocated_is_settled_unless_they_contradict() -> None:
    inventory = cluster({"a": SWITCHED, "b": SEVEN})
    on_a, on_b = holding(claim("x"), "a"), holding(claim("y"), "b")
    assert decide(inventory, on_a, holding(claim("z"), "a")) == Settled()
    assert why(inventory, on_a, on_b) == (
        "0/2 nodes fit: 2 other than the node of a claim that is already allocated (a, b)"
    )


def test_every_node_is_counted_under_its_first_reason() -> None:
    machines = {"empty": SEVEN, "full": SEVEN, "out": SEVEN, "shut": SEVEN}
    inventory = cluster(
        machines,
        taken={"full": [0, 1]},
        nodes=[
            node("bare"),
            node("empty", labels={"x": "y"}),
            node("full"),
            node("out"),
            node("shut", unschedulable=True),
        ],
        slices=[pool_slice(name, SEVEN, taints=()) if name == "out" else pool_slice(name, SEVEN) for name in machines],
    )
    small = cluster(machines, taken={name: [0] for name in machines})
    refused = why(inventory, claim("c", request(count=6)), on=pod("p", nodeSelector={"x": "z"}))
    assert refused == (
        "0/5 nodes fit: 3 not matching the pod's nodeSelector (empty, full, shut); "
        "1 whose GPUs kube-scheduler allocates (no taint of ours) (out); "
        f"1 without usable GPUs of {DRIVER} (bare)"
    )
    assert why(small, claim("c", request(count=7))) == (
        "0/4 nodes fit: 4 with 7 or more GPUs, fewer than 7 of them free (empty, full, out, …)"
    )


def test_a_cluster_without_nodes_has_no_reason_to_name() -> None:
    assert why(cluster({}), claim("c")) == "0/0 nodes fit"


def test_a_tainted_device_is_left_out_unless_it_is_tolerated() -> None:
    sick = Taint(key="sick", effect="NoExecute")
    slices = [pool_slice("n", SEVEN, foreign={0: [sick], 5: [Taint(key="note", effect="None")]})]
    inventory = cluster({"n": SEVEN}, slices=slices)
    assert chosen(inventory, claim("c", request(count=6))) == ("n", (1, 2, 3, 4, 5, 6))
    tolerations = [{"key": "sick", "operator": "Exists"}]
    allocation = decide(inventory, claim("c", request(count=7, tolerations=tolerations)))
    assert isinstance(allocation, Allocation)
    document = allocation_document(allocation, allocation.claims[0], "2026-01-01T00:00:00Z", allocation.claims[0].claim)
    assert document["devices"]["results"][0]["tolerations"] == tolerations


def test_requests_of_one_pod_that_tolerate_different_things_get_different_devices() -> None:
    sick = Taint(key="sick", effect="NoExecute")
    inventory = cluster({"n": SEVEN}, slices=[pool_slice("n", SEVEN, foreign={0: [sick], 3: [sick]})])
    tolerations = [{"key": "sick", "operator": "Exists"}]
    allocation = decide(inventory, claim("c", request("well", 5), request("any", 2, tolerations=tolerations)))
    assert isinstance(allocation, Allocation)
    given = {
        name: {allocation.pool.devices.index(result.device) for result in entry.results if result.request == name}
        for entry in allocation.claims
        for name in ("well", "any")
    }
    assert given == {"well": {1, 2, 4, 5, 6}, "any": {0, 3}}
    assert isinstance(decide(inventory, claim("c", request("well", 6), request("any", 1))), NoFit)


def test_a_claim_that_tolerates_everything_is_still_ours_to_allocate() -> None:
    everything = [{"operator": "Exists"}]
    assert chosen(cluster({"n": SEVEN}), claim("c", request(count=4, tolerations=everything)))[1] == (3, 4, 5, 6)


def test_a_refusal_comes_before_any_choice() -> None:
    refused = decide(cluster({"n": SEVEN}), claim("c", request(count=1, device_class="gone")))
    assert isinstance(refused, Refused)


def test_a_pod_that_names_its_node_gets_devices_there_or_none() -> None:
    inventory = cluster({"a": SWITCHED, "b": SEVEN})
    assert chosen(inventory, claim("c", request(count=2)), on=pod("p", nodeName="b"))[0] == "b"
    assert isinstance(decide(inventory, claim("c"), on=pod("p", nodeName="gone")), NoFit)


def test_the_document_is_what_the_api_wants() -> None:
    asked = claim("c", request("train", 2, "PIX"), request("infer", 1))
    allocation = decide(cluster({"n": SEVEN}), asked)
    assert isinstance(allocation, Allocation)
    document = allocation_document(allocation, allocation.claims[0], "2026-01-01T00:00:00Z", allocation.claims[0].claim)
    written = msgspec.json.decode(msgspec.json.encode(document))
    decision = written["devices"]["config"].pop()
    assert decision["source"] == "FromClass"
    assert decision["opaque"]["driver"] == f"decision.{DRIVER}"
    assert decision["opaque"]["parameters"]["links"] == decision_of(allocation, allocation.claims[0]).links
    assert written == {
        "devices": {
            "results": [
                {"request": name, "driver": DRIVER, "pool": "n", "device": device_name(SEVEN, ordinal)}
                for name, ordinal in [("train", 0), ("train", 1), ("infer", 2)]
            ],
            "config": [
                {
                    "source": "FromClass",
                    "requests": ["train"],
                    "opaque": {"driver": DRIVER, "parameters": policy("PIX")},
                }
            ],
        },
        "nodeSelector": {
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]
        },
        "allocationTimestamp": "2026-01-01T00:00:00Z",
    }
    assert msgspec.convert(document, AllocationResult).allocation_timestamp == "2026-01-01T00:00:00Z"


def test_the_decision_names_what_was_chosen_and_what_came_second() -> None:
    allocation = decide(cluster({"a": SEVEN, "b": SWITCHED}), claim("c", request(count=3)))
    assert isinstance(allocation, Allocation)
    decision = decision_of(allocation, allocation.claims[0])
    assert (decision.node, decision.links, decision.pod_devices) == ("b", "3 pairs NV18", 3)
    assert dict(decision.score)["bandwidth_gb_s"] == 450
    assert decision.runner_up is not None
    assert (decision.runner_up.node, decision.runner_up.lost_by) == ("b", "ordinals")
    alone = decide(cluster({"a": SEVEN}), claim("c", request(count=4)))
    assert isinstance(alone, Allocation)
    second = decision_of(alone, alone.claims[0]).runner_up
    assert second is not None
    assert (second.node, second.links, second.lost_by) == ("a", "3 pairs PIX, 3 pairs PHB", "bandwidth_gb_s")


def test_links_of_one_gpu_are_none() -> None:
    allocation = decide(cluster({"a": SEVEN}), claim("c"))
    assert isinstance(allocation, Allocation)
    assert allocation.links == "one GPU"


clusters = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.tuples(topologies(8), st.integers(0, 255)), min_size=1, max_size=3
)


@given(clusters, st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=2), min_size=1, max_size=3))
def test_each_request_gets_its_number_of_devices_and_no_device_is_given_twice(
    drawn: dict[str, tuple[Topology, int]], counts: list[list[int]]
) -> None:
    machines = {name: machine(name, topology) for name, (topology, _) in drawn.items()}
    taken = {name: [o for o in range(t.gpu_count) if mask >> o & 1] for name, (t, mask) in drawn.items()}
    claims = [
        claim(f"c{place}", *(request(f"r{index}", count) for index, count in enumerate(requests)))
        for place, requests in enumerate(counts)
    ]
    decision = decide(cluster(machines, taken=taken), *claims)
    total = sum(map(sum, counts))
    if isinstance(decision, NoFit):
        assert all(len(made.gpus) - len(taken[name]) < total for name, made in machines.items())
        return
    assert isinstance(decision, Allocation)
    given_devices = [result.device for entry in decision.claims for result in entry.results]
    in_use = {device_name(machines[decision.node], ordinal) for ordinal in taken[decision.node]}
    assert len(given_devices) == len(set(given_devices)) == total
    assert not set(given_devices) & in_use
    for entry, requests in zip(decision.claims, counts, strict=True):
        asked = [f"r{index}" for index, count in enumerate(requests) for _ in range(count)]
        assert [result.request for result in entry.results] == asked
