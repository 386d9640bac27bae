"""Answers that go on for minutes: who gets what, who is let go, and that nobody else waits for them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from dracaena.process.http_message import HttpAnswer, HttpRequest, text_answer
from dracaena.process.http_pages import Reply
from dracaena.process.http_server import (
    ANSWER_TIMEOUT_S,
    HEAD_TIMEOUT_S,
    MOST_CONNECTIONS,
    STREAM_S,
    Client,
    HttpServer,
    listen,
)
from support.clock import FakeClock
from support.http_probe import is_closed

GREETING = b": here\n\n"


class Streams:
    """A server that begins a stream for whoever asks for /events, and says `ok` to all others."""

    def __init__(self, clock: FakeClock) -> None:
        self.replies: list[Reply] = []
        self._listener = listen("127.0.0.1", 0)
        self.port = int(self._listener.getsockname()[1])
        self.server = HttpServer(self._listener, self._handle, clock)

    def _handle(self, request: HttpRequest, client: Client, reply: Reply) -> None:
        if request.path != "/events":
            reply(text_answer(200, "ok"))
            return
        reply(HttpAnswer(200, GREETING, "text/event-stream", streams=True))
        self.replies.append(reply)

    def tell(self, data: bytes) -> None:
        for reply in self.replies:
            reply.more(data)

    @property
    def open(self) -> int:
        return sum(reply.wanted for reply in self.replies)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def streams(clock: FakeClock) -> Iterator[Streams]:
    made = Streams(clock)
    made.server.start()
    try:
        yield made
    finally:
        made.server.stop()


@contextlib.contextmanager
def client(streams: Streams, path: str = "/events", *, buffer_bytes: int = 0) -> Iterator[socket.socket]:
    connection = socket.socket()
    connection.settimeout(10.0)
    if buffer_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    with connection:
        connection.connect(("127.0.0.1", streams.port))
        connection.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        yield connection


def read_until(connection: socket.socket, end: bytes) -> bytearray:
    data = bytearray()
    while not data.endswith(end):
        more = connection.recv(1 << 16)
        assert more, f"the stream ended after {bytes(data[-100:])!r}"
        data += more
    return data


def until(condition: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(1_000):
        if condition():
            return
        waiting.wait(0.01)
    raise AssertionError("it did not come")


def test_what_is_told_later_arrives_behind_a_head_without_a_length(streams: Streams) -> None:
    with client(streams) as connection:
        head = read_until(connection, GREETING)
        assert b"content-length" not in head.lower()
        for number in range(3):
            streams.tell(b"data: %d\n\n" % number)
            assert read_until(connection, b"\n\n") == b"data: %d\n\n" % number


def test_client_that_leaves_is_noticed_without_anything_being_sent(streams: Streams) -> None:
    with client(streams) as connection:
        read_until(connection, GREETING)
        assert streams.open == 1
    until(lambda: streams.open == 0)


def test_a_stream_ends_in_order_after_its_time(streams: Streams, clock: FakeClock) -> None:
    with client(streams) as connection:
        read_until(connection, GREETING)
        clock.advance(STREAM_S - 1)
        streams.tell(b"data: late\n\n")
        assert read_until(connection, b"\n\n") == b"data: late\n\n"
        clock.advance(1.5)
        assert connection.recv(1) == b"", "the end, not a reset"
        clock.advance(HEAD_TIMEOUT_S + 1)
        until(lambda: streams.open == 0)


def test_slow_client_gets_the_newest_of_what_came_meanwhile(streams: Streams) -> None:
    with client(streams, buffer_bytes=1 << 16) as connection:
        read_until(connection, GREETING)
        filler = b"x" * (8 << 20)
        streams.tell(filler + b"\n\n")
        for number in range(100):
            streams.tell(b"data: %d\n\n" % number)
        (held,) = streams.server._connections.values()
        until(lambda: held.newest == b"data: 99\n\n")
        data = read_until(connection, b"data: 99\n\n")
        assert len(data) == len(filler) + len(b"\n\ndata: 99\n\n"), "nothing of what lies between"


def test_client_that_takes_nothing_is_let_go(streams: Streams, clock: FakeClock) -> None:
    with client(streams, buffer_bytes=1 << 16) as connection:
        read_until(connection, GREETING)
        streams.tell(b"x" * (8 << 20))
        (held,) = streams.server._connections.values()
        until(lambda: bool(held.out) and held.deadline_s < STREAM_S)
        clock.advance(ANSWER_TIMEOUT_S + 1)
        until(lambda: streams.open == 0)


def test_client_that_sends_without_end_is_let_go(streams: Streams) -> None:
    with client(streams) as connection:
        read_until(connection, GREETING)
        with contextlib.suppress(OSError):
            for _ in range(64):
                connection.sendall(b"x" * (1 << 14))
        until(lambda: streams.open == 0)


def test_newcomers_get_the_places_of_streams(streams: Streams) -> None:
    with contextlib.ExitStack() as held:
        first = held.enter_context(client(streams))
        read_until(first, GREETING)
        for _ in range(MOST_CONNECTIONS - 1):
            read_until(held.enter_context(client(streams)), GREETING)
        with client(streams, "/ok") as connection:
            assert b"ok\n" in read_until(connection, b"ok\n")
        assert is_closed(first)
        assert streams.open == MOST_CONNECTIONS - 1


def test_more_of_an_answer_that_does_not_stream_is_dropped(streams: Streams) -> None:
    with client(streams, "/ok") as connection:
        read_until(connection, b"ok\n")
        (held,) = streams.server._connections.values()
        streams.server.deliver(held, b"more")
        assert connection.recv(10) == b""
