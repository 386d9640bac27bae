"""One thread for all calls into the GPU driver, and a watch over how long they take.

A call into a driver that hangs never returns and cannot be ended. Here it blocks only the thread that it runs in; its
caller is released at the deadline.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from dracaena.api.errors import TemporaryError
from dracaena.host.facts.troubles import GpuDriverTroubleError, TroubleKind
from dracaena.process.clock import Clock

T = TypeVar("T")

CLOSE_S = 5.0
"""Longest that stop() waits for the driver to be closed: well within the 30 s that a pod has to end."""


class WedgedError(GpuDriverTroubleError):
    """The driver has not answered in time. The text names the call."""

    def __init__(self, message: str) -> None:
        super().__init__(message, TroubleKind.SILENT)


class StoppedError(TemporaryError):
    """No more calls are accepted."""


class _Job(Generic[T]):
    """One call: its work and its outcome."""

    def __init__(self, what: str, work: Callable[[], T], deadline_s: float) -> None:
        self.what = what
        self.work = work
        self.deadline_s = deadline_s
        self.done = False
        self.result: T
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.work()
        except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
            self.error = error


class GpuDriverThread:
    """Runs calls from all threads, one at a time; `close` is the last one, after stop()."""

    def __init__(
        self, clock: Clock, doing: Callable[[], str], close: Callable[[], None], *, name: str = "gpu-driver"
    ) -> None:
        self._clock = clock
        self._doing = doing
        self._close = close
        self._condition = threading.Condition()
        self._job: _Job[Any] | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to take calls."""
        self._thread.start()

    def stop(self) -> None:
        """Release all callers, and close the driver after the call that is under way. A call that hangs is left behind:
        it must not delay the exit.
        """
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        if self.hung() is None and self._thread.is_alive():
            self._thread.join(CLOSE_S)

    @property
    def native_id(self) -> int | None:
        """The kernel's ID of the thread, None before start()."""
        return self._thread.native_id

    def hung(self, beyond_s: float = 0.0) -> str | None:
        """Return which call has not returned beyond_s after its deadline; None if there is none."""
        with self._condition:
            job = self._job
        if job is None or self._clock.monotonic() < job.deadline_s + beyond_s:
            return None
        return self._hangs(job)

    def call(self, what: str, work: Callable[[], T], deadline_s: float) -> T:
        """Return work(), run in the driver's thread, or raise what it raises.

        Raises WedgedError if it is not done within deadline_s, and at once if an earlier call hangs beyond its
        deadline. Raises StoppedError after stop(). The result of an abandoned call is lost, but its work runs on.
        """
        began_s = self._clock.monotonic()
        job = _Job(what, work, began_s + deadline_s)
        with self._condition:
            while self._job is not None:
                self._wait(self._job, min(self._job.deadline_s, job.deadline_s))
            self._job = job
            self._condition.notify_all()
            while not job.done:
                self._wait(job, job.deadline_s)
        if job.error is not None:
            raise job.error
        return job.result

    def _wait(self, running: _Job[Any], until_s: float) -> None:
        if self._stopping:
            raise StoppedError("this program is being stopped")
        left_s = until_s - self._clock.monotonic()
        if left_s <= 0:
            raise WedgedError(self._hangs(running))
        self._clock.wait(self._condition, left_s)

    def _hangs(self, job: _Job[Any]) -> str:
        return f"the NVIDIA driver does not answer: {self._doing() or job.what} has not returned in time"

    def _run(self) -> None:
        while True:
            with self._condition:
                while self._job is None and not self._stopping:
                    self._condition.wait()
                job = self._job
            if job is None:
                self._close()
                return
            job.run()
            with self._condition:
                job.done = True
                self._job = None
                self._condition.notify_all()
