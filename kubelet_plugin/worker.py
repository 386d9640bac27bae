"""One thread that runs one loop, and what the loop waits for: work, a pause, or its end."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from dracaena.process.clock import Clock

STOP_S = 3.0
"""Longest that stop() waits: work takes milliseconds, unless the API server hangs; then each claim costs one request of
15 s. Kubelet allows the whole pod 30 s."""


class Worker:
    """Runs `loop` in a thread of its own. wait() and pause() are for the loop, the other methods for any thread.

    The loop goes on as long as wait() or pause() return True. At the start there is work.
    """

    def __init__(self, name: str, loop: Callable[[], None], clock: Clock) -> None:
        self._clock = clock
        self._condition = threading.Condition()
        self._noticed = True
        self._hurried = False
        self._stopping = False
        self._thread = threading.Thread(target=loop, name=name, daemon=True)

    def start(self) -> None:
        """Begin the loop."""
        self._thread.start()

    def stop(self) -> None:
        """End the loop and wait until it has ended; a worker that was never started is fine.

        Work that takes longer than STOP_S is abandoned and ends with the process: its file operations may stop at any
        step.
        """
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def notice(self) -> None:
        """Announce work. Never blocks; an announcement during the work counts for the next round."""
        with self._condition:
            self._noticed = True
            self._condition.notify_all()

    def hurry(self) -> None:
        """Announce work, and end the pause before it: what the last round lacked is there. Never blocks; during the
        work it ends the next pause.
        """
        with self._condition:
            self._noticed = self._hurried = True
            self._condition.notify_all()

    def wait(
        self,
        due: Callable[[], bool] = lambda: True,
        *,
        within_s: float = math.inf,
        look_every_s: float = math.inf,
    ) -> bool:
        """Wait until there is work that is due, at most within_s; False: it is time to end.

        `due` is called again after each notice, and every look_every_s if it may become true without one. It must not
        block.
        """
        deadline_s = self._clock.monotonic() + within_s
        with self._condition:
            while not self._stopping and not (self._noticed and due()):
                left_s = deadline_s - self._clock.monotonic()
                if left_s <= 0:
                    return True
                timeout_s = min(left_s, look_every_s) if self._noticed else left_s
                self._clock.wait(self._condition, timeout_s if timeout_s < math.inf else None)
            self._noticed = self._hurried = False
            return not self._stopping

    def again(self, pause_s: float) -> bool:
        """Announce work, and pause before it; False: it is time to end."""
        self.notice()
        return self.pause(pause_s)

    def pause(self, seconds: float) -> bool:
        """Wait, ignoring announcements other than hurry(); False: it is time to end."""
        deadline_s = self._clock.monotonic() + seconds
        with self._condition:
            while not (self._stopping or self._hurried) and (left_s := deadline_s - self._clock.monotonic()) > 0:
                self._clock.wait(self._condition, left_s)
            return not self._stopping


class WorkerService:
    """Something that runs as the loop of one worker, which it has made."""

    _worker: Worker

    def start(self) -> None:
        """Begin the loop."""
        self._worker.start()

    def stop(self) -> None:
        """End the loop (Worker.stop). What it waits for must be stopped before it."""
        self._worker.stop()

    def changed(self) -> None:
        """Have the loop look soon: something that it depends on has changed. From any thread; never blocks."""
        self._worker.notice()
