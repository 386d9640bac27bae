from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dracaena.api.errors import PermanentError, TemporaryError
from dracaena.api.names import DeviceName
from dracaena.host.adapters.files.lock import CALL_TIMEOUT_S, STUCK_S, CallLock, FileLock, GpuLocks
from dracaena.process.clock import SystemClock
from support.clock import FakeClock
from support.kube import wait_for

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], 'w')
fcntl.flock(file, fcntl.LOCK_EX)
print('held', flush=True)
input()
"""


def test_a_lock_is_had_once_and_again_after_release(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "d" / "x.lock"), FileLock(tmp_path / "d" / "x.lock")
    assert first.try_acquire()
    assert not second.try_acquire()
    first.release()
    assert second.try_acquire()
    second.release()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        lock = FileLock(path)
        assert not lock.try_acquire()
        holder.kill()
    assert lock.try_acquire()
    lock.release()


def test_a_lock_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "d").write_bytes(b"")
    with pytest.raises(PermanentError, match=r"cannot open lock file .*/d/x.lock"):
        FileLock(tmp_path / "d" / "x.lock").try_acquire()


def test_a_removed_lock_is_free_and_its_file_gone(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "x.lock")
    assert lock.try_acquire()
    lock.remove()
    assert list(tmp_path.iterdir()) == []
    assert lock.try_acquire()
    lock.release()


def test_calls_of_two_instances_do_not_overlap(tmp_path: Path) -> None:
    locks = [CallLock(tmp_path / "serialize.lock", SystemClock()) for _ in range(2)]
    inside = 0
    most = 0

    def work(lock: CallLock) -> None:
        nonlocal inside, most
        for _ in range(20):
            with lock.hold():
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work, args=(lock,)) for lock in (*locks, *locks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert most == 1


def test_a_lock_that_is_never_free_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "serialize.lock"
    other = FileLock(path)
    assert other.try_acquire()
    clock = FakeClock()
    seen: list[str] = []

    def work() -> None:
        try:
            with CallLock(path, clock).hold():
                seen.append("held")
        except TemporaryError as error:
            seen.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()

    def ended() -> bool:
        clock.advance(CALL_TIMEOUT_S)
        return not thread.is_alive()

    wait_for(ended, "the waiting call gives up")
    assert seen == [f"another instance of this plugin holds {path} for more than 20 s"]
    other.release()


def test_a_call_that_holds_the_lock_for_too_long_is_told(tmp_path: Path) -> None:
    clock = FakeClock()
    lock = CallLock(tmp_path / "x.lock", clock)
    assert (lock.stuck(), lock.needs_restart()) == (None, None)
    with lock.hold():
        clock.advance(STUCK_S - 1)
        assert lock.stuck() is None
        clock.advance(1)
        assert "one call has held" in (lock.stuck() or "")
        assert lock.needs_restart() == lock.stuck()
    assert (lock.stuck(), lock.needs_restart()) == (None, None)


def test_a_call_that_hangs_in_the_kernel_is_no_reason_for_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    lock = CallLock(tmp_path / "x.lock", clock)
    monkeypatch.setattr("dracaena.host.adapters.files.lock.is_uninterruptible", lambda _thread: True)
    with lock.hold():
        clock.advance(STUCK_S)
        assert lock.stuck() is not None
        assert lock.needs_restart() is None


def test_each_gpu_has_one_lock_that_two_instances_share(tmp_path: Path) -> None:
    ours, theirs = GpuLocks(tmp_path / "gpus", SystemClock()), FileLock(tmp_path / "gpus" / "gpu-1.lock")
    assert ours.of(DeviceName("gpu-1")) is ours.of(DeviceName("gpu-1"))
    with ours.of(DeviceName("gpu-1")).hold(), ours.of(DeviceName("gpu-2")).hold():
        assert not theirs.try_acquire()
    assert theirs.try_acquire()
    theirs.release()
