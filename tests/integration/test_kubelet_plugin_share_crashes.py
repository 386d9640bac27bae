"""The plugin is killed by SIGKILL at each step of shares; each ends prepared or undone, and nothing is left behind.

The matrix (support.crashing_shares): a first and a second share come to a GPU, one of two and the last one go; held by
MPS with protocol 2 and 3, or by time slices, each with a memory limit. Killed in each step and after it; alone, or with
the supervisor, its daemons, its container, the driver or the whole node; and then kubelet asks to prepare, or to
unprepare, or nobody asks, or claim and pod are gone. Checked are checkpoints, CDI specs, podlist.json, requests,
shares, servers and daemons, pipe folders, compute mode, memory limits and the interval of time slices. `make test-long`
runs all of it, and `make test` a sample. What the supervisor does step by step has a matrix of its own
(tests/unit/mps/test_supervisor_crashes.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.xdist_group("one process that forks for shares")

TESTS = Path(__file__).parent.parent
SAMPLE = 193
"""Of some 400 cases of an operation: prime to the number of ways on, so that each operation has others."""
PER_STEP = 48
"""Cases of a step: two moments, six ways to die, four ways on."""

HOLDS = ("2", "3", "slices")
OPERATIONS = ("first-comes", "second-comes", "one-goes", "last-goes")
FEWEST_STEPS = 10
"""Of an operation: checkpoint, what is noted of each change, the changes, CDI spec, podlist.json, checkpoint. Each file
is a write and a rename. With fewer the matrix has missed some."""

Crash = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def crash(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crash]:
    """Run the crashes of an operation: one process for all, which forks for each."""
    folder = tmp_path_factory.mktemp("crashes")
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "support.crashing_shares"],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # what it logs
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        asked, answers, count = process.stdin, process.stderr, 0

        def run(operation: str, holds: str, *, stride: int, first: int = 0, plant: str = "none") -> dict[str, Any]:
            nonlocal count
            count += 1
            asked.write(f"{operation} {holds} {stride} {first} {plant} {folder / str(count)}\n")
            asked.flush()
            answer = json.loads(answers.readline())
            assert isinstance(answer, dict)
            return answer

        yield run
        asked.close()
        assert process.wait(60) == 0


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("stride", [SAMPLE, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("holds", HOLDS)
def test_after_a_crash_at_any_step_a_share_is_held_or_nothing_of_it_is_left(
    crash: Crash, holds: str, operation: str, stride: int
) -> None:
    at = HOLDS.index(holds) * len(OPERATIONS) + OPERATIONS.index(operation)
    answer = crash(operation, holds, stride=stride, first=at * 29 % stride)
    assert answer["wrong"] == []
    assert answer["steps"] >= FEWEST_STEPS
    assert answer["cases"] >= answer["steps"] * PER_STEP // stride


def test_an_effect_that_is_made_before_it_is_journaled_is_found(crash: Crash) -> None:
    """A planted fault. Killed between the two, and then claim and pod go: nobody knows of the memory limit."""
    after, gone = PER_STEP // 2, 3
    answer = crash("first-comes", "3", stride=PER_STEP, first=after + gone, plant="effect-before-journal")
    assert any("limits {'one': 10}, expected {}" in wrong for wrong in answer["wrong"]), answer


def test_an_effect_that_the_journal_forgets_before_it_is_undone_is_found(crash: Crash) -> None:
    """A planted fault. Killed between the two, the next call to unprepare finds nothing to undo."""
    given_back = 1
    found = crash("last-goes", "slices", stride=PER_STEP, first=given_back, plant="note-before-undo")["wrong"]
    assert any("limits {'one': 10}, expected {}" in wrong for wrong in found), found
    assert any("interval" in wrong for wrong in found), found


def test_what_is_not_undone_before_a_kill_is_found(crash: Crash) -> None:
    """Two planted faults: a limit of memory and an interval stay, and the journal says that they are gone."""
    given_back = 1
    found = crash("last-goes", "slices", stride=PER_STEP, first=given_back, plant="keeps-what-is-set")["wrong"]
    assert any("limits {'one': 10}, expected {}" in wrong for wrong in found), found
    assert any("interval" in wrong for wrong in found), found
