"""Consumable capacity: what a request takes of a device, and who can share one."""

from __future__ import annotations

from typing import Any

import pytest

from dracaena.api.device_id import DeviceId
from dracaena.controller.allocation.legal.books import Holding
from dracaena.controller.allocation.legal.outcome import DeviceRule, DoesNotFit, Plan
from dracaena.controller.allocation.legal.read.features import Features
from support.structured import Document, World, claim, consumes, device, everything, exactly, published

NANO = 10**9


def shared(name: str, **capacity: Any) -> Document:
    return device(name, allow_multiple_allocations=True, capacity=capacity)


def world(*devices: Document, **fields: Any) -> World:
    return World([published("slice-1", *devices)], **fields)


def wanting(name: str = "req-0", count: int = 1, **amounts: str) -> Document:
    return exactly(name, count=count, capacity={"requests": amounts})


def policy(value: str, **fields: Any) -> Document:
    return {"value": value, "requestPolicy": fields}


def taken(asked: World, *requests: Document) -> list[dict[str, str]]:
    """What each device of the plan gives of its capacities; empty when nothing fits."""
    outcome = asked.ask(claim(*requests))
    if not isinstance(outcome, Plan):
        return []
    picks = outcome.claims[0].picks
    return [{name: str(amount) for name, amount in (pick.consumed or {}).items()} for pick in picks]


def share(name: str, device_name: str = "gpu", **amounts: int) -> Holding:
    consumed = tuple(sorted((key, amount * NANO) for key, amount in amounts.items()))
    return Holding(name, DeviceId("driver-a", "pool-1", device_name), f"share-{name}", consumed)


RANGE = {"min": "2", "max": "8", "step": "2"}
TENTHS = {"min": "200m", "max": "1", "step": "100m"}


@pytest.mark.parametrize(
    ("capacity", "wanted", "expected"),
    [
        ("10", "3", "3"),
        ("10", "3500m", "3500m"),
        ("10", "10", "10"),
        ("10", "11", None),
        ("10", None, "10"),
        (policy("10", default="4"), None, "4"),
        (policy("10", default="4"), "3", "3"),
        (policy("10", default="2", validRange=RANGE), "1", "2"),
        (policy("10", default="2", validRange=RANGE), "3", "4"),
        (policy("10", default="2", validRange=RANGE), "8", "8"),
        (policy("10", default="2", validRange=RANGE), "9", None),
        (policy("10", default="2", validRange=RANGE), "2500m", "4"),
        (policy("6", default="2", validRange=RANGE), "7", None),
        (policy("10", default="2", validRange={"min": "2"}), "3500m", "3500m"),
        (policy("10", default="3", validRange={"min": "2", "max": "5"}), "5001m", None),
        # 1Gi in steps of 512Mi, written with a binary suffix.
        (policy("8Gi", default="1Gi", validRange={"min": "1Gi", "step": "512Mi"}), "1100Mi", "1536Mi"),
        # Steps of fractions are counted in thousandths.
        (policy("1", default="200m", validRange=TENTHS), "200m", "200m"),
        (policy("1", default="200m", validRange=TENTHS), "250m", "300m"),
        (policy("1", default="200m", validRange=TENTHS), "901m", "1"),
        (policy("1", default="200m", validRange=TENTHS), "1001m", None),
        # An amount that is finer than a thousandth cannot be counted in them.
        (policy("1", default="200m", validRange=TENTHS), "250500u", None),
        # A range that is finer than that is counted in ones.
        (policy("4", default="1", validRange={"min": "500u", "step": "500u"}), "1500m", "2"),
        # So is one whose thousandths int64 does not hold, up to the largest int64.
        (policy("20E", default="0", validRange={"min": "0", "step": "10P"}), "15P", "20P"),
        (policy("20E", default="0", validRange={"min": "0", "step": "10P"}), "9221P", None),
        # What is beyond int64 cannot be rounded, and does not fit; without a step nothing is rounded.
        (policy("20E", default="1", validRange={"min": "1", "step": "2"}), "9223372036854775806", None),
        (policy("20E", default="1", validRange={"min": "1", "step": "2"}), "9223372036854775808", None),
        (policy("20E", default="1", validRange={"min": "1"}), "9223372036854775808", "9223372036854775808"),
        (policy("10", default="2", validValues=["1", "2", "4"]), "3", "4"),
        (policy("10", default="2", validValues=["1", "2", "4"]), "500m", "1"),
        (policy("10", default="2", validValues=["1", "2", "4"]), "5", None),
        (policy("10", default="2", validValues=["1", "2", "4"]), None, "2"),
        # Devices that the API server would have refused are given to nobody who needs the rule.
        (policy("10", default="2", validRange={"min": "1", "step": "0"}), "3", None),
        (policy("10", default="2", validRange={"step": "1"}), "3", None),
        (policy("10", validRange={"min": "1", "max": "4"}), None, None),
    ],
)
def test_a_request_takes_what_its_policy_makes_of_it(capacity: Any, wanted: str | None, expected: str | None) -> None:
    wish = wanting(memory=wanted) if wanted is not None else exactly()
    found = taken(world(shared("gpu", memory=capacity), features=Features.of((1, 37))), wish)
    assert found == ([] if expected is None else [{"memory": expected}])


def test_without_the_feature_steps_are_counted_in_ones() -> None:
    gpu = shared("gpu", memory=policy("1", default="200m", validRange=TENTHS))
    asked = world(gpu, features=Features.of((1, 36)))
    assert taken(asked, wanting(memory="200m")) == [{"memory": "1"}]


@pytest.mark.parametrize(("version", "expected"), [((1, 36), ["req-0: free"]), ((1, 37), [])])
def test_all_means_shared_devices_that_are_used_up_from_1_37_on(version: tuple[int, int], expected: list[str]) -> None:
    used_up, free, small = shared("used-up", memory="8"), shared("free", memory="8"), shared("small", memory="2")
    asked = world(
        used_up, free, small, holdings=[share("x", device_name="used-up", memory=7)], features=Features.of(version)
    )
    assert asked.devices(claim(everything(capacity={"requests": {"memory": "4"}}))) == expected
    assert asked.devices(claim(wanting(memory="4"))) == ["req-0: free"]


def test_every_capacity_is_taken_also_those_that_were_not_asked_for() -> None:
    gpu = shared("gpu", memory="8", cores=policy("100", default="10"), slots="1")
    assert taken(world(gpu), wanting(memory="2")) == [{"cores": "10", "memory": "2", "slots": "1"}]
    # The whole of `slots` is gone with the first share.
    assert taken(world(gpu), wanting("a", memory="2"), wanting("b", memory="2")) == []


def test_a_device_without_a_capacity_that_is_asked_for_is_passed_over() -> None:
    asked = world(device("plain"), shared("small", memory="2"), shared("gpu", memory="8", cores="4"))
    assert asked.devices(claim(wanting(cores="1"))) == ["req-0: gpu"]
    outcome = asked.ask(claim(wanting(cores="9")))
    assert isinstance(outcome, DoesNotFit)
    assert [(reason.rule, reason.devices) for reason in outcome.reasons] == [(DeviceRule.NO_CAPACITY, 3)]


def test_shares_of_one_device_together_take_no_more_than_there_is() -> None:
    asked = world(shared("gpu", memory="8"))
    assert len(taken(asked, wanting("a", memory="4"), wanting("b", memory="4"))) == 2
    assert taken(asked, wanting("a", memory="4"), wanting("b", memory="5")) == []


def test_shares_that_others_hold_count() -> None:
    asked = world(shared("gpu", memory="8"), shared("next", memory="8"), holdings=[share("x", memory=5)])
    assert asked.devices(claim(wanting(memory="3"))) == ["req-0: gpu"]
    assert asked.devices(claim(wanting(memory="4"))) == ["req-0: next"]


def test_several_claims_and_requests_share_one_device_but_one_request_takes_it_once() -> None:
    asked = world(shared("gpu", memory="8"))
    both = asked.devices(
        claim(wanting("a", memory="1"), wanting("b", memory="1")), claim(wanting(memory="1"), name="c")
    )
    assert both == ["a: gpu", "b: gpu", "req-0: gpu"]
    assert asked.devices(claim(wanting(count=2, memory="1"))) == []


def test_each_share_has_its_own_id() -> None:
    allocation = world(shared("gpu", memory="8")).documents(claim(wanting("a", memory="1"), wanting("b", memory="1")))[
        0
    ]
    results = allocation["devices"]["results"]
    assert [(result["shareID"], result["consumedCapacity"]) for result in results] == [
        ("share-1", {"memory": "1"}),
        ("share-2", {"memory": "1"}),
    ]


def test_a_share_of_a_device_without_capacities_consumes_nothing() -> None:
    allocation = world(shared("gpu")).documents(claim(exactly("a"), exactly("b")))[0]
    assert [result.get("consumedCapacity") for result in allocation["devices"]["results"]] == [None, None]
    assert [result["shareID"] for result in allocation["devices"]["results"]] == ["share-1", "share-2"]


def test_an_exclusive_device_only_has_to_be_large_enough() -> None:
    asked = world(device("small", capacity={"memory": "4"}), device("large", capacity={"memory": "16"}))
    allocation = asked.documents(claim(wanting(memory="8")))[0]
    assert allocation["devices"]["results"][0]["device"] == "large"
    assert not {"shareID", "consumedCapacity"} & allocation["devices"]["results"][0].keys()
    assert asked.devices(claim(wanting("a", memory="8"), wanting("b", memory="8"))) == []


def test_a_device_that_is_held_whole_gives_no_share() -> None:
    held = Holding("somebody", DeviceId("driver-a", "pool-1", "gpu"))
    assert world(shared("gpu", memory="8"), holdings=[held]).devices(claim(wanting(memory="1"))) == []


def test_a_device_that_has_shares_is_not_given_whole() -> None:
    # The driver no longer lets it be shared. Kubernetes looks at capacities only, and gives this one away twice.
    assert world(device("gpu"), holdings=[share("x")]).devices(claim(exactly())) == []
    assert (
        world(shared("gpu"), holdings=[share("x")], features=Features(consumable_capacity=False)).devices(
            claim(exactly())
        )
        == []
    )


def test_with_the_feature_off_a_shareable_device_is_an_ordinary_one() -> None:
    asked = world(shared("gpu", memory="8"), features=Features(consumable_capacity=False))
    assert asked.devices(claim(exactly("a"), exactly("b"))) == []
    assert "shareID" not in asked.documents(claim(exactly()))[0]["devices"]["results"][0]


def test_mode_all_means_only_devices_with_enough_capacity() -> None:
    asked = world(shared("a", memory="2"), shared("b", memory="8"), device("c"), holdings=[share("x", "a", memory=2)])
    assert asked.devices(claim(everything(capacity={"requests": {"memory": "1"}}))) == ["req-0: b"]


def test_mode_all_fails_when_an_earlier_request_took_the_rest() -> None:
    asked = world(shared("a", memory="2"), shared("b", memory="2"))
    rest = everything("rest", capacity={"requests": {"memory": "2"}})
    assert asked.devices(claim(wanting("one", memory="1"), rest)) == []


def test_only_the_first_share_of_a_device_pays_for_its_counters() -> None:
    gpu = device(
        "gpu", allow_multiple_allocations=True, capacity={"memory": "8"}, consumes_counters=consumes("set", slots="2")
    )
    slices = [published("slice-1", gpu, count=2), published("slice-2", counters={"set": {"slots": "2"}}, count=2)]
    both = claim(wanting("a", memory="1"), wanting("b", memory="1"))
    assert World(slices).devices(both) == ["a: gpu", "b: gpu"]
    # Also where the share that paid says nothing of capacities.
    assert World(slices, holdings=[share("x")]).devices(both) == ["a: gpu", "b: gpu"]


def test_shares_are_taken_back_exactly_when_the_search_turns_round() -> None:
    asked = world(shared("a", memory="4"), shared("b", memory="8"))
    # The first try gives 3 of `a`; then the second request finds no room in `b` for 8 beside the third's 1.
    found = asked.devices(claim(wanting("x", memory="3"), wanting("y", memory="8"), wanting("z", memory="1")))
    assert found == ["x: a", "y: b", "z: a"]
