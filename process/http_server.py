"""A small HTTP server for an open network: one thread, a bounded number of connections, a deadline for each.

No client is turned away: when all places are taken, a newcomer gets that of a client that has more connections than
others, an idle and old one first. So a client that holds all places, or takes new ones all the time, loses them to
clients that send a request at once. One request per connection; what takes a while is answered later, from another
thread (dracaena.process.http_pages).
"""

from __future__ import annotations

import contextlib
import enum
import errno
import queue
import selectors
import socket
import ssl
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from dracaena.process.clock import Clock
from dracaena.process.http_message import (
    HttpAnswer,
    HttpRequest,
    MalformedRequestError,
    encode_head,
    head_ends,
    parse_head,
    text_answer,
)

MOST_CONNECTIONS = 128
"""kubelet and two Prometheus need four. With TLS each may cost 70 KiB and its share of an answer: 10 MiB in all."""

BACKLOG = 1024
"""Connections that the kernel queues: a burst of that many is not slowed by lost SYNs, which cost 1 s each."""

HEAD_BYTES = 8192
"""The longest head of a request. A scraper with basic auth sends 600 bytes."""

HEAD_TIMEOUT_S = 5.0
"""From the connection to the end of the head, including the TLS handshake: kubelet and scrapers need milliseconds."""

ANSWER_TIMEOUT_S = 10.0
"""From the head until the client has taken all and closes: Prometheus' own default for a scrape."""

STREAM_S = 300.0
"""How long an answer streams before it ends and the client has to ask anew, with whatever right it has by then."""

_DRAIN_BYTES = 1 << 18
"""Bytes discarded after the answer: closing with unread bytes would reset the connection and lose data on its way."""

_ACCEPTS_A_TURN = 32
"""Connections accepted before others have their turn again: a quarter of all places, so that a request on its way when
its connection is accepted arrives before that is the oldest."""

_SEND_BYTES = 1 << 17
"""Sent to one client before others have their turn again."""

_SMALL_BYTES = 1024
"""A body of this size goes in one packet with its head; a larger one is shared, not copied."""

_LOOK_S = 0.25
"""How often deadlines are looked at while there are connections."""

_REST_PER_WORK = 1
"""After each turn the thread rests this many times its CPU time: a flood costs no more than half a core."""

_LONGEST_REST_S = 0.05

_TLS_HANDSHAKE = b"\x16"
"""The first byte from a client that speaks TLS; one that speaks HTTP begins with a letter."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Client:
    """A client: its address, whether it uses TLS, and its verified certificate as SSLSocket.getpeercert() gives it."""

    address: str
    secure: bool
    certificate: Mapping[str, Any] | None


class _State(enum.Enum):
    FIRST_BYTE = enum.auto()
    HANDSHAKE = enum.auto()
    HEAD = enum.auto()
    WAITING = enum.auto()
    SENDING = enum.auto()
    STREAMING = enum.auto()
    DRAINING = enum.auto()


class _Connection:
    """One client's connection. Belongs to the server's thread; other threads only read `closed`."""

    def __init__(self, taken: socket.socket, address: str, deadline_s: float) -> None:
        self.socket = taken
        self.fd = taken.fileno()
        self.address = address
        self.deadline_s = deadline_s
        self.state = _State.FIRST_BYTE
        self.events = 0  # what the selector looks for
        self.head = bytearray()
        self.out: deque[memoryview] = deque()
        self.streams_until_s: float | None = None  # of an answer that streams
        self.newest = b""  # of a stream, what is sent once all before it is
        self.drained_bytes = 0
        self.closed = False

    @property
    def idle(self) -> bool:
        """Whether the client has sent no whole request, or has its answer or the beginning of a streaming one."""
        return self.state not in (_State.WAITING, _State.SENDING)

    def client(self) -> Client:
        secure = isinstance(self.socket, ssl.SSLSocket)
        certificate = self.socket.getpeercert() if isinstance(self.socket, ssl.SSLSocket) else None
        return Client(self.address, secure, certificate or None)

    def close(self, *, reset: bool) -> None:
        """Close; with `reset` the kernel keeps nothing of it either."""
        self.closed = True
        with contextlib.suppress(OSError):
            if reset:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.socket.close()


class _Reply:
    """Implements http_pages.Reply for one connection."""

    def __init__(self, server: HttpServer, connection: _Connection) -> None:
        self._server = server
        self._connection = connection

    def __call__(self, answer: HttpAnswer) -> None:
        self._server.deliver(self._connection, answer)

    def more(self, data: bytes) -> None:
        self._server.deliver(self._connection, data)

    @property
    def wanted(self) -> bool:
        return not self._connection.closed


class HttpServer:
    """Takes connections of one listening socket. start() once, then stop() once.

    `handle` is called with each request, in the server's thread: it must not block, and must have the reply called
    once, from any thread. `tls` returns the context for clients that speak TLS, None if there is none; clients may
    speak HTTP instead, and `handle` sees which by Client.secure. `headers` are in every answer.
    """

    def __init__(
        self,
        listener: socket.socket,
        handle: Callable[[HttpRequest, Client, _Reply], None],
        clock: Clock,
        *,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        headers: Callable[[], Sequence[tuple[str, str]]] = tuple,
    ) -> None:
        self._listener = listener
        self._listener.setblocking(False)
        self._handle = handle
        self._clock = clock
        self._tls = tls
        self._headers = headers
        self._connections: dict[int, _Connection] = {}  # by file descriptor, the oldest first
        self._of_address: Counter[str] = Counter()
        self._answers: queue.SimpleQueue[tuple[_Connection, HttpAnswer | bytes]] = queue.SimpleQueue()
        self._stopping = False
        self._wake_reader, self._wake_writer = socket.socketpair()
        for end in (self._wake_reader, self._wake_writer):
            end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener.fileno(), selectors.EVENT_READ)
        self._selector.register(self._wake_reader.fileno(), selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def start(self) -> None:
        """Serve until stop()."""
        self._thread.start()

    def stop(self) -> None:
        """Close the port and all connections, and end the thread."""
        self._stopping = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join()
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._selector.close()
        for each in (self._listener, self._wake_reader, self._wake_writer):
            each.close()

    def deliver(self, connection: _Connection, answer: HttpAnswer | bytes) -> None:
        """Send an answer, or what follows one that streams, from any thread."""
        self._answers.put((connection, answer))
        if threading.current_thread() is not self._thread:
            self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake; closed: it has ended
            self._wake_writer.send(b"\0")

    def _run(self) -> None:
        while not self._stopping:
            ready = self._selector.select(_LOOK_S if self._connections else None)
            began_s = time.thread_time()
            for key, _ in ready:
                if key.fd == self._listener.fileno():
                    self._accept()
                elif key.fd == self._wake_reader.fileno():
                    with contextlib.suppress(BlockingIOError):
                        self._wake_reader.recv(1 << 16)
                elif (connection := self._connections.get(key.fd)) is not None:
                    self._step(connection)
            self._send_answers()
            self._expire()
            time.sleep(min(_REST_PER_WORK * (time.thread_time() - began_s), _LONGEST_REST_S))

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            try:
                taken, (address, *_) = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:  # it has gone already
                continue
            except OSError as error:
                # Without a free descriptor no client could be answered: a place is worth more than a waiting client.
                if error.errno in (errno.EMFILE, errno.ENFILE) and self._connections:
                    self._make_room()
                else:
                    time.sleep(_LONGEST_REST_S)
                return
            if len(self._connections) >= MOST_CONNECTIONS:
                self._make_room()
            taken.setblocking(False)
            connection = _Connection(taken, address, self._clock.monotonic() + HEAD_TIMEOUT_S)
            self._connections[connection.fd] = connection
            self._of_address[address] += 1
            self._step(connection)  # a request that is there already needs no further turn

    def _make_room(self) -> None:
        most = max(self._of_address.values())
        crowd = [each for each in self._connections.values() if self._of_address[each.address] == most]
        self._drop(next((each for each in crowd if each.idle), crowd[0]))

    def _drop(self, connection: _Connection, *, reset: bool = True) -> None:
        self._look_for(connection, 0)
        del self._connections[connection.fd]
        self._of_address[connection.address] -= 1
        if not self._of_address[connection.address]:
            del self._of_address[connection.address]
        connection.close(reset=reset)

    def _expire(self) -> None:
        now_s = self._clock.monotonic()
        for connection in [each for each in self._connections.values() if each.deadline_s <= now_s]:
            if connection.state is _State.STREAMING and not connection.out:
                connection.deadline_s = now_s + HEAD_TIMEOUT_S
                self._step(connection, self._end_stream)
            else:
                self._drop(connection)

    def _look_for(self, connection: _Connection, events: int) -> None:
        if events == connection.events:
            return
        if not connection.events:
            self._selector.register(connection.fd, events)
        elif not events:
            self._selector.unregister(connection.fd)
        else:
            self._selector.modify(connection.fd, events)
        connection.events = events

    def _step(self, connection: _Connection, go_on: Callable[[_Connection], bool] | None = None) -> None:
        """Go on with a connection as far as it goes without waiting."""
        go_on = go_on or self._go_on
        try:
            while not connection.closed and connection.state is not _State.WAITING and go_on(connection):
                go_on = self._go_on
        except (BlockingIOError, ssl.SSLWantReadError):
            writes = bool(connection.out) and not isinstance(connection.socket, ssl.SSLSocket)
            self._look_for(connection, selectors.EVENT_WRITE if writes else selectors.EVENT_READ)
        except ssl.SSLWantWriteError:
            self._look_for(connection, selectors.EVENT_WRITE)
        except (OSError, ValueError):  # ValueError: Python's, for a handshake with one that has gone
            self._drop(connection)
        except Exception:  # outermost on this thread, which serves all clients: a fault costs the one connection
            log.exception("fault while serving a client", client=connection.address)
            self._drop(connection)

    def _go_on(self, connection: _Connection) -> bool:
        """Take one step; return False if the next one is for another turn. Raises what sockets raise."""
        match connection.state:
            case _State.FIRST_BYTE:
                self._begin(connection)
            case _State.HANDSHAKE:
                assert isinstance(connection.socket, ssl.SSLSocket)
                connection.socket.do_handshake()
                connection.state = _State.HEAD
            case _State.HEAD:
                self._read_head(connection)
            case _State.SENDING:
                return self._send(connection)
            case _State.STREAMING if connection.out:
                return self._send(connection)
            case _State.STREAMING | _State.DRAINING:
                data = connection.socket.recv(1 << 14)
                connection.drained_bytes += len(data)
                if not data or connection.drained_bytes > _DRAIN_BYTES:
                    self._drop(connection, reset=bool(data))
        return True

    def _begin(self, connection: _Connection) -> None:
        first = connection.socket.recv(1, socket.MSG_PEEK)
        if not first:
            self._drop(connection)
            return
        context = self._tls() if first == _TLS_HANDSHAKE else None
        connection.state = _State.HEAD
        if context is not None:
            connection.socket = context.wrap_socket(connection.socket, server_side=True, do_handshake_on_connect=False)
            connection.state = _State.HANDSHAKE

    def _read_head(self, connection: _Connection) -> None:
        data = connection.socket.recv(HEAD_BYTES + 1 - len(connection.head))
        if not data:
            self._drop(connection)
            return
        connection.head += data
        if head_ends(connection.head, len(data)):
            self._begin_answer(connection)
        elif len(connection.head) > HEAD_BYTES:
            self._refuse(connection, text_answer(431, f"the head of a request has at most {HEAD_BYTES} bytes here"))

    def _begin_answer(self, connection: _Connection) -> None:
        try:
            request = parse_head(bytes(connection.head))
        except MalformedRequestError as error:
            self._refuse(connection, text_answer(400, str(error)))
            return
        self._wait(connection)
        self._handle(request, connection.client(), _Reply(self, connection))

    def _refuse(self, connection: _Connection, answer: HttpAnswer) -> None:
        self._wait(connection)
        self.deliver(connection, answer)

    def _wait(self, connection: _Connection) -> None:
        connection.state = _State.WAITING
        connection.head.clear()
        connection.deadline_s = self._clock.monotonic() + ANSWER_TIMEOUT_S
        self._look_for(connection, 0)

    def _send_answers(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                connection, answer = self._answers.get_nowait()
                if isinstance(answer, bytes):
                    self._send_more(connection, answer)
                    continue
                if connection.closed or connection.state is not _State.WAITING:
                    continue
                head = encode_head(answer, self._headers())
                parts = (head + answer.body,) if len(answer.body) <= _SMALL_BYTES else (head, answer.body)
                connection.out.extend(map(memoryview, parts))
                connection.state = _State.SENDING
                if answer.streams:
                    connection.state = _State.STREAMING
                    connection.streams_until_s = self._clock.monotonic() + STREAM_S
                self._step(connection)

    def _send_more(self, connection: _Connection, data: bytes) -> None:
        if connection.closed or connection.state is not _State.STREAMING:
            return
        if connection.out:  # a slow client: of all that comes meanwhile it gets the newest
            connection.newest = data
            return
        connection.out.append(memoryview(data))
        connection.deadline_s = self._clock.monotonic() + ANSWER_TIMEOUT_S
        self._step(connection)

    def _send(self, connection: _Connection) -> bool:
        left = _SEND_BYTES
        while connection.out and left > 0:
            part = connection.out.popleft()
            if not part:
                continue
            try:
                sent = connection.socket.send(part[:left])
            except BaseException:
                connection.out.appendleft(part)
                raise
            left -= sent
            if sent < len(part):
                connection.out.appendleft(part[sent:])
            if not connection.out and connection.newest:
                connection.out.append(memoryview(connection.newest))
                connection.newest = b""
        if connection.out:
            self._look_for(connection, selectors.EVENT_WRITE)
            return False
        if connection.streams_until_s is None:
            self._end(connection)
        else:
            connection.deadline_s = connection.streams_until_s
        return True

    def _end_stream(self, connection: _Connection) -> bool:
        self._end(connection)
        return True

    def _end(self, connection: _Connection) -> None:
        """Tell the client that this was all, and wait for it to close."""
        if isinstance(connection.socket, ssl.SSLSocket):
            with contextlib.suppress(OSError, ValueError):
                connection.socket.unwrap()
        connection.socket.shutdown(socket.SHUT_WR)
        connection.state = _State.DRAINING


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there; port 0: any free one. Raises OSError, UnicodeError or TypeError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
