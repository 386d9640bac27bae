"""Pages that take a while: each is computed in a thread of its own, once for all clients that asked before it began.
Each form of a page, identified by a key, is computed separately, with a rest after each.

So a page that hangs holds up no other page and no connection, and however many clients ask, a page costs a fixed share
of a core.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

import structlog

from dracaena.process.clock import Clock
from dracaena.process.http_message import HttpAnswer, text_answer
from dracaena.process.resting_thread import RestingThread

K = TypeVar("K", bound=Hashable)

REST_PER_WORK = 4
"""While requests wait, the thread rests this many times as long as its work took: a flood costs a fifth of a core."""

LONGEST_REST_S = 0.25
"""By default: a page that took long because the machine was busy must not rest past the timeout of a probe, 1 s."""

MOST_WAITING = 256
"""Waiting replies that are kept before those whose client has gone are dropped: twice as many as there can be."""

log = structlog.get_logger()


class Reply(Protocol):
    """Where an answer goes, once, from any thread."""

    def __call__(self, answer: HttpAnswer) -> None:
        """Send it, unless the client has gone."""
        ...

    def more(self, data: bytes) -> None:
        """Send `data` after a streaming answer. A client that has not taken the last data is sent only the newest."""
        ...

    @property
    def wanted(self) -> bool:
        """Whether the client still waits."""
        ...


class Page(Generic[K]):
    """One page in forms that a key identifies. start() once, then stop() once."""

    def __init__(
        self, name: str, compute: Callable[[K], HttpAnswer], clock: Clock, *, longest_rest_s: float = LONGEST_REST_S
    ) -> None:
        self._name = name
        self._compute = compute
        self._clock = clock
        self._longest_rest_s = longest_rest_s
        self._waiting: list[tuple[K, Reply]] = []
        # Do not wait for a page that hangs: the process is ending.
        self._thread = RestingThread(f"http-{name}", clock, take=self._take, serve=self._serve, join_s=1.0)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._thread.stop()

    def ask(self, key: K, reply: Reply) -> None:
        """Have the request answered with what is true from now on. Never blocks."""
        with self._thread.changed:
            if len(self._waiting) >= MOST_WAITING:
                self._waiting = [each for each in self._waiting if each[1].wanted]
            self._waiting.append((key, reply))
            self._thread.changed.notify()

    def _take(self) -> tuple[K, list[Reply]] | None:
        """Return the key that was asked for longest ago, and all replies that wait for it."""
        self._waiting = [each for each in self._waiting if each[1].wanted]
        if not self._waiting:
            return None
        key = self._waiting[0][0]
        replies = [reply for each, reply in self._waiting if each == key]
        self._waiting = [each for each in self._waiting if each[0] != key]
        return key, replies

    def _serve(self, asked: tuple[K, list[Reply]]) -> float:
        """Answer all requests for a key; return how long to rest."""
        key, replies = asked
        began_s = self._clock.monotonic()
        answer = self._answer(key)
        worked_s = self._clock.monotonic() - began_s
        for reply in replies:
            reply(answer)
        return min(REST_PER_WORK * worked_s, self._longest_rest_s)

    def _answer(self, key: K) -> HttpAnswer:
        try:
            return self._compute(key)
        except Exception:  # outermost on this thread: the next page has to be made, and the client to be answered
            log.exception("page cannot be made", page=self._name)
            return text_answer(500, "this page cannot be made; the log says why")
