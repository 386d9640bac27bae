"""Locks between processes: flock(2) on a file. The kernel drops them when their process ends, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from dracaena.api.errors import PermanentError, TemporaryError
from dracaena.api.names import DeviceName
from dracaena.host.adapters.kernel.thread_state import is_uninterruptible
from dracaena.process.clock import Clock

CALL_TIMEOUT_S = 20.0
"""Longest wait for the other instance. Kubelet gives a call 45 s; the rest is for the API and the disk."""

STUCK_S = 60.0
"""A call holds the lock for some milliseconds; its look at the driver's files takes 10 s at most."""

POLL_S = 0.005
"""Pause between tries while the other instance holds the lock: its calls take milliseconds. A blocking flock could not
be abandoned, and a thread would hang forever if the other process is stuck on a disk."""


def is_held(path: Path) -> bool:
    """Whether somebody holds an exclusive lock now; a file that cannot be opened counts as free.

    This takes the lock shared for some microseconds: a process that wants it just then has to retry.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


class FileLock:
    """One flock. Not for several threads at once: CallLock orders those."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Acquire the lock and return True, or False if somebody else has it. Creates the file and its folder.

        Raises PermanentError if the file cannot be opened.
        """
        try:
            descriptor = self._open()
        except OSError as error:
            raise PermanentError(f"cannot open lock file {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError as error:
            os.close(descriptor)
            raise PermanentError(f"cannot lock {self.path}: {error.strerror}") from error
        self._descriptor = descriptor
        return True

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(self.path, flags, 0o600)
        except FileNotFoundError:  # the folder nearly always exists
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(self.path, flags, 0o600)

    def release(self) -> None:
        """Release the lock. The file stays: removing it would let two processes lock two files of one name."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def remove(self) -> None:
        """Remove the file and release the lock, which must be held; nobody may try to acquire it meanwhile.

        Raises PermanentError if the file cannot be removed; the lock is released then too.
        """
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise PermanentError(f"cannot remove lock file {self.path}: {error.strerror}") from error
        finally:
            self.release()


class CallLock:
    """Orders all calls that change this node's claims: threads of this process and the other instance's."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._file = FileLock(path)
        self._clock = clock
        self._threads = threading.Lock()
        self._never = threading.Event()
        self._held: tuple[int, float] | None = None

    def stuck(self) -> str | None:
        """Return a text if one call has held the lock for too long, None if none has. From any thread."""
        held = self._held
        if held is None or self._clock.monotonic() - held[1] < STUCK_S:
            return None
        return f"one call has held {self._file.path} for more than {STUCK_S:.0f} s, and no other can begin"

    def needs_restart(self) -> str | None:
        """Return the same if a restart would help: not for a call that hangs in the kernel, whose process cannot be
        killed.
        """
        held, stuck = self._held, self.stuck()
        return stuck if held is not None and not is_uninterruptible(held[0]) else None

    @contextlib.contextmanager
    def hold(self, within_s: float | None = None) -> Iterator[None]:
        """Hold the lock for a block. Raises TemporaryError after within_s of waiting, None: CALL_TIMEOUT_S. Not
        re-entrant.
        """
        wait_s = CALL_TIMEOUT_S if within_s is None else within_s
        deadline_s = self._clock.monotonic() + wait_s
        if not self._threads.acquire(timeout=wait_s):
            raise TemporaryError(f"another call of this plugin is busy for more than {wait_s:.0f} s")
        try:
            while not self._file.try_acquire():
                if self._clock.monotonic() >= deadline_s:
                    raise TemporaryError(
                        f"another instance of this plugin holds {self._file.path} for more than {wait_s:.0f} s"
                    )
                self._clock.sleep_until_set(self._never, POLL_S)
            self._held = (threading.get_native_id(), self._clock.monotonic())
            try:
                yield
            finally:
                self._held = None
                self._file.release()
        finally:
            self._threads.release()


class GpuLocks:
    """A lock for each GPU, created when first needed. From any thread."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._threads = threading.Lock()
        self._locks: dict[DeviceName, CallLock] = {}

    def of(self, gpu: DeviceName) -> CallLock:
        """Return the lock of a GPU, the same one for the same name."""
        with self._threads:
            return self._locks.setdefault(gpu, CallLock(self._folder / f"{gpu}.lock", self._clock))
