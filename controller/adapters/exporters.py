"""Asks exporters over HTTP what their GPUs do."""

from __future__ import annotations

import base64
import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dracaena.api.errors import BadInputError, TemporaryError
from dracaena.process.clock import Clock

TIMEOUT_S: Final = 3.0
"""For all of an answer, the connection included: an exporter gives the GPU driver two seconds."""

MOST_BYTES: Final = 4 << 20
"""Of an answer: 16 GPUs with 48 clients of MPS each have 200 KiB."""

_CERTIFICATE: Final = "-----BEGIN CERTIFICATE-----"


class ExporterError(TemporaryError):
    """An exporter gives no figures; str() says why, in words that follow its node."""


@dataclass(frozen=True, slots=True)
class ExporterAccess:
    """How exporters are asked."""

    port: int
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    """Name in their certificates, as they are asked by address."""
    headers: Mapping[str, str] = field(default_factory=dict)


def exporter_access(port: int, *, ca_file: str, server_name: str, password_file: str) -> ExporterAccess:
    """Return what some settings say. Files are read once. Raises BadInputError."""
    headers = {}
    if password_file:
        line = _text(password_file).strip()
        user, _, password = line.partition(":")
        if not (user and password) or "\n" in line:
            raise BadInputError(f"file {password_file}: expected one line USER:PASSWORD")
        headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    tls = None
    if ca_file:
        tls = _trusting(ca_file)
    return ExporterAccess(port, tls, server_name, headers)


class HttpExporters:
    """Exporters that are asked in the same way."""

    def __init__(self, access: ExporterAccess, clock: Clock, *, timeout_s: float = TIMEOUT_S) -> None:
        self._access, self._clock, self._timeout_s = access, clock, timeout_s

    def usage(self, address: str) -> bytes:
        """Return what an exporter serves as /usage. Raises ExporterError, after TIMEOUT_S at the latest, however slowly
        it answers."""
        try:
            with self._cut_off(address) as connection:
                return self._ask(connection, address)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ExporterError(f"{address} gave no answer: {str(error) or type(error).__name__}") from error

    def _ask(self, plain: socket.socket, address: str) -> bytes:
        access = self._access
        tls, name = access.tls, access.server_name or address
        with plain if tls is None else tls.wrap_socket(plain, server_hostname=name) as connection:
            asking = http.client.HTTPConnection(address, access.port)
            asking.sock = connection
            asking.request("GET", "/usage", headers=dict(access.headers))
            with contextlib.closing(asking.getresponse()) as answer:  # it holds the connection open, too
                if answer.status != http.client.OK:
                    raise ExporterError(f"{address} {self._refusal(answer.status)}")
                body = answer.read(MOST_BYTES + 1)
        if len(body) > MOST_BYTES:
            raise ExporterError(f"{address} answered with more than {MOST_BYTES >> 20} MiB")
        return body

    def _refusal(self, status: int) -> str:
        """Return what a status says of the settings, in words that follow the address."""
        if status == http.client.UNAUTHORIZED:
            if "Authorization" in self._access.headers:
                return "refuses the user and password of the controller"
            return "asks for a password: set page-exporters-password-file"
        if status == http.client.FORBIDDEN:
            return "answered with status 403: it may ask for a client certificate, and the controller shows none"
        if status == http.client.BAD_REQUEST and self._access.tls is None:  # what HTTPS servers answer to HTTP
            return "expects HTTPS: set page-exporters-ca-file"
        return f"answered with status {status}"

    @contextlib.contextmanager
    def _cut_off(self, address: str) -> Iterator[socket.socket]:
        """Yield a connection that ends after a while, whatever is done with it: the time-out of a socket begins anew
        with each byte. What it took to connect counts."""
        timeout_s = self._timeout_s
        deadline_s = self._clock.monotonic() + timeout_s
        late = f"not all of it came within {timeout_s:g} s"
        target = (address, self._access.port)
        with socket.create_connection(target, timeout=timeout_s) as plain, plain.dup() as handle:
            was_cut = threading.Event()

            def cut() -> None:
                was_cut.set()
                with contextlib.suppress(OSError):  # it has ended by itself
                    handle.shutdown(socket.SHUT_RDWR)

            timer = threading.Timer(deadline_s - self._clock.monotonic(), cut)
            timer.daemon = True
            timer.start()
            try:
                yield plain
            except (OSError, ValueError, http.client.HTTPException) as error:
                if was_cut.is_set() or isinstance(error, TimeoutError):
                    raise TimeoutError(late) from error
                raise
            finally:
                timer.cancel()
                timer.join()
            if was_cut.is_set():  # an answer without a length ends with its connection
                raise TimeoutError(late)


def _trusting(ca_file: str) -> ssl.SSLContext:
    """Return what trusts the authorities of a file and no others."""
    # Without this check ssl would trust the authorities of the system where a file is empty.
    if _CERTIFICATE not in _text(ca_file):
        raise BadInputError(f"file {ca_file} holds no certificate of an authority: expected a line {_CERTIFICATE}")
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError) as error:
        raise BadInputError(f"file {ca_file} holds a certificate that cannot be read: {error}") from error


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"file {path} cannot be read: {error}") from error
