"""The plugin is killed at each step of prepare and unprepare; the next run ends in the same state as an unhurt one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.crashing_plugin import REFERENCE, node_in

TESTS = Path(__file__).parent.parent


def crashes(folder: Path, operation: str) -> list[Path]:
    """Run the crashing plugin and return the folder of each crash."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "support.crashing_plugin", str(folder), operation],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    return [folder / str(step) for step in range(1, int(done.stderr.split()[-1]) + 1)]


def visible(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Without the hidden files that a crash leaves until the next write of the same file."""
    return {name: data for name, data in files.items() if not Path(name).name.startswith(".")}


def prepared(folder: Path) -> dict[str, bytes]:
    node = node_in(folder)
    node.state.prepare(REFERENCE)
    return node.files()


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, bytes]:
    return prepared(tmp_path / "whole")


def test_prepare_again_after_a_crash_at_any_step_ends_the_same(tmp_path: Path, whole: dict[str, bytes]) -> None:
    folders = crashes(tmp_path / "crashed", "prepare")
    assert len(folders) == 16  # four files: write, fsync, rename, fsync of the folder
    for folder in folders:
        assert prepared(folder) == whole, folder


def test_no_crash_of_prepare_leaves_half_a_file(tmp_path: Path, whole: dict[str, bytes]) -> None:
    for folder in crashes(tmp_path / "crashed", "prepare"):
        for name, data in visible(node_in(folder).files()).items():
            assert data == whole[name] or b'"state":"started"' in data, (folder, name)


def test_unprepare_after_a_crash_of_prepare_leaves_nothing(tmp_path: Path) -> None:
    for folder in crashes(tmp_path / "crashed", "prepare"):
        node = node_in(folder)
        node.state.unprepare(REFERENCE)
        node.assignments.reconcile()
        assert visible(node.files()) == {"pod-resources/podlist.json": b"[]\n"}, folder


def test_a_restart_alone_settles_what_a_crash_of_prepare_left(tmp_path: Path, whole: dict[str, bytes]) -> None:
    for folder in crashes(tmp_path / "crashed", "prepare"):
        node = node_in(folder)
        assert node.state.recover(node.pods.values())
        node.assignments.reconcile()
        assert visible(node.files()) in (whole, {"pod-resources/podlist.json": b"[]\n"}), folder


def test_unprepare_again_after_a_crash_at_any_step_ends_the_same(tmp_path: Path) -> None:
    folders = crashes(tmp_path / "crashed", "unprepare")
    assert len(folders) == 8  # podlist: write, fsync, rename, fsync; two removals with fsync
    for folder in folders:
        node = node_in(folder)
        node.state.unprepare(REFERENCE)
        node.assignments.reconcile()
        assert visible(node.files()) == {"pod-resources/podlist.json": b"[]\n"}, folder


def test_prepare_after_a_crash_of_unprepare_ends_prepared(tmp_path: Path, whole: dict[str, bytes]) -> None:
    for folder in crashes(tmp_path / "crashed", "unprepare"):
        node = node_in(folder)
        node.state.prepare(REFERENCE)
        node.assignments.reconcile()
        assert visible(node.files()) == whole, folder
