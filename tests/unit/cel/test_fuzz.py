"""Random input: the parser and the evaluator end with an answer or one of our errors, whatever they are given.

20,000 texts that are no expressions (or hardly), and 6,000 random selectors on random devices, all from fixed seeds: a
third of them in `make test`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from conformance.random_expressions import Generator

from dracaena.cel import CompileError, DeviceView, Failed, LanguageFeatures, Version, compile_selector
from dracaena.cel.parser import parse
from dracaena.cel.selector import FAULT
from support.seeds import in_tiers

NAMES = ("name", "b", "i", "v", "oth.example.com/x")
EVERYTHING = LanguageFeatures(consumable_capacity=True, list_type_attributes=True)
WORDS = """
    && || == != <= >= in true false null device attributes x 0 1u 0x1f 1.5e3 'a' "b" b'c' r'd' .? [? {? all(x, exists(
    map(y, cel.bind( has( optional.of( é // for size() matches('[ 99999999999999
"""
PIECES = (*"()[]{}.,:?!-+*/%<>=&|'\"`\\\n\t @#$^~;_\x00\U0001f600", *WORDS.split())


@pytest.mark.parametrize("texts", in_tiers(1_000, 10_000))
def test_no_text_breaks_the_parser(texts: int) -> None:
    chance = random.Random(20261121)
    parsed = 0
    for _ in range(texts):
        text = "".join(chance.choice(PIECES) for _ in range(chance.randrange(1, 25)))
        error = _refused(text, parse)
        if error is None:
            parsed += 1
        else:
            assert 0 <= error.position <= len(text)
            assert "^" in error.rendered
    assert parsed > texts // 100


def _refused(text: str, compiler: Callable[[str], object]) -> CompileError | None:
    try:
        compiler(text)
    except CompileError as error:
        return error
    return None


@pytest.mark.parametrize("selectors", in_tiers(1_000, 10_000))
def test_no_damaged_selector_breaks_the_compiler(selectors: int) -> None:
    chance = random.Random(20261122)
    compiled = 0
    for seed in range(selectors):
        text = list(Generator(seed % 2_500).selector())
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(len(text))
            text[place : place + chance.randrange(3)] = chance.choice(PIECES)
        error = _refused("".join(text), lambda expression: compile_selector(expression, EVERYTHING))
        if error is None:
            compiled += 1
        else:
            assert error.message
    assert compiled > selectors // 100


@pytest.mark.parametrize("selectors", in_tiers(1_000, 6_000))
def test_no_selector_breaks_the_evaluator(selectors: int) -> None:
    chance = random.Random(20261123)
    values = (1, 0, -1, 2**63 - 1, True, "", "fish", "é" * 64, Version("1.2.3"), (), (1, 2), ("a",), None, Version("x"))
    answers: dict[str, int] = {}
    for seed in range(selectors):
        device = DeviceView.of_names(
            chance.choice(["dra.example.com", "x"]),
            {
                name: chance.choice(values)
                for name in ("name", "b", "i", "v", "oth.example.com/x")
                if chance.random() < 0.9
            },
            {"memory": chance.choice(["1", "40Gi", "1e3", "-5", "0.5"])},
            allow_multiple_allocations=chance.random() < 0.5,
        )
        features = replace(EVERYTHING, strict_optionals=chance.random() < 0.5)
        try:
            selector = compile_selector(Generator(1_000_000 + seed).selector(), features)
        except CompileError:
            continue
        outcome, cost = selector.evaluate_with_cost(device, cost_limit=2_000)
        if isinstance(outcome, Failed):
            assert outcome.reason
            assert FAULT not in outcome.reason, selector.expression
        # The step that goes beyond the limit is the last one, and no step costs as much again.
        assert cost < 4_000
        answers[type(outcome).__name__] = answers.get(type(outcome).__name__, 0) + 1
    assert set(answers) == {"Match", "NoMatch", "Failed"}
    assert min(answers.values()) > selectors // 20
