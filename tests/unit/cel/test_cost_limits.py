"""No expression runs away: not in cost, not in what it builds, not in what it compares, not in depth."""

from __future__ import annotations

import tracemalloc

import pytest

from dracaena.api.limits import EXPRESSION_COST
from dracaena.cel import MATCH, DeviceView, Failed, LanguageFeatures, compile_selector

EVERYTHING = LanguageFeatures(consumable_capacity=True, list_type_attributes=True)
DEVICE = DeviceView.of_names("d", {"text": "x" * 64})
COST = "operation cancelled: actual cost limit exceeded"
WORK = "operation cancelled: actual cost limit exceeded: it takes too many steps"

LONG = "[" + ",".join("1" for _ in range(300)) + "]"


def doubled(start: str, times: int, use: str) -> str:
    """`use` of a variable `v` that holds the start added to itself this many times."""
    bindings = "".join(f"cel.bind(v{n + 1}, v{n} + v{n}, " for n in range(times))
    return f"cel.bind(v0, {start}, {bindings}{use.replace('$', f'v{times}')}{')' * (times + 1)}"


def nested(levels: int, use: str) -> str:
    """`use` of a list of ten lists of ten lists …: little memory, but 10^levels values to compare."""
    bindings = "".join(f"cel.bind(v{n + 1}, [{', '.join([f'v{n}'] * 10)}], " for n in range(levels))
    return f"cel.bind(v0, [1], {bindings}{use.replace('$', f'v{levels}')}{')' * (levels + 1)}"


RUNAWAYS = {
    "loops in loops": (f"{LONG}.all(a, {LONG}.all(b, {LONG}.all(c, true)))", WORK),
    "lists of lists": (f"{LONG}.map(a, {LONG}.map(b, {LONG}.map(c, 1))).size() > 0", WORK),
    "receivers that double": ("optional.of(1)" + ".optMap(x, x)" * 60 + ".hasValue()", WORK),
    "loops that cost nothing": (f"{LONG}.exists_one(a, {LONG}.exists_one(b, {LONG}.exists_one(c, false)))", WORK),
    "text that doubles": (doubled('"0123456789"', 60, "$.size() > 0"), WORK),
    "bytes that double": (doubled('b"0123456789"', 60, "$.size() > 0"), WORK),
    "lists that double": (doubled("[1, 2]", 60, "$.size() > 0"), WORK),
    "lists within lists": (nested(30, "$ == $"), WORK),
    "lists compared again and again": (nested(4, f"{LONG}.all(x, $ == $)"), WORK),
    "lists searched": (nested(4, f"{LONG}.all(x, $ in [$, $])"), WORK),
    "distinct": (doubled(f"{LONG}.map(x, [x])", 4, "$.distinct().size() > 0"), WORK),
    "sets": (doubled(LONG, 6, "sets.equivalent($, $)"), WORK),
    "ranges": ("lists.range(1000000000000).size() > 0", WORK),
    "replacements": (
        """cel.bind(a, device.attributes["d"].text, cel.bind(b, a.replace("x", a), cel.bind(c, b.replace("x", b),
        c.replace("x", c).size() > 0)))""",
        WORK,
    ),
    "joined text": (
        f'cel.bind(a, {LONG}.map(x, device.attributes["d"].text + "{"y" * 100}"), a.join(a.join("{"z" * 100}")) == "")',
        WORK,
    ),
    "text searched": (doubled("'0123456789'", 11, "$.contains($ + $)"), COST),
    "maps of maps": (f"{LONG}.transformMap(i, v, {LONG}.transformMap(j, w, {LONG})).size() > 0", WORK),
}


@pytest.mark.parametrize("name", sorted(RUNAWAYS))
def test_an_expression_that_runs_away_is_ended(name: str) -> None:
    expression, reason = RUNAWAYS[name]
    assert len(expression) <= 10 * 1024  # what the API accepts
    selector = compile_selector(expression, EVERYTHING)
    assert selector.evaluate(DEVICE) == Failed(reason)


@pytest.mark.parametrize(
    "name", ["text that doubles", "bytes that double", "lists that double", "joined text", "ranges"]
)
def test_what_is_built_on_the_way_to_the_limit_is_bounded(name: str) -> None:
    selector = compile_selector(RUNAWAYS[name][0], EVERYTHING)
    tracemalloc.start()
    selector.evaluate(DEVICE)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 64 * 2**20


def test_a_selector_that_is_kept_holds_no_large_value() -> None:
    tracemalloc.start()
    selector = compile_selector("lists.range(200000).size() == 200000", EVERYTHING)
    assert selector.evaluate(DEVICE) == MATCH
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 2**20


def test_an_expression_may_cost_a_million_units_and_no_more() -> None:
    selector = compile_selector(doubled("'0123456789'", 10, "$.contains($)"), EVERYTHING)
    outcome, cost = selector.evaluate_with_cost(DEVICE, cost_limit=10_000_000)
    assert outcome == MATCH
    assert EXPRESSION_COST < cost < 3_000_000
    assert selector.evaluate_with_cost(DEVICE, cost_limit=cost) == (MATCH, cost)
    assert selector.evaluate(DEVICE, cost_limit=cost - 1) == Failed(COST)
    assert selector.evaluate(DEVICE) == Failed(COST)


def test_no_operator_absorbs_the_cost_limit() -> None:
    selector = compile_selector(f"{LONG}.all(a, {LONG}.all(b, true)) || true", EVERYTHING)
    assert selector.evaluate(DEVICE, cost_limit=1_000) == Failed(COST)


def test_an_error_after_the_limit_is_the_limit() -> None:
    selector = compile_selector("[1, 2, 3].map(x, x).size() / 0 == 1", EVERYTHING)
    assert selector.evaluate(DEVICE, cost_limit=10) == Failed(COST)
    assert selector.evaluate(DEVICE) == Failed("division by zero")


def test_work_within_bounds_is_not_in_the_way() -> None:
    assert compile_selector(nested(4, "$ == $"), EVERYTHING).evaluate(DEVICE) == MATCH
    assert compile_selector(doubled('"0123456789"', 10, "$.size() == 10240"), EVERYTHING).evaluate(DEVICE) == MATCH
