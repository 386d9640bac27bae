"""The API server without sockets (in_memory_api), over HTTP on 127.0.0.1: for a controller in a process of its own.

Objects are handed on as the bytes that they were given as. That takes next to no time, so what a controller's start
takes is the controller's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from bench.in_memory_api import InMemoryApi
from dracaena.kube.errors import KubeError

_HOST: Final = "127.0.0.1"
_END_POLL_S: Final = 0.05
"""How long the end of a block waits at most. socketserver's 0.5 s is longer than all of a test."""


class _Listener(ThreadingHTTPServer):
    """A thread for each connection; those of open watches end with the process."""

    daemon_threads = True

    def __init__(self, api: InMemoryApi) -> None:
        super().__init__((_HOST, 0), _Handler)
        self.api = api

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is killed is none; anything else is a defect of this server."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Listener

    def do_GET(self) -> None:
        """Answer a read, a list or a watch."""
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        with suppress(ConnectionError):  # a reader gives up a page that is too long, and a watch when it ends
            if query.get("watch") == "true":
                self._watch(url.path, query)
            elif "limit" in query:
                page = self.server.api.read(url.path, query=query, most_bytes=None)
                assert page is not None
                self._answer(200, page)
            else:
                self._request()

    def do_PATCH(self) -> None:
        """Answer a patch of a claim; of anything else nobody reads the answer."""
        self._request()

    do_POST = do_PATCH  # noqa: N815 - the name that http.server looks for

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the class above
        """Say nothing."""

    def _request(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            self._answer(200, self.server.api.request(self.command, url.path, body=body))
        except KubeError as error:
            self._answer(error.status or 500, b'{"reason":"%s"}' % error.reason.encode())

    def _watch(self, path: str, query: dict[str, str]) -> None:
        # Before the answer begins: from then on the client counts on being told.
        stream = self.server.api.stream(path, query=query, read_timeout_s=0.0)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in stream.lines():
            self.wfile.write(b"%x\r\n%s\n\r\n" % (len(line) + 1, line))
        self.wfile.write(b"0\r\n\r\n")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def served(api: InMemoryApi) -> Iterator[dict[str, Any]]:
    """Serve inside the block; yield a kubeconfig."""
    listener = _Listener(api)
    Thread(target=listener.serve_forever, args=(_END_POLL_S,), name="http-api", daemon=True).start()
    try:
        yield _kubeconfig(f"http://{_HOST}:{listener.server_port}")
    finally:
        listener.shutdown()
        listener.server_close()


def _kubeconfig(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bench", "cluster": {"server": url}}],
        "users": [{"name": "bench", "user": {}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "current-context": "bench",
    }
