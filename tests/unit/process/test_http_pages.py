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


def answered_twice(
    compute: Callable[[FakeClock], object], then: Callable[[FakeClock], object], within_s: float
) -> bool:
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
        return second.answered.wait(within_s)
    finally:
        pages.stop()


def test_after_a_page_that_took_long_the_next_one_waits() -> None:
    assert not answered_twice(lambda clock: clock.advance(0.1), lambda clock: None, within_s=0.5)


def test_time_that_goes_by_while_a_client_is_answered_is_no_work() -> None:
    assert answered_twice(lambda clock: None, lambda clock: clock.advance(1.0), within_s=30.0)


def test_a_flood_of_keys_gets_one_answer_at_a_time_and_equal_ones_the_same() -> None:
    clock, computed = FakeClock(), list[str]()
    go = threading.Event()

    def page(key: str) -> HttpAnswer:
        if key == "first":
            assert go.wait(30)
        computed.append(key)
        clock.advance(0.01)
        return text_answer(200, key)

    pages = Page[str]("page", page, clock)
    pages.start()
    try:
        first, crowd = Client(), [Client() for _ in range(9)]
        pages.ask("first", first)
        for number, client in enumerate(crowd):
            pages.ask(f"key {number % 3}", client)
        go.set()
        assert first.answered.wait(30)
        threading.Event().wait(0.2)
        assert computed == ["first"], "it rests before the next"
        until_s = clock.monotonic() + 30
        while not all(client.answered.is_set() for client in crowd):
            assert clock.monotonic() < until_s
            clock.advance(0.04)
            threading.Event().wait(0.02)
    finally:
        pages.stop()
    assert computed == ["first", "key 0", "key 1", "key 2"]
