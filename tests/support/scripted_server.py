"""An HTTP server on 127.0.0.1 that answers as a test scripts it: for what a well-behaved API server never does."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType, TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit


class Request:
    """One request as it came, and the means to answer it piece by piece."""

    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        self.method = handler.command
        self.path = parts.path
        self.query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        self.headers = {key.lower(): value for key, value in handler.headers.items()}
        length = int(handler.headers.get("Content-Length") or 0)
        self.body = handler.rfile.read(length)
        self._handler = handler

    @property
    def watching(self) -> bool:
        return self.query.get("watch") == "true"

    @property
    def given_up(self) -> bool:
        """Whether the client has hung up."""
        try:
            return not self._handler.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def answer(self, status: int, document: Any, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        raw = document if isinstance(document, bytes) else json.dumps(document).encode()
        self._handler.send_response(status)
        for name, value in headers.items():
            self._handler.send_header(name, value)
        self._handler.send_header("Content-Type", "application/json")
        self._handler.send_header("Content-Length", str(len(raw)))
        self._handler.end_headers()
        self._handler.wfile.write(raw)

    def answer_cut_off(self, status: int, raw: bytes) -> None:
        """Promise more than is sent, then close the connection."""
        self._handler.send_response(status)
        self._handler.send_header("Content-Length", str(len(raw) + 100))
        self._handler.end_headers()
        self._handler.wfile.write(raw)
        self._handler.close_connection = True

    def begin_stream(self) -> None:
        self._handler.send_response(200)
        self._handler.send_header("Transfer-Encoding", "chunked")
        self._handler.end_headers()

    def send_event(self, kind: str, document: Any) -> None:
        self.send_bytes(json.dumps({"type": kind, "object": document}).encode() + b"\n")

    def send_bytes(self, raw: bytes) -> None:
        self._handler.wfile.write(f"{len(raw):x}\r\n".encode() + raw + b"\r\n")
        self._handler.wfile.flush()

    def wait(self) -> None:
        """Keep the answer open, for longer than any test."""
        threading.Event().wait(10)

    def end_stream(self) -> None:
        self._handler.wfile.write(b"0\r\n\r\n")


class ScriptedServer:
    """Calls `answer(request)` for every request, on a thread each, and keeps the requests for the test to look at."""

    def __init__(self, answer: Callable[[Request], None]) -> None:
        self.requests: list[Request] = []
        self.stopping = threading.Event()
        keep = self.requests

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # or each answer waits 40 ms for the client's acknowledgement of its head

            def handle_one(self) -> None:
                request = Request(self)
                keep.append(request)
                answer(request)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that hangs up in the middle is part of the script."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def watches(self) -> list[Request]:
        return [request for request in self.requests if request.watching]

    def lists(self) -> list[Request]:
        return [request for request in self.requests if not request.watching]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
