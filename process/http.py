"""One small HTTP endpoint a program: /healthz, /readyz and /metrics."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder

from dracaena.api.errors import BadInputError


class HttpEndpoint:
    """Serves health and metrics of this process on its own threads.

    `address` is `host:port`, port 0 takes a free one. `ready` returns None, or in words what is still missing:
    /readyz answers 200 or 503 with it; 200 comes with what `state` returns. `alive` does the same for /healthz: None as
    long as a new start would help nothing.
    """

    def __init__(
        self,
        address: str,
        ready: Callable[[], str | None],
        registry: CollectorRegistry = REGISTRY,
        *,
        state: Callable[[], str] = lambda: "ok",
        alive: Callable[[], str | None] = lambda: None,
    ) -> None:
        host, colon, port = address.rpartition(":")
        if not colon or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
            raise BadInputError(f"HTTP address {address!r} is not host:port with a port from 0 to 65535")
        try:
            self._server = _server((host.strip("[]"), int(port)), ready, state, alive, registry)
        except (OSError, UnicodeError, TypeError) as error:  # the latter two: a host that has no form in IDNA
            reason = error.strerror if isinstance(error, OSError) else error
            raise BadInputError(f"HTTP address {address}: cannot listen: {reason}") from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    @property
    def port(self) -> int:
        """The port that is served."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Serve until stop()."""
        self._thread.start()

    def stop(self) -> None:
        """Close the port and end the thread."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def _server(
    address: tuple[str, int],
    ready: Callable[[], str | None],
    state: Callable[[], str],
    alive: Callable[[], str | None],
    registry: CollectorRegistry,
) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # seconds for a client to send its request: a scraper is on the same network
        protocol_version = "HTTP/1.0"  # one request a connection: nothing to keep open at shutdown

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/healthz":
                problem = alive()
                text = "ok\n" if problem is None else f"not alive: {problem}\n"
                self._answer(200 if problem is None else 503, "text/plain; charset=utf-8", text.encode())
            elif path == "/readyz":
                missing = ready()
                text = f"{state()}\n" if missing is None else f"not ready: {missing}\n"
                self._answer(200 if missing is None else 503, "text/plain; charset=utf-8", text.encode())
            elif path == "/metrics":
                encoder, content_type = choose_encoder(self.headers.get("Accept", ""))
                self._answer(200, content_type, encoder(registry))
            else:
                self._answer(404, "text/plain; charset=utf-8", b"/healthz, /readyz and /metrics are here\n")

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the base class
            """Scrapes are not logged: one line every few seconds would hide what matters."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that hangs up is none of our errors; the base class would print a traceback into the log."""

    return Server(address, Handler)
