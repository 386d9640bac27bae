from __future__ import annotations

import sys
from importlib import import_module
from inspect import signature
from types import ModuleType

import pytest

from bench import run
from bench.report import Floor, Row, Section, floors_as_text


@pytest.mark.parametrize(
    ("row", "ratio"),
    [
        (Row("time", 2.0, 8.0, "ms"), 4.0),
        (Row("bandwidth", 90.0, 60.0, "GB/s", more_is_better=True), 1.5),
        (Row("worse", 8.0, 2.0, "ms"), 0.25),
        (Row("alone", 8.0), None),
        (Row("not measured", None, 8.0), None),
        (Row("against nothing", 0.0, 8.0), None),
    ],
)
def test_a_ratio_above_one_is_better_in_either_direction(row: Row, ratio: float | None) -> None:
    assert row.ratio == ratio


@pytest.mark.parametrize(
    ("floor", "line"),
    [
        (Floor("p99", 9.5, 10.0, "ms", goal=2.0), "PASS  p99: 9.500 ms (<= 10 ms, goal 2 not reached)"),
        (Floor("p99", 10.5, 10.0, "ms"), "FAIL  p99: 10.50 ms (<= 10 ms)"),
        (Floor("up", 99.95, 99.0, "%", goal=99.9, at_least=True), "PASS  up: 99.95 % (>= 99 %, goal 99.90 reached)"),
        (Floor("share", 98.0, 99.0, "%", at_least=True), "FAIL  share: 98 % (>= 99 %)"),
    ],
)  # fmt: skip
def test_a_floor_tells_what_was_measured_and_whether_it_holds(floor: Floor, line: str) -> None:
    assert floors_as_text([floor]) == line + "\n"
    assert floor.holds == line.startswith("PASS")


def sections(monkeypatch: pytest.MonkeyPatch, *found: Section) -> list[str]:
    """Put these sections in the place of the real ones; return their names."""
    names = [f"section-{place}" for place, _ in enumerate(found)]
    for name, section in zip(names, found, strict=True):
        module = ModuleType(f"bench_{name}")
        module.rows = lambda progress, section=section: section  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(run, "SECTIONS", {name: f"bench_{name}" for name in names})
    return names


def test_the_bench_fails_when_one_floor_of_any_section_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = Section("good", floors=(Floor("a", 1, 2),)), Section("bad", floors=(Floor("b", 3, 2),))
    names = sections(monkeypatch, good, bad)
    assert run.main([names[0]]) == 0
    assert run.main([]) == 1
    out = capsys.readouterr().out
    assert "PASS  a: 1 (<= 2)\nFAIL  b: 3 (<= 2)" in out


def test_each_section_that_is_named_specially_is_one() -> None:
    assert set(run.COUNTED) < set(run.SECTIONS)
    assert set(run.SECTIONS) > run.WITH_LONG_FORM
    assert all("long" in signature(import_module(run.SECTIONS[name]).rows).parameters for name in run.WITH_LONG_FORM)
