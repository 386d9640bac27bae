"""Optional values that a person forgot to ask for."""

from __future__ import annotations

import pytest

from dracaena.cel import compile_selector, misused_optional

OWN = 'device.attributes["d"]'


@pytest.mark.parametrize(
    ("expression", "function", "column"),
    [
        (f"{OWN}.name.orValue(0) > 0", "orValue", 36),
        (f"true || {OWN}.name.hasValue()", "hasValue", 45),
        (f"{OWN}['name'].or(optional.of(1)).hasValue()", "or", 34),
        (f"{OWN}.name.optMap(x, x + 1).orValue(2) > 1", "hasValue", 35),
        ("device.driver.orValue('x') == 'x'", "orValue", 22),
    ],
)
def test_a_value_of_the_device_is_no_optional(expression: str, function: str, column: int) -> None:
    if "driver" not in expression:
        compile_selector(expression)
    mistake = misused_optional(expression)
    assert mistake is not None
    assert mistake.message.startswith(f"'{function}' needs an optional value")
    assert (mistake.line, mistake.column) == (1, column)


@pytest.mark.parametrize(
    "expression",
    [
        f"{OWN}.?name.orValue(0) > 0",
        f"{OWN}[?'name'].or(optional.of(1)).orValue(2) > 1",
        "device.attributes[?'d'].name.orValue(true)",
        "optional.of(1).orValue(2) == 1",
        f"cel.bind(x, {OWN}.?name, x.orValue(0) > 0)",
        f"{OWN}.name == 'orValue'",
    ],
)
def test_an_optional_value_or_one_that_may_be_is_not_reported(expression: str) -> None:
    assert misused_optional(expression) is None
