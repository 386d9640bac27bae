"""What an expression can read, and what is remembered by it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from conformance.random_expressions import Generator
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.cel import (
    MATCH,
    NO_MATCH,
    CompileError,
    DeviceView,
    Failed,
    LanguageFeatures,
    SelectorMemo,
    Version,
    compile_selector,
)

EVERYTHING = LanguageFeatures(consumable_capacity=True, list_type_attributes=True)


def paths(expression: str) -> tuple[tuple[str, ...], ...]:
    return compile_selector(expression, EVERYTHING).footprint.paths


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("true", ()),
        ('device.driver == "d"', (("driver",),)),
        ("device.allowMultipleAllocations", (("allowMultipleAllocations",),)),
        ('device.attributes["d"].a == 1', (("attributes", "d", "a"),)),
        ('device.attributes["d"]["a"] == 1', (("attributes", "d", "a"),)),
        ("device.attributes.d.a == 1", (("attributes", "d", "a"),)),
        ('device.attributes["d"].a.b.c == 1', (("attributes", "d", "a"),)),
        ('device.attributes["d"].?a.orValue(1) == 1', (("attributes", "d", "a"),)),
        ('device.attributes[?"d"][?"a"].hasValue()', (("attributes", "d", "a"),)),
        ('has(device.attributes["d"].a)', (("attributes", "d", "a"),)),
        ('device.capacity["d"].m == quantity("1")', (("capacity", "d", "m"),)),
        ('"a" in device.attributes["d"]', (("attributes", "d"),)),
        ('"d" in device.attributes', (("attributes",),)),
        ('device.attributes["d"].a == 1 || "b" in device.attributes["d"]', (("attributes", "d"),)),
        ("device.attributes[device.driver].a == 1", (("attributes",), ("driver",))),
        ('device.attributes["d"][device.driver] == 1', (("attributes", "d"), ("driver",))),
        ('cel.bind(x, device.attributes.d, x.a == x.b)', (("attributes", "d", "a"), ("attributes", "d", "b"))),
        ('cel.bind(x, device.attributes["d"], cel.bind(y, x.a, y == 1))', (("attributes", "d", "a"),)),
        ("cel.bind(x, device, x.driver == 'd')", (("driver",),)),
        ("cel.bind(x, device.driver, true)", ()),
        ("[1].exists(device, device == 1)", ()),
        ("[1].exists(device, .device.driver == 'd')", (("driver",),)),
        ('device.attributes["d"].l.exists(x, x == device.driver)', (("attributes", "d", "l"), ("driver",))),
        ('device.attributes["d"].?a.optMap(x, x + 1).hasValue()', (("attributes", "d", "a"),)),
        ("dyn(device).driver == 'd'", ((),)),
        ("device == device", ((),)),
        ("(true ? device : device).driver == 'd'", ((),)),
    ],
)  # fmt: skip
def test_a_footprint_holds_what_the_expression_can_read(expression: str, wanted: tuple[tuple[str, ...], ...]) -> None:
    assert paths(expression) == wanted


def test_reading_all_attributes_is_everything() -> None:
    for expression in ('"d" in device.attributes', "device == device", "device.capacity.size() == 0"):
        assert compile_selector(expression, EVERYTHING).footprint.everything
    assert not compile_selector('"a" in device.attributes["d"]', EVERYTHING).footprint.everything


def test_keys_tell_apart_what_python_holds_equal() -> None:
    footprint = compile_selector('device.attributes["d"].a == 1', EVERYTHING).footprint
    values: list[Any] = [1, True, "1", Version("1.0.0"), "1.0.0", (1,), (True,), None]
    keys = [footprint.key(DeviceView.of_names("d", {"a": value})) for value in values]
    assert len(set(keys)) == len(values)


SCALARS = st.one_of(
    st.integers(0, 4), st.booleans(), st.sampled_from(["a", "fish", "A100"]), st.just(Version("1.2.3")),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
)  # fmt: skip
NAMES = st.sampled_from(["name", "b", "i", "v", "oth.example.com/x", "oth.example.com/i"])
DEVICES = st.builds(
    DeviceView.of_names,
    st.sampled_from(["dra.example.com", "other"]),
    st.dictionaries(NAMES, SCALARS),
    st.dictionaries(st.sampled_from(["memory", "oth.example.com/m"]), st.sampled_from(["1", "40Gi"])),
    allow_multiple_allocations=st.booleans(),
)


@settings(derandomize=True)
@given(st.integers(0, 10**9), DEVICES, DEVICES)
def test_devices_with_equal_keys_get_equal_answers(seed: int, first: DeviceView, second: DeviceView) -> None:
    """The second device takes over from the first what the expression can read; the rest stays different."""
    try:
        selector = compile_selector(Generator(seed).selector(), EVERYTHING)
    except CompileError:
        return
    mixed = second
    for path in selector.footprint.paths:
        mixed = _with_part_of(mixed, first, path)
    assert selector.footprint.key(mixed) == selector.footprint.key(first)
    assert selector.evaluate_with_cost(mixed) == selector.evaluate_with_cost(first)


def _with_part_of(device: DeviceView, other: DeviceView, path: tuple[str, ...]) -> DeviceView:
    if not path:
        return other
    if path == ("driver",):
        return replace(device, driver=other.driver)
    if path == ("allowMultipleAllocations",):
        return replace(device, allow_multiple_allocations=other.allow_multiple_allocations)
    group = path[0]
    domains: dict[str, dict[str, Any]] = {name: dict(values) for name, values in getattr(device, group).items()}
    others: dict[str, dict[str, Any]] = getattr(other, group)
    if len(path) == 1:
        domains = others
    elif len(path) == 2:
        domains.pop(path[1], None)
        if path[1] in others:
            domains[path[1]] = others[path[1]]
    else:
        domains.setdefault(path[1], {}).pop(path[2], None)
        if path[2] in others.get(path[1], {}):
            domains[path[1]][path[2]] = others[path[1]][path[2]]
    return replace(device, attributes=domains) if group == "attributes" else replace(device, capacity=domains)


def test_the_memo_answers_as_the_selector_does() -> None:
    memo = SelectorMemo(EVERYTHING, most_selectors=20, most_answers=50)
    chance = random.Random(1)
    expressions = [Generator(seed).selector() for seed in range(60)]
    devices = [
        DeviceView.of_names(
            "dra.example.com", {"name": chance.choice(["fish", "a"]), "i": chance.randrange(3), "id": n}
        )
        for n in range(10)
    ]
    asked = 0
    for _ in range(2_000):
        try:
            selector = memo.compile(chance.choice(expressions))
        except CompileError:
            continue
        device = chance.choice(devices)
        assert memo.evaluate(selector, device) == selector.evaluate(device)
        asked += 1
    assert asked > 1_000


def test_equal_devices_cost_one_evaluation() -> None:
    memo = SelectorMemo()
    selector = memo.compile('device.attributes["d"].model.matches("A[0-9]+")')
    evaluated = 0
    plain = type(selector).evaluate_charged

    def counted(self: Any, device: DeviceView, charge: Any) -> Any:
        nonlocal evaluated
        evaluated += 1
        return plain(self, device, charge)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(selector), "evaluate_charged", counted)
        for number in range(1_000):
            device = DeviceView.of_names("d", {"model": "A100" if number % 2 else "B1", "uuid": f"GPU-{number}"})
            assert memo.evaluate(selector, device) is (MATCH if number % 2 else NO_MATCH)
    assert evaluated == 2


def test_the_memo_forgets_before_it_grows_beyond_its_bounds() -> None:
    memo = SelectorMemo(most_selectors=3, most_answers=5)
    for number in range(20):
        selector = memo.compile(f'device.attributes["d"].n == {number}')
        for value in range(20):
            memo.evaluate(selector, DeviceView.of_names("d", {"n": value}))
            assert len(memo._answers) <= 5
        assert len(memo._selectors) <= 3


def test_the_memo_holds_so_many_characters_and_no_answer_of_what_it_forgot() -> None:
    memo = SelectorMemo(most_characters=1_000)
    for number in range(40):
        selector = memo.compile(f'device.attributes["d"].n == {number} || {"false || " * 20} true')
        memo.evaluate(selector, DeviceView.of_names("d", {"n": 1}))
        assert sum(map(len, memo._selectors)) <= 1_000
        assert {selector for selector, _ in memo._answers} <= set(memo._selectors.values())
    assert 0 < len(memo._answers) < 10


def test_an_error_that_is_kept_is_short() -> None:
    memo = SelectorMemo()
    with pytest.raises(CompileError) as refused:
        memo.compile("+".join(f"x{number}" for number in range(200)))
    assert refused.value.message == "undeclared reference to 'x0' (in container '')"
    assert refused.value.rendered == refused.value.message
    assert (refused.value.line, refused.value.column) == (1, 1)


def test_an_expression_that_does_not_compile_is_an_error_each_time() -> None:
    memo = SelectorMemo()
    for _ in range(2):
        with pytest.raises(CompileError, match="undefined field"):
            memo.compile("device.drvr == 'x'")


def test_a_device_with_invalid_data_fails_even_if_the_answer_for_its_parts_is_known() -> None:
    memo = SelectorMemo()
    selector = memo.compile('device.attributes["d"].model == "A100"')
    assert memo.evaluate(selector, DeviceView.of_names("d", {"model": "A100"})) is MATCH
    broken = DeviceView.of_names("d", {"model": "A100", "version": Version("x")})
    assert isinstance(memo.evaluate(selector, broken), Failed)
