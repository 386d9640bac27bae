"""Asks exporters over HTTP what their GPUs do."""

from __future__ import annotations

import base64
import contextlib
import http.client
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import yaml

from dracaena.api.errors import BadInputError, TemporaryError
from dracaena.process.clock import Clock
from dracaena.process.settings import StrictLoader

TIMEOUT_S: Final = 3.0
"""For the whole answer, including the connection: an exporter gives the GPU driver two seconds."""

MOST_BYTES: Final = 4 << 20
"""Of an answer: 16 GPUs with 48 MPS clients each take 200 KiB."""

PORT: Final = 9400
"""Where exporters listen unless the URL says otherwise."""

_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?P<namespace>[a-z0-9]([-a-z0-9]*[a-z0-9])?)(:(?P<port>[0-9]{1,5}))?/(?P<selector>\S+)"
)
_LAST_PORT: Final = 65_535

_MOST_SHOWN: Final = 200
"""Characters of a parser's error that a message shows."""

_CERTIFICATE: Final = "-----BEGIN CERTIFICATE-----"


class ExporterError(TemporaryError):
    """An exporter returns no figures; str() says why, in words that follow its node."""


class _BasicAuth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    username: str
    password: str = ""
    password_file: str = ""


class _TlsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ca_file: str = ""
    server_name: str = ""


class _ClientSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is used of Prometheus' HTTP client settings (its <http_config>)."""

    basic_auth: _BasicAuth | None = None
    tls_config: _TlsConfig | None = None


@dataclass(frozen=True, slots=True)
class ExporterAccess:
    """How exporters are asked."""

    port: int
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    """Name in the exporters' certificates, because they are asked by address."""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExportersUrl:
    """Where exporters are: http://NAMESPACE[:PORT]/SELECTOR, or https."""

    namespace: str
    selector: str
    """Of the labels of their pods."""
    port: int
    has_tls: bool

    @classmethod
    def parse(cls, url: str) -> ExportersUrl:
        """Raises BadInputError."""
        found = _URL.fullmatch(url)
        port = int(found["port"] or PORT) if found is not None else 0
        if found is None or not 0 < port <= _LAST_PORT:
            raise BadInputError(
                f"page-exporters {url!r}: expected http://NAMESPACE[:PORT]/SELECTOR, or https, for example "
                "http://gpu-system/app.kubernetes.io/component=exporter"
            )
        return cls(found["namespace"], found["selector"], port, found["scheme"] == "https")


class ExporterAccessFiles:
    """What the settings say about asking exporters, with their files as they are now: authorities and passwords are
    replaced while the controller runs. For one thread."""

    def __init__(self, url: ExportersUrl, client_file: str) -> None:
        """Read the files once, to report at the start what cannot be used. `client_file` is empty, or has the form of
        Prometheus' HTTP client settings. Raises BadInputError."""
        self._url, self._client_file = url, client_file
        self._trusted: tuple[str, str] | None = None
        """Name and text of the file that `_tls` was made from."""
        self._tls: ssl.SSLContext | None = None
        self.now()

    def now(self) -> ExporterAccess:
        """Return what the files say now. Costs up to three small reads while they stay the same. Raises BadInputError
        for a file that cannot be used: its earlier content no longer counts."""
        given = _client_settings(self._client_file) if self._client_file else _ClientSettings()
        login, tls = given.basic_auth, given.tls_config or _TlsConfig()
        if given.tls_config and not self._url.has_tls:
            raise BadInputError(f"file {self._client_file} has tls_config, and the URL in page-exporters is not https")
        headers = {"Authorization": _authorization(login, self._client_file)} if login else {}
        if self._url.has_tls:
            ca_file = _in_folder_of(self._client_file, tls.ca_file)
            trusted = (ca_file, _text(ca_file) if ca_file else "")
            if trusted != self._trusted:
                self._tls = _trusting(*trusted) if ca_file else ssl.create_default_context()
                self._trusted = trusted
        return ExporterAccess(self._url.port, self._tls, tls.server_name, headers)


class HttpExporters:
    """Exporters that are all asked in the same way. `access` returns how, for each request; it may raise
    BadInputError."""

    def __init__(self, access: Callable[[], ExporterAccess], clock: Clock, *, timeout_s: float = TIMEOUT_S) -> None:
        self._access, self._clock, self._timeout_s = access, clock, timeout_s

    def usage(self, address: str) -> bytes:
        """Return what an exporter serves as /usage. Raises ExporterError, after TIMEOUT_S at the latest, however slowly
        it answers. Raises BadInputError if a file of the settings cannot be used."""
        access = self._access()
        try:
            with self._cut_off((address, access.port)) as connection:
                return _ask(connection, address, access)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ExporterError(f"{address} gave no answer: {str(error) or type(error).__name__}") from error

    @contextlib.contextmanager
    def _cut_off(self, target: tuple[str, int]) -> Iterator[socket.socket]:
        """Yield a connection that ends after a while, whatever is done with it: the time-out of a socket starts again
        with each byte. What it took to connect counts."""
        timeout_s = self._timeout_s
        deadline_s = self._clock.monotonic() + timeout_s
        late = f"it did not arrive in full within {timeout_s:g} s"
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


def _ask(plain: socket.socket, address: str, access: ExporterAccess) -> bytes:
    tls, name = access.tls, access.server_name or address
    with plain if tls is None else tls.wrap_socket(plain, server_hostname=name) as connection:
        asking = http.client.HTTPConnection(address, access.port)
        asking.sock = connection
        asking.request("GET", "/usage", headers=dict(access.headers))
        with contextlib.closing(asking.getresponse()) as answer:  # it holds the connection open, too
            if answer.status != http.client.OK:
                raise ExporterError(f"{address} {_refusal(answer.status, access)}")
            body = answer.read(MOST_BYTES + 1)
    if len(body) > MOST_BYTES:
        raise ExporterError(f"{address} answered with more than {MOST_BYTES >> 20} MiB")
    return body


def _refusal(status: int, access: ExporterAccess) -> str:
    """Return what a status says about the settings, in words that follow the address."""
    if status == http.client.UNAUTHORIZED:
        if "Authorization" in access.headers:
            return "refuses the user and password of the controller"
        return "asks for a password: set basic_auth in page-exporters-client-file"
    if status == http.client.FORBIDDEN:
        return "answered with status 403: it may require a client certificate, which the controller does not have"
    if status == http.client.BAD_REQUEST and access.tls is None:  # what HTTPS servers answer to HTTP
        return "expects HTTPS: page-exporters needs a URL with https"
    return f"answered with status {status}"


def _client_settings(path: str) -> _ClientSettings:
    """Raises BadInputError naming what cannot be used."""
    try:
        document = yaml.load(_text(path), StrictLoader) or {}  # noqa: S506 - a safe loader with one more check
        return msgspec.convert(document, _ClientSettings)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: also what msgspec raises
        raise BadInputError(f"file {path}: {' '.join(str(error).split())[:_MOST_SHOWN]}") from error


def _authorization(login: _BasicAuth, path: str) -> str:
    password = login.password or (
        _text(_in_folder_of(path, login.password_file)).strip() if login.password_file else ""
    )
    if not login.username or not password or (login.password and login.password_file):
        raise BadInputError(f"file {path}: basic_auth needs username, and either password or password_file, not empty")
    return "Basic " + base64.b64encode(f"{login.username}:{password}".encode()).decode()


def _in_folder_of(path: str, name: str) -> str:
    """Return the path of a file that another one names, as Prometheus reads it: relative to that one's folder."""
    return str(Path(path).parent / name) if name else ""


def _trusting(ca_file: str, text: str) -> ssl.SSLContext:
    """Return a context that trusts only the authorities of a file."""
    # Without this check ssl would trust the system's authorities if a file is empty.
    if _CERTIFICATE not in text:
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
