"""A running embedded API server and a client that speaks plain HTTP to it."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from dracaena.demo.apiserver import ApiServer, Faults, watches

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
RESOURCE = "/apis/resource.k8s.io/v1"


class ManualClock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@dataclass(frozen=True)
class Reply:
    code: int
    body: Any
    headers: dict[str, str]

    @property
    def version(self) -> str:
        return str(self.body["metadata"]["resourceVersion"])

    @property
    def causes(self) -> list[tuple[str, str]]:
        return [(cause["field"], cause["message"]) for cause in self.body["details"]["causes"]]

    @property
    def mistakes(self) -> set[tuple[str, str]]:
        return {(cause["field"], cause["reason"]) for cause in self.body["details"]["causes"]}


class Client:
    """One request at a time on a connection of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)

    def send(self, method: str, path: str, body: Any = None, *, form: str = "application/json", **query: Any) -> Reply:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        headers = {"Accept": "application/json", "User-Agent": "test/1.0"}
        if data is not None:
            headers["Content-Type"] = form
        return self.raw(method, _with_query(path, query), data, headers)

    def raw(self, method: str, target: str, data: bytes | None, headers: dict[str, str]) -> Reply:
        self._connection.request(method, target, body=data, headers=headers)
        response = self._connection.getresponse()
        text = response.read()
        kind = response.headers.get("Content-Type", "")
        body = json.loads(text) if kind.startswith("application/json") and text else text.decode()
        return Reply(response.status, body, {name.lower(): value for name, value in response.getheaders()})

    def get(self, path: str, **query: Any) -> Reply:
        return self.send("GET", path, **query)

    def create(self, path: str, body: Any, **query: Any) -> Reply:
        return self.send("POST", path, body, **query)

    def put(self, path: str, body: Any, **query: Any) -> Reply:
        return self.send("PUT", path, body, **query)

    def patch(self, path: str, body: Any, form: str = MERGE, **query: Any) -> Reply:
        return self.send("PATCH", path, body, form=form, **query)

    def delete(self, path: str, body: Any = None, **query: Any) -> Reply:
        return self.send("DELETE", path, body, **query)

    def close(self) -> None:
        self._connection.close()


def _with_query(path: str, query: dict[str, Any]) -> str:
    path = quote(path, safe="/:%")
    return f"{path}?{urlencode(query)}" if query else path


class WatchStream:
    """A watch in a thread. `next` gives the events as they come."""

    def __init__(self, url: str, path: str, query: dict[str, Any]) -> None:
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
        self._connection.request("GET", _with_query(path, {"watch": "true"} | query))
        self.response = self._connection.getresponse()

    def next(self) -> dict[str, Any] | None:
        """The next event; None at the end of the stream."""
        line = self.response.readline()
        return json.loads(line) if line else None

    def take(self, count: int) -> list[dict[str, Any]]:
        return [event for event in (self.next() for _ in range(count)) if event]

    def rest(self) -> list[dict[str, Any]]:
        return list(iter(self.next, None))

    def close(self) -> None:
        self.response.close()
        self._connection.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def server(clock: ManualClock, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    monkeypatch.setattr(watches, "_TICK_S", 0.01)  # the clock stands until a test moves it: watches shall see it soon
    before = set(threading.enumerate())
    with ApiServer(clock=clock, event_window=200, faults=faults) as running:
        yield running
    assert set(threading.enumerate()) <= before, "stop() leaves no thread behind"


@pytest.fixture
def connect(server: ApiServer) -> Iterator[Callable[[], Client]]:
    """Makes further clients."""
    made: list[Client] = []

    def make() -> Client:
        made.append(Client(server.url))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def api(connect: Callable[[], Client]) -> Client:
    return connect()


@pytest.fixture
def watch(server: ApiServer) -> Iterator[Callable[..., WatchStream]]:
    """Opens watches: ``watch(path, **query)``."""
    opened: list[WatchStream] = []

    def open_watch(path: str, **query: Any) -> WatchStream:
        opened.append(WatchStream(server.url, path, query))
        return opened[-1]

    yield open_watch
    for stream in opened:
        stream.close()


@pytest.fixture
def pod() -> Callable[..., dict[str, Any]]:
    """Pod documents: ``pod(name, metadata={...}, **spec)``."""

    def make(name: str, metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
        containers = [{"name": "main", "image": "busybox:1"}]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name} | (metadata or {}),
            "spec": {"containers": containers} | spec,
        }

    return make


@pytest.fixture
def claim() -> Callable[..., dict[str, Any]]:
    """ResourceClaim documents: ``claim(name, requests=[...], **devices)``."""

    def make(name: str, requests: Any = None, **devices: Any) -> dict[str, Any]:
        wanted = requests if requests is not None else [{"name": "gpus", "exactly": {"deviceClassName": "gpu"}}]
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {"devices": {"requests": wanted} | devices},
        }

    return make


@pytest.fixture
def resource_slice() -> Callable[..., dict[str, Any]]:
    """ResourceSlice documents: ``resource_slice(devices, name=..., **spec)``; a spec field of None is left out."""

    def make(devices: Any = None, name: str = "slice", **spec: Any) -> dict[str, Any]:
        fields = {
            "driver": "gpu.example.com",
            "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 1},
            "nodeName": "node-a",
            "devices": devices,
        } | spec
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": {key: value for key, value in fields.items() if value is not None},
        }

    return make


PODS = "/api/v1/namespaces/default/pods"
CLAIMS = f"{RESOURCE}/namespaces/default/resourceclaims"
