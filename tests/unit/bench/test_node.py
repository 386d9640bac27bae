from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench.node import measure, reference_driver
from bench.node.disk import file_system, replacement_s


def test_a_percentile_is_a_value_that_was_measured() -> None:
    seconds = [number / 1000 for number in range(100, 0, -1)]
    assert [measure.percentile_ms(seconds, percent) for percent in (0, 50, 99)] == [1.0, 51.0, 100.0]
    assert measure.percentile_ms([0.004], 99) == 4.0


def test_a_replacement_leaves_nothing_behind(tmp_path: Path) -> None:
    assert all(took > 0 for took in replacement_s(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_the_file_system_is_that_of_the_longest_mount() -> None:
    assert file_system(Path("/proc/self")) == "proc"


def test_without_go_the_reference_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name, path=None: None)
    with pytest.raises(reference_driver.BuildError, match="Go is not installed"):
        reference_driver.build(tmp_path)


def test_the_reference_is_on_the_library_of_a_kubernetes_that_the_tests_run() -> None:
    programs = Path(__file__).parents[2] / "e2e" / "programs" / "kubernetes-1.36" / "go.mod"
    (kubernetes,) = {
        line.split()[1][3:]  # v1.36.3 → 36.3
        for line in programs.read_text(encoding="utf-8").splitlines()
        if line.strip().startswith("k8s.io/kubernetes v")
    }
    assert reference_driver.library_version() == f"v0.{kubernetes}"
