"""Which pools a node reaches, in which order, and which of them are whole and sound."""

from __future__ import annotations

import pytest

from dracaena.controller.allocation.legal.outcome import DeviceRule, DoesNotFit, Mistake, NeedsPerson
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.legal.read.slices import PoolState
from support.structured import Document, World, claim, consumes, device, everything, exactly, published

TWO = claim(exactly(count=2))


def selector(*rules: Document, fields: list[Document] | None = None) -> Document:
    term: Document = {"matchExpressions": list(rules)} if rules else {}
    if fields:
        term["matchFields"] = fields
    return {"nodeSelectorTerms": [term]}


def rule(key: str, operator: str, *values: str) -> Document:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def test_devices_are_taken_by_driver_and_pool_then_slice_name_then_place_in_the_slice() -> None:
    world = World(
        [
            published("slice-9", device("z"), device("a"), pool="pool-1", count=2),
            published("slice-1", device("m"), pool="pool-1", count=2),
            published("slice-0", device("first"), pool="pool-0"),
            published("slice-2", device("other"), pool="pool-0", driver="driver-0"),
        ]
    )
    assert world.devices(claim(exactly(count=5, device_class="any"))) == [
        "req-0: other",
        "req-0: first",
        "req-0: m",
        "req-0: z",
        "req-0: a",
    ]


def test_pools_with_binding_conditions_come_last() -> None:
    world = World(
        [
            published("slice-1", device("bound", binding_conditions=["ready"]), device("beside"), pool="pool-1"),
            published("slice-2", device("plain"), pool="pool-2"),
        ]
    )
    assert world.devices(claim(exactly(count=3))) == ["req-0: plain", "req-0: bound", "req-0: beside"]


def test_devices_of_other_nodes_are_not_reached() -> None:
    there = published("slice-2", device("there"), pool="pool-2", nodeName="node-2")
    world = World([published("slice-1", device("here")), there])
    assert world.devices(claim(exactly())) == ["req-0: here"]
    assert world.devices(TWO) == []


@pytest.mark.parametrize(
    ("nodes", "reached"),
    [
        ({"allNodes": True}, True),
        ({"nodeSelector": selector(rule("zone", "In", "a", "b"))}, True),
        ({"nodeSelector": selector(rule("zone", "In", "b"))}, False),
        ({"nodeSelector": selector(rule("zone", "NotIn", "b"))}, True),
        ({"nodeSelector": selector(rule("rack", "DoesNotExist"))}, True),
        ({"nodeSelector": selector(rule("zone", "Exists"), rule("size", "Gt", "3"))}, True),
        ({"nodeSelector": selector(rule("size", "Lt", "3"))}, False),
        ({"nodeSelector": selector(fields=[rule("metadata.name", "In", "node-1")])}, True),
        ({"nodeSelector": selector(fields=[rule("metadata.name", "NotIn", "node-1")])}, False),
        ({"nodeSelector": {"nodeSelectorTerms": []}}, False),
        ({"nodeSelector": selector()}, False),
        ({"perDeviceNodeSelection": False, "nodeName": ""}, False),
    ],
)
def test_a_slice_says_which_nodes_it_is_for(nodes: Document, reached: bool) -> None:
    world = World([published("slice-1", device("gpu"), **nodes)], labels={"zone": "a", "size": "4"})
    assert bool(world.devices(claim(exactly()))) is reached


@pytest.mark.parametrize(
    "broken",
    [
        selector(rule("zone", "Near", "a")),
        selector(rule("zone", "In")),
        selector(rule("zone", "Exists", "a")),
        selector(rule("zone", "Gt", "a few")),
        selector(rule("not a key", "Exists")),
        selector(rule("zone", "In", "no label value!")),
        selector(fields=[rule("metadata.name", "In", "node-1", "node-2")]),
        selector(fields=[rule("metadata.name", "Exists")]),
        {"nodeSelectorTerms": "all"},
        {"nodeSelectorTerms": [{"matchExpressions": "zone"}]},
        {"nodeSelectorTerms": [{"matchFields": [{"key": ["metadata.name"], "operator": "In", "values": ["node-1"]}]}]},
        {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": {}, "values": ["a"]}]}]},
        {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [1]}]}]},
    ],
)
def test_a_node_selector_that_cannot_be_evaluated_is_for_a_person_to_mend(broken: Document) -> None:
    outcome = World([published("slice-1", device("gpu"), nodeSelector=broken)]).ask(claim(exactly()))
    assert isinstance(outcome, NeedsPerson)
    assert outcome.mistake is Mistake.SLICE
    assert outcome.subject == "ResourceSlice slice-1"


def test_with_per_device_node_selection_each_device_says_which_nodes_it_is_for() -> None:
    devices = (
        device("theirs", node_name="node-2"),
        device("ours", node_name="node-1"),
        device("anybody's", all_nodes=True),
        device("zone's", node_selector=selector(rule("zone", "In", "a"))),
        device("nobody's"),
    )
    world = World([published("slice-1", *devices, perDeviceNodeSelection=True)], labels={"zone": "a"})
    assert world.devices(claim(everything())) == ["req-0: ours", "req-0: anybody's", "req-0: zone's"]
    assert "1 not for this node" in str(
        World([published("s", devices[0], devices[1], perDeviceNodeSelection=True)]).ask(TWO)
    )


def test_a_bad_node_selector_of_one_device_is_found_when_the_device_is_looked_at() -> None:
    devices = (device("good", all_nodes=True), device("bad", node_selector=selector(rule("zone", "Near"))))
    world = World([published("slice-1", *devices, perDeviceNodeSelection=True)])
    assert world.devices(claim(exactly())) == ["req-0: good"]
    outcome = world.ask(TWO)
    assert isinstance(outcome, NeedsPerson)
    assert outcome.subject == "ResourceSlice slice-1"


def test_only_the_newest_generation_counts() -> None:
    world = World([published("slice-1", device("old")), published("slice-2", device("new"), generation=2)])
    assert world.devices(claim(everything())) == ["req-0: new"]


def test_a_pool_with_a_slice_missing_gives_nothing_and_says_so() -> None:
    outcome = World([published("slice-1", device("gpu"), count=2)]).ask(claim(exactly()))
    assert isinstance(outcome, DoesNotFit)
    assert str(outcome) == ("pool driver-a/pool-1 is incomplete: 1 slices of generation 1 are there, expected 2")


def test_slices_for_other_nodes_complete_a_pool() -> None:
    slices = [
        published("slice-1", device("here"), count=2),
        published("slice-2", device("there"), count=2, nodeName="node-2"),
    ]
    assert World(slices).devices(claim(everything())) == ["req-0: here"]


def test_a_pool_whose_newer_generation_is_not_for_this_node_is_outdated() -> None:
    slices = [
        published("slice-1", device("here"), count=2),
        published("slice-2", device("there"), count=1, nodeName="node-2", generation=2),
    ]
    outcome = World(slices).ask(claim(exactly()))
    assert isinstance(outcome, DoesNotFit)
    assert outcome.pools == ()


@pytest.mark.parametrize(
    ("slices", "problem"),
    [
        ([published("slice-1", device("gpu"), device("gpu"))], "two devices are called gpu"),
        (
            [published("slice-1", device("gpu"), count=2), published("slice-2", device("gpu"), count=2)],
            "two devices are called gpu",
        ),
        (
            [
                published("slice-1", counters={"a": {"c": "1"}}, count=2),
                published("slice-2", counters={"a": {}}, count=2),
            ],
            "two counter sets are called a",
        ),
        (
            [published("slice-1", device("gpu", consumes_counters=consumes("a", c="1")))],
            "device gpu consumes counter set a, which the pool does not declare",
        ),
        (
            [
                published("slice-1", device("gpu", consumes_counters=consumes("a", d="1")), count=2),
                published("slice-2", counters={"a": {"c": "1"}}, count=2),
            ],
            "device gpu consumes counter a/d, which the pool does not declare",
        ),
        (
            [published("slice-1", device("gpu", capacity={"memory": "plenty"}))],
            "slice slice-1: device gpu: capacity memory: 'plenty' is not a quantity",
        ),
        (
            [
                published("slice-1", device("gpu", consumes_counters=consumes("a", c="1.x"))),
            ],
            "slice slice-1: device gpu: counter c of a: '1.x' is not a quantity",
        ),
        (
            [published("slice-1", device("gpu", consumes_counters=consumes("a", c="-1")))],
            "slice slice-1: device gpu: counter c of a: -1 is below 0",
        ),
        (
            [published("slice-1", counters={"a": {"c": ""}})],
            "slice slice-1: sharedCounters a: '' is not a quantity",
        ),
    ],
)
def test_a_pool_that_contradicts_itself_gives_nothing(slices: list[Document], problem: str) -> None:
    world = World([*slices, published("sound", device("good"), pool="pool-2")])
    assert world.devices(claim(exactly())) == ["req-0: good"]
    outcome = world.ask(TWO)
    assert isinstance(outcome, DoesNotFit)
    assert [(pool.state, pool.problem) for pool in outcome.pools] == [(PoolState.INVALID, problem)]


def test_a_device_for_another_node_that_counts_wrongly_spoils_the_pool_here_too() -> None:
    slices = [
        published("slice-1", device("here"), count=3),
        published("slice-2", device("there", consumes_counters=consumes("b", c="1")), count=3, nodeName="node-2"),
        published("slice-3", counters={"a": {"c": "1"}}, count=3),
    ]
    assert World(slices).devices(claim(exactly())) == []


def test_an_incomplete_pool_of_another_node_with_counters_holds_up_nobody_who_wants_everything_here() -> None:
    there = published("slice-2", counters={"a": {"c": "1"}}, pool="pool-2", count=2, nodeName="node-2")
    slices = [published("slice-1", device("one"), device("two")), there]
    assert World(slices).devices(claim(everything())) == ["req-0: one", "req-0: two"]
    here = published("slice-2", counters={"a": {"c": "1"}}, pool="pool-2", count=2)
    assert World([slices[0], here]).devices(claim(everything())) == []


def test_counters_count_for_the_devices_of_a_pool_whatever_node_their_slice_names() -> None:
    slices = [
        published("slice-1", device("a", consumes_counters=consumes("s", c="1")), count=3),
        published("slice-2", device("b", consumes_counters=consumes("s", c="1")), count=3),
        published("slice-3", counters={"s": {"c": "1"}}, count=3, nodeName="node-2"),
    ]
    assert World(slices).devices(claim(exactly())) == ["req-0: a"]
    assert World(slices).devices(TWO) == []


@pytest.mark.parametrize("elsewhere", [{}, {"nodeName": "node-2"}])
def test_a_pool_whose_counters_are_shared_by_a_rule_that_is_not_known_gives_nothing(elsewhere: Document) -> None:
    grouped = [{**entry, "laterGroups": ["mig"]} for entry in consumes("a", c="1")]
    slices = [
        published("slice-1", device("plain", consumes_counters=consumes("a", c="1")), count=3),
        published("slice-2", device("grouped", consumes_counters=grouped), count=3, **elsewhere),
        published("slice-3", counters={"a": {"c": "4"}}, count=3),
    ]
    other = published("slice-4", device("other"), pool="pool-2")
    assert World([*slices, other]).devices(claim(exactly())) == ["req-0: other"]
    outcome = World(slices).ask(claim(exactly()))
    assert isinstance(outcome, DoesNotFit)
    problem = "device grouped: consumesCounters[0].laterGroups: unknown to this version: the pool is left alone"
    assert [(pool.state, pool.problem) for pool in outcome.pools] == [(PoolState.INCOMPLETE, problem)]


@pytest.mark.parametrize("elsewhere", [{}, {"nodeName": "node-2"}])
def test_a_pool_with_compatibility_groups_gives_nothing_where_they_are_switched_off(elsewhere: Document) -> None:
    grouped = [{**entry, "compatibilityGroups": ["mig"]} for entry in consumes("a", c="1")]
    slices = [
        published("slice-1", device("plain", consumes_counters=consumes("b", c="1")), count=3),
        published("slice-2", device("grouped", consumes_counters=grouped), count=3, **elsewhere),
        published("slice-3", counters={"a": {"c": "4"}, "b": {"c": "4"}}, count=3),
    ]
    assert World(slices).devices(claim(exactly())) == ["req-0: plain"]
    outcome = World(slices, features=Features(compatibility_groups=False)).ask(claim(exactly()))
    assert isinstance(outcome, DoesNotFit)
    problem = "device grouped has compatibilityGroups, which the cluster has switched off"
    assert [(pool.state, pool.problem) for pool in outcome.pools] == [(PoolState.INCOMPLETE, problem)]


@pytest.mark.parametrize("chooses", [{}, {"perDeviceNodeSelection": True}])
def test_a_device_whose_calls_are_skipped_needs_a_kubelet_that_skips_them(chooses: Document) -> None:
    one = device("fabric", node_name="node-1") if chooses else device("fabric")
    slices = [published("slice-1", one, skipNodeOperations=["NodePrepareResources"], **chooses)]
    assert World(slices, declared_features=["DRAOptionalNodeOperations"]).devices(claim(exactly()))
    for wish in (exactly(), everything()):
        outcome = World(slices, declared_features=["Other"]).ask(claim(wish))
        assert isinstance(outcome, DoesNotFit)
        assert [reason.rule for reason in outcome.reasons] == [DeviceRule.NODE_OPERATIONS]
    beside = [*slices, published("slice-2", device("gpu"), pool="pool-2")]
    assert World(beside).devices(claim(exactly())) == ["req-0: gpu"]


def test_an_unknown_field_that_is_not_about_counters_leaves_the_rest_of_the_pool_usable() -> None:
    slices = [published("slice-1", device("newer", newField=1), device("plain"))]
    assert World(slices).devices(claim(exactly())) == ["req-0: plain"]
    assert World(slices).devices(claim(exactly(count=2))) == []


def test_without_partitions_slices_with_counters_are_not_looked_at() -> None:
    world = World(
        [published("slice-1", device("gpu"), count=2), published("slice-2", counters={"a": {"c": "1"}}, count=2)],
        features=Features(partitionable_devices=False),
    )
    assert world.devices(claim(exactly())) == ["req-0: gpu"]


def test_two_drivers_may_use_one_pool_name() -> None:
    world = World([published("slice-1", device("gpu")), published("slice-2", device("gpu"), driver="driver-b")])
    outcome = world.devices(claim(everything(device_class="any")))
    assert outcome == ["req-0: gpu", "req-0: gpu"]


def test_no_slices_at_all_is_no_error() -> None:
    outcome = World().ask(claim(exactly()))
    assert isinstance(outcome, DoesNotFit)
    assert str(outcome) == "there are fewer devices than requested"
