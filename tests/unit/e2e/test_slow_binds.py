"""The extender that makes binds slow: kube-scheduler believes what it answers."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from e2e.api import Answer, Api
from e2e.slow_binds import SlowBinds

ARGUMENTS = {"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "n"}


class Plane:
    """What the extender needs of a control plane: an API at an address without TLS."""

    def __init__(self, url: str) -> None:
        self.url = url

    def kubeconfig(self, _identity: object) -> Path:
        return Path("none")

    def api(self, _identity: object) -> Api:
        api = Api.__new__(Api)
        api._server, api._token = self.url, "none"
        api._tls = None  # type: ignore[assignment]
        return api


def answer_of(url: str, folder: Path) -> str:
    """Ask for a bind as kube-scheduler does; return the error that it is told."""
    plane: Any = Plane(url)
    with SlowBinds(plane, folder / "config.json", lambda _pod: 0.0) as binds:
        extender = urlsplit(json.loads(binds.config.read_text())["extenders"][0]["urlPrefix"])
        connection = http.client.HTTPConnection(str(extender.hostname), extender.port, timeout=10)
        connection.request("POST", "/bind", json.dumps(ARGUMENTS))
        error = json.loads(connection.getresponse().read())["Error"]
        connection.close()
        assert (binds.done.keys() == {"p"}) == (not error)
        return str(error)


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status = self.server.status  # type: ignore[attr-defined]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base class has it
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize(("status", "is_bound"), [(201, True), (409, False), (500, False)])
def test_only_what_the_server_took_is_told_as_bound(
    status: int, is_bound: bool, server: HTTPServer, tmp_path: Path
) -> None:
    server.status = status  # type: ignore[attr-defined]
    assert (answer_of(f"http://127.0.0.1:{server.server_address[1]}", tmp_path) == "") == is_bound


def test_a_bind_that_the_server_did_not_answer_is_an_error(tmp_path: Path) -> None:
    """kube-scheduler took such a pod for bound and never tried it again: its soak waited for it in vain."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert answer_of(f"http://127.0.0.1:{port}", tmp_path).startswith("0 ")


@pytest.mark.parametrize(("status", "is_good"), [(0, False), (199, False), (200, True), (299, True), (300, False)])
def test_no_answer_is_no_success(status: int, is_good: bool) -> None:
    assert Answer(status, "").is_good == is_good
