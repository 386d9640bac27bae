"""The least of several runs of the same decisions (tests/bench/repeated.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.repeated import Times, least_of


def noisy(folder: Path, begun: list[int]) -> Callable[[], Times]:
    """Two decisions; in each run another one, or none, takes longer than it does itself. `begun` is what a run changes
    of its process."""

    def run() -> Times:
        assert not begun, "each run begins where the first one began"
        begun.append(1)
        number = len(list(folder.iterdir()))
        (folder / str(number)).touch()
        return {"one": [1.0 + 9.0 * (number == 0), 2.0 + 9.0 * (number == 1)], "other": [4.0 + number]}

    return run


def test_of_each_decision_the_least_time_counts_and_the_first_run_is_told(tmp_path: Path) -> None:
    begun: list[int] = []
    least, first = least_of(noisy(tmp_path, begun), 3)
    assert least == {"one": [1.0, 2.0], "other": [4.0]}
    assert first == {"one": [10.0, 2.0], "other": [4.0]}
    assert begun == [], "and this process stays as it is"


def test_what_fails_in_a_run_fails_here(capfd: pytest.CaptureFixture[str]) -> None:
    def run() -> Times:
        raise AssertionError("no decision")

    with pytest.raises(RuntimeError, match="a run of the decisions failed"):
        least_of(run)
    assert "no decision" in capfd.readouterr().err


def test_runs_that_do_not_do_the_same_are_refused(tmp_path: Path) -> None:
    whole = noisy(tmp_path, [])

    def run() -> Times:
        found = whole()
        return found if len(list(tmp_path.iterdir())) == 1 else {**found, "one": [1.0]}

    with pytest.raises(ValueError, match="shorter"):
        least_of(run, 2)
