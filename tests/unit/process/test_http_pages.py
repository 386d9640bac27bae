from __future__ import annotations

import threading
from collections.abc import Callable

from dracaena.process.http_message import HttpAnswer, text_answer
from dracaena.process.http_pages import Page
from support.clock import FakeClock


class Client:
    """Implements Reply: what it does when it is answered."""

    wanted = True

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self._then = then
        self.answered = threading.Event()

    def __call__(self, answer: HttpAnswer) -> None:
        self._then()
        self.answered.set()

    def more(self, data: bytes) -> None:
        raise AssertionError("no page streams")


def answered_twice(compute: Callable[[FakeClock], object], then: Callable[[FakeClock], object]) -> bool:
    """Whether a second client is answered although no time goes by after the first one was."""
    clock = FakeClock()

    def page(_key: str) -> HttpAnswer:
        compute(clock)
        return text_answer(200, "ok")

    pages = Page[str]("page", page, clock)
    pages.start()
    try:
        first, second = Client(lambda: then(clock)), Client()
        pages.ask("", first)
        assert first.answered.wait(30)
        pages.ask("", second)
        return second.answered.wait(0.5)
    finally:
        pages.stop()


def test_after_a_page_that_took_long_the_next_one_waits() -> None:
    assert not answered_twice(lambda clock: clock.advance(0.1), lambda clock: None)


def test_time_that_goes_by_while_a_client_is_answered_is_no_work() -> None:
    assert answered_twice(lambda clock: None, lambda clock: clock.advance(1.0))
