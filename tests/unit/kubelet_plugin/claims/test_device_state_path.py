"""The way of a prepare of whole GPUs to the CDI spec. docs/dev/budget.md limits how long it may be."""

from __future__ import annotations

import sys
from pathlib import Path

from support.work_paths import prepare_of_a_whole_gpu, steps_of_a_prepare, told

LAST = "kubelet_plugin/prepare/cdi/spec.py"
"""The spec is checked before it is written."""


def test_a_prepare_goes_from_the_claim_over_its_checkpoint_to_the_spec(tmp_path: Path) -> None:
    path = prepare_of_a_whole_gpu(tmp_path)
    sys.stdout.write(told(path))  # pytest -s shows it
    files = list(path)
    assert files[0] == "kubelet_plugin/claims/device_state.py"
    assert files[-1] == LAST
    assert "host/adapters/files/whole_files.py" in files


def test_a_prepare_that_changes_nothing_on_the_node_reaches_no_outside_thing_but_files(tmp_path: Path) -> None:
    path = prepare_of_a_whole_gpu(tmp_path)
    assert [file for file in path if "/adapters/" in file] == ["host/adapters/files/whole_files.py"]


def test_a_prepare_beside_many_claims_is_hardly_more_work_than_alone(tmp_path: Path) -> None:
    alone, beside = (steps_of_a_prepare(tmp_path / str(count), count) for count in (0, 250))
    sys.stdout.write(f"{alone} steps of Python alone, {beside} beside 250 claims\n")
    assert beside < 1.2 * alone


def test_the_same_prepare_is_the_same_path(tmp_path: Path) -> None:
    one, other = (prepare_of_a_whole_gpu(tmp_path / name) for name in ("one", "other"))
    assert one == other
