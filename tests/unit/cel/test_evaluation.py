"""Evaluation: errors and what absorbs them, laziness, the device as it is seen. The values are in test_vectors.py."""

from __future__ import annotations

import pytest
from conformance.cel import device_of
from conformance.random_expressions import DOCUMENT, Generator

from dracaena.cel import (
    MATCH,
    NO_MATCH,
    CompileError,
    DeviceView,
    Failed,
    LanguageFeatures,
    Outcome,
    Version,
    compile_selector,
)

EVERYTHING = LanguageFeatures(consumable_capacity=True, list_type_attributes=True)
DEVICE = DeviceView.of_names(
    "gpu.example.com",
    {"model": "A100", "index": 3, "whole": True, "version": Version("1.2.3"), "other.example.com/ids": (1, 2)},
    {"memory": "40Gi"},
)
BROKEN = "1 / 0 == 1"


def answer(expression: str, device: DeviceView = DEVICE, features: LanguageFeatures = EVERYTHING) -> Outcome:
    return compile_selector(expression, features).evaluate(device)


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        (f"true || {BROKEN}", MATCH),
        (f"{BROKEN} || true", MATCH),
        (f"false && {BROKEN}", NO_MATCH),
        (f"{BROKEN} && false", NO_MATCH),
        (f"{BROKEN} || false", Failed("division by zero")),
        (f"true && {BROKEN}", Failed("division by zero")),
        (f"{BROKEN} || 1 % 0 == 1 || true", MATCH),
        (f"{BROKEN} || 1 % 0 == 1", Failed("division by zero")),
        ("dyn(1) || true", MATCH),
        ("dyn(1) || false", Failed("no such overload")),
        (f"!({BROKEN}) || true", MATCH),
        (f"true ? true : {BROKEN}", MATCH),
        (f"false ? {BROKEN} : true", MATCH),
        (f"{BROKEN} ? true : true", Failed("division by zero")),
        (f"[1, 2].exists(x, x == 2 || {BROKEN})", MATCH),
        ("[2, 0].exists(x, 4 / x == 2)", MATCH),
        ("[0, 2].exists(x, 4 / x == 2)", MATCH),
        ("[0, 2].all(x, 4 / x == 9)", NO_MATCH),
        ("[0, 2].all(x, 4 / x == 2)", Failed("division by zero")),
        ("[0, 2].exists_one(x, 4 / x == 2)", Failed("division by zero")),
        (f"optional.of(true).orValue({BROKEN})", MATCH),
        (f"cel.bind(x, {BROKEN}, true)", MATCH),
        (f"cel.bind(x, {BROKEN}, x)", Failed("division by zero")),
        (f"cel.bind(x, {BROKEN}, x || true)", MATCH),
    ],
)
def test_an_error_counts_only_where_nothing_else_decides(expression: str, wanted: Outcome) -> None:
    assert answer(expression) == wanted


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("9223372036854775807 + 1 == 0", "integer overflow"),
        ("-9223372036854775808 - 1 == 0", "integer overflow"),
        ("9223372036854775807 * 2 == 0", "integer overflow"),
        ("-(-9223372036854775808) == 0", "integer overflow"),
        ("-9223372036854775808 / -1 == 0", "integer overflow"),
        ("0u - 1u == 0u", "unsigned integer overflow"),
        ("1 / 0 == 0", "division by zero"),
        ("1 % 0 == 0", "modulus by zero"),
        ("1u / 0u == 0u", "division by zero"),
        ("[1][1] == 0", "index out of bounds: 1"),
        ("[1][-1] == 0", "index out of bounds: -1"),
        ("{'a': 1}['b'] == 0", "no such key: b"),
        ("optional.none().value() == 0", "optional.none() dereference"),
        ("timestamp('9999-12-31T23:59:59Z') + duration('1s') == timestamp(0)", "timestamp overflow"),
    ],
)
def test_what_has_no_value_is_an_error(expression: str, reason: str) -> None:
    assert answer(expression) == Failed(reason)


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ('device.attributes["gpu.example.com"].model == "A100"', MATCH),
        ('device.attributes["gpu.example.com"]["model"] == "A100"', MATCH),
        ('device.attributes["gpu.example.com"].nosuch == 1', Failed("no such key: nosuch")),
        ('device.attributes["nosuch.example.com"].model == 1', Failed("no such key: model")),
        ('device.attributes["nosuch.example.com"] == {}', MATCH),
        ('"nosuch.example.com" in device.attributes', NO_MATCH),
        ('has(device.attributes["nosuch.example.com"].model)', NO_MATCH),
        ('has(device.attributes["gpu.example.com"].model)', MATCH),
        ('device.attributes["nosuch.example.com"].?model.hasValue()', NO_MATCH),
        ("device.attributes.map(d, d) == ['gpu.example.com', 'other.example.com']", MATCH),
        ('device.attributes["other.example.com"].ids.exists(i, i == 2)', MATCH),
        ('2 in device.attributes["other.example.com"].ids', MATCH),
        ('device.attributes["gpu.example.com"].version.isGreaterThan(semver("1.2.0"))', MATCH),
        ('device.capacity["gpu.example.com"].memory.isGreaterThan(quantity("39Gi"))', MATCH),
        ('device.capacity["gpu.example.com"].nosuch.isGreaterThan(quantity("1"))', Failed("no such key: nosuch")),
        ("device.allowMultipleAllocations", NO_MATCH),
        ('device.attributes["gpu.example.com"].whole', MATCH),
    ],
)
def test_the_device_is_seen_as_kubernetes_shows_it(expression: str, wanted: Outcome) -> None:
    assert answer(expression) == wanted


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ('device.attributes["gpu.example.com"].model', "CEL result of type string could not be converted to bool"),
        ('device.attributes["gpu.example.com"].index', "CEL result of type int could not be converted to bool"),
        ("dyn(null)", "CEL result of type null_type could not be converted to bool"),
    ],
)
def test_a_result_that_is_not_bool_is_an_error(expression: str, reason: str) -> None:
    assert answer(expression) == Failed(reason)


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        (DeviceView.of_names("d", {"v": Version("1.x")}), "attribute v: parse semantic version: "),
        (
            DeviceView.of_names("d", {"other.example.com/v": Version("")}),
            "attribute other.example.com/v: parse semantic",
        ),
        (DeviceView.of_names("d", {"a": None}), "attribute a: unsupported attribute value"),
        (DeviceView.of_names("d", {"a": 2**63}), "attribute a: unsupported attribute value"),
        (DeviceView.of_names("d", {"a": 1.5}), "attribute a: unsupported attribute value"),  # type: ignore[dict-item]
        (DeviceView.of_names("d", {"a": (1, None)}), "attribute a: unsupported attribute value"),  # type: ignore[dict-item]
        (DeviceView.of_names("d", {}, {"c": "much"}), "capacity c: "),
    ],
)
def test_a_device_with_data_that_has_no_value_fails_every_selector(device: DeviceView, reason: str) -> None:
    for expression in ("true", "false", 'device.driver == "d"'):
        outcome = answer(expression, device)
        assert isinstance(outcome, Failed)
        assert outcome.reason.startswith(reason)


def test_lists_are_data_without_value_while_their_gate_is_off() -> None:
    outcome = answer("true", DEVICE, LanguageFeatures())
    assert outcome == Failed("attribute other.example.com/ids: unsupported attribute value")


def test_halves_of_characters_in_a_device_are_replaced() -> None:
    device = DeviceView.of_names("d", {"lone": "a\ud800b", "pair": "\ud83d\ude00"})
    assert answer('bytes(device.attributes["d"].lone) == b"a\\xef\\xbf\\xbdb"', device) == MATCH
    assert answer('device.attributes["d"].pair == "\U0001f600"', device) == MATCH


def test_an_outcome_is_no_truth_value() -> None:
    for expression in ("true", "false", BROKEN):
        with pytest.raises(TypeError, match="not a truth value"):
            bool(answer(expression))


def test_an_unprefixed_name_belongs_to_the_drivers_domain() -> None:
    device = DeviceView.of_names("d.example.com", {"a": 1, "d.example.com/b": 2, "e.example.com/a": 3}, {"c": "1"})
    assert device.attributes == {"d.example.com": {"a": 1, "b": 2}, "e.example.com": {"a": 3}}
    assert device.capacity == {"d.example.com": {"c": "1"}}


@pytest.mark.parametrize(
    ("features", "wanted"),
    [
        (LanguageFeatures(), False),
        (LanguageFeatures(list_type_attributes=True), True),
        (LanguageFeatures(stored_lists=True), True),
    ],
)
def test_a_stored_list_is_a_value_with_the_gate_on_or_from_1_37_on(features: LanguageFeatures, wanted: bool) -> None:
    selector = compile_selector("1 in device.attributes['other.example.com'].ids", features)
    assert (selector.evaluate(DEVICE) == MATCH) is wanted


OF_1_37 = LanguageFeatures(
    consumable_capacity=True, list_type_attributes=True, stored_lists=True, strict_optionals=True
)
OWN = 'device.attributes["gpu.example.com"]'


@pytest.mark.parametrize(
    ("expression", "of_1_36"),
    [
        (f'{OWN}.model.orValue("x") == "A100"', MATCH),
        (f"{OWN}.index.orValue(0) + 1 == 4", MATCH),
        (f"{OWN}.whole.orValue(false)", MATCH),
        (f"{OWN}.model.orValue(0) in [1]", NO_MATCH),
        (f"{OWN}.model.or(optional.of(1)).orValue(2) == 3", NO_MATCH),
        # The value is of another type than the call.
        (f"{OWN}.model.orValue(0) > 0", Failed("no such overload")),
        (f"-{OWN}.model.orValue(1) > 0", Failed("no such overload")),
        (f'{OWN}.index.orValue("a").startsWith("A")', Failed("no such overload")),
        (f"cel.bind(x, {OWN}.model.orValue(0), x > 0)", Failed("no such overload")),
        (f"[{OWN}.model.orValue(0)].exists(x, x > 0)", Failed("no such overload")),
        (f"(true ? {OWN}.model.orValue(0) : 1) > 0", Failed("no such overload")),
    ],
)
def test_or_value_of_what_is_no_optional_is_that_value_until_1_37_refuses_it(expression: str, of_1_36: Outcome) -> None:
    assert answer(expression) == of_1_36
    assert answer(expression, features=OF_1_37) == Failed("no such overload")


def test_a_mistake_in_the_evaluator_is_an_answer_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bool:
        raise KeyError("gone")

    monkeypatch.setattr("dracaena.cel.operators.equal", broken)
    outcome = answer(f"{OWN}.index == {OWN}.index")
    assert isinstance(outcome, Failed)
    assert outcome.reason == "Dracaena's CEL evaluator failed, please report the expression: KeyError: 'gone'"


LISTS_OF_1_37 = LanguageFeatures(stored_lists=True, strict_optionals=True)


@pytest.mark.parametrize(
    "expression",
    [
        "device.attributes['other.example.com'].ids.exists(id, id == 2)",
        "device.attributes['other.example.com'].ids.map(id, id + 1) == [2, 3]",
        "'%s'.format([device.attributes['other.example.com'].ids]) == '[1, 2]'",
        "1 in device.attributes['other.example.com'].ids",
    ],
)
def test_a_stored_expression_may_walk_a_list_though_nobody_says_that_the_gate_is_on(expression: str) -> None:
    assert answer(expression, features=LISTS_OF_1_37) == MATCH


def test_the_gate_for_lists_changes_no_answer_of_an_expression_that_compiles_without_it() -> None:
    device = device_of(DOCUMENT)
    compared = 0
    for seed in range(4_000_000, 4_001_000):
        expression = Generator(seed).selector()
        try:
            selector = compile_selector(expression, LISTS_OF_1_37, new=True)
        except CompileError:
            continue
        compared += 1
        stored = compile_selector(expression, LISTS_OF_1_37)
        assert stored.evaluate_with_cost(device) == selector.evaluate_with_cost(device), expression
    assert compared > 600
