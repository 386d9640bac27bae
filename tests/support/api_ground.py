"""The API server of an integration test: the embedded one, or a real one that is as empty before and after."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import yaml

from dracaena.demo.apiserver import ApiServer
from dracaena.demo.apiserver.version import NEWEST
from dracaena.kube.client import MERGE_PATCH
from dracaena.kube.transport import Transport

REAL_SERVER = "DRACAENA_TEST_API"
"""Environment variable: kubeconfig of a kube-apiserver that nobody else uses. Unset: an embedded one for each test."""

_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
_NODES = "/api/v1/nodes"
_COLLECTIONS = (
    "/api/v1/namespaces/default/pods",
    _CLAIMS,
    "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates",
    "/apis/resource.k8s.io/v1/resourceslices",
    "/apis/resource.k8s.io/v1/deviceclasses",
    "/apis/coordination.k8s.io/v1/namespaces/default/leases",
    "/api/v1/namespaces/default/events",
    _NODES,
)
"""All that the tests make, pods before the claims that they use."""


class ApiGround(Protocol):
    """What a test needs to know of a server, whichever it is."""

    def kubeconfig(self) -> dict[str, Any]:
        """Return how to reach it, as a kubeconfig document."""
        ...


class EmbeddedServer(ApiServer):
    """The one of this process, `ahead` of the machine's time."""

    def __init__(self, version: str) -> None:
        self.ahead = timedelta()
        super().__init__(version=version, clock=lambda: datetime.now(UTC) + self.ahead)


def let_pass(server: ApiGround, seconds: float) -> None:
    """Let that much more time go by on a server than does, where time is the test's: its bookmarks would seem to be
    late, and a cache that gets none for a minute and a half is stale. A real server's time is the machine's.
    """
    if isinstance(server, EmbeddedServer):
        server.ahead += timedelta(seconds=seconds)


class RealServer:
    """A kube-apiserver without any controllers. It may have no node: one with nodes is somebody's cluster."""

    def __init__(self, path: Path) -> None:
        self._document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        self._transport = Transport.from_kubeconfig(str(path), user_agent="tests")
        if nodes := self._names(_NODES):
            raise RuntimeError(f"{REAL_SERVER} has to name a server without nodes, {path} has {', '.join(nodes)}")

    def kubeconfig(self) -> dict[str, Any]:
        """Return how to reach it."""
        return self._document

    def clean(self) -> None:
        """Delete what a test made. No controller runs here, so claims are freed by hand."""
        for claim in self._items(_CLAIMS):
            path = f"{_CLAIMS}/{claim['metadata']['name']}"
            if claim.get("status"):
                self._patch(f"{path}/status", {"status": {"allocation": None, "reservedFor": None}})
            if claim["metadata"].get("finalizers"):
                self._patch(path, {"metadata": {"finalizers": None}})
        for collection in _COLLECTIONS:
            self._transport.request("DELETE", collection, query={"gracePeriodSeconds": "0"})
            if left := self._names(collection):
                raise RuntimeError(f"still there after deletion: {collection}: {', '.join(left)}")

    def _items(self, collection: str) -> list[Any]:
        found: list[Any] = json.loads(self._transport.request("GET", collection))["items"]
        return found

    def _names(self, collection: str) -> list[str]:
        return sorted(item["metadata"]["name"] for item in self._items(collection))

    def _patch(self, path: str, change: dict[str, Any]) -> None:
        self._transport.request("PATCH", path, body=json.dumps(change).encode(), content_type=MERGE_PATCH)


@contextmanager
def api_ground() -> Iterator[ApiGround]:
    """Give an empty server for one test."""
    path = os.environ.get(REAL_SERVER)
    if not path:
        with EmbeddedServer(os.environ.get("KUBERNETES") or NEWEST) as embedded:
            yield embedded
        return
    real = RealServer(Path(path))
    try:
        yield real
    finally:
        real.clean()
