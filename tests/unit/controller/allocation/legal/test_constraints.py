"""matchAttribute and distinctAttribute, over scalars and lists."""

from __future__ import annotations

from typing import Any

import pytest

from dracaena.controller.allocation.legal.outcome import DeviceRule, DoesNotFit
from dracaena.controller.allocation.legal.read.features import Features
from support.structured import (
    Document,
    World,
    claim,
    device,
    exactly,
    first_available,
    published,
    subrequest,
)

LISTS = Features(list_attributes=True)


def devices(*values: Any, name: str = "key") -> list[Document]:
    """A slice of devices d0, d1, … with these values of one attribute; None: without it."""
    return [
        published(
            "slice-1",
            *(
                device(f"d{place}", attributes={} if value is None else {name: value})
                for place, value in enumerate(values)
            ),
        )
    ]


def match(*requests: str, name: str = "driver-a/key") -> Document:
    return {"matchAttribute": name, **({"requests": list(requests)} if requests else {})}


def distinct(*requests: str, name: str = "driver-a/key") -> Document:
    return {"distinctAttribute": name, **({"requests": list(requests)} if requests else {})}


def chosen(slices: list[Document], constraint: Document, count: int = 2, features: Features | None = None) -> list[str]:
    world = World(slices, features=features or Features())
    return [one.partition(": ")[2] for one in world.devices(claim(exactly(count=count), constraints=[constraint]))]


def version(text: str) -> Document:
    return {"version": text}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1, 2, 1), ["d0", "d2"]),
        (("x", "y", "y"), ["d1", "d2"]),
        ((True, False, False), ["d1", "d2"]),
        ((version("1.0.0"), version("1.0.1"), version("1.0.1")), ["d1", "d2"]),
        ((version("1.0.0"), version("1.0.0+build")), []),
        ((1, 2, 3), []),
        # The same text as another type is another value.
        (("1", 1, version("1.0.0"), "1"), ["d0", "d3"]),
        ((1, True), []),
        ((None, 1, None, 1), ["d1", "d3"]),
        ((None, None), []),
    ],
)
def test_devices_match_when_they_have_one_value(values: tuple[Any, ...], expected: list[str]) -> None:
    assert chosen(devices(*values), match()) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1, 1, 2), ["d0", "d2"]),
        (("x", "x"), []),
        ((1, "1"), ["d0", "d1"]),
        ((False, False, True), ["d0", "d2"]),
        ((version("1.0.0"), version("1.0.0"), version("2.0.0")), ["d0", "d2"]),
        ((None, 1, 2), ["d1", "d2"]),
    ],
)
def test_devices_are_distinct_when_no_two_have_one_value(values: tuple[Any, ...], expected: list[str]) -> None:
    assert chosen(devices(*values), distinct()) == expected


def test_all_devices_of_one_request_are_distinct_not_only_neighbours() -> None:
    # Kubernetes 1.36 remembers one device for each request, and takes d0, d1, d2.
    assert chosen(devices(1, 2, 1, 3), distinct(), count=3) == ["d0", "d1", "d3"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (([1, 2], [3], [2, 3]), ["d0", "d2"]),
        ((["x"], ["y", "x"]), ["d0", "d1"]),
        (([True], [False], [True, False]), ["d0", "d2"]),
        ((1, [2], [1, 5]), ["d0", "d2"]),
        (([1], ["1"]), []),
        (({"versions": ["1.0.0", "1.0.1"]}, version("1.0.1")), ["d0", "d1"]),
        (({}, {}, 1, 1), []),
    ],
)
def test_lists_match_when_one_element_is_common(values: tuple[Any, ...], expected: list[str]) -> None:
    # Without a selector: CEL has no value for an attribute without a type.
    wish = claim(exactly(count=2, device_class="any"), constraints=[match()])
    found = World(devices(*values), features=LISTS).devices(wish)
    if values[0] == {}:
        expected = ["d2", "d3"]
    assert [one.partition(": ")[2] for one in found] == expected


def test_one_element_must_be_common_to_all_of_them_not_to_each_pair() -> None:
    values = ([1, 2], [2, 3], [1, 3], [2])
    assert chosen(devices(*values), match(), count=3, features=LISTS) == ["d0", "d1", "d3"]


def test_what_is_common_widens_again_when_a_device_is_taken_back() -> None:
    # d0 and d1 leave only 2, which d2 and d3 have not; without d1 it is 1 again. Kubernetes 1.36 forgets to widen it.
    values = ([1, 2], [2], [1, 3], [1])
    assert chosen(devices(*values), match(), count=3, features=LISTS) == ["d0", "d2", "d3"]


def test_lists_are_distinct_when_no_two_have_an_element_in_common() -> None:
    assert chosen(devices([1, 2], [2], [3], 3), distinct(), features=LISTS) == ["d0", "d2"]
    assert chosen(devices([1, 2], [2, 1], 1, 2), distinct(), features=LISTS) == ["d2", "d3"]
    assert chosen(devices([1, 2], [2, 3], 2), distinct(), features=LISTS) == []


def test_lists_with_the_feature_off_never_match_each_other() -> None:
    wish = claim(exactly(count=2, device_class="any"), constraints=[match()])
    assert World(devices([1], [1])).devices(wish) == []
    # One device alone matches itself, whatever its value is.
    wish = claim(exactly(device_class="any"), constraints=[match()])
    assert World(devices([1])).devices(wish) == ["req-0: d0"]


def test_the_driver_s_name_may_be_left_out_of_its_own_attributes_only() -> None:
    slices = [
        published("slice-1", device("a", attributes={"key": 1}), device("b", attributes={"driver-a/key": 1})),
        published("slice-2", device("c", attributes={"key": 1}), driver="driver-b"),
        published("slice-3", device("d", attributes={"driver-a/key": 1}), driver="driver-c"),
    ]
    wish = claim(exactly(count=3, device_class="any"), constraints=[match()])
    assert World(slices).devices(wish) == ["req-0: a", "req-0: b", "req-0: d"]


def test_a_constraint_of_named_requests_leaves_the_others_alone() -> None:
    wish = claim(exactly("a"), exactly("b"), exactly("c"), constraints=[match("a", "c")])
    assert World(devices(1, 2, 1)).devices(wish) == ["a: d0", "b: d1", "c: d2"]


def test_a_constraint_without_names_is_about_all_requests_of_its_claim_only() -> None:
    first = claim(exactly("a"), exactly("b"), constraints=[match()])
    second = claim(exactly("c"), name="claim-1")
    assert World(devices(1, 2, 1)).devices(first, second) == ["a: d0", "b: d2", "c: d1"]


def test_a_constraint_can_name_one_alternative() -> None:
    wish = claim(first_available("a", subrequest("x")), exactly("b"), constraints=[match("a/x", "b")])
    assert World(devices(1, 2, 1)).devices(wish) == ["a/x: d0", "b: d2"]
    other = claim(first_available("a", subrequest("x")), exactly("b"), constraints=[match("a/y", "b")])
    assert World(devices(1, 2, 1)).devices(other) == ["a/x: d0", "b: d1"]


def test_naming_a_request_names_all_its_alternatives() -> None:
    wish = claim(first_available("a", subrequest("x", count=3), subrequest("y", count=2)), constraints=[match("a")])
    assert World(devices(1, 2, 1)).devices(wish) == ["a/y: d0", "a/y: d2"]


def test_all_constraints_of_a_claim_hold_together() -> None:
    slices = [
        published(
            "slice-1",
            device("a", attributes={"numa": 0, "slot": 0}),
            device("b", attributes={"numa": 0, "slot": 0}),
            device("c", attributes={"numa": 1, "slot": 1}),
            device("d", attributes={"numa": 0, "slot": 1}),
        )
    ]
    constraints = [match(name="driver-a/numa"), distinct(name="driver-a/slot")]
    assert World(slices).devices(claim(exactly(count=2), constraints=constraints)) == ["req-0: a", "req-0: d"]


def test_devices_of_two_drivers_meet_at_an_attribute_of_a_third_domain() -> None:
    root = "resource.kubernetes.io/pcieRoot"
    slices = [
        published("slice-1", *(device(f"gpu-{n}", attributes={root: f"pci000{n}:00"}) for n in range(3))),
        published("slice-2", device("nic", attributes={root: "pci0002:00"}), driver="driver-n"),
    ]
    wish = claim(
        exactly("gpu"),
        exactly("nic", device_class="any", selectors=['device.driver == "driver-n"']),
        constraints=[match(name=root)],
    )
    assert World(slices).devices(wish) == ["gpu: gpu-2", "nic: nic"]


def test_devices_that_a_constraint_forbids_are_counted() -> None:
    outcome = World(devices(1, 2, None)).ask(claim(exactly(count=2), constraints=[match()]))
    assert isinstance(outcome, DoesNotFit)
    assert [(reason.rule, reason.devices) for reason in outcome.reasons] == [(DeviceRule.CONSTRAINT, 2)]
    assert str(outcome) == "claim default/claim-0, request req-0: 2 against a constraint of the claim"
