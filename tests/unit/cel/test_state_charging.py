"""What an evaluation costs is told while it runs, so that whoever asked can end it."""

from __future__ import annotations

import pytest

from dracaena import cel
from dracaena.cel.state import PULSE

NUMBERS = f"[{','.join(map(str, range(30)))}]"
DEVICE = cel.DeviceView.of_names("gpu.example.com", {"a": 1}, {})


class StopError(Exception):
    pass


@pytest.mark.parametrize(
    "expression",
    [
        f"{NUMBERS}.all(a, {NUMBERS}.all(b, {NUMBERS}.all(c, a + b + c >= 0)))",
        f"{NUMBERS}.exists(a, {NUMBERS}.exists(b, a + b > 100))",
        f"{NUMBERS}.map(a, {NUMBERS}.map(b, {NUMBERS}.map(c, a))).size() == 30",
        f"{NUMBERS}.all(a, {NUMBERS}.all(b, {NUMBERS}.all(c, {NUMBERS}.all(d, a >= 0))))",  # over Kubernetes' limit
        "device.attributes['gpu.example.com'].a == 1",
    ],
)
def test_answers_are_the_same_and_all_that_was_used_is_told(expression: str) -> None:
    selector = cel.compile_selector(expression)
    told: list[int] = []
    outcome, untold = selector.evaluate_charged(DEVICE, told.append)
    expected, cost = selector.evaluate_with_cost(DEVICE)
    assert outcome == expected
    assert sum(told) + untold >= cost
    assert untold < 2 * PULSE + cost // 10


def test_work_that_costs_nothing_is_told_too() -> None:
    """A list of ten lists of ten lists is compared for one unit of cost."""
    lists = "[1]"
    for _ in range(4):
        lists = f"[{','.join([lists] * 7)}]"
    selector = cel.compile_selector(f"cel.bind(x, {lists}, [x, x, x, x].all(y, y == x))")
    told: list[int] = []
    _, untold = selector.evaluate_charged(DEVICE, told.append)
    assert len(told) >= 2
    assert sum(told) + untold > 10 * PULSE


def test_whoever_is_told_can_end_it() -> None:
    selector = cel.compile_selector(f"{NUMBERS}.all(a, {NUMBERS}.all(b, {NUMBERS}.all(c, a + b + c >= 0)))")
    told: list[int] = []

    def stop(units: int) -> None:
        told.append(units)
        if len(told) == 3:
            raise StopError

    with pytest.raises(StopError):
        selector.evaluate_charged(DEVICE, stop)
    assert len(told) == 3
    assert all(PULSE <= units < 3 * PULSE for units in told)


def test_a_memo_tells_of_what_it_compiles_once_it_is_remembered() -> None:
    compiled: list[str] = []
    memo = cel.SelectorMemo(compiled=compiled.append)
    assert memo.compile("true") is memo.compile("true")
    with pytest.raises(cel.CompileError):
        memo.compile("1 +")
    with pytest.raises(cel.CompileError):
        memo.compile("1 +")
    assert compiled == ["true", "1 +"]


def test_an_answer_from_memory_costs_nothing() -> None:
    memo = cel.SelectorMemo()
    selector = memo.compile(f"{NUMBERS}.all(a, a >= 0)")
    told: list[int] = []
    assert memo.evaluate(selector, DEVICE, told.append) is cel.MATCH
    assert sum(told) > 30
    first = len(told)
    assert memo.evaluate(selector, DEVICE, told.append) is cel.MATCH
    assert len(told) == first
