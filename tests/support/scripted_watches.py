"""Lists and watches as a scripted server answers them, and a clock that runs while a reflector reads them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from support.clock import FakeClock, RestingClock
from support.kube import wait_for
from support.scripted_server import Request


def listing(version: int, *items: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": str(version)}, "items": list(items)}


def tick_until(clock: FakeClock, condition: Callable[[], bool], what: str, *, step_s: float = 1.0) -> None:
    """Let the clock run until the reflector's pauses are over and the condition holds."""

    def ticked() -> bool:
        clock.advance(step_s)
        return condition()

    wait_for(ticked, what)


def tick_at_rest_until(clock: RestingClock, condition: Callable[[], bool], what: str) -> None:
    """Let the clock run while the one thread that sleeps on it has to sleep on: however long that thread is held up, no
    time goes by meanwhile, and what holds only until its next try is seen."""

    def held_at_rest() -> bool:
        rests = clock.rests
        if condition():
            return True
        if rests:
            clock.advance(1.0)
        return False

    wait_for(held_at_rest, what)


def open_watch(*events: tuple[str, dict[str, Any]], until: threading.Event | None = None) -> Callable[[Request], None]:
    """Send events; then stay open, or until an event of the test."""

    def answer(request: Request) -> None:
        request.begin_stream()
        for kind, document in events:
            request.send_event(kind, document)
        if until is None:
            threading.Event().wait(10)
        else:
            until.wait(10)
            request.end_stream()

    return answer


def closed_watch(*events: tuple[str, dict[str, Any]]) -> Callable[[Request], None]:
    def answer(request: Request) -> None:
        request.begin_stream()
        for kind, document in events:
            request.send_event(kind, document)
        request.end_stream()

    return answer
