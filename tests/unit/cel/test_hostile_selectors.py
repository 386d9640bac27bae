"""Selectors made to cost as much as they can cost a bounded number of steps, counted and not timed."""

from __future__ import annotations

import cProfile
from collections.abc import Callable
from typing import Any

import pytest

from dracaena.cel import CompileError, DeviceView, Failed, LanguageFeatures, Selector, compile_selector
from dracaena.cel.cost import WORK_LIMIT
from dracaena.cel.values.regex import engine, matching
from support.hostile_selectors import DEVICE_ATTRIBUTES, DRIVER, MOST_BYTES, compiled, evaluated
from support.seeds import sampled

EVERYTHING = LanguageFeatures(consumable_capacity=True, list_type_attributes=True)
DEVICE = DeviceView.of_names(DRIVER, DEVICE_ATTRIBUTES)

# Calls of functions, 0.1 µs and more each. The worst found so far: 1.0 million to compile, 1.4 million to evaluate.
MOST_CALLS = 2_000_000

# Loops, comparisons, errors, parsing, text and patterns; `make test-search` counts all of them.
SAMPLE = (
    "errors in loops",
    "lists searched",
    "look-ups in loops",
    "many large patterns",
    "receivers that double",
    "versions",
)


def counted(work: Callable[[], Any]) -> int:
    """How many calls the work takes, at most MOST_CALLS. What takes for ever ends with pytest's limit for a test."""
    profile = cProfile.Profile()
    profile.runcall(work)
    calls = sum(entry.callcount for entry in profile.getstats())
    assert calls <= MOST_CALLS
    return calls


def compile_or_refuse(expression: str) -> Selector | None:
    try:
        return compile_selector(expression, EVERYTHING)
    except CompileError:
        return None


def test_every_selector_is_one_that_the_api_server_takes_by_its_length() -> None:
    for name, expression in {**compiled(), **evaluated()}.items():
        assert len(expression.encode()) <= MOST_BYTES, name


@pytest.mark.parametrize("name", sampled(sorted(compiled()), 8, len(compiled())))
def test_compiling_takes_a_bounded_number_of_calls(name: str) -> None:
    counted(lambda: compile_or_refuse(compiled()[name]))


def test_types_that_double_are_refused_and_those_that_people_write_are_not() -> None:
    for name, message in {
        "types that double": "the type is too large",
        "types that double in lists": "types are too complex",
    }.items():
        with pytest.raises(CompileError) as refused:
            compile_selector(compiled()[name], EVERYTHING)
        assert refused.value.message == message
        assert "^" in refused.value.rendered
    deep = "{1:" * 240 + "1" + "}" * 240 + ".size() > 0"
    assert compile_or_refuse(deep) is not None
    assert compile_or_refuse("[" * 240 + "1" + "]" * 240 + ".size() > 0") is not None


def bounded_evaluation(name: str) -> None:
    selector = compile_or_refuse(evaluated()[name])
    assert selector is not None
    answers: list[Any] = []
    counted(lambda: answers.append(selector.evaluate(DEVICE)))
    assert not isinstance(answers[0], Failed) or answers[0].reason


@pytest.mark.parametrize("name", SAMPLE)
def test_an_evaluation_takes_a_bounded_number_of_calls(name: str) -> None:
    bounded_evaluation(name)


@pytest.mark.search
@pytest.mark.parametrize("name", sorted(set(evaluated()) - set(SAMPLE)))
def test_every_evaluation_takes_a_bounded_number_of_calls(name: str) -> None:
    bounded_evaluation(name)


PATTERNS = [name for name in evaluated() if "pattern" in name or name.startswith(("all", "a text"))]


def instructions_compiled(name: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many instructions RE2 makes while the selector is compiled and evaluated once."""
    made = 0
    compile_pattern = engine._compiled

    def count(pattern: str, options: object) -> Any:
        nonlocal made
        ready = compile_pattern(pattern, options)
        made += ready.programsize
        return ready

    monkeypatch.setattr(engine, "_compiled", count)
    engine._ready.cache_clear()
    selector = compile_or_refuse(evaluated()[name])
    assert selector is not None
    selector.evaluate(DEVICE)
    return made


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_are_compiled_within_the_budget(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert instructions_compiled(name, monkeypatch) <= WORK_LIMIT / 2


def test_the_budget_is_what_bounds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: compiling is not charged."""
    monkeypatch.setattr(matching, "_WORK_OF_INSTRUCTION", 0)
    monkeypatch.setattr(matching, "_STEPS_OF_WORK", 10**9)
    assert instructions_compiled("many large patterns", monkeypatch) > WORK_LIMIT / 2


def test_constant_patterns_are_read_and_not_compiled_with_the_selector(monkeypatch: pytest.MonkeyPatch) -> None:
    engine._ready.cache_clear()
    text = f'device.attributes["{DRIVER}"].text'
    compile_selector(" || ".join(f"{text}.matches('x{{{n}}}(abc){{900}}')" for n in range(100)), EVERYTHING)
    assert engine._ready.cache_info().misses == 0


def test_calls_of_literals_are_made_ahead_within_a_budget_of_their_own() -> None:
    """200 of them, each of which takes a fifth of what one evaluation may."""
    calls = counted(lambda: compile_or_refuse(compiled()["constant calls"]))
    assert calls < 400_000


def test_one_pattern_of_its_own_for_each_device_stays_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    selector = compile_or_refuse(evaluated()["a pattern from the device"])
    assert selector is not None
    for number in range(100):
        device = DeviceView.of_names(DRIVER, {**DEVICE_ATTRIBUTES, "uuid": f"GPU-{number:032x}"})
        assert not isinstance(selector.evaluate(device), Failed)
    assert engine._ready.cache_info().currsize <= 32
