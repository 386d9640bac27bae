"""Real code in threads of which only one moves at a time: a strand runs from one pause to the next."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Killed(BaseException):
    """The process of a strand is gone: it unwinds, and nothing that it does then reaches anybody."""


class _Thread:
    """One thread for one strand after the other: starting threads costs more than all they do here."""

    def __init__(self) -> None:
        self.go, self.back = threading.Lock(), threading.Lock()
        self.go.acquire()
        self.back.acquire()
        self.work: Callable[[], None] = _nothing
        threading.Thread(target=self._run, name="strand", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.go.acquire()
            self.work()
            self.back.release()


_idle: list[_Thread] = []


def _nothing() -> None:
    """What an idle thread does: it keeps nothing of its last strand."""


class Strand:
    """A function that runs in steps. Exactly one thread runs at any time: the caller of step(), or the strand."""

    current: Strand | None = None
    """The strand that runs now."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.name = name
        self.waits_for: Any = None
        """What the strand paused for."""
        self.error: BaseException | None = None
        self.done = False
        self._work = work
        self._sent: Any = None
        self._killed = False
        self._thread: _Thread | None = None

    def step(self, answer: Any = None) -> None:
        """Let the strand run to its next pause, or its end."""
        thread = self._thread
        if thread is None:
            thread = self._thread = _idle.pop() if _idle else _Thread()
            thread.work = self._body
        self._sent, self.waits_for = answer, None
        before, Strand.current = Strand.current, self
        thread.go.release()
        thread.back.acquire()
        Strand.current = before
        if self.done:
            self._thread, thread.work = None, _nothing
            _idle.append(thread)

    def kill(self) -> None:
        """End the strand where it is."""
        self._killed = True
        while not self.done and self._thread is not None:
            self.step()
        self.done = True

    @staticmethod
    def pause(what: Any) -> Any:
        """Called by what runs in a strand: wait for its next step, and return what that one brings."""
        strand = Strand.current
        assert strand is not None, "only a strand can pause"
        thread = strand._thread
        assert thread is not None
        if not strand._killed:
            strand.waits_for = what
            thread.back.release()
            thread.go.acquire()
        if strand._killed:
            raise Killed
        return strand._sent

    def _body(self) -> None:
        try:
            self._work()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - told by whoever steps
            self.error = error
        self.done = True
