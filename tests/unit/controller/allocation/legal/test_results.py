"""The documents that are written to claims: results, configs in order, node selector."""

from __future__ import annotations

from typing import Any

from dracaena.controller.allocation.legal.outcome import NeedsPerson, Plan
from dracaena.controller.allocation.legal.problem import Problem
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.legal.results import allocation_results
from dracaena.controller.allocation.legal.search import solve
from support.structured import (
    Document,
    World,
    claim,
    device,
    device_class,
    exactly,
    first_available,
    published,
    subrequest,
)

ON_NODE_1 = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]}


def config(number: int, *requests: str, driver: str = "driver-a") -> Document:
    entry: Document = {"opaque": {"driver": driver, "parameters": {"number": number}}}
    return {**entry, "requests": list(requests)} if requests else entry


def written(entry: Document) -> tuple[str, int, list[str]]:
    return entry["source"], entry["opaque"]["parameters"]["number"], entry.get("requests", [])


def configs(world: World, *claims: Document) -> list[tuple[str, int, list[str]]]:
    return [written(entry) for entry in world.documents(*claims)[0]["devices"].get("config", [])]


def test_a_result_says_what_was_given_to_which_request() -> None:
    tolerations = [{"operator": "Exists", "key": "t", "effect": "NoExecute", "tolerationSeconds": 5}]
    slices = [published("slice-1", device("gpu", taints=[{"key": "t", "effect": "NoExecute"}]))]
    wish = first_available("gpus", subrequest("big", count=8), subrequest("one", tolerations=tolerations))
    allocation = World(slices).documents(claim(wish))[0]
    assert allocation == {
        "devices": {
            "results": [
                {
                    "request": "gpus/one",
                    "driver": "driver-a",
                    "pool": "pool-1",
                    "device": "gpu",
                    "tolerations": [{"key": "t", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}],
                }
            ]
        },
        "nodeSelector": ON_NODE_1,
    }


def test_admin_access_is_written_only_where_it_is_used() -> None:
    world = World([published("slice-1", device("a"), device("b"))])
    allocation = world.documents(claim(exactly("x", admin_access=True), exactly("y", admin_access=False)))[0]
    assert [result.get("adminAccess") for result in allocation["devices"]["results"]] == [True, None]


def test_binding_conditions_are_copied_from_the_device() -> None:
    gpu = device("gpu", binding_conditions=["ready", "linked"], binding_failure_conditions=["broken"])
    result = World([published("slice-1", gpu)]).documents(claim(exactly()))[0]["devices"]["results"][0]
    assert (result["bindingConditions"], result["bindingFailureConditions"]) == (["ready", "linked"], ["broken"])


def test_calls_that_kubelet_is_to_skip_are_copied_from_the_slice() -> None:
    slices = [
        published("slice-1", device("fabric"), skipNodeOperations=["*"]),
        published("slice-2", device("gpu"), pool="pool-2"),
    ]
    world = World(slices, declared_features=["DRAOptionalNodeOperations"])
    results = world.documents(claim(exactly(count=2)))[0]["devices"]["results"]
    assert [result.get("skipNodeOperations") for result in results] == [["*"], None]


def test_class_configs_come_first_once_for_each_class_with_the_requests_that_use_it() -> None:
    classes = [
        device_class("class-a", config=[config(1), config(2)]),
        device_class("class-b", config=[config(3)]),
        device_class("unused", config=[config(4)]),
    ]
    world = World([published("slice-1", *(device(f"gpu-{n}") for n in range(3)))], classes)
    wish = claim(
        exactly("a"),
        first_available("b", subrequest("x", device_class="unused", count=9), subrequest("y", device_class="class-b")),
        exactly("c"),
        config=[config(9)],
    )
    assert configs(world, wish) == [
        ("FromClass", 1, ["a", "c"]),
        ("FromClass", 2, ["a", "c"]),
        ("FromClass", 3, ["b/y"]),
        ("FromClaim", 9, []),
    ]


def test_configs_of_the_claim_follow_in_order_where_they_concern_what_was_chosen() -> None:
    world = World([published("slice-1", device("gpu-0"), device("gpu-1"))])
    wish = claim(
        first_available("a", subrequest("many", count=5), subrequest("one")),
        exactly("b"),
        config=[
            config(1, "b"),
            config(2, "a/many"),
            config(3, "a/one"),
            config(4),
            config(5, "a"),
            config(6, "a", "b"),
        ],
    )
    assert configs(world, wish) == [
        ("FromClaim", 1, ["b"]),
        ("FromClaim", 3, ["a/one"]),
        ("FromClaim", 4, []),
        ("FromClaim", 5, ["a"]),
        ("FromClaim", 6, ["a", "b"]),
    ]


def test_a_config_that_covers_each_request_names_none_from_1_37_on() -> None:
    world = World(
        [published("slice-1", device("gpu-0"), device("gpu-1"))],
        classes=[device_class("class-a", config=[config(1)]), device_class("class-b")],
        features=Features.of((1, 37)),
    )
    wish = claim(
        first_available("a", subrequest("one", device_class="class-a")),
        exactly("b", device_class="class-b"),
        config=[config(2, "b"), config(3, "a/one", "b"), config(4, "b", "a"), config(5)],
    )
    assert configs(world, wish) == [
        ("FromClass", 1, ["a/one"]),
        ("FromClaim", 2, ["b"]),
        ("FromClaim", 3, []),
        ("FromClaim", 4, []),
        ("FromClaim", 5, []),
    ]


def node_selector(*slices: Document, count: int, labels: dict[str, str] | None = None) -> Any:
    world = World(slices, labels=labels or {})
    return world.documents(claim(exactly(count=count, device_class="any")))[0].get("nodeSelector")


def by_label(*rules: Document) -> Document:
    return {"nodeSelectorTerms": [{"matchExpressions": list(rules)}]}


ZONE = {"key": "zone", "operator": "In", "values": ["a", "b"]}
RACK = {"key": "rack", "operator": "Exists"}
LABELS = {"zone": "a", "rack": "7"}


def test_devices_that_every_node_reaches_bind_to_no_node() -> None:
    assert node_selector(published("slice-1", device("gpu"), allNodes=True), count=1) is None


def test_one_device_of_this_node_binds_the_claim_to_it() -> None:
    slices = [published("slice-1", device("a"), allNodes=True), published("slice-2", device("b"), pool="pool-2")]
    assert node_selector(*slices, count=2) == ON_NODE_1


def test_a_device_that_binds_to_its_node_does_so_wherever_it_is_published() -> None:
    assert node_selector(published("slice-1", device("gpu", binds_to_node=True), allNodes=True), count=1) == ON_NODE_1


def test_node_selectors_are_joined_and_each_requirement_stands_once() -> None:
    slices = [
        published("slice-1", device("a"), nodeSelector=by_label(ZONE)),
        published("slice-2", device("b"), pool="pool-2", nodeSelector=by_label({**ZONE, "values": ["b", "a"]}, RACK)),
        published("slice-3", device("c"), pool="pool-3", allNodes=True),
    ]
    assert node_selector(*slices, count=3, labels=LABELS) == by_label(ZONE, RACK)


def test_with_per_device_node_selection_the_devices_decide() -> None:
    devices = (device("a", all_nodes=True), device("b", node_selector=by_label(RACK)), device("c", node_name="node-1"))
    one = published("slice-1", *devices, perDeviceNodeSelection=True)
    assert node_selector(one, count=1, labels=LABELS) is None
    assert node_selector(one, count=2, labels=LABELS) == by_label(RACK)
    assert node_selector(one, count=3, labels=LABELS) == ON_NODE_1


def test_alternatives_in_a_node_selector_cannot_be_joined() -> None:
    several = {"nodeSelectorTerms": [*by_label(ZONE)["nodeSelectorTerms"], *by_label(RACK)["nodeSelectorTerms"]]}
    world = World([published("slice-1", device("gpu"), nodeSelector=several)], labels=LABELS)
    problem = world.problem(claim(exactly()))
    assert isinstance(problem, Problem)
    plan = solve(problem)
    assert isinstance(plan, Plan)
    found = allocation_results(problem, plan, iter(()))
    assert isinstance(found, NeedsPerson)
    assert found.subject == "ResourceSlice slice-1"


def test_each_claim_has_its_own_allocation_and_node_selector() -> None:
    slices = [published("slice-1", device("a"), allNodes=True, pool="a"), published("slice-2", device("b"), pool="b")]
    first, second = World(slices).documents(claim(exactly()), claim(exactly(), name="claim-1"))
    assert "nodeSelector" not in first
    assert second["nodeSelector"] == ON_NODE_1


def test_with_the_feature_off_no_binding_conditions_are_written() -> None:
    gpu = device("gpu", binding_failure_conditions=["broken"])
    world = World([published("slice-1", gpu)], features=Features(binding_conditions=False))
    assert "bindingFailureConditions" not in world.documents(claim(exactly()))[0]["devices"]["results"][0]
