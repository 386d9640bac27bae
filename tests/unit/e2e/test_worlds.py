"""Worlds side by side: who runs with whom, what is shown, what an interrupt leaves, how counts are told together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from e2e import worlds
from e2e.worlds import World
from support.kube import wait_for

TESTS = Path(__file__).parents[2]

SUITE = '<testsuites><testsuite name="pytest" tests="{0}" failures="{1}" errors="{2}" skipped="{3}"/></testsuites>'

MEETS = """
import pathlib, sys, time
folder, own, other, code = pathlib.Path(sys.argv[1]), *sys.argv[2:]
(folder / own).touch()
print(f"{own} begins", flush=True)
deadline = time.monotonic() + 60
while other and not (folder / other).exists() and time.monotonic() < deadline:
    time.sleep(0.01)
print(f"{own} ends", flush=True)
sys.exit(int(code) if not other or (folder / other).exists() else 99)
"""
"""A world that ends once another one has begun, with a code of its own."""

RUNNER = """
import pathlib, sys
from e2e.worlds import World, run_all
folder = pathlib.Path(sys.argv[1])
sleeps = "echo $$ > {0}/{1}.pid; exec sleep 600"
print(run_all([World(n, folder / n, ("sh", "-c", sleeps.format(folder, n))) for n in "abc"], at_once=2))
"""


def world(folder: Path, name: str, *, meets: str = "", code: int = 0) -> World:
    logs = folder / f"logs-{name}"
    logs.mkdir()
    return World(name, logs, (sys.executable, "-c", MEETS, str(folder), name, meets, str(code)))


def test_worlds_run_side_by_side_and_each_is_shown_whole_when_it_has_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pair = [world(tmp_path, "first", meets="second", code=1), world(tmp_path, "second", meets="first", code=77)]
    assert worlds.run_all(pair, at_once=2) == [1, 77]
    said = capfd.readouterr().out
    for name in ("first", "second"):
        assert f"== {name}\n{name} begins\n{name} ends\n" in said


def test_no_more_worlds_run_at_once_than_may(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The third begins when one of the first two has ended, which wait for each other."""
    three = [world(tmp_path, "a", meets="b"), world(tmp_path, "b", meets="a"), world(tmp_path, "c")]
    assert worlds.run_all(three, at_once=2) == [0, 0, 0]
    said = capfd.readouterr().out
    assert said.index("e2e: c runs") > min(said.index("== a"), said.index("== b"))


def test_a_world_alone_prints_as_it_goes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert worlds.run_all([world(tmp_path, "only", code=3)], at_once=2) == [3]
    two = [world(tmp_path, "one"), world(tmp_path, "two")]
    assert worlds.run_all(two, at_once=1) == [0, 0]
    assert capfd.readouterr().out == "".join(f"{name} begins\n{name} ends\n" for name in ("only", "one", "two"))


def sleeps(pid_file: Path) -> bool:
    """Whether the shell that wrote its PID has become the program that sleeps: some shells lose a signal that comes in
    between."""
    pid = pid_file.read_text(encoding="utf-8").strip() if pid_file.exists() else ""
    return bool(pid) and Path(f"/proc/{pid}/comm").read_text(encoding="utf-8") == "sleep\n"


def test_ctrl_c_ends_those_that_run_and_no_other_begins(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
    runner = subprocess.Popen(
        [sys.executable, "-P", "-c", RUNNER, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a group of its own, as a terminal gives
    )
    wait_for(lambda: sleeps(tmp_path / "a.pid") and sleeps(tmp_path / "b.pid"), "two worlds run")
    os.killpg(runner.pid, signal.SIGINT)
    said, _ = runner.communicate(timeout=60)
    assert said.splitlines()[-1] == f"[{-signal.SIGINT}, {-signal.SIGINT}, {worlds.INTERRUPTED}]"
    assert not (tmp_path / "c.pid").exists()


def test_counts_of_all_worlds_are_added_and_those_without_are_named(tmp_path: Path) -> None:
    counted = [world(tmp_path, "a"), world(tmp_path, "b")]
    for one, counts in zip(counted, ((10, 1, 1, 2), (5, 0, 0, 1)), strict=True):
        one.report.write_text(SUITE.format(*counts), encoding="utf-8")
    assert worlds.total(counted) == "10 passed, 2 failed, 3 skipped"
    crashed, killed_at_the_end = world(tmp_path, "crashed"), world(tmp_path, "killed-at-the-end")
    killed_at_the_end.report.write_text(SUITE.format(9, 0, 0, 0)[:30], encoding="utf-8")
    assert worlds.total([*counted, crashed, killed_at_the_end]) == (
        "10 passed, 2 failed, 3 skipped; cut off: crashed, killed-at-the-end"
    )
