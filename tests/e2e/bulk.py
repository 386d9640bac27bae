"""Many requests over connections that stay open: thousands of objects in seconds. Plain JSON, no product code."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 60.0
"""For one request to a server that others load too."""


@dataclass(frozen=True, slots=True)
class Request:
    """One write."""

    method: str
    path: str
    document: Any = None
    """What is sent as JSON; bytes are sent as they are."""
    content_type: str = "application/json"


class Connection:
    """One open connection of one identity. For one thread."""

    def __init__(self, url: str, authority: Path, token: str) -> None:
        parts = urlsplit(url)
        tls = ssl.create_default_context(cafile=str(authority))
        self._http = http.client.HTTPSConnection(parts.hostname or "", parts.port, context=tls, timeout=TIMEOUT_S)
        self._token = token

    def send(self, request: Request) -> tuple[int, bytes]:
        """Send and return status and body. Raises OSError or HTTPException; the next one connects anew."""
        body = request.document
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body, separators=(",", ":")).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": request.content_type}
        try:
            self._http.request(request.method, request.path, body, headers)
            response = self._http.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            self._http.close()
            raise

    def open_watch(self, path: str) -> http.client.HTTPResponse:
        """Begin a GET whose answer goes on; lines() reads it. The connection is the watch's from now on."""
        self._http.request("GET", path, headers={"Authorization": f"Bearer {self._token}"})
        response = self._http.getresponse()
        if response.status != 200:
            raise http.client.HTTPException(f"GET {path}: {response.status} {response.read(500)!r}")
        return response

    def close(self) -> None:
        """End it. For its own thread: it waits for a read in progress."""
        self._http.close()

    def cut(self) -> None:
        """Wake a read in progress of another thread, which then fails."""
        if self._http.sock is not None:
            with suppress(OSError):
                self._http.sock.shutdown(socket.SHUT_RDWR)


def lines(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the lines of a watch as they come, until it ends."""
    pending = b""
    while chunk := response.read1(1 << 16):
        *whole, pending = (pending + chunk).split(b"\n")
        yield from whole


def send_all(
    url: str, authority: Path, token: str, requests: Iterable[Request], *, connections: int = 4, anyway: bool = False
) -> None:
    """Send all, in about this order, over some connections. Raises AssertionError with the first refusal; with `anyway`
    refusals are passed over, for objects that may change or go at any time."""
    left = deque(requests)
    failed: list[str] = []

    def work() -> None:
        connection = Connection(url, authority, token)
        while left and not failed:
            try:
                request = left.popleft()
            except IndexError:
                break
            try:
                status, body = connection.send(request)
            except (OSError, http.client.HTTPException) as error:
                failed.append(f"{request.method} {request.path}: {error}")
                break
            if not anyway and not 200 <= status < 300:
                failed.append(f"{request.method} {request.path}: {status} {body[:500]!r}")
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise AssertionError(failed[0])
