"""Who writes: over real files and flocks, with real processes where one dies or stands still."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dracaena.host.adapters.files.lock import FileLock
from dracaena.kube.errors import ApiUnavailableError
from dracaena.kubelet_plugin.adapters.files.writer_lock import OvertakenError, WriterLock
from dracaena.process.clock import SystemClock
from support.clock import FakeClock

OTHER = """
import sys
from pathlib import Path
from dracaena.kube.errors import ApiUnavailableError
from dracaena.host.adapters.files.lock import FileLock
from dracaena.kubelet_plugin.adapters.files.writer_lock import WriterLock
from dracaena.process.clock import SystemClock

folder = Path(sys.argv[1])
lock = FileLock(folder / "instance-other.lock")
assert lock.try_acquire()
with WriterLock(folder / "publish.lock", lock.path, "this boot", SystemClock()).hold() as turn:
    turn.sends(5)
    print("sends", flush=True)
    input()
    turn.is_settled()
print("settled", flush=True)
input()
"""
"""An instance in the middle of a write, which goes on when it is told to."""


class HastyClock(FakeClock):
    """Waiting takes no time."""

    def sleep_until_set(self, event: threading.Event, timeout_s: float) -> bool:
        self.advance(timeout_s)
        return event.is_set()


class Instance:
    """One instance of this process, as old as its place among the others."""

    def __init__(self, folder: Path, name: str, boot_id: str = "this boot") -> None:
        self.lock = FileLock(folder / f"instance-{name}.lock")
        assert self.lock.try_acquire()
        self.writers = WriterLock(folder / "publish.lock", self.lock.path, boot_id, HastyClock())

    def publishes(self) -> str:
        """Write something; return what it knows of what was sent before, or nothing where it may not."""
        with self.writers.hold() as turn:
            if turn is None:
                return "not now"
            found = "all answered" if turn.may_land is None else f"{turn.may_land} may land"
            turn.sends(5)
            turn.is_settled()
        return found


@contextmanager
def other_process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run OTHER until it has begun to write."""
    command = [sys.executable, "-P", "-c", OTHER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "sends\n"
        try:
            yield process
        finally:
            process.kill()


def test_what_was_sent_before_the_first_turn_is_in_doubt_and_afterwards_nothing(tmp_path: Path) -> None:
    only = Instance(tmp_path, "a")
    assert [only.publishes() for _ in range(3)] == ["0 may land", "all answered", "all answered"]


def test_an_older_instance_writes_until_a_newer_one_does_and_again_when_all_newer_ones_are_gone(tmp_path: Path) -> None:
    first, second, third = (Instance(tmp_path, name) for name in "cba")
    assert first.publishes() == "0 may land"
    assert second.publishes() == "all answered"
    assert first.publishes() == "not now"
    assert third.publishes() == "all answered"
    third.lock.release()
    assert first.publishes() == "not now"
    assert second.publishes() == "all answered"
    second.lock.remove()
    assert first.publishes() == "all answered"


def test_a_write_without_an_answer_is_in_doubt_for_whoever_comes_next(tmp_path: Path) -> None:
    first, second = Instance(tmp_path, "a"), Instance(tmp_path, "b")
    first.publishes()
    with suppress(ApiUnavailableError), first.writers.hold() as turn:
        assert turn is not None
        turn.sends(5)
        raise ApiUnavailableError("PATCH", 504, "Timeout", "no answer")
    assert second.publishes() == "5 may land"
    assert second.publishes() == "all answered"


def test_an_instance_of_an_earlier_boot_is_nobody(tmp_path: Path) -> None:
    mine = Instance(tmp_path, "a")
    later = Instance(tmp_path, "b", boot_id="an earlier boot")
    later.publishes()
    assert mine.publishes() == "all answered"


def test_a_process_that_is_killed_while_it_writes_leaves_doubt_and_the_right_to_write(tmp_path: Path) -> None:
    older = Instance(tmp_path, "a")
    with other_process(tmp_path) as process:
        assert older.publishes() == "not now"
        process.kill()
        process.wait()
        assert older.publishes() == "5 may land"


def test_an_older_process_is_waited_for_while_it_writes(tmp_path: Path) -> None:
    with other_process(tmp_path) as process:
        newer = Instance(tmp_path, "a")
        newer.writers = WriterLock(tmp_path / "publish.lock", newer.lock.path, "this boot", SystemClock())
        assert process.stdin is not None
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert newer.publishes() == "all answered"


def test_an_older_process_that_stands_still_is_overtaken_and_writes_nothing_when_it_wakes(tmp_path: Path) -> None:
    with other_process(tmp_path) as process:
        os.kill(process.pid, signal.SIGSTOP)
        newer = Instance(tmp_path, "a")
        assert newer.publishes() == "5 may land"
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdin is not None
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.wait() == 1, "it is told that it was overtaken"
        assert newer.publishes() == "all answered"


def test_an_instance_that_is_overtaken_in_its_turn_is_told_before_it_sends(tmp_path: Path) -> None:
    older, newer = Instance(tmp_path, "a"), Instance(tmp_path, "b")
    with older.writers.hold() as turn:
        assert turn is not None
        turn.sends(5)
        assert newer.publishes() == "5 may land"
        with pytest.raises(OvertakenError, match="another instance"):
            turn.sends(5)
    assert older.publishes() == "not now"


def test_an_instance_that_is_overtaken_by_one_that_is_gone_again_plans_anew(tmp_path: Path) -> None:
    older, newer = Instance(tmp_path, "a"), Instance(tmp_path, "b")
    with older.writers.hold() as turn:
        assert turn is not None
        turn.sends(5)
        assert newer.publishes() == "5 may land"
        newer.lock.remove()
        with pytest.raises(OvertakenError, match="another instance"):
            turn.sends(5)
    assert older.publishes() == "all answered"


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff" * 300, b"[]", b'{"boot_id": 3}'])
def test_notes_that_cannot_be_read_leave_doubt_and_stop_nobody(damage: bytes, tmp_path: Path) -> None:
    first, second = Instance(tmp_path, "a"), Instance(tmp_path, "b")
    second.publishes()
    for path in tmp_path.iterdir():
        path.write_bytes(damage)
    assert first.publishes() == "0 may land"
    assert second.publishes() == "all answered"
    assert first.publishes() == "not now"


def test_without_a_place_for_the_files_all_is_in_doubt_and_published(tmp_path: Path) -> None:
    instance = Instance(tmp_path, "a")
    instance.writers = WriterLock(tmp_path / "file" / "publish.lock", instance.lock.path, "this boot", HastyClock())
    (tmp_path / "file").write_bytes(b"")
    assert [instance.publishes() for _ in range(2)] == ["0 may land", "0 may land"]
