"""The worlds of one run: which tests are in which."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e import run

ROOT = Path(__file__).parents[3]


COLLECT = """
import sys, pytest
from e2e.conftest import _place

class Places:
    def pytest_collection_finish(self, session):
        print(*(f"{_place(item)} {item.path.name}" for item in session.items), sep="\\n")

sys.exit(pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", sys.argv[1]], plugins=[Places()]))
"""


WRITES = str(run.TESTS / "test_writes.py")


def selection(place: str) -> run.Selection:
    return run.Selection(place, "1.37", (str(run.TESTS),), place)


def test_each_test_is_where_it_has_what_it_needs() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    command = [sys.executable, "-P", "-c", COLLECT, str(run.TESTS)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    found = {tuple(line.split()) for line in done.stdout.splitlines() if line.startswith(run.PLACES)}
    files = {place: {name for where, name in found if where == place} for place in run.PLACES}
    assert {"test_kubernetes.py", "test_restarts.py", "test_node_health.py"} <= files[run.NODE]
    assert {"test_take_back_race.py", "test_both_servers.py", "test_transcripts.py"} <= files[run.CONTROL_PLANE]
    assert files[run.CHART] == {path.name for path in run.INSTALL_TESTS.glob("test_*.py")}


def test_a_world_is_left_out_when_no_test_of_it_is_asked_for() -> None:
    assert run._selects(selection(run.CONTROL_PLANE), [WRITES, "-k", "namespace"])
    assert not run._selects(selection(run.NODE), [WRITES, "-k", "namespace"])
    assert not run._selects(selection(run.CONTROL_PLANE), [WRITES, "-k", "no_such_test_anywhere"])


@pytest.mark.parametrize(
    ("options", "all_of_it"),
    [([], True), (["-k", "restart"], True), (["-k", "gone.py"], True), ([WRITES], False), ([f"{WRITES}::test"], False)],
)
def test_files_that_are_named_stand_in_the_place_of_all(options: list[str], all_of_it: bool) -> None:
    assert run._asked(selection(run.NODE), options) == (*((str(run.TESTS),) if all_of_it else ()), *options)


def test_tests_with_kueue_are_run_only_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # The files beside it have no such test: to collect them would take most of the time.
    with_kueue = selection(run.NODE), ["-k", "a_job_that_borrows", "--ignore-glob=*/test_[!k]*.py"]
    monkeypatch.delenv(run.KUEUE, raising=False)
    assert not run._selects(*with_kueue)
    monkeypatch.setenv(run.KUEUE, "/nowhere/kueue")
    assert run._selects(*with_kueue)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["chart", "control-plane", "node"]),
        ({"core": True}, ["control-plane-core-1.37", "node-core-1.37"]),
        (
            {"and_core_on": "1.36"},
            ["chart", "control-plane", "node", "control-plane-core-1.36", "node-core-1.36"],
        ),
    ],
)
def test_the_longest_world_comes_first_and_another_version_last(
    options: dict[str, object], expected: list[str]
) -> None:
    found = run._selections("1.37", **{"core": False, "and_core_on": None, **options})  # type: ignore[arg-type]
    assert [one.name for one in found] == expected
    assert {one.version for one in found if "core" not in one.name} <= {"1.37"}
