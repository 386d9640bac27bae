from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from dracaena.api.config.v1alpha1 import Requirement
from dracaena.api.resource_objects import DeviceClass, ResourceClaim
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.request import ClaimDemand, RefusalKind, Refused
from support.allocation import DRIVER, claim, device_class, own_config, policy, request, requests_of

CLASSES = {DRIVER: device_class(), "linked": device_class("linked", policy("NVLink"))}


def requirements(
    *claims: ResourceClaim, classes: dict[str, DeviceClass] = CLASSES
) -> list[tuple[str, int, Requirement | None]]:
    demands = requests_of(classes.values()).read(claims)
    assert not isinstance(demands, Refused), demands
    return [(r.name, r.count, r.policy.requirement) for demand in demands for (r,) in demand.requests]


def configs_of(demand: ClaimDemand) -> tuple[Mapping[str, Any], ...]:
    return demand.configs((preferred for preferred, *_ in demand.requests), Features())


def refusal(*claims: ResourceClaim, classes: dict[str, DeviceClass] = CLASSES) -> Refused:
    refused = requests_of(classes.values()).read(claims)
    assert isinstance(refused, Refused)
    return refused


def test_requests_come_in_the_order_of_claims_and_specs() -> None:
    found = requirements(claim("b", request("x", 2), request("a", 1)), claim("a", request("z", 4)))
    assert [name for name, _, _ in found] == ["x", "a", "z"]
    assert [count for _, count, _ in found] == [2, 1, 4]


def test_the_policy_of_a_class_holds_for_its_requests_only() -> None:
    found = requirements(claim("c", request("a", 2, "linked"), request("b", 2)))
    assert [requirement for _, _, requirement in found] == [Requirement.NVLINK, None]


def test_the_config_of_a_claim_comes_after_that_of_the_class() -> None:
    configs = [own_config(policy("PIX")), own_config(policy("PHB"), "b")]
    found = requirements(claim("c", request("a", 2, "linked"), request("b", 2, "linked"), configs=configs))
    assert [requirement for _, _, requirement in found] == [Requirement.PIX, Requirement.PHB]


def test_configs_of_other_drivers_are_carried_and_not_read() -> None:
    foreign = {"opaque": {"driver": "other.example.com", "parameters": {"any": "thing"}}}
    demands = requests_of(CLASSES.values()).read([claim("c", request("a"), configs=[foreign])])
    assert not isinstance(demands, Refused)
    assert msgspec.json.decode(msgspec.json.encode(configs_of(demands[0]))) == [{"source": "FromClaim", **foreign}]


def test_configs_of_classes_come_first_once_a_class_with_the_requests_that_use_it() -> None:
    configs = [own_config(policy("PIX"), "b"), own_config(policy("PHB"))]
    asked = claim("c", request("a", 1, "linked"), request("b"), request("d", 1, "linked"), configs=configs)
    demands = requests_of(CLASSES.values()).read([asked])
    assert not isinstance(demands, Refused)
    assert [(entry["source"], entry.get("requests")) for entry in configs_of(demands[0])] == [
        ("FromClass", ["a", "d"]),
        ("FromClaim", ["b"]),
        ("FromClaim", None),
    ]


@pytest.mark.parametrize(("of_class", "of_claim", "excess"), [(31, 32, 0), (32, 32, 1), (32, 31, 0), (0, 0, -63)])
def test_the_configs_that_an_allocation_has_no_room_for_are_counted(of_class: int, of_claim: int, excess: int) -> None:
    foreign = {"opaque": {"driver": "other.example.com", "parameters": {"any": "thing"}}}
    crowded = device_class("crowded", config=[foreign] * of_class)
    asked = claim("c", request("a", 1, "crowded"), request("b", 1, "crowded"), configs=[foreign] * of_claim)
    (demand,) = requests_of([crowded]).read([asked])  # type: ignore[misc]
    assert isinstance(demand, ClaimDemand)
    assert len(configs_of(demand)) == 63 + excess == 63 + demand.excess_configs


def test_configs_that_an_alternative_may_do_without_are_not_counted() -> None:
    foreign = {"opaque": {"driver": "other.example.com", "parameters": {"any": "thing"}}}
    classes = [device_class("crowded", config=[foreign] * 32), device_class()]
    either = [{"name": "x", "deviceClassName": "crowded"}, {"name": "y", "deviceClassName": DRIVER}]
    asked = claim("c", {"name": "a", "firstAvailable": either}, configs=[{"requests": ["a/x"], **foreign}] * 32)
    (demand,) = requests_of(classes).read([asked])  # type: ignore[misc]
    assert isinstance(demand, ClaimDemand)
    assert demand.excess_configs == -63


def test_a_claim_without_requests_is_left_to_kube_scheduler() -> None:
    empty = ResourceClaim(metadata=claim("e").metadata, spec={"devices": {}})
    assert requests_of(CLASSES.values()).read([empty]) == ()


def test_a_missing_class_is_named() -> None:
    refused = refusal(claim("c", request("a", 1, "gone")))
    assert refused == Refused(
        RefusalKind.CLASS_MISSING,
        "claim default/c: DeviceClass gone does not exist: an admin has to create it",
        concerns_us=False,
    )


@pytest.mark.parametrize(
    ("bad", "where"),
    [
        (
            claim("c", configs=[own_config({"kind": "X"})]),
            "claim default/c: spec.devices.config[0].opaque.parameters: $",
        ),
        (claim("c", request("a", 1, "broken")), "DeviceClass broken: spec.config[0].opaque.parameters: $.requirement"),
    ],
)
def test_a_broken_config_says_whose_it_is_and_where(bad: ResourceClaim, where: str) -> None:
    classes = {**CLASSES, "broken": device_class("broken", policy("fast"))}
    refused = refusal(bad, classes=classes)
    assert refused.kind is RefusalKind.CONFIG_BROKEN
    assert refused.concerns_us
    assert refused.text.startswith(where)


def test_a_claim_of_unknown_shape_is_left_alone_with_the_reason() -> None:
    refused = refusal(claim("c", {"name": "a", "someOf": []}))
    assert refused.kind is RefusalKind.UNSUPPORTED
    assert refused.text == (
        "claim default/c: spec.devices.requests[0].someOf: field 'someOf': "
        "unknown to this version: the claim is left alone"
    )


def test_one_claim_that_cannot_be_read_refuses_all_claims_of_the_pod() -> None:
    assert refusal(claim("good"), claim("bad", request("a", 1, allocationMode="Most"))).text.startswith(
        "claim default/bad"
    )


UNREADABLE = {"selectors": [{"cel": {"expression": "true"}, "more": 1}]}


@pytest.mark.parametrize(
    ("class_name", "classes", "configs", "concerned"),
    [
        (DRIVER, {}, [], True),
        (f"{DRIVER}-big", {}, [], True),
        (f"mig.{DRIVER}", {}, [], True),
        ("nic.example.com", {}, [], False),
        ("nic.example.com", {"nic.example.com": device_class("nic.example.com", **UNREADABLE)}, [], False),
        ("big", {"big": device_class("big", policy("PIX"), **UNREADABLE)}, [], True),
        ("nic.example.com", {}, [own_config({})], True),
    ],
)
def test_users_are_reported_only_when_class_or_config_means_our_driver(
    class_name: str, classes: dict[str, DeviceClass], configs: list[dict[str, Any]], concerned: bool
) -> None:
    asked = claim("c", request("a", 1, class_name), configs=configs)
    assert requests_of(classes.values()).concerns_us([asked]) is concerned
    assert refusal(asked, classes=classes).concerns_us is concerned


def test_a_class_named_in_an_alternative_concerns_us_too() -> None:
    asked = claim("c", {"name": "a", "firstAvailable": [{"name": "x", "deviceClassName": DRIVER}]})
    assert requests_of().concerns_us([asked])
    assert refusal(asked, classes={}).concerns_us
