"""Plain HTTP to an API server: one request, one answer, or a stream of lines."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

TIMEOUT_S = 30.0
"""For one answer or one event: a server gives either in milliseconds; the rest is for a loaded machine."""

USER_AGENT = "transcript/1.0"
"""The server makes the name of a field manager of what stands before the slash."""


@dataclass(frozen=True, slots=True)
class Ground:
    """The server that a scenario runs against.

    `token` is "" where nobody is asked for one; `authority` is the file of the certificate that the server's is checked
    against. `forget_history` makes the server lose all versions before the present one, as a compaction of etcd does.
    """

    url: str
    token: str
    authority: Path | None
    forget_history: Callable[[], None]

    @property
    def address(self) -> str:
        """Host and port."""
        return urlsplit(self.url).netloc

    def connect(self) -> http.client.HTTPConnection:
        """A new connection."""
        if self.url.startswith("https:"):
            tls = ssl.create_default_context(cafile=self.authority)
            return http.client.HTTPSConnection(self.address, timeout=TIMEOUT_S, context=tls)
        return http.client.HTTPConnection(self.address, timeout=TIMEOUT_S)

    def headers(self) -> dict[str, str]:
        """What every request carries."""
        headers = {"Accept": "application/json", "User-Agent": USER_AGENT}
        return headers | ({"Authorization": f"Bearer {self.token}"} if self.token else {})


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `body` is the parsed JSON, or the text where there is none."""

    status: int
    headers: Mapping[str, str]
    body: Any


class Connection:
    """One request at a time."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._http = ground.connect()

    def send(self, method: str, target: str, data: bytes | None, headers: Mapping[str, str]) -> Answer:
        """Send and wait for the whole answer."""
        self._http.request(method, target, data, self._ground.headers() | dict(headers))
        response = self._http.getresponse()
        text = response.read().decode()
        is_json = response.headers.get_content_type() == "application/json"
        return Answer(response.status, dict(response.headers), json.loads(text) if is_json else text)

    def close(self) -> None:
        """Close it."""
        self._http.close()


class Stream:
    """The lines of an endless answer."""

    def __init__(self, ground: Ground, target: str, accept: str) -> None:
        self._http = ground.connect()
        self._http.request("GET", target, headers=ground.headers() | {"Accept": accept})
        self._response = self._http.getresponse()
        self.status = self._response.status

    def lines(self) -> Iterator[Any]:
        """The documents as they come, to the end of the stream; TimeoutError when none comes for TIMEOUT_S."""
        while line := self._response.readline():
            yield json.loads(line)

    def close(self) -> None:
        """Leave."""
        self._response.close()
        self._http.close()


def target(path: str, query: Mapping[str, Any]) -> str:
    """The path with its query, as it goes on the wire."""
    return f"{quote(path)}?{urlencode(query)}" if query else quote(path)
