from __future__ import annotations

import pytest

from dracaena.controller.allocation.nodes.selector_requirement import SelectorRequirement, integer


@pytest.mark.parametrize(
    ("operator", "values", "met_by"),
    [
        ("In", ("a", "b"), {"a", "b"}),
        ("NotIn", ("a", "b"), {None, "", "5", "9", "-1"}),
        ("Exists", (), {"a", "b", "", "5", "9", "-1"}),
        ("DoesNotExist", (), {None}),
        ("Gt", ("5",), {"9"}),
        ("Lt", ("5",), {"-1"}),
        ("Gt", ("x",), set()),
    ],
)
def test_a_requirement_is_met_by(operator: str, values: tuple[str, ...], met_by: set[str | None]) -> None:
    rule = SelectorRequirement("key", operator, values)
    assert {value for value in (None, "a", "b", "", "5", "9", "-1") if rule.matches(value)} == met_by


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("+7", 7),
        ("-7", -7),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", None),
        ("-9223372036854775808", -(2**63)),
        ("-9223372036854775809", None),
        ("1e3", None),
        (" 1", None),
        ("٣", None),
        ("", None),
        (None, None),
    ],
)
def test_numbers_are_decimal_and_of_64_bits(text: str | None, number: int | None) -> None:
    assert integer(text) == number
