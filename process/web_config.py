"""Prometheus' web-config file: TLS and basic auth of an HTTP endpoint, as exporter-toolkit defines it.

https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md. What we cannot honour is
refused by name, never ignored. Two things differ, and only for the health pages: see dracaena.process.http.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dracaena.api.errors import BadInputError
from dracaena.process.settings import StrictLoader

_MOST_BYTES = 1 << 20
"""Largest file that is read: it comes from a Secret, which holds no more."""

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}

NO_CERTIFICATE, IF_GIVEN, REQUIRED = "NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"

_SUITES = {
    f"TLS_ECDHE_{key}_WITH_{name}": f"ECDHE-{key}-{openssl}"
    for key in ("ECDSA", "RSA")
    for name, openssl in (
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
        ("AES_128_CBC_SHA", "AES128-SHA"),
        ("AES_256_CBC_SHA", "AES256-SHA"),
    )
}
"""Go's names of the suites that it considers safe up to TLS 1.2 → OpenSSL's. Those of TLS 1.3 cannot be chosen."""

_HEADERS: Mapping[str, tuple[str, ...]] = {
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}
"""Headers that may be set → values that they may have; none: any."""

_HASH = re.compile(r"\$2[aby]\$([0-9]{2})\$[./A-Za-z0-9]{53}")

_COSTS = range(4, 15)
"""bcrypt's own least; at 14 one check takes more than a second, and each wrong password costs one."""

_TLS_FILES = ("cert_file", "key_file", "client_ca_file")
_TLS_TEXTS = ("cert", "key", "client_ca")
_TLS_KEYS = (
    *_TLS_FILES,
    *_TLS_TEXTS,
    "client_auth_type",
    "client_allowed_sans",
    "min_version",
    "max_version",
    "cipher_suites",
    "prefer_server_cipher_suites",
)
_NOT_HELD = {
    "rate_limit": "requests are limited anyway",
    "tls_server_config.curve_preferences": "OpenSSL's own order holds",
}


@dataclass(frozen=True, slots=True)
class WebConfig:
    """The rules for protected pages, and the TLS settings for all pages."""

    context: ssl.SSLContext | None = None
    needs_certificate: bool = False
    allowed_names: frozenset[str] = frozenset()
    """A client's certificate must have one of these names; empty: any certificate that verifies."""
    users: Mapping[str, bytes] = field(default_factory=dict)
    """User → bcrypt hash; empty: no password is needed."""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Sources:
    """All bytes that a web-config file consists of: equal bytes make an equal configuration."""

    document: bytes
    files: Mapping[str, bytes]
    """Field of tls_server_config → content of the file that it names."""


def read_sources(path: Path) -> Sources:
    """Read the file and those it names, relative to its own folder. Raises BadInputError."""
    document = _read(path, f"web-config file {path}")
    tls = _map(_parse(document, path).get("tls_server_config"), path, "tls_server_config")
    files = {}
    for name in _TLS_FILES:
        if name in tls:
            where = f"web-config file {path}: tls_server_config.{name}"
            files[name] = _read(path.parent / _text(tls[name], where), where)
    return Sources(document, files)


def decode_web_config(path: Path, sources: Sources) -> WebConfig:
    """Return what the bytes mean; `path` is for messages. Raises BadInputError naming the field."""
    document = _parse(sources.document, path)
    where = f"web-config file {path}"
    _known(document, ("tls_server_config", "http_server_config", "basic_auth_users"), where, "")
    tls = _map(document.get("tls_server_config"), path, "tls_server_config")
    http = _map(document.get("http_server_config"), path, "http_server_config")
    users = _map(document.get("basic_auth_users"), path, "basic_auth_users")
    _known(tls, _TLS_KEYS, where, "tls_server_config.")
    _known(http, ("http2", "headers"), where, "http_server_config.")
    _bool(http.get("http2", True), f"{where}: http_server_config.http2")
    auth = _one_of(
        tls.get("client_auth_type") or NO_CERTIFICATE,
        (NO_CERTIFICATE, IF_GIVEN, REQUIRED),
        f"{where}: tls_server_config.client_auth_type",
    )
    names = _texts(tls.get("client_allowed_sans"), f"{where}: tls_server_config.client_allowed_sans")
    if names and auth != REQUIRED:
        raise BadInputError(f"{where}: tls_server_config.client_allowed_sans needs client_auth_type {REQUIRED}")
    return WebConfig(
        context=_context(tls, auth, sources, f"{where}: tls_server_config") if tls else None,
        needs_certificate=auth == REQUIRED,
        allowed_names=frozenset(_canonical(name) for name in names),
        users=_users(users, f"{where}: basic_auth_users"),
        headers=_headers(_map(http.get("headers"), path, "http_server_config.headers"), where),
    )


def names_of(certificate: Mapping[str, Any]) -> frozenset[str]:
    """Return the alternative names of a certificate as SSLSocket.getpeercert() returns it."""
    return frozenset(_canonical(value) for _, value in certificate.get("subjectAltName", ()))


def _context(tls: Mapping[str, Any], auth: str, sources: Sources, where: str) -> ssl.SSLContext:
    contents = {name.removesuffix("_file"): content for name, content in sources.files.items()}
    for name in _TLS_TEXTS:
        if name in tls:
            if name in contents:
                raise BadInputError(f"{where}: {name} and {name}_file are both given, expected one")
            contents[name] = _text(tls[name], f"{where}.{name}").encode()
    for name in ("cert", "key"):
        if name not in contents:
            raise BadInputError(f"{where}: neither {name} nor {name}_file is given")
    if ("client_ca" in contents) != (auth != NO_CERTIFICATE):
        raise BadInputError(f"{where}: client_ca_file and a verifying client_auth_type belong together")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    least, most = (
        _VERSIONS[_one_of(tls.get(name, default), tuple(_VERSIONS), f"{where}.{name}")]
        for name, default in (("min_version", "TLS12"), ("max_version", "TLS13"))
    )
    if least > most:
        raise BadInputError(f"{where}: min_version is above max_version")
    context.minimum_version, context.maximum_version = least, most
    # One request a connection: nothing to resume, and no secret that outlives the certificate.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    if _bool(tls.get("prefer_server_cipher_suites", True), f"{where}.prefer_server_cipher_suites"):
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    suites = _texts(tls.get("cipher_suites"), f"{where}.cipher_suites")
    if suites:
        known = [_SUITES[_one_of(name, tuple(_SUITES), f"{where}.cipher_suites")] for name in suites]
        try:
            context.set_ciphers(":".join(known))
        except ssl.SSLError as error:
            raise BadInputError(f"{where}.cipher_suites: OpenSSL has none of these here: {error}") from error
    try:
        with _as_file(contents["cert"]) as cert, _as_file(contents["key"]) as key:
            context.load_cert_chain(cert, key, password=b"")  # a password is never asked for on the terminal
    except (ssl.SSLError, OSError, ValueError) as error:
        raise BadInputError(
            f"{where}: cert and key are not a certificate and its key without password: {error}"
        ) from error
    if "client_ca" in contents:
        try:
            with _as_file(contents["client_ca"]) as authorities:
                context.load_verify_locations(authorities)
        except (ssl.SSLError, OSError) as error:
            raise BadInputError(f"{where}: client_ca is not a certificate: {error}") from error
        # Optional in the handshake: probes of health pages have none. dracaena.process.http refuses the others.
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Give bytes a path, as OpenSSL wants one: in memory, since a key must not be on a disk and ours is read-only."""
    fd = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _users(users: Mapping[Any, Any], where: str) -> dict[str, bytes]:
    found = {}
    for name, hashed in sorted(users.items(), key=str):
        user = _text(name, f"{where}: user {name!r}")
        if ":" in user:
            raise BadInputError(f"{where}: user {user!r} holds a colon, which ends a name in basic auth")
        hit = _HASH.fullmatch(hashed) if isinstance(hashed, str) else None
        if hit is None:
            raise BadInputError(
                f"{where}: the entry of user {user!r} is not a bcrypt hash ($2y$…, as htpasswd -B writes it)"
            )
        if int(hit[1]) not in _COSTS:
            raise BadInputError(
                f"{where}: the hash of user {user!r} has cost {hit[1]}, expected {_COSTS[0]} to {_COSTS[-1]}"
            )
        found[user] = hashed.encode()
    return found


def _headers(headers: Mapping[Any, Any], where: str) -> tuple[tuple[str, str], ...]:
    found = []
    for key, given in sorted(headers.items(), key=str):
        name = _one_of(key, tuple(_HEADERS), f"{where}: http_server_config.headers")
        value = "" if given == "" else _text(given, f"{where}: http_server_config.headers.{name}")
        if not re.fullmatch(r"[ -~]*", value):
            raise BadInputError(f"{where}: http_server_config.headers.{name} has more than printable ASCII")
        if value and _HEADERS[name]:
            _one_of(value, _HEADERS[name], f"{where}: http_server_config.headers.{name}")
        if value:
            found.append((name, value))
    return tuple(found)


def _canonical(name: str) -> str:
    """Write an address always the same way: OpenSSL writes ::1 as 0:0:0:0:0:0:0:1."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name


def _read(path: Path, where: str) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadInputError(f"{where}: {path}: {reason}") from error
    if len(content) > _MOST_BYTES:
        raise BadInputError(f"{where}: {path} is larger than {_MOST_BYTES >> 20} MiB")
    return content


def _parse(document: bytes, path: Path) -> Mapping[Any, Any]:
    try:
        parsed = yaml.load(document.decode(), StrictLoader)  # noqa: S506 - a safe loader with one more check
    except RecursionError as error:
        raise BadInputError(f"web-config file {path} is nested too deeply") from error
    except (yaml.YAMLError, ValueError) as error:
        # Without the line that it quotes: it may hold a key or a hash.
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise BadInputError(
            f"web-config file {path} is not YAML{line}: {getattr(error, 'problem', None) or type(error).__name__}"
        ) from error
    return _map(parsed, path, "")


def _map(value: Any, path: Path, name: str) -> Mapping[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        what = f": {name}" if name else ""
        raise BadInputError(f"web-config file {path}{what} is a {type(value).__name__}, expected a map")
    return value


def _known(document: Mapping[Any, Any], known: tuple[str, ...], where: str, prefix: str) -> None:
    for key in sorted(map(str, document)):
        if f"{prefix}{key}" in _NOT_HELD:
            raise BadInputError(f"{where}: {prefix}{key} is not supported: {_NOT_HELD[f'{prefix}{key}']}; remove it")
        if key not in known:
            raise BadInputError(f"{where}: unknown {prefix}{key}; known: {', '.join(known)}")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise BadInputError(f"{where} is a {type(value).__name__}, expected text that is not empty")
    return value


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise BadInputError(f"{where} is a {type(value).__name__}, expected a list of texts")
    return tuple(_text(each, where) for each in value)


def _bool(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise BadInputError(f"{where} is {value!r}, expected true or false")
    return value


def _one_of(value: Any, choices: tuple[str, ...], where: str) -> str:
    if value not in choices:
        raise BadInputError(f"{where}: {value!r} is not supported, expected one of {', '.join(choices)}")
    return str(value)
