"""Tells other processes of this node that we have the driver open, and learns from them that we must not.

A shared flock(2) says so; it ends with its process, however that ends. A process that wants us to release the driver
first writes the request file and then waits for the same lock, exclusively. Once it holds the lock, nobody has the
driver open, and whoever wants to open it later finds the request.

For the seconds in which a GPU leaves the driver, a second lock says that the driver is lent: a request file would
outlive a kill.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from dracaena.api.errors import PermanentError, TemporaryError
from dracaena.host.adapters.files.lock import is_held
from dracaena.process.clock import Clock

LOOK_S = 0.05
"""Pause between two tries for the exclusive lock: a plugin looks for the request once a second."""

_MAX_REASON_BYTES = 500
"""Longest text of a request, in characters: it goes into Events."""


class GpuDriverUse:
    """One process's use of the driver. For one thread, asked() for any."""

    def __init__(self, lock: Path, request: Path) -> None:
        self._lock = lock
        self._request = request
        self._descriptor: int | None = None

    def asked(self) -> str | None:
        """Return the text of the request file, None if there is none."""
        try:
            with self._request.open("rb") as file:
                text = file.read(_MAX_REASON_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"{self._request} exists but cannot be read: {error.strerror}"
        return " ".join(text.decode(errors="replace").split()) or "without a reason"

    def enter(self) -> bool:
        """Announce that the driver is open here; False: somebody waits for us to release it, do not open it.

        Raises TemporaryError if the lock file cannot be opened.
        """
        if self._descriptor is not None:
            return True
        try:
            descriptor = _open(self._lock)
        except OSError as error:
            raise TemporaryError(f"cannot open lock file {self._lock}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def is_lent(self) -> bool:
        """Whether somebody needs the driver closed for some seconds."""
        return is_held(_lent_lock(self._lock))

    def leave(self) -> None:
        """Announce that the driver is no longer open here."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def request_release(request: Path, reason: str) -> None:
    """Request that the driver be released, until withdraw(). Raises PermanentError naming the file."""
    try:
        new = request.with_name(f".{request.name}.new")
        new.unlink(missing_ok=True)  # never follow a link that somebody else put there
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), "w") as file:
            file.write(f"{reason}\n")
        new.replace(request)
    except OSError as error:
        raise PermanentError(f"cannot write {request}: {error.strerror}") from error


def withdraw(request: Path) -> bool:
    """Withdraw the request; return whether there was one. Raises PermanentError naming the file."""
    try:
        request.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise PermanentError(f"cannot remove {request}: {error.strerror}") from error
    return True


def wait_until_let_go(lock: Path, clock: Clock, timeout_s: float) -> bool:
    """Wait until no process has the driver open, at most timeout_s; return whether that is the case.

    Raises PermanentError when the lock file cannot be opened.
    """
    try:
        descriptor = _open(lock)
    except OSError as error:
        raise PermanentError(f"cannot open lock file {lock}: {error.strerror}") from error
    try:
        return _locked(descriptor, clock, timeout_s)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def lent(lock: Path, clock: Clock, timeout_s: float) -> Iterator[None]:
    """Keep the driver closed in other processes for a block; this one must have closed it. They react within a second
    or two.

    After timeout_s the block begins even if not all have closed it: the block must check who has it open. Raises
    TemporaryError if the driver is lent to another process for longer, or a lock file cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        try:
            descriptors = []
            for file in (_lent_lock(lock), lock):
                descriptors.append(_open(file))
                stack.callback(os.close, descriptors[-1])
        except OSError as error:
            raise TemporaryError(f"cannot open lock file {lock}: {error.strerror}") from error
        if not _locked(descriptors[0], clock, timeout_s):
            raise TemporaryError("the NVIDIA driver is lent to another process of this node")
        _locked(descriptors[1], clock, timeout_s)
        yield


def _locked(descriptor: int, clock: Clock, timeout_s: float) -> bool:
    never, deadline_s = threading.Event(), clock.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock.monotonic() >= deadline_s:
                return False
            clock.sleep_until_set(never, LOOK_S)
        else:
            return True


def _lent_lock(lock: Path) -> Path:
    return lock.with_name(f"{lock.stem}-lent{lock.suffix}")


def _open(lock: Path) -> int:
    return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
