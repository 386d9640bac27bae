"""What a client of the HTTP endpoint does, byte by byte."""

from __future__ import annotations

import base64
import contextlib
import http.client
import socket
import ssl
import time


def get(
    port: int,
    path: str,
    *,
    tls: ssl.SSLContext | None = None,
    user: str = "",
    password: str = "",
    source: str = "127.0.0.1",
    timeout_s: float = 30.0,
    headers: dict[str, str] | None = None,
) -> tuple[int, str, http.client.HTTPMessage]:
    """Return status, body and headers. Raises OSError, ssl.SSLError among them, and http.client.HTTPException."""
    connection = (
        http.client.HTTPSConnection("127.0.0.1", port, timeout=timeout_s, context=tls, source_address=(source, 0))
        if tls
        else http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s, source_address=(source, 0))
    )
    sent = dict(headers or {})
    if user:
        sent["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    with contextlib.closing(connection):
        connection.request("GET", path, headers=sent)
        with connection.getresponse() as answer:
            return answer.status, answer.read().decode(), answer.headers


def connect(port: int, source: str = "127.0.0.1") -> socket.socket:
    """Return a connection that has sent nothing."""
    return socket.create_connection(("127.0.0.1", port), timeout=30.0, source_address=(source, 0))


def is_closed(client: socket.socket, *, within_s: float = 30.0) -> bool:
    """Whether the other end closes within that time; what it sends until then is passed over."""
    client.settimeout(within_s)
    until_s = time.monotonic() + within_s
    try:
        while time.monotonic() < until_s:
            if not client.recv(1 << 16):
                return True
    except TimeoutError:
        return False
    except OSError:
        return True
    return False


def raw(port: int, request: bytes, *, source: str = "127.0.0.1") -> bytes:
    """Send bytes and return all that comes until the other end closes."""
    with connect(port, source) as client:
        with contextlib.suppress(OSError):
            client.sendall(request)
        found = b""
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                found += data
        return found
