"""How a supervisor starts and ends. As a process of its own it is in tests/integration/test_mps_program.py."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from prometheus_client import CollectorRegistry

from dracaena.api.errors import PermanentError, TemporaryError
from dracaena.api.mps import LOCK
from dracaena.host.adapters.files.lock import FileLock
from dracaena.mps.program import MpsPauses, MpsProgram
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
    return MpsProgram(
        settings, clock=clock, registry=CollectorRegistry(), modes=modes, boot_id="b", pauses=MpsPauses(poll_s=0.25)
    )


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


class Passing(FakeClock):
    """Time goes by as long as somebody sleeps; after `until_s` the program is to end."""

    def __init__(self, until_s: float) -> None:
        super().__init__()
        self._until_s = until_s

    def sleep_until_set(self, event: threading.Event, timeout_s: float) -> bool:
        self.advance(timeout_s)
        if self.monotonic() > self._until_s:
            event.set()
        return event.is_set()


def test_a_lock_that_stays_taken_is_another_supervisors_after_a_second(root: str, tmp_path: Path) -> None:
    other = FileLock(Path(root) / LOCK)
    assert other.try_acquire()
    clock = Passing(60.0)
    with pytest.raises(PermanentError, match="a supervisor is already running on this node"):
        program(root, tmp_path, clock).start()
    assert clock.monotonic() == pytest.approx(1.0, abs=0.03)
    other.release()


def test_a_supervisor_that_cannot_start_leaves_the_lock_to_the_next(root: str, tmp_path: Path) -> None:
    made = program(root, tmp_path)
    (Path(root) / "pipe").touch()
    with pytest.raises(PermanentError, match="cannot make"):
        made.start()
    next_one = FileLock(Path(root) / LOCK)
    assert next_one.try_acquire()
    next_one.release()


class Scripted:
    """Stands in for the supervisor. `looks` are when it was asked to look."""

    def __init__(self, clock: FakeClock, look: Callable[[], None] = lambda: None) -> None:
        self.due_s = float("inf")
        self.changed_at_s = float("inf")
        self.looks: list[float] = []
        self._clock, self._look = clock, look

    def changed(self) -> bool:
        changed = self._clock.monotonic() >= self.changed_at_s
        self.changed_at_s = float("inf") if changed else self.changed_at_s
        return changed

    def step(self) -> None:
        self.looks.append(round(self._clock.monotonic(), 3))
        self._look()


def run(root: str, tmp_path: Path, until_s: float = 12.0, **script: float) -> list[float]:
    """Run the thread's loop in this one, and return when it looked; it polls each 0.25 s and checks each 5 s."""
    clock = Passing(until_s)
    made = program(root, tmp_path, clock)
    scripted = Scripted(clock, lambda: clock.advance(script.get("look_s", 0.0)))
    scripted.changed_at_s = script.get("changed_at_s", float("inf"))
    made._supervisor = scripted  # type: ignore[assignment]
    if "due_s" in script:
        scripted.due_s = script["due_s"]
    made._run()
    return scripted.looks


def test_what_is_settled_is_looked_at_each_five_seconds_from_begin_to_begin(root: str, tmp_path: Path) -> None:
    assert run(root, tmp_path) == [0.0, 5.0, 10.0]
    assert run(root, tmp_path, look_s=1.0) == [0.0, 5.0, 10.0]


def test_a_change_is_looked_at_with_the_next_poll(root: str, tmp_path: Path) -> None:
    assert run(root, tmp_path, changed_at_s=1.1) == [0.0, 1.25, 6.25, 11.25]


def test_what_is_due_is_looked_at_then(root: str, tmp_path: Path) -> None:
    assert run(root, tmp_path, until_s=3.25, due_s=3.0) == [0.0, 3.0, 3.25]


def test_a_look_that_fails_is_an_obstacle_until_one_succeeds(root: str, tmp_path: Path) -> None:
    """Also while nothing is due: nobody has found out that all is well."""
    clock = Passing(12.0)
    made = program(root, tmp_path, clock)
    said: list[tuple[float, str | None]] = []
    failures: list[Exception | None] = [TemporaryError("no space left"), ValueError("a bug"), None]

    def look() -> None:
        failure = failures.pop(0)
        if failure is not None:
            raise failure

    scripted = Scripted(clock, look)
    right = scripted.changed
    made._supervisor = scripted  # type: ignore[assignment]
    scripted.changed = lambda: bool(said.append((round(clock.monotonic(), 1), made.ready()))) or right()  # type: ignore[method-assign, func-returns-value]
    assert made.ready() == "the first look is not done"
    made._run()
    assert {text for at_s, text in said if at_s < 5} == {"no space left"}
    assert {text for at_s, text in said if 5 < at_s < 10} == {"a step failed: ValueError('a bug'); the log says where"}
    assert {text for at_s, text in said if at_s > 10} == {None}


def test_an_error_that_stays_is_logged_once(root: str, tmp_path: Path) -> None:
    clock = Passing(12.0)
    made = program(root, tmp_path, clock)

    def look() -> None:
        raise TemporaryError("no space left")

    scripted = Scripted(clock, look)
    made._supervisor = scripted  # type: ignore[assignment]
    with structlog.testing.capture_logs() as lines:
        made._run()
    assert len(scripted.looks) == 3
    assert [line["error"] for line in lines] == ["no space left"]


def test_a_step_that_takes_longer_than_a_minute_says_that_the_driver_hangs(root: str, tmp_path: Path) -> None:
    clock = Passing(1.0)
    made = program(root, tmp_path, clock)
    said: list[str | None] = []

    def look() -> None:
        for seconds in (60.0, 1.0):
            clock.advance(seconds)
            said.append(made.ready())

    made._supervisor = Scripted(clock, look)  # type: ignore[assignment]
    made._run()
    assert said == ["the first look is not done", "one step has taken more than 60 s: the GPU driver hangs"]
    clock.advance(1_000)
    assert made.ready() is None, "nothing is being done"
