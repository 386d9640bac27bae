"""An HTTP proxy before the API server that knows the writes: it notes them, and can hold, refuse or cut any of them."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import urllib3

CLIENT_CONNECTIONS = 128
"""Kept open to the server: more than the threads and watches of two controllers."""

PASSED_ON = ("Authorization", "Accept", "Content-Type", "User-Agent")


class Cut(Exception):  # noqa: N818 - no error
    """Raised by a hook: the connection is closed, the caller never hears an answer."""


@dataclass(slots=True)
class Write:
    """One request that changes something."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    """The JSON document that was sent, None when there was none."""
    status: int = 0
    """What the server answered; 0 while it has not, or was not asked."""
    answer: Any = None

    @property
    def kind(self) -> str:
        """Which collection, with the subresource: `resourceclaims/status`."""
        parts = self.path.split("/")
        plurals = [place for place, part in enumerate(parts) if part in _PLURALS]
        return "/".join((parts[plurals[-1]], *parts[plurals[-1] + 2 :])) if plurals else self.path

    @property
    def name(self) -> str:
        """Of the object; empty for a creation."""
        parts = self.path.split("/")
        plurals = [place for place, part in enumerate(parts) if part in _PLURALS]
        return parts[plurals[-1] + 1] if plurals and len(parts) > plurals[-1] + 1 else ""


_PLURALS = frozenset({"resourceclaims", "pods", "nodes", "resourceslices", "leases", "events"})
_UNINTERESTING = frozenset({"leases", "events"})

Hook = Callable[[Write], int | None]


@dataclass(slots=True)
class Gate:
    """Stops writes until it is opened."""

    reached: threading.Event = field(default_factory=threading.Event)
    """Set when the first one has come."""
    opened: threading.Event = field(default_factory=threading.Event)
    cut: bool = False
    """Set before it is opened: what was held never reaches the server."""


class WriteProxy:
    """Forwards to an API server inside a `with` block. Speaks plain HTTP to its clients, who keep their tokens.

    `before` is called in the request's thread with every write but those of Leases and Events; a status that it returns
    is answered in the server's place. `after` is called when the server has answered and before the caller hears it.
    """

    def __init__(self, url: str, authority: Path) -> None:
        self.before: Hook = lambda write: None
        self.after: Hook = lambda write: None
        self._pool = urllib3.PoolManager(maxsize=CLIENT_CONNECTIONS, ca_certs=str(authority), retries=False)
        self._target = url
        self._lock = threading.Lock()
        self._writes: list[Write] = []
        self._server = _Server(("127.0.0.1", 0), _handler(self))

    @property
    def url(self) -> str:
        """Where clients go."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def writes(self) -> list[Write]:
        """All writes so far but those of Leases and Events, in the order in which they came."""
        with self._lock:
            return list(self._writes)

    def forget(self) -> None:
        """Begin a new list of writes, and let everything through."""
        with self._lock:
            self._writes.clear()
        self.before = self.after = lambda write: None

    @contextmanager
    def held(self, which: Callable[[Write], bool]) -> Iterator[Gate]:
        """Hold these writes before they reach the server, until the gate is opened or the block is left."""
        gate = Gate()

        def hold(write: Write) -> None:
            if which(write):
                gate.reached.set()
                gate.opened.wait()
                if gate.cut:
                    raise Cut

        self.before = hold
        try:
            yield gate
        finally:
            self.before = lambda write: None
            gate.opened.set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._pool.clear()

    def before_watch_goes_on(self) -> None:
        """Called in the watch's thread before each piece of it is passed on."""

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        length = int(handler.headers.get("Content-Length") or 0)
        body = handler.rfile.read(length) if length else None
        parts = urlsplit(handler.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        write = None
        if handler.command != "GET":
            write = Write(handler.command, parts.path, query, json.loads(body) if body else None)
            write = None if write.kind.split("/")[0] in _UNINTERESTING else write
        if write is not None:
            with self._lock:
                self._writes.append(write)
            if refusal := self.before(write):
                answer_refusal(handler, refusal)
                return
        headers = {name: handler.headers[name] for name in PASSED_ON if name in handler.headers}
        response = self._pool.request(
            handler.command,
            self._target + handler.path,
            body=body,
            headers=headers,
            preload_content=False,
            timeout=None,
        )
        try:
            if "watch" in query:
                _stream(handler, response, self.before_watch_goes_on)
                return
            data = response.read()
        finally:
            response.release_conn()
        if write is not None:
            with suppress(ValueError):  # some refusals are plain text: 429 for one request too many
                write.answer = json.loads(data)
            write.status = response.status
            self.after(write)
        _answer(handler, response.status, data)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tell of faults; a client that was killed is none."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def _handler(proxy: WriteProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            try:
                proxy.serve(self)
            except (Cut, OSError, urllib3.exceptions.HTTPError):
                self.close_connection = True  # either side is gone: the other one hears of it

        do_POST = do_GET  # noqa: N815
        do_PUT = do_GET  # noqa: N815
        do_PATCH = do_GET  # noqa: N815
        do_DELETE = do_GET  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Say nothing."""

    return Handler


def _answer(handler: BaseHTTPRequestHandler, status: int, data: bytes) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def answer_refusal(handler: BaseHTTPRequestHandler, code: int) -> None:
    """Answer a request as a server that refuses it."""
    _answer(handler, code, json.dumps(_status(code)).encode())


def _stream(handler: BaseHTTPRequestHandler, response: urllib3.BaseHTTPResponse, before: Callable[[], None]) -> None:
    handler.send_response(response.status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    with suppress(AttributeError):  # urllib3 after a broken connection
        for chunk in response.stream(1 << 16):
            before()
            handler.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            handler.wfile.flush()
    handler.wfile.write(b"0\r\n\r\n")


def _status(code: int) -> dict[str, Any]:
    reason = {409: "Conflict", 429: "TooManyRequests", 503: "ServiceUnavailable"}.get(code, "InternalError")
    message = "refused by a test"
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }
