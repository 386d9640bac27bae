"""Messages over HTTP: the head of a request as a value, an answer as bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")

TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """The head of a request; `path` has no query; `headers` has lower-case names, and of equal names the last wins."""

    method: str
    path: str
    headers: Mapping[str, str]
    query: str = ""
    """What follows the first `?`, as it was sent."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What a client gets. The body may be shared by many answers: it is never copied."""

    status: int
    body: bytes
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()
    streams: bool = False
    """Whether Reply.more() sends more after the body, until the connection ends."""


class MalformedRequestError(ValueError):
    """The head is no HTTP; str() tells the client what is wrong."""


def text_answer(status: int, text: str, *headers: tuple[str, str]) -> HttpAnswer:
    """Return an answer of one line."""
    return HttpAnswer(status, f"{text}\n".encode(), headers=headers)


def head_ends(data: bytes | bytearray, new_bytes: int) -> bool:
    """Whether the head is complete; its last `new_bytes` have not been looked at before."""
    return _END_OF_HEAD.search(data, max(0, len(data) - new_bytes - 3)) is not None


def parse_head(data: bytes) -> HttpRequest:
    """Read a complete head; whatever follows it is ignored. Raises MalformedRequestError."""
    end = _END_OF_HEAD.search(data)
    lines = data[: end.start() if end else len(data)].replace(b"\r\n", b"\n").split(b"\n")
    words = lines[0].split(b" ")
    if len(words) != 3 or not _TOKEN.fullmatch(words[0]) or not re.fullmatch(rb"HTTP/1\.[01]", words[2]):
        raise MalformedRequestError("the first line is not METHOD PATH HTTP/1.1")
    headers = {}
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name):
            raise MalformedRequestError("a header is not NAME: VALUE")
        headers[name.decode("ascii").lower()] = value.decode("latin-1").strip()
    path, _, query = words[1].partition(b"?")
    return HttpRequest(words[0].decode("ascii"), path.decode("latin-1"), headers, query.decode("latin-1"))


def encode_head(answer: HttpAnswer, further: Iterable[tuple[str, str]] = ()) -> bytes:
    """Return what precedes the body. The connection ends with the answer: there is nothing to keep open."""
    lines = [
        f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
        f"Content-Type: {answer.content_type}",
        *([] if answer.streams else [f"Content-Length: {len(answer.body)}"]),
        "Connection: close",
        *(f"{name}: {value}" for name, value in (*answer.headers, *further)),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
