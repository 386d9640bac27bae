"""A thread that serves one client after another and rests after each, so that a flood costs a part of a core."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from dracaena.process.clock import Clock

W = TypeVar("W")


class RestingThread(Generic[W]):
    """Takes what waits, serves it, and rests. start() once, then stop() once.

    `take` returns what is next, None if nothing waits; it is called with `changed` held. `serve` serves it, and returns
    for how many seconds to rest; it must not raise. `join_s`: how long stop() waits for what is being served, None:
    until it is done.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        *,
        take: Callable[[], W | None],
        serve: Callable[[W], float],
        join_s: float | None,
    ) -> None:
        self.changed = threading.Condition()
        """Guards what waits: hold it to change that, and notify it after adding something."""
        self._clock = clock
        self._next, self._serve = take, serve
        self._join_s = join_s
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        with self.changed:
            self._stopping = True
            self.changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=self._join_s)

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            rest_s = self._serve(taken)
            taken = None  # who was served is not kept while it rests
            self._rest(rest_s)

    def _take(self) -> W | None:
        with self.changed:
            while not self._stopping:
                if (taken := self._next()) is not None:
                    return taken
                self._clock.wait(self.changed, None)
            return None

    def _rest(self, rest_s: float) -> None:
        until_s = self._clock.monotonic() + rest_s
        with self.changed:
            while not self._stopping and (left_s := until_s - self._clock.monotonic()) > 0:
                self._clock.wait(self.changed, left_s)
