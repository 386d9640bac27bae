from __future__ import annotations

from pathlib import Path

import pytest

from dracaena.api.mps import LOCK
from dracaena.host.adapters.files.lock import FileLock
from dracaena.kubelet_plugin.adapters.files.mps_supervisor import supervisor_runs


def test_a_supervisor_runs_while_its_lock_is_held(tmp_path: Path) -> None:
    assert not supervisor_runs(tmp_path)
    assert not list(tmp_path.iterdir())
    lock = FileLock(tmp_path / LOCK)
    assert lock.try_acquire()
    assert supervisor_runs(tmp_path)
    lock.release()
    assert not supervisor_runs(tmp_path)
    assert lock.try_acquire(), "looking leaves no lock behind"
    lock.release()


@pytest.mark.parametrize("runs", [True, False])
def test_several_plugins_may_look_at_a_time(tmp_path: Path, runs: bool) -> None:
    lock = FileLock(tmp_path / LOCK)
    assert lock.try_acquire()
    if not runs:
        lock.release()
    assert [supervisor_runs(tmp_path) for _ in range(3)] == [runs] * 3
    lock.release()
