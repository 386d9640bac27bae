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
from dracaena.host.adapters.files.lock import FileLock
from dracaena.mps.program import MpsProgram
from dracaena.mps.settings import MpsSettings
from support.clock import FakeClock
from support.mps_program import ModesInFile


@pytest.fixture
def root() -> Iterator[str]:
    """pytest's own folders are too long for sockets."""
    with tempfile.TemporaryDirectory(prefix="m") as folder:
        yield folder


class LettingGo(FakeClock):
    """Who holds a lock lets go of it when somebody has waited ten times."""

    def __init__(self, held: FileLock) -> None:
        super().__init__()
        self._held, self.waits = held, 0

    def sleep_until_set(self, event: threading.Event, timeout_s: float) -> bool:
        self.waits += 1
        if self.waits > 10:
            return super().sleep_until_set(event, timeout_s)
        if self.waits == 10:
            self._held.release()
        self.advance(timeout_s)
        return event.is_set()


def program(root: str, tmp_path: Path, clock: FakeClock | None = None) -> MpsProgram:
    modes = ModesInFile(tmp_path / "modes.json")
    modes.write({})
    settings = MpsSettings(root=root, driver_root_mount=str(tmp_path), http_address="")
    return MpsProgram(settings, clock=clock, registry=CollectorRegistry(), modes=modes, boot_id="b")


def test_a_lock_that_somebody_takes_for_a_moment_does_not_keep_a_supervisor_from_starting(
    root: str, tmp_path: Path
) -> None:
    """The plugin looks in this way whether a supervisor runs."""
    probe = FileLock(Path(root) / LOCK)
    assert probe.try_acquire()
    clock = LettingGo(probe)
    supervisor = program(root, tmp_path, clock)
    supervisor.start()
    assert clock.waits >= 10
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
