"""Clients that hold on, drip, flood and hang up, over real sockets, and an honest one beside them."""

from __future__ import annotations

import contextlib
import errno
import http.client
import random
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge

from dracaena.process import http_server
from dracaena.process.http import _FORMS, HttpEndpoint
from dracaena.process.http_message import HttpAnswer, HttpRequest, text_answer
from dracaena.process.http_server import (
    ANSWER_TIMEOUT_S,
    HEAD_BYTES,
    HEAD_TIMEOUT_S,
    MOST_CONNECTIONS,
    Client,
    HttpServer,
    listen,
)
from support.certificates import client_context, write_server
from support.clock import FakeClock
from support.http_probe import connect, get, is_closed, raw
from support.seeds import sampled

HOSTILE, HONEST = "127.0.0.2", "127.0.0.1"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def many_series() -> CollectorRegistry:
    """Return metrics whose text is larger than what the kernel takes for a client that reads nothing."""
    registry = CollectorRegistry()
    gauge = Gauge("series", "Many.", ["name"], registry=registry)
    for number in range(2_000):
        gauge.labels(f"{number}-{'x' * 1_000}").set(number)
    return registry


@contextlib.contextmanager
def serving(**how: Any) -> Iterator[HttpEndpoint]:
    how = {"ready": lambda: None, "registry": CollectorRegistry(), **how}
    endpoint = HttpEndpoint("127.0.0.1:0", **how)
    endpoint.start()
    try:
        yield endpoint
    finally:
        endpoint.stop()


def connections(endpoint: HttpEndpoint) -> int:
    return len(endpoint._server._connections)


def until(condition: Callable[[], bool], *, within_s: float = 10.0) -> None:
    """Wait for what another thread does."""
    waiting = threading.Event()
    for _ in range(int(within_s / 0.01)):
        if condition():
            return
        waiting.wait(0.01)
    raise AssertionError("it did not come")


@pytest.fixture
def held() -> Iterator[list[socket.socket]]:
    sockets: list[socket.socket] = []
    yield sockets
    for each in sockets:
        each.close()


def test_seven_hundred_held_connections_cost_no_thread_and_shut_nobody_out(held: list[socket.socket]) -> None:
    with serving() as endpoint:
        threads = set(threading.enumerate())
        for _ in range(700):
            held.append(connect(endpoint.port, HOSTILE))
            held[-1].sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        for source in (HONEST, HOSTILE):
            assert get(endpoint.port, "/healthz", source=source)[:2] == (200, "ok\n")
        assert set(threading.enumerate()) <= threads, "those of tests before this one may end meanwhile"
        assert connections(endpoint) <= MOST_CONNECTIONS
        assert is_closed(held[0])


def test_whoever_has_most_connections_makes_room(held: list[socket.socket], clock: FakeClock) -> None:
    """Also when the honest client is older and has sent nothing yet."""
    with serving(clock=clock) as endpoint:
        honest = connect(endpoint.port, HONEST)
        held.append(honest)
        held += [connect(endpoint.port, HOSTILE) for _ in range(3 * MOST_CONNECTIONS)]
        until(lambda: connections(endpoint) == MOST_CONNECTIONS)
        honest.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert honest.recv(1 << 16).startswith(b"HTTP/1.1 200 OK\r\n")


def test_client_that_is_being_answered_loses_its_place_last(held: list[socket.socket], clock: FakeClock) -> None:
    asked, go = threading.Event(), threading.Event()

    def alive() -> None:
        asked.set()
        assert go.wait(30)

    with serving(alive=alive, clock=clock) as endpoint:
        honest = connect(endpoint.port)
        held.append(honest)
        honest.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert asked.wait(30)
        held += [connect(endpoint.port) for _ in range(3 * MOST_CONNECTIONS)]
        until(lambda: is_closed(held[-2 * MOST_CONNECTIONS], within_s=0.1))
        go.set()
        assert honest.recv(1 << 16).startswith(b"HTTP/1.1 200 OK\r\n")


def test_head_that_drips_in_has_a_deadline_as_a_whole(clock: FakeClock) -> None:
    with serving(clock=clock) as endpoint, connect(endpoint.port) as client:
        until(lambda: connections(endpoint) == 1)
        with contextlib.suppress(OSError):
            for letter in b"GET /healthz HTTP/1.1\r\n":
                client.sendall(bytes([letter]))
                clock.advance(HEAD_TIMEOUT_S / 20)
        assert is_closed(client)
        assert get(endpoint.port, "/healthz")[0] == 200


def test_silent_client_is_let_go(clock: FakeClock) -> None:
    with serving(clock=clock) as endpoint, connect(endpoint.port) as client:
        until(lambda: connections(endpoint) == 1)
        clock.advance(HEAD_TIMEOUT_S)
        assert is_closed(client)


def test_client_that_does_not_read_is_let_go(clock: FakeClock) -> None:
    with serving(clock=clock, registry=many_series()) as endpoint, connect(endpoint.port) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert client.recv(9) == b"HTTP/1.1 "
        assert get(endpoint.port, "/healthz")[0] == 200
        clock.advance(ANSWER_TIMEOUT_S)
        until(lambda: connections(endpoint) == 0)


def test_large_page_arrives_whole() -> None:
    with serving(registry=many_series()) as endpoint:
        status, text, headers = get(endpoint.port, "/metrics")
        assert status == 200
        assert len(text) == int(headers["Content-Length"]) > 2_000_000
        assert text.count("\nseries{") == 2_000


def test_large_page_arrives_whole_at_a_slow_client_that_sends_more_than_a_request(clock: FakeClock) -> None:
    """What it sends is not read while the answer is on its way: closing over it would cut the answer off."""
    with serving(registry=many_series(), clock=clock) as endpoint, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(10)
        client.connect(("127.0.0.1", endpoint.port))
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        found = client.recv(9)
        client.sendall(b"more")
        while data := client.recv(1 << 14):
            found += data
        head, _, body = found.partition(b"\r\n\r\n")
        assert f"\r\nContent-Length: {len(body)}\r\n" in head.decode()


def test_client_that_does_not_close_is_let_go(clock: FakeClock) -> None:
    with serving(clock=clock) as endpoint, connect(endpoint.port) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        until(lambda: b"ok\n" in client.recv(1 << 16, socket.MSG_PEEK))
        clock.advance(ANSWER_TIMEOUT_S)
        until(lambda: connections(endpoint) == 0)


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"], ids=["open", "closed"])
def test_head_that_is_too_large_is_told_so(end: bytes) -> None:
    """The answer must arrive although the client still sends."""
    with serving() as endpoint:
        answer = raw(endpoint.port, b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 4 * HEAD_BYTES + end)
        assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
        assert b"at most 8192 bytes" in answer


def test_head_of_the_largest_size_is_read() -> None:
    start, end = b"GET /healthz HTTP/1.1\r\nX: ", b"\r\n\r\n"
    with serving() as endpoint:
        request = start + b"a" * (HEAD_BYTES - len(start) - len(end)) + end
        assert raw(endpoint.port, request).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "request_",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /healthz\r\n\r\n",
        b"GET /healthz HTTP/2\r\n\r\n",
        b"GET /health z HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n bad name: x\r\n\r\n",
        b"\x16\x03\x01\x00\xff\r\n\r\n",
        b"\x00" * 50 + b"\n\n",
    ],
)
def test_what_is_no_http_is_refused(request_: bytes) -> None:
    with serving() as endpoint:
        assert raw(endpoint.port, request_).startswith(b"HTTP/1.1 400 Bad Request\r\n")


def test_only_get_is_answered() -> None:
    with serving() as endpoint:
        answer = raw(endpoint.port, b"POST /healthz HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi")
        assert answer.startswith(b"HTTP/1.1 405 Method Not Allowed\r\n")
        assert b"\r\nAllow: GET\r\n" in answer


def test_client_may_close_its_half_after_the_request() -> None:
    with serving() as endpoint, connect(endpoint.port) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1 << 16).endswith(b"\r\n\r\nok\n")
        assert client.recv(1 << 16) == b"", "closed in order, not reset"


def test_client_that_closes_its_half_before_that_is_let_go() -> None:
    with serving() as endpoint, connect(endpoint.port) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\n")
        client.shutdown(socket.SHUT_WR)
        assert is_closed(client)
        until(lambda: connections(endpoint) == 0)


def test_page_that_hangs_holds_up_no_other() -> None:
    go = threading.Event()

    def alive() -> None:
        assert go.wait(30)

    with serving(alive=alive) as endpoint, connect(endpoint.port) as waiting:
        waiting.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert get(endpoint.port, "/readyz")[0] == 200
        assert get(endpoint.port, "/metrics")[0] == 200
        go.set()
        assert waiting.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_many_who_ask_at_once_share_one_computation(clock: FakeClock) -> None:
    """All that ask while it is made get the next one: what was true before they asked is none of their business."""
    go, counted, begun = threading.Event(), [0], threading.Event()

    def ready() -> None:
        counted[0] += 1
        begun.set()
        assert go.wait(30)

    with serving(ready=ready, clock=clock) as endpoint:
        first = connect(endpoint.port)
        first.sendall(b"GET /readyz HTTP/1.1\r\n\r\n")
        assert begun.wait(30)
        others = [connect(endpoint.port) for _ in range(50)]
        for other in others:
            other.sendall(b"GET /readyz HTTP/1.1\r\n\r\n")
        until(lambda: len(endpoint._health["/readyz"]._waiting) == 50)
        go.set()
        for client in (first, *others):
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
            client.close()
        assert counted == [2]


def test_replies_of_clients_that_left_are_not_kept_for_a_page_that_hangs(clock: FakeClock) -> None:
    go = threading.Event()

    def alive() -> None:
        assert go.wait(60)

    with serving(alive=alive, clock=clock) as endpoint:
        for _ in range(600):
            with connect(endpoint.port) as client:
                client.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert get(endpoint.port, "/readyz")[0] == 200
        assert len(endpoint._health["/healthz"]._waiting) <= 256
        go.set()


def test_page_that_raises_is_told_and_logged(capfd: pytest.CaptureFixture[str]) -> None:
    def ready() -> None:
        raise RuntimeError("no such thing")

    with serving(ready=ready) as endpoint:
        assert get(endpoint.port, "/readyz")[:2] == (500, "this page cannot be made; the log says why\n")
        assert get(endpoint.port, "/healthz")[0] == 200
    assert "no such thing" in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    "accept",
    ["application/openmetrics-text; version=nonsense", "text/plain; version=1.0.0.0.0.0.7", "a" * 4000, ";;,,;=,"],
)
def test_any_form_may_be_asked_for(accept: str) -> None:
    with serving() as endpoint:
        status, _, headers = get(endpoint.port, "/metrics", headers={"Accept": accept})
        assert status == 200
        assert _FORMS.fullmatch(headers["Content-Type"])


def test_prometheus_gets_openmetrics() -> None:
    with serving() as endpoint:
        accept = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.2"
        status, text, headers = get(endpoint.port, "/metrics", headers={"Accept": accept})
        assert (status, text) == (200, "# EOF\n")
        assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")


class _Exhausted(socket.socket):
    """A listening socket of a process that has no descriptor left."""

    exhausted = False

    def accept(self) -> Any:
        if self.exhausted:
            self.exhausted = False
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_where_descriptors_run_out_an_idle_client_makes_room(clock: FakeClock) -> None:
    def handle(_request: HttpRequest, _client: Client, reply: Callable[[HttpAnswer], None]) -> None:
        reply(text_answer(200, "ok"))

    plain = listen("127.0.0.1", 0)
    listener = _Exhausted(plain.family, plain.type, fileno=plain.detach())
    port = listener.getsockname()[1]
    server = HttpServer(listener, handle, clock)
    server.start()
    try:
        with connect(port) as idle:
            until(lambda: len(server._connections) == 1)
            listener.exhausted = True
            assert get(port, "/")[0] == 200
            assert is_closed(idle)
    finally:
        server.stop()


class Hostile:
    """Does one random bad thing after the other. It is told only the port."""

    def __init__(self, port: int, rng: random.Random) -> None:
        self._port = port
        self._rng = rng
        self._held: list[socket.socket] = []

    def act(self) -> None:
        with contextlib.suppress(OSError):
            self._rng.choice(
                (self._hold, self._hold, self._drip, self._half_tls, self._ask, self._junk, self._reset, self._guess)
            )()
        while len(self._held) > 400:
            self._held.pop(self._rng.randrange(len(self._held))).close()

    def end(self) -> None:
        for each in self._held:
            each.close()

    def _connect(self) -> socket.socket:
        client = socket.socket()
        client.settimeout(1.0)
        client.bind((self._rng.choice((HONEST, HOSTILE, "127.0.0.3")), 0))
        self._held.append(client)
        client.connect(("127.0.0.1", self._port))
        client.setblocking(False)
        return client

    def _hold(self) -> None:
        for _ in range(self._rng.randrange(1, 40)):
            self._connect()

    def _drip(self) -> None:
        for client in self._rng.sample(self._held, min(len(self._held), 30)):
            with contextlib.suppress(OSError):
                client.send(self._rng.choice((b"G", b"GET /healthz", b"\r\n", b"X: a\r\n", b"a")))

    def _half_tls(self) -> None:
        hello = ssl.MemoryBIO()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        with contextlib.suppress(ssl.SSLWantReadError):
            context.wrap_bio(ssl.MemoryBIO(), hello).do_handshake()
        data = hello.read()
        for _ in range(self._rng.randrange(1, 10)):
            self._connect().send(data[: self._rng.choice((1, 5, 100, len(data)))])

    def _ask(self) -> None:
        path = self._rng.choice((b"/metrics", b"/healthz", b"/readyz", b"/"))
        for _ in range(self._rng.randrange(1, 10)):
            self._connect().send(b"GET " + path + b" HTTP/1.1\r\n\r\n")

    def _guess(self) -> None:
        for _ in range(self._rng.randrange(1, 10)):
            self._connect().send(b"GET /metrics HTTP/1.1\r\nAuthorization: Basic YTpi\r\n\r\n")

    def _junk(self) -> None:
        self._connect().send(self._rng.randbytes(self._rng.choice((1, 100, 20_000))))

    def _reset(self) -> None:
        if self._held:
            client = self._held.pop(self._rng.randrange(len(self._held)))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()


KUBELETS_PROBE_S = 1.0
"""A probe's timeout in Kubernetes by default. A machine that runs other tests too may need more: only those that show
that the search finds a fault use it, where a slow machine does no harm."""
PATIENCE_S = 60.0


def refused_beside_hostile_clients(endpoint: HttpEndpoint, seed: int, *, acts: int, probe_s: float) -> list[str]:
    """Let hostile clients act, with an honest probe after every few acts; return what the probe did not get."""
    hostile, wrong = Hostile(endpoint.port, random.Random(seed)), []
    trusting = client_context()
    try:
        for number in range(acts):
            hostile.act()
            if number % 10:
                continue
            path, tls = ("/healthz", "/readyz")[number // 10 % 2], (None, trusting)[number // 20 % 2]
            try:
                status = get(endpoint.port, path, tls=tls, timeout_s=probe_s)[0]
            except (OSError, http.client.HTTPException) as error:
                wrong.append(f"act {number}, {path}: {type(error).__name__}: {error}")
            else:
                wrong += [f"act {number}, {path}: {status}"] if status != 200 else []
            if connections(endpoint) > MOST_CONNECTIONS:
                wrong.append(f"act {number}: {connections(endpoint)} connections")
            if wrong:
                break
    finally:
        hostile.end()
    return wrong


@pytest.fixture
def web_config(tmp_path: Path) -> str:
    write_server(tmp_path)
    path = tmp_path / "web-config.yml"
    path.write_text(
        "tls_server_config: {cert_file: tls.crt, key_file: tls.key}\n"
        "basic_auth_users: {a: $2b$04$WFsEcaXu7lUfW2iRjFFB2uQWLmLhlaJSJ4h0s4pqDC9aHTtU8xHN6}\n"
    )
    return str(path)


def test_large_page_arrives_whole_over_tls_at_a_slow_client(tmp_path: Path) -> None:
    write_server(tmp_path)
    (tmp_path / "web-config.yml").write_text("tls_server_config: {cert_file: tls.crt, key_file: tls.key}\n")
    config = str(tmp_path / "web-config.yml")
    with serving(web_config_file=config, registry=many_series()) as endpoint, socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.settimeout(10)
        plain.connect(("127.0.0.1", endpoint.port))
        with client_context().wrap_socket(plain, server_hostname="127.0.0.1") as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            found = b""
            while data := client.recv(1 << 14):
                found += data
        head, _, body = found.partition(b"\r\n\r\n")
        assert f"\r\nContent-Length: {len(body)}\r\n" in head.decode()
        assert len(body) > 2_000_000


@pytest.mark.parametrize("seed", sampled(range(10), 1, 10))
def test_honest_probe_is_always_answered(seed: int, web_config: str) -> None:
    with serving(web_config_file=web_config, registry=many_series()) as endpoint:
        assert refused_beside_hostile_clients(endpoint, seed, acts=300, probe_s=PATIENCE_S) == []
        until(lambda: connections(endpoint) == 0)


def blocking_handshake(server: HttpServer, connection: Any) -> None:
    connection.socket.setblocking(True)
    connection.socket.settimeout(3.0)
    connection.socket = client_side = server._tls().wrap_socket(connection.socket, server_side=True)  # type: ignore[union-attr]
    client_side.setblocking(False)
    connection.state = http_server._State.HEAD


def turn_away(server: HttpServer) -> None:
    """Take nobody while all places are taken."""
    if len(server._connections) < MOST_CONNECTIONS - 32:
        ACCEPT(server)


ACCEPT = HttpServer._accept

FAULTS: dict[str, tuple[Any, str, Any]] = {
    "no limit": (http_server, "MOST_CONNECTIONS", 10**9),
    "newcomers are turned away": (HttpServer, "_accept", turn_away),
    "handshake in the accept loop": (HttpServer, "_begin", blocking_handshake),
}


@pytest.mark.search
@pytest.mark.parametrize("fault", FAULTS)
def test_search_finds_a_planted_fault(fault: str, web_config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FAULTS[fault])
    with serving(web_config_file=web_config, registry=many_series()) as endpoint:
        assert refused_beside_hostile_clients(endpoint, 0, acts=300, probe_s=KUBELETS_PROBE_S) != []
