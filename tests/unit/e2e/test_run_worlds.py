"""The two worlds of one run: which of them has tests to run, and how their counts are told together."""

from __future__ import annotations

from pathlib import Path

from e2e import run

SUITE = '<testsuites><testsuite name="pytest" tests="{0}" failures="{1}" errors="{2}" skipped="{3}"/></testsuites>'


def report(folder: Path, name: str, *counts: int) -> Path:
    path = folder / name
    path.write_text(SUITE.format(*counts), encoding="utf-8")
    return path


def test_counts_of_both_worlds_are_added(tmp_path: Path) -> None:
    reports = (report(tmp_path, "a.xml", 10, 1, 1, 2), report(tmp_path, "b.xml", 5, 0, 0, 1))
    assert run._total(reports) == "10 passed, 2 failed, 3 skipped"


def test_a_world_without_a_report_adds_nothing(tmp_path: Path) -> None:
    assert run._total((report(tmp_path, "a.xml", 3, 0, 0, 0), tmp_path / "none.xml")) == "3 passed, 0 failed, 0 skipped"


def test_a_world_is_left_out_when_no_test_of_it_is_asked_for() -> None:
    assert run._selects(run._CHART_WORLD, ["-k", "test_upgrade_under_load_loses_nothing"])
    assert not run._selects(run._CHART_WORLD, ["-k", "no_such_test_anywhere"])
