"""Which instance of the plugin writes this node's pool when several run side by side during an update.

Only the newest living instance that has had something to publish writes. Each records when it began in its own lock
file, which it holds while it lives. A shared file orders them: whoever holds its flock(2) may write, and its content
says whether everything that was sent has been answered. A request without an answer may still be executed seconds after
its sender has died or given up.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.host.adapters.files.lock import FileLock
from dracaena.host.paths import instance_of_lock
from dracaena.process.clock import Clock

T = TypeVar("T")
U = TypeVar("U")

WAIT_S = 20.0
"""Longest wait for an older instance that writes. A sync takes milliseconds, and a request to a server that hangs is
abandoned after 15 s, so an instance that holds the lock for longer is stuck, and can only be overtaken."""

POLL_S = 0.02
"""Pause between tries. A write to the API server takes about as long."""

NOTE_BYTES = 256
"""A note overwrites the last one with a single write, padded with blanks."""

log = structlog.get_logger()


class Publishing(msgspec.Struct, frozen=True):
    """What an instance that has begun to publish records in its lock file."""

    boot_id: str
    began_s: float
    """When the instance began, since the boot."""


class Sent(msgspec.Struct, frozen=True):
    """Content of the shared file. Without it, everything sent before is in doubt."""

    generation: int = 0
    """The highest generation of the pool that was sent."""
    is_in_doubt: bool = True
    """Whether something that was sent may still be executed."""
    by: str = ""
    """Who had the last turn: the name of its lock file."""


class OvertakenError(TemporaryError):
    """Another instance has taken over the turn of this one, which was stuck."""


class HeldTurn:
    """The right to write, inside WriterLock.hold()."""

    def __init__(self, lock: WriterLock, may_land: int | None) -> None:
        self._lock = lock
        self.may_land = may_land
        """See ports.WriteTurn."""

    def sends(self, generation: int) -> None:
        """See ports.WriteTurn. Raises OvertakenError."""
        self._lock.note(generation, is_in_doubt=True)

    def is_settled(self) -> None:
        """See ports.WriteTurn. Raises OvertakenError."""
        self._lock.note(0, is_in_doubt=False)


class WriterLock:
    """The right of one instance to write. For one thread."""

    def __init__(self, path: Path, instance_lock: Path, boot_id: str, clock: Clock) -> None:
        """This instance holds `instance_lock` while it lives; the same folder has those of all other instances."""
        self._path = path
        self._instance_lock = instance_lock
        self._clock = clock
        self._never = threading.Event()
        # Not the time of day, which may jump. This one is the same for all processes of a machine.
        self._mine = Publishing(boot_id, time.clock_gettime(time.CLOCK_BOOTTIME))
        self._noted: Sent | None = None
        """What this instance last wrote in its turn; None if it could not."""

    @contextlib.contextmanager
    def hold(self) -> Iterator[HeldTurn | None]:
        """Hold the right to write for a block; None if a newer instance has it. Waits at most WAIT_S for an older
        one, and then overtakes it."""
        lock = FileLock(self._path)
        is_held = self._wait(lock)
        try:
            if self._newer_publishes():
                yield None
                return
            self._write(self._instance_lock, self._mine)
            sent = self._sent()
            turn = HeldTurn(self, sent.generation if sent.is_in_doubt or not is_held else None)
            self._noted = None
            self.note(sent.generation, is_in_doubt=turn.may_land is not None)
            yield turn
        finally:
            lock.release()

    def note(self, generation: int, *, is_in_doubt: bool) -> None:
        """Record what is sent, and whether it may still be executed. Raises OvertakenError if this turn is over."""
        sent = self._sent()
        if self._newer_publishes() or self._noted not in (None, sent):
            raise OvertakenError("another instance of this plugin is publishing this node's devices")
        noted = Sent(max(generation, sent.generation), is_in_doubt, self._instance_lock.name)
        self._noted = noted if self._write(self._path, noted) else None

    def _sent(self) -> Sent:
        return self._read(self._path, Sent, Sent())

    def _wait(self, lock: FileLock) -> bool:
        """Take the lock and return True; False if a newer instance publishes, or an older one is stuck."""
        deadline_s = self._clock.monotonic() + WAIT_S
        while True:
            try:
                if lock.try_acquire():
                    return True
            except DracaenaError as error:
                log.warning("cannot take turns with other instances", error=str(error))
                return False
            if self._newer_publishes():
                return False
            if self._clock.monotonic() >= deadline_s:
                log.warning("an older instance of this plugin is stuck while it publishes, and is passed over")
                return False
            self._clock.sleep_until_set(self._never, POLL_S)

    def _newer_publishes(self) -> bool:
        """Whether a living instance that began after this one has begun to publish."""
        return any(
            self._is_newer(path) and not _is_free(path)
            for path in sorted(self._path.parent.glob("instance*.lock"))
            if path != self._instance_lock and instance_of_lock(path.name) is not None
        )

    def _is_newer(self, instance_lock: Path) -> bool:
        found = self._read(instance_lock, Publishing, None)
        return found is not None and found.boot_id == self._mine.boot_id and found.began_s > self._mine.began_s

    def _read(self, path: Path, kind: type[T], otherwise: U) -> T | U:
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except (OSError, msgspec.MsgspecError):
            return otherwise

    def _write(self, path: Path, note: Publishing | Sent) -> bool:
        """Write a note and return whether that worked. A full or broken disk must not delay news of broken GPUs: it is
        logged, and everything that is sent stays in doubt."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.pwrite(descriptor, msgspec.json.encode(note).ljust(NOTE_BYTES), 0)
                os.ftruncate(descriptor, NOTE_BYTES)
            finally:
                os.close(descriptor)
        except OSError as error:
            log.warning("cannot note who publishes", file=str(path), error=error.strerror)
            return False
        return True


def _is_free(instance_lock: Path) -> bool:
    """Whether nobody holds a lock file, or it is gone."""
    if not instance_lock.exists():
        return True
    lock = FileLock(instance_lock)
    try:
        is_free = lock.try_acquire()
    except DracaenaError:
        return True
    lock.release()
    return is_free


for _kind in (Publishing, Sent):
    msgspec.json.Decoder(_kind)  # by the thread that imports: see kube.client
