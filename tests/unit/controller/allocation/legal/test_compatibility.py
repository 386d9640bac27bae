"""Compatibility groups: devices draw on one counter set at the same time only with a group that all of them have."""

from __future__ import annotations

from itertools import permutations, product
from random import Random
from typing import Any

import pytest

from dracaena.api.device_id import DeviceId
from dracaena.controller.allocation.legal.books import Books, Holding
from dracaena.controller.allocation.legal.compatibility import groups_in_use
from dracaena.controller.allocation.legal.outcome import DeviceRule, DoesNotFit
from dracaena.controller.allocation.legal.problem import Problem
from support.structured import Document, World, claim, consumes, device, exactly, published


def part(name: str, *groups: str, counter_set: str = "gpu-0", **fields: Any) -> Document:
    one = consumes(counter_set, slots="1")[0]
    return device(name, consumes_counters=[one | ({"compatibilityGroups": [*groups]} if groups else {})], **fields)


def pool(*devices: Document) -> list[Document]:
    counters = {"gpu-0": {"slots": "9"}, "gpu-1": {"slots": "9"}}
    return [published("slice-1", *devices, count=2), published("slice-2", counters=counters, count=2)]


def held(*names: str, share: str | None = None) -> list[Holding]:
    return [Holding("somebody", DeviceId("driver-a", "pool-1", name), share) for name in names]


def test_devices_of_one_claim_share_a_group() -> None:
    world = World(pool(part("a", "mig"), part("b", "vgpu"), part("c", "mig", "vgpu"), part("plain")))
    assert world.devices(claim(exactly(count=2))) == ["req-0: a", "req-0: c"]
    assert world.devices(claim(exactly(count=3))) == []


def test_the_group_is_common_to_all_and_not_to_each_two() -> None:
    world = World(pool(part("a", "x", "y"), part("b", "y", "z"), part("c", "z", "x")))
    assert world.devices(claim(exactly(count=2))) == ["req-0: a", "req-0: b"]
    assert world.devices(claim(exactly(count=3))) == []


def test_claims_of_one_pod_share_a_group_too() -> None:
    world = World(pool(part("a", "mig"), part("b", "vgpu"), part("c", "mig")))
    claims = [claim(exactly("one"), name="claim-0"), claim(exactly("two"), name="claim-1")]
    assert world.devices(*claims) == ["one: a", "two: c"]


def test_devices_without_groups_go_together_and_with_no_others() -> None:
    slices = pool(part("grouped", "mig"), part("plain-0"), part("plain-1"))
    assert World(slices).devices(claim(exactly(count=2))) == ["req-0: plain-0", "req-0: plain-1"]
    assert World(slices, holdings=held("plain-0")).devices(claim(exactly())) == ["req-0: plain-1"]
    assert World(slices, holdings=held("grouped")).devices(claim(exactly())) == []


def test_what_is_in_use_decides_and_is_named() -> None:
    slices = pool(part("a", "mig"), part("b", "vgpu"), part("c", "mig"))
    assert World(slices, holdings=held("a")).devices(claim(exactly())) == ["req-0: c"]
    outcome = World(slices, holdings=held("b")).ask(claim(exactly()))
    assert isinstance(outcome, DoesNotFit)
    rules = {reason.rule: reason.devices for reason in outcome.reasons}
    assert rules == {DeviceRule.IN_USE: 1, DeviceRule.COMPATIBILITY: 2}


def test_what_is_in_use_without_a_common_group_lets_nobody_join() -> None:
    devices = [part("a", "mig"), part("b"), part("c", "mig"), part("d")]
    for order in permutations(devices):
        assert World(pool(*order), holdings=held("a", "b")).devices(claim(exactly())) == []


def test_counter_sets_are_distinguished() -> None:
    assert World(pool(part("a", "mig"), part("b", "vgpu", counter_set="gpu-1"))).devices(claim(exactly(count=2)))
    both = device(
        "both",
        consumes_counters=[consumes("gpu-0", slots="1")[0] | {"compatibilityGroups": ["mig"]}, *consumes("gpu-1")],
    )
    slices = pool(part("a", "mig"), part("b", "vgpu", counter_set="gpu-1"), both)
    assert World(slices, holdings=held("a")).devices(claim(exactly())) == ["req-0: b"]
    assert World(slices, holdings=held("b")).devices(claim(exactly())) == ["req-0: a"]
    assert World(slices, holdings=held("a", "b")).devices(claim(exactly())) == []


def test_a_device_on_another_node_counts() -> None:
    slices = [
        published("slice-1", part("here", "mig"), count=3),
        published("slice-2", part("there", "vgpu"), count=3, nodeName="node-2"),
        published("slice-3", counters={"gpu-0": {"slots": "9"}}, count=3),
    ]
    assert World(slices).devices(claim(exactly())) == ["req-0: here"]
    assert World(slices, holdings=held("there")).devices(claim(exactly())) == []


def test_a_further_share_of_a_device_is_not_asked_again() -> None:
    slices = pool(
        part("shared", "mig", allow_multiple_allocations=True, capacity={"memory": "4"}),
        part("other", "vgpu", allow_multiple_allocations=True, capacity={"memory": "4"}),
    )
    holdings = [*held("shared", share="s"), *held("other", share="t")]
    assert World(slices, holdings=holdings).devices(claim(exactly())) == ["req-0: shared"]
    some: dict[str, Any] = {"capacity": {"requests": {"memory": "1"}}}
    two = claim(exactly("a", **some), exactly("b", **some))
    assert World(slices, holdings=holdings[:1]).devices(two) == ["a: shared", "b: shared"]


def test_what_was_tried_and_taken_back_leaves_no_trace() -> None:
    slices = pool(part("a", "mig", attributes={"n": 1}), part("b", "vgpu", attributes={"n": 2}), part("c", "vgpu"))
    late = exactly("late", selectors=['device.attributes["driver-a"].?n == optional.of(2)'])
    assert World(slices).devices(claim(exactly("early"), late)) == ["early: c", "late: b"]


def test_a_pool_without_groups_has_nothing_to_ask() -> None:
    problem = World(pool(part("a"), part("b"))).problem()
    assert isinstance(problem, Problem)
    assert groups_in_use(problem.pools[0], Books(held("a"))) is None


@pytest.mark.parametrize("seed", range(30))
def test_it_admits_what_the_words_of_the_api_admit(seed: int) -> None:
    random = Random(seed)
    kinds = [groups for groups in product(("", "x"), ("", "y")) for _ in range(2)]
    devices = [
        part(
            f"d{number}",
            *(name for name in random.choice(kinds) if name),
            counter_set=random.choice(("gpu-0", "gpu-1")),
        )
        for number in range(8)
    ]
    names = [one["name"] for one in devices]
    in_use = random.sample(names, 3)
    problem = World(pool(*devices)).problem()
    assert isinstance(problem, Problem)
    common, nobody = (groups_in_use(problem.pools[0], Books(held(*names))) for names in (in_use, ()))
    read = {reachable.device.id.device: reachable.device for reachable in problem.pools[0].devices}
    if common is None or nobody is None:
        assert not any("compatibilityGroups" in one["consumesCounters"][0] for one in devices)
        return
    for one in devices:
        drawn = one["consumesCounters"][0]
        beside = [
            other["consumesCounters"][0]
            for other in devices
            if other["name"] in in_use and other["consumesCounters"][0]["counterSet"] == drawn["counterSet"]
        ]
        every = [set(entry.get("compatibilityGroups", ())) for entry in (drawn, *beside)]
        expected = not any(every) or bool(set.intersection(*every))
        assert common.admit(read[one["name"]]) is expected
        assert nobody.admit(read[one["name"]], [read[name] for name in in_use]) is expected
