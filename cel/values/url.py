"""URLs as Kubernetes' CEL library knows them: absolute ones and absolute paths, parsed as Go's net/url does."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final

from dracaena.cel.errors import EvaluationError
from dracaena.cel.types import URL as URL_TYPE
from dracaena.cel.types import Opaque, Type
from dracaena.cel.values.ip import parse_address
from dracaena.cel.values.text import quoted


class UrlError(ValueError):
    """The text is not a URL; str() says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Url(Opaque):
    """A parsed URL. Parts that it does not have are empty."""

    scheme: str
    opaque: str
    """What follows the scheme if no slash does, as in "mailto:a@b"."""
    user: str | None
    """User and password as they are written in the canonical text."""
    has_authority: bool
    """Whether two slashes follow the scheme, even if nothing comes before the path."""
    host: str
    """With the port, IPv6 addresses in brackets."""
    path: str
    """Escaped."""
    query: str | None
    """Escaped; None if there is no question mark."""
    fragment: str
    """Escaped."""

    cel_type: ClassVar[Type] = URL_TYPE

    @staticmethod
    def parse(text: str) -> Url:
        """Read a URL. Raises EvaluationError."""
        try:
            check_url(text)
            return _parse_with_fragment(text)
        except UrlError as error:
            raise EvaluationError(f"URL parse error during conversion from string: {error}") from None

    @property
    def hostname(self) -> str:
        """The host without port and brackets."""
        name = _PORT.sub("", self.host)
        return name[1:-1] if name.startswith("[") and name.endswith("]") else name

    @property
    def port(self) -> str:
        """The port, or nothing."""
        found = _PORT.search(self.host)
        return found.group()[1:] if found else ""

    def parameters(self) -> dict[str, list[str]]:
        """The query's names with their values, unescaped. Parts that do not parse are left out."""
        found: dict[str, list[str]] = {}
        for part in (self.query or "").split("&"):
            name, _, value = part.partition("=")
            if not part or ";" in part:
                continue
            try:
                found.setdefault(_unescaped(name, _UrlPart.QUERY), []).append(_unescaped(value, _UrlPart.QUERY))
            except UrlError:
                continue
        return {name: values for name, values in found.items() if values}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Url) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        text = f"{self.scheme}:" if self.scheme else ""
        if self.opaque:
            text += self.opaque
        else:
            if self.has_authority and (self.host or self.path or self.user is not None):
                text += (
                    "//" + ("" if self.user is None else self.user + "@") + _escaped(self.host.encode(), _UrlPart.HOST)
                )
            text += self.path
        return text + ("" if self.query is None else "?" + self.query) + ("#" + self.fragment if self.fragment else "")


class _UrlPart(Enum):
    """A part of a URL: each has its own rules for escapes."""

    PATH = "path"
    HOST = "host"
    ZONE = "zone"
    USER = "user"
    QUERY = "query"
    FRAGMENT = "fragment"


_UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~")

# What a part may have unescaped when it is escaped again.
_PLAIN: Final = {
    _UrlPart.PATH: _UNRESERVED | frozenset(b"$&+,/:;=@"),
    _UrlPart.HOST: _UNRESERVED | frozenset(b"!$&'()*+,;=:[]<>\""),
    _UrlPart.ZONE: _UNRESERVED | frozenset(b"!$&'()*+,;=:[]<>\""),
    _UrlPart.USER: _UNRESERVED | frozenset(b"$&+,;="),
    _UrlPart.QUERY: _UNRESERVED,
    _UrlPart.FRAGMENT: _UNRESERVED | frozenset(b"$&+,/:;=?@!()*"),
}
_KEPT_AS_WRITTEN: Final = frozenset(b"!$&'()*+,;=:@[]%")  # what else a path or fragment may contain as it is
_USER: Final = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=:)")
_PORT: Final = re.compile(r":[0-9]*\Z")
_ESCAPE: Final = re.compile(rb"%([0-9A-Fa-f]{2})")


def check_url(text: str) -> None:
    """Raise UrlError if the text is neither an absolute URL nor an absolute path."""
    try:
        _parse(text, absolute=True)
    except UrlError as error:
        raise UrlError(f"parse {quoted(text)}: {error}") from None


def _parse_with_fragment(text: str) -> Url:
    before, _, fragment = text.partition("#")
    try:
        return _parse(before, absolute=False, fragment=fragment)
    except UrlError as error:
        raise UrlError(f"parse {quoted(before)}: {error}") from None


def _parse(text: str, *, absolute: bool, fragment: str = "") -> Url:
    if any(character < " " or character == "\x7f" for character in text):
        raise UrlError("net/url: invalid control character in URL")
    if not text and absolute:
        raise UrlError("empty url")
    scheme, rest = _split_scheme(text)
    rest, question, after = rest.partition("?")
    query = after if question else None
    host, user, opaque, has_authority = "", None, "", False
    if text == "*":
        rest = "*"
    elif not rest.startswith("/"):
        if scheme:
            opaque, rest = rest, ""
        elif absolute:
            raise UrlError("invalid URI for request")
        elif ":" in rest.partition("/")[0]:
            raise UrlError("first path segment in URL cannot contain colon")
    elif rest.startswith("//") and (scheme or not (absolute or rest.startswith("///"))):
        authority, slash, path = rest[2:].partition("/")
        rest = slash + path
        has_authority = True
        user, host = _parse_authority(scheme, authority)
    path = _kept_or_escaped(rest, _UrlPart.PATH)
    return Url(scheme, opaque, user, has_authority, host, path, query, _kept_or_escaped(fragment, _UrlPart.FRAGMENT))


def _split_scheme(text: str) -> tuple[str, str]:
    if text.startswith(":"):
        raise UrlError("missing protocol scheme")
    found = _SCHEME.match(text)
    return (found.group().lower(), text[found.end() + 1 :]) if found else ("", text)


def _parse_authority(scheme: str, authority: str) -> tuple[str | None, str]:
    user, at, host = authority.rpartition("@")
    host = _parse_host(scheme, host)
    if not at:
        return None, host
    if not _USER.fullmatch(user):
        raise UrlError("net/url: invalid userinfo")
    name, colon, password = user.partition(":")
    name = _escaped(_unescaped_bytes(name, _UrlPart.USER), _UrlPart.USER)
    return name + colon + _escaped(_unescaped_bytes(password, _UrlPart.USER), _UrlPart.USER), host


def _parse_host(scheme: str, host: str) -> str:
    if host.rfind("[") > 0:
        raise UrlError("invalid IP-literal")
    if host.startswith("["):
        return _parse_ip_literal(host)
    # Colons within the host are accepted as they always were, except in the schemes that everyone uses.
    at = host.find(":") if scheme in ("http", "https") else host.rfind(":")
    if at >= 0:
        _check_port(host[at:])
    return _unescaped(host, _UrlPart.HOST)


def _parse_ip_literal(host: str) -> str:
    literal, bracket, port = host[1:].rpartition("]")
    if not bracket:
        raise UrlError("missing ']' in host")
    _check_port(port)
    zone_at = literal.find("%25")
    name = _unescaped(literal if zone_at < 0 else literal[:zone_at], _UrlPart.HOST)
    if zone_at >= 0:
        name += _unescaped(literal[zone_at:], _UrlPart.ZONE)
    try:
        address, _ = parse_address(name)
    except ValueError as error:
        raise UrlError(f"invalid host: {error}") from None
    if address.version == 4:
        raise UrlError("invalid IP-literal")
    return f"[{name}]{port}"


def _check_port(text: str) -> None:
    if text and not _PORT.fullmatch(text):
        raise UrlError(f"invalid port {quoted(text)} after host")


def _kept_or_escaped(text: str, part: _UrlPart) -> str:
    """The escaped text: as written if that is valid, else escaped again."""
    plain = _unescaped_bytes(text, part)
    return text if (_PLAIN[part] | _KEPT_AS_WRITTEN).issuperset(text.encode()) else _escaped(plain, part)


def _unescaped(text: str, part: _UrlPart) -> str:
    """The text with its escapes resolved; bytes that are not UTF-8 become U+FFFD."""
    return _unescaped_bytes(text, part).decode(errors="replace")


def _unescaped_bytes(text: str, part: _UrlPart) -> bytes:
    raw = text.encode()
    at = 0
    while at < len(raw):
        byte = raw[at]
        if byte == ord("%"):
            _check_escape(raw, at, part)
            at += 3
            continue
        if part in (_UrlPart.HOST, _UrlPart.ZONE) and byte < 0x80 and byte not in _PLAIN[part]:
            raise UrlError(f"invalid character {quoted(chr(byte))} in host name")
        at += 1
    if part is _UrlPart.QUERY:
        raw = raw.replace(b"+", b" ")
    return _ESCAPE.sub(lambda found: bytes([int(found.group(1), 16)]), raw)


def _check_escape(raw: bytes, at: int, part: _UrlPart) -> None:
    """Hosts may escape only what is not ASCII, and zones only what they may also contain unescaped, or a blank."""
    escape = raw[at : at + 3]
    found = _ESCAPE.fullmatch(escape)
    value = int(found.group(1), 16) if found else 0
    valid = found is not None and (
        escape == b"%25"
        or part not in (_UrlPart.HOST, _UrlPart.ZONE)
        or (part is _UrlPart.HOST and value >= 0x80)
        or (part is _UrlPart.ZONE and (value == ord(" ") or value in _PLAIN[_UrlPart.HOST]))
    )
    if not valid:
        raise UrlError(f"invalid URL escape {quoted(escape.decode(errors='replace'))}")


def _escaped(raw: bytes, part: _UrlPart) -> str:
    return "".join(chr(byte) if byte in _PLAIN[part] else f"%{byte:02X}" for byte in raw)
