from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import ModuleType

import pytest
import structlog

from bench import run
from bench.report import Floor, Row, Section, Table, as_document, as_text, floors_as_text, number
from support.kube import wait_for


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


def test_a_table_with_a_row_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="1 cells, expected 2"):
        Table("t", ("a", "b"), (("1",),))


def test_a_section_is_printed_in_columns_with_ratios_and_notes() -> None:
    section = Section(
        "Speed",
        rows=(Row("one decision", 1.0, 3.0, "ms", against="a walk"),),
        tables=(Table("T", ("quite a long name", "b"), (("1", "2"),)),),
        notes=("one core",),
    )
    assert as_text(section).splitlines() == [
        "== Speed ==",
        "",
        "T",
        "quite a",
        "long name  b",
        "---------  -",
        "1          2",
        "",
        "what          ours  theirs  unit  ratio  against  note",
        "------------  ----  ------  ----  -----  -------  ----",
        "one decision  1     3       ms    3.0x   a walk",
        "",
        "* one core",
    ]


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (1234.0, "1,234"), (0.0123, "0.01230"), (98.765, "98.77"), (None, "-")]
)
def test_numbers_are_never_in_exponents(value: float | None, text: str) -> None:
    assert number(value) == text


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


def test_json_holds_ratios_and_whether_floors_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    section = Section("s", rows=(Row("r", 1.0, 2.0),), floors=(Floor("f", 1, 2),))
    sections(monkeypatch, section)
    assert run.main(["-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads(json.dumps(as_document([section])))
    assert (document[0]["rows"][0]["ratio"], document[0]["floors"][0]["holds"]) == (2.0, True)


def test_what_is_measured_may_log_and_the_output_is_still_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (name,) = sections(monkeypatch, Section("s"))

    def rows(progress: object) -> Section:
        structlog.get_logger().error("trouble")
        return Section("s")

    monkeypatch.setattr(sys.modules[f"bench_{name}"], "rows", rows)
    assert run.main(["-o", "json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)[0]["title"] == "s"
    assert "trouble" in told.err


def test_an_unknown_section_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(["speed"])
    assert "no section is called 'speed', expected any of quality, rings, queue" in capsys.readouterr().err


def test_sections_that_count_run_side_by_side_and_all_are_printed_in_one_order(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each of the two waits for the other one."""
    names = sections(monkeypatch, *(Section(title) for title in ("timed", "first", "second")))
    timed, *counted = names
    monkeypatch.setattr(run, "COUNTED", tuple(reversed(counted)))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)

    def meeting(name: str) -> Callable[[object], Section]:
        def rows(progress: object) -> Section:
            (tmp_path / name).touch()
            wait_for(lambda: len(list(tmp_path.iterdir())) == len(counted), "the other section")
            return Section(f"{name} in {os.getpid()}")

        return rows

    for name in counted:
        monkeypatch.setattr(sys.modules[f"bench_{name}"], "rows", meeting(name))
    assert run.main([]) == 0
    titles = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("== ")]
    assert titles == [*counted, "timed", "Floors"]
    assert run.main([timed, counted[0]]) == 0, "one that counts is alone: no process is made for it"
    assert f"in {os.getpid()}" in capsys.readouterr().out


def test_only_sections_with_a_long_form_are_asked_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_form, without = sections(monkeypatch, Section("with"), Section("without"))
    monkeypatch.setattr(run, "WITH_LONG_FORM", frozenset({with_form}))
    monkeypatch.setattr(
        sys.modules[f"bench_{with_form}"], "rows", lambda progress, *, long: Section("long" if long else "short")
    )
    assert run.main(["--long"]) == run.main([]) == 0
    titles = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("== ")]
    assert titles == ["long", "without", "Floors", "short", "without", "Floors"]
    assert without not in run.WITH_LONG_FORM


def test_each_section_that_is_named_specially_is_one() -> None:
    assert set(run.COUNTED) < set(run.SECTIONS)
    assert set(run.SECTIONS) > run.WITH_LONG_FORM
    assert all("long" in signature(import_module(run.SECTIONS[name]).rows).parameters for name in run.WITH_LONG_FORM)
