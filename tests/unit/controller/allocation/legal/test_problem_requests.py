"""What requests mean: exactly, alternatives, mode All, classes and selectors, the limit of a claim, admin access."""

from __future__ import annotations

from typing import Any

import pytest

from dracaena.api.device_id import DeviceId
from dracaena.controller.allocation.legal.books import Holding
from dracaena.controller.allocation.legal.outcome import DeviceRule, DoesNotFit, Mistake, NeedsPerson, Plan
from dracaena.controller.allocation.legal.read.features import Features
from support.allocator_cases import features_of
from support.structured import (
    CLASSES,
    Document,
    World,
    claim,
    device,
    device_class,
    everything,
    exactly,
    first_available,
    published,
    subrequest,
)


def gpus(count: int, **fields: Any) -> list[Document]:
    return [published("slice-1", *(device(f"gpu-{number}", **fields) for number in range(count)))]


def held(*names: str) -> list[Holding]:
    return [Holding("somebody", DeviceId("driver-a", "pool-1", name)) for name in names]


def mistake_of(world: World, *claims: Document) -> tuple[Mistake, str]:
    outcome = world.ask(*claims)
    assert isinstance(outcome, NeedsPerson), outcome
    return outcome.mistake, str(outcome)


# exactly


def test_a_request_gets_the_first_free_devices() -> None:
    assert World(gpus(4), holdings=held("gpu-0", "gpu-2")).devices(claim(exactly(count=2))) == [
        "req-0: gpu-1",
        "req-0: gpu-3",
    ]


def test_all_claims_are_allocated_or_none() -> None:
    one, two = claim(exactly(count=2)), claim(exactly(count=2), name="claim-1")
    assert len(World(gpus(4)).devices(one, two)) == 4
    outcome = World(gpus(3)).ask(one, two)
    assert isinstance(outcome, DoesNotFit)
    assert "claim default/claim-1, request req-0: 2 given to another request of the pod" in str(outcome)


def test_reasons_count_devices_by_rule() -> None:
    slices = [
        published(
            "slice-1",
            device("used"),
            device("tainted", taints=[{"key": "broken", "effect": "NoSchedule"}]),
            device("wrong", attributes={"model": "x"}),
            device("too", attributes={"model": "x"}),
            device("good"),
        )
    ]
    wish = exactly(count=2, selectors=['!("model" in device.attributes["driver-a"])'])
    outcome = World(slices, holdings=held("used")).ask(claim(wish))
    assert isinstance(outcome, DoesNotFit)
    assert {reason.rule: reason.devices for reason in outcome.reasons} == {
        DeviceRule.IN_USE: 1,
        DeviceRule.REQUEST_SELECTOR: 2,
        DeviceRule.TAINT: 1,
    }


def test_a_claim_without_requests_gets_nothing_and_fits() -> None:
    outcome = World().ask(claim())
    assert isinstance(outcome, Plan)
    assert outcome.claims[0].picks == ()


def test_no_claims_fit_everywhere() -> None:
    assert isinstance(World().ask(), Plan)


def test_a_missing_class_is_for_a_person_to_mend() -> None:
    found = mistake_of(World(gpus(1)), claim(exactly(device_class="nope")))
    assert found == (Mistake.CLASS_MISSING, "claim default/claim-0: request req-0: DeviceClass nope does not exist")


def test_a_class_that_cannot_be_read_only_matters_where_it_is_used() -> None:
    broken: Document = {"metadata": {"name": "broken"}, "spec": {"fromTheFuture": 1}}
    world = World(gpus(1), classes=(*CLASSES, broken))
    assert world.devices(claim(exactly())) == ["req-0: gpu-0"]
    mistake, text = mistake_of(world, claim(exactly(device_class="broken")))
    assert mistake is Mistake.UNSUPPORTED
    assert text.startswith("DeviceClass broken: spec.fromTheFuture: field 'fromTheFuture'")


# selectors


def test_class_and_request_selectors_must_all_match() -> None:
    slices = [published("slice-1", *(device(f"gpu-{n}", attributes={"a": n % 2, "b": n % 3}) for n in range(6)))]
    classes = [device_class("odd", 'device.attributes["driver-a"].a == 1')]
    wish = exactly(device_class="odd", selectors=["true", 'device.attributes["driver-a"].b == 2'])
    assert World(slices, classes).devices(claim(wish)) == ["req-0: gpu-5"]


def test_a_request_selector_is_not_asked_about_devices_outside_the_class() -> None:
    slices = [
        published("slice-1", device("nic"), driver="driver-0"),
        published("slice-2", device("gpu", attributes={"size": 1})),
    ]
    wish = exactly(selectors=['device.attributes["driver-a"].size == 1'])
    assert World(slices).devices(claim(wish)) == ["req-0: gpu"]


@pytest.mark.parametrize("expression", ["noSuchVariable", 'device.attributes["driver-a"].missing == 1', "1 +"])
def test_a_selector_without_an_answer_is_for_a_person_to_mend(expression: str) -> None:
    mistake, text = mistake_of(World(gpus(1)), claim(exactly(selectors=[expression])))
    assert mistake is Mistake.SELECTOR
    assert text.startswith(
        "claim default/claim-0, request req-0: selector 0 cannot be evaluated for device driver-a/pool-1/gpu-0: "
    )


def test_a_wrong_class_selector_names_the_class() -> None:
    world = World(gpus(1), classes=[device_class("class-a", "device.nothing")])
    assert mistake_of(world, claim(exactly()))[1].startswith("DeviceClass class-a: selector 0 ")


def test_a_selector_is_not_asked_about_devices_that_are_not_needed() -> None:
    # As in Kubernetes: a mistake that the first solution does not touch stays unseen.
    slices = [published("slice-1", device("good", attributes={"a": 1}), device("bad"))]
    assert World(slices).devices(claim(exactly(selectors=['device.attributes["driver-a"].a == 1']))) == ["req-0: good"]


# firstAvailable


def test_the_first_alternative_that_fits_is_taken() -> None:
    wish = first_available("req", subrequest("four", count=4), subrequest("two", count=2), subrequest("one"))
    assert World(gpus(5)).devices(claim(wish))[0] == "req/four: gpu-0"
    assert World(gpus(3)).devices(claim(wish)) == ["req/two: gpu-0", "req/two: gpu-1"]
    assert World(gpus(1)).devices(claim(wish)) == ["req/one: gpu-0"]
    assert World([]).devices(claim(wish)) == []


def test_an_earlier_request_takes_a_later_alternative_when_the_rest_needs_it() -> None:
    wish = first_available("req-0", subrequest("two", count=2), subrequest("one"))
    assert World(gpus(3)).devices(claim(wish, exactly("req-1", count=2))) == [
        "req-0/one: gpu-0",
        "req-1: gpu-1",
        "req-1: gpu-2",
    ]


def test_the_missing_class_of_an_alternative_that_is_not_needed_is_still_a_mistake() -> None:
    wish = first_available("req", subrequest("one"), subrequest("other", device_class="nope"))
    assert mistake_of(World(gpus(1)), claim(wish))[0] is Mistake.CLASS_MISSING


def test_an_alternative_can_be_fixed_by_the_caller() -> None:
    wish = first_available("req", subrequest("one"), subrequest("two", count=2))
    assert World(gpus(2)).devices(claim(wish), chosen={(0, 0): 1}) == ["req/two: gpu-0", "req/two: gpu-1"]


def test_backtracking_reaches_back_over_claims() -> None:
    slices = [published("slice-1", device("large", attributes={"size": 2}), device("small", attributes={"size": 1}))]
    large = exactly(selectors=['device.attributes["driver-a"].size == 2'])
    assert World(slices).devices(claim(exactly()), claim(large, name="claim-1")) == ["req-0: small", "req-0: large"]


# All


def test_mode_all_means_every_device_that_matches() -> None:
    assert World(gpus(3)).devices(claim(everything())) == ["req-0: gpu-0", "req-0: gpu-1", "req-0: gpu-2"]


def test_mode_all_with_nothing_to_match_does_not_fit() -> None:
    assert isinstance(World([]).ask(claim(everything())), DoesNotFit)
    assert isinstance(World(gpus(2)).ask(claim(everything(selectors=["false"]))), DoesNotFit)


def test_mode_all_fails_when_one_of_the_devices_is_in_use() -> None:
    outcome = World(gpus(3), holdings=held("gpu-1")).ask(claim(everything()))
    assert isinstance(outcome, DoesNotFit)
    assert str(outcome) == "claim default/claim-0, request req-0: 1 in use"


def test_mode_all_after_another_request_has_taken_one_does_not_fit() -> None:
    assert World(gpus(3)).devices(claim(exactly("one"), everything("all"))) == []


def test_mode_all_waits_for_a_pool_that_is_being_published_or_is_broken() -> None:
    unfinished = published("slice-2", device("x"), pool="pool-2", driver="driver-b", count=2)
    outcome = World([*gpus(2), unfinished]).ask(claim(everything()))
    # Kubernetes gives the pod up; the next node may have no such pool.
    assert isinstance(outcome, DoesNotFit)
    assert "asks for all devices, but pool driver-b/pool-2 is incomplete" in str(outcome)


def test_an_alternative_to_mode_all_is_taken_where_a_pool_is_unfinished() -> None:
    unfinished = published("slice-2", device("x"), pool="pool-2", count=2)
    wish = first_available("req", subrequest("all", count=0, allocation_mode="All"), subrequest("one"))
    assert World([*gpus(1), unfinished]).devices(claim(wish)) == ["req/one: gpu-0"]


def test_a_constraint_against_mode_all_does_not_fit_here() -> None:
    slices = [published("slice-1", device("a", attributes={"numa": 0}), device("b", attributes={"numa": 1}))]
    together = claim(everything(), constraints=[{"matchAttribute": "driver-a/numa"}])
    # Kubernetes gives the pod up; another node may have all of its devices together.
    assert isinstance(World(slices).ask(together), DoesNotFit)


# the limit


def test_a_claim_holds_at_most_32_devices() -> None:
    assert len(World(gpus(40)).devices(claim(exactly(count=32)))) == 32
    mistake, text = mistake_of(World(gpus(40)), claim(exactly(count=33)))
    assert mistake is Mistake.LIMIT
    assert text == "claim default/claim-0: 33 devices are requested, a claim can hold 32"


def test_the_limit_is_each_claims_own() -> None:
    assert len(World(gpus(64)).devices(claim(exactly(count=32)), claim(exactly(count=32), name="claim-1"))) == 64


def test_alternatives_that_are_too_many_together_are_passed_over() -> None:
    wish = first_available("req-0", subrequest("many", count=30), subrequest("few", count=2))
    assert World(gpus(64)).devices(claim(wish, exactly("req-1", count=20)))[:3] == [
        "req-0/few: gpu-0",
        "req-0/few: gpu-1",
        "req-1: gpu-2",
    ]


def test_too_many_in_a_later_claim_is_no_reason_against_an_earlier_one() -> None:
    many = first_available("req", subrequest("many", count=31), subrequest("few", count=1))
    later = claim(exactly("one", count=2), many, name="claim-1")
    assert World(gpus(64)).devices(claim(exactly()), later)[-1] == "req/few: gpu-3"


def test_mode_all_on_a_node_with_more_than_32_devices_does_not_fit_there() -> None:
    outcome = World(gpus(33)).ask(claim(everything()))
    assert isinstance(outcome, DoesNotFit)
    assert "33 devices are requested, a claim can hold 32" in str(outcome)


# admin access


def admin(name: str = "admin", **fields: Any) -> Document:
    return exactly(name, admin_access=True, **fields)


def test_admin_access_takes_devices_that_are_in_use() -> None:
    world = World(gpus(1), holdings=held("gpu-0"))
    assert world.devices(claim(admin())) == ["admin: gpu-0"]
    assert world.devices(claim(exactly())) == []


def test_admin_access_to_all_devices_looks_over_what_is_in_use() -> None:
    world = World(gpus(2), holdings=held("gpu-0"))
    assert world.devices(claim(everything(admin_access=True))) == ["req-0: gpu-0", "req-0: gpu-1"]


def test_two_claims_may_have_admin_access_to_one_device_and_one_claim_only_once() -> None:
    assert World(gpus(1)).devices(claim(admin()), claim(admin(), name="claim-1")) == ["admin: gpu-0", "admin: gpu-0"]
    assert World(gpus(1)).devices(claim(admin("a"), admin("b"))) == []


def test_what_admin_access_has_taken_in_this_pod_nobody_else_of_the_pod_gets() -> None:
    assert World(gpus(1)).devices(claim(admin()), claim(exactly(), name="claim-1")) == []
    assert World(gpus(1)).devices(claim(exactly()), claim(admin(), name="claim-1")) == ["req-0: gpu-0", "admin: gpu-0"]


def test_admin_access_still_needs_selectors_and_tolerations() -> None:
    tainted = gpus(1, taints=[{"key": "t", "effect": "NoExecute"}])
    assert World(tainted).devices(claim(admin())) == []
    assert World(tainted).devices(claim(admin(tolerations=[{"operator": "Exists"}]))) == ["admin: gpu-0"]
    assert World(gpus(1)).devices(claim(admin(selectors=["false"]))) == []


# features


@pytest.mark.parametrize(
    ("features", "wish"),
    [
        (Features(admin_access=False), admin()),
        (Features(admin_access=False), exactly(admin_access=False)),
        (Features(prioritized_list=False), first_available("req", subrequest("one"))),
        (Features(consumable_capacity=False), exactly(capacity={"requests": {}})),
        (Features(consumable_capacity=False), first_available("req", subrequest("one", capacity={"requests": {}}))),
    ],
)
def test_what_the_cluster_has_switched_off_is_an_error(features: Features, wish: Document) -> None:
    assert mistake_of(World(gpus(1), features=features), claim(wish))[0] is Mistake.FEATURE_OFF


def test_distinct_attribute_needs_a_newer_allocator() -> None:
    old = features_of(["DRAAdminAccess", "DRAPrioritizedList"])
    wish = claim(exactly(), constraints=[{"distinctAttribute": "driver-a/numa"}])
    assert mistake_of(World(gpus(1), features=old), wish)[0] is Mistake.FEATURE_OFF


def test_devices_with_binding_conditions_need_the_feature() -> None:
    slices = gpus(1, binding_conditions=["ready"])
    assert World(slices).devices(claim(exactly())) == ["req-0: gpu-0"]
    outcome = World(slices, features=Features(binding_conditions=False)).ask(claim(exactly()))
    assert str(outcome).endswith("1 with binding conditions, which the cluster has switched off")


def test_mode_all_with_the_feature_off_asks_for_no_capacity() -> None:
    world = World(gpus(2, capacity={"memory": "4"}), features=Features(consumable_capacity=False))
    assert world.devices(claim(everything())) == ["req-0: gpu-0", "req-0: gpu-1"]
