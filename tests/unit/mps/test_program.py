"""How a supervisor starts and ends. As a process of its own it is in tests/integration/test_mps_program.py."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.errors import PermanentError
from dracaena.api.mps import LOCK
from dracaena.kubelet_plugin.adapters.files.lock import FileLock
from dracaena.mps.program import MpsProgram
from dracaena.mps.settings import MpsSettings
from support.mps_program import ModesInFile


@pytest.fixture
def root() -> Iterator[str]:
    """pytest's own folders are too long for sockets."""
    with tempfile.TemporaryDirectory(prefix="m") as folder:
        yield folder


def program(root: str, tmp_path: Path) -> MpsProgram:
    modes = ModesInFile(tmp_path / "modes.json")
    modes.write({})
    settings = MpsSettings(root=root, driver_root_mount=str(tmp_path), http_address="")
    return MpsProgram(settings, registry=CollectorRegistry(), modes=modes, boot_id="b")


def test_a_lock_that_somebody_takes_for_a_moment_does_not_keep_a_supervisor_from_starting(
    root: str, tmp_path: Path
) -> None:
    """The plugin looks in this way whether a supervisor runs."""
    probe = FileLock(Path(root) / LOCK)
    assert probe.try_acquire()
    release = threading.Timer(0.2, probe.release)
    release.start()
    supervisor = program(root, tmp_path)
    supervisor.start()
    release.join()
    assert not probe.try_acquire()
    supervisor.stop()
    assert probe.try_acquire()
    probe.release()


def test_a_lock_that_stays_taken_is_another_supervisors(root: str, tmp_path: Path) -> None:
    other = FileLock(Path(root) / LOCK)
    assert other.try_acquire()
    with pytest.raises(PermanentError, match="a supervisor is already running on this node"):
        program(root, tmp_path).start()
    other.release()
