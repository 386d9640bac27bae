"""HTTP: one handler per connection, one method per verb. Only translates; what the API does is elsewhere."""

from __future__ import annotations

import json
import re
import select
import socket
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler
from itertools import chain
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit

from dracaena.api import limits
from dracaena.demo.apiserver.errors import ApiError, bad_request
from dracaena.demo.apiserver.faults import InjectedFault
from dracaena.demo.apiserver.paths import UnknownPathError
from dracaena.demo.apiserver.router import AnswerStream, ApiAnswer, ApiRequest

if TYPE_CHECKING:
    from dracaena.demo.apiserver.server import Listener

_IDLE_S: Final = 300.0  # a kept connection without requests is closed after this


class _Dropped(Exception):  # noqa: N818 - not an error: a fault closes this connection
    """The connection is to be closed without an answer."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = "dracaena-embedded-apiserver"
    sys_version = ""
    disable_nagle_algorithm = True
    timeout = _IDLE_S
    server: Listener

    def handle(self) -> None:
        """Serve the connection's requests; a client that goes away is not an error."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError, _Dropped):
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Log nothing: the screen belongs to the demo."""

    def do_GET(self) -> None:
        """GET."""
        self._serve()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = do_GET  # noqa: N815 - the base class looks for these

    def _serve(self) -> None:
        fault = self.server.faults.take(self.command, self.path)
        if fault:
            self._suffer(fault, early=True)
        answer = self._answer()
        if fault and fault.after:
            self._suffer(fault, early=False)
        if isinstance(answer, AnswerStream):
            self._send_stream(answer)
        else:
            self._send(answer)

    def _answer(self) -> ApiAnswer | AnswerStream:
        try:
            url = urlsplit(self.path)
            request = ApiRequest(
                self.command,
                url.path,
                dict(parse_qsl(url.query, keep_blank_values=True)),
                {name.lower(): value for name, value in self.headers.items()},
                self._body(),
                self._is_gone,
            )
            return self.server.router.answer(request)
        except ApiError as error:
            return _refusal(error)
        except UnknownPathError:
            return ApiAnswer(404, b"404 page not found\n", "text/plain; charset=utf-8")
        except (ConnectionError, TimeoutError):
            raise
        except (RecursionError, UnicodeEncodeError) as error:
            # kube-apiserver reads 10,000 levels, and lone surrogates anywhere; Python's json does not.
            return _refusal(bad_request(f"this is beyond what the embedded API server can read: {error}"))
        except Exception as error:  # noqa: BLE001 - the top of a request: a defect is answered, and shown on stderr
            self.server.handle_error(self.request, self.client_address)
            return _refusal(ApiError(500, "InternalError", f"defect of the embedded API server: {error!r}"))

    def _suffer(self, fault: InjectedFault, *, early: bool) -> None:
        if early and fault.after:
            return
        if early:
            self._body()
        if fault.close:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            raise _Dropped
        if fault.status is not None:
            self._send(_fault_answer(fault))
            raise _Answered

    def _body(self) -> bytes:
        if "chunked" in (self.headers.get("Transfer-Encoding") or "").lower():
            return b"".join(self._chunks())
        length = self._number("Content-Length", self.headers.get("Content-Length") or "0", 10)
        if length > limits.REQUEST_BODY_BYTES:
            self.close_connection = True
            raise _too_large()
        return self.rfile.read(length)

    def _chunks(self) -> Iterator[bytes]:
        total = 0
        while True:
            line = self.rfile.readline(64).decode("ascii", errors="replace")
            size = self._number("the size of a chunk", line.partition(";")[0].strip(), 16)
            total += size
            if total > limits.REQUEST_BODY_BYTES:
                self.close_connection = True
                raise _too_large()
            part = self.rfile.read(size)
            self.rfile.readline(8)
            if size == 0:
                return
            yield part

    def _number(self, what: str, text: str, base: int) -> int:
        """Read a length. If it is malformed, nobody knows where the next request begins."""
        if re.fullmatch(r"[0-9]{1,10}" if base == 10 else r"[0-9a-fA-F]{1,8}", text, re.ASCII) is None:
            self.close_connection = True
            raise bad_request(f"{what} is no number: {text[:20]!r}")
        return int(text, base)

    def _is_gone(self) -> bool:
        """True when the client has closed its side."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and self.connection.recv(1, socket.MSG_PEEK) == b""

    def _send(self, answer: ApiAnswer) -> None:
        self.send_response(answer.code)
        self.send_header("Content-Type", answer.media_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-cache, private")
        for name, value in answer.headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def _send_stream(self, stream: AnswerStream) -> None:
        first = next(stream.lines, b"")  # as with kube-apiserver, a client that has an answer has an open watch
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Cache-Control", "no-cache, private")
        self.end_headers()
        for line in _non_empty(chain((first,), stream.lines)):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
        self.wfile.write(b"0\r\n\r\n")


class _Answered(_Dropped):
    """A fault has sent the answer; the connection is closed after it."""


def _non_empty(lines: Iterable[bytes]) -> Iterator[bytes]:
    return (line for line in lines if line)


def _refusal(error: ApiError) -> ApiAnswer:
    body = json.dumps(error.status(), separators=(",", ":"), ensure_ascii=False).encode()
    return ApiAnswer(error.code, body, headers=tuple(error.headers.items()))


def _too_large() -> ApiError:
    return ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limits.REQUEST_BODY_BYTES}")


def _fault_answer(fault: InjectedFault) -> ApiAnswer:
    assert fault.status is not None
    reasons = {429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout", 409: "Conflict"}
    # Announced, or the client would send its next request on a connection that is being closed.
    headers = {"Connection": "close"}
    return _refusal(ApiError(fault.status, reasons.get(fault.status, ""), fault.message, None, headers))
