"""Running scenarios: each on a server that holds nothing, which is left as it was found."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dracaena.demo.apiserver.version import NEWEST
from transcripts.abridging import abridged
from transcripts.connection import Connection, Ground
from transcripts.masks import masked
from transcripts.scenarios import Scenario
from transcripts.scenarios.documents import NAMESPACE
from transcripts.session import JSON, MERGE, Session
from transcripts.text import transcript

GOLDEN = Path(__file__).parent / "golden"

NAMESPACED = (
    "/api/v1/namespaces/{}/pods",
    "/api/v1/namespaces/{}/events",
    "/apis/apps/v1/namespaces/{}/deployments",
    "/apis/apps/v1/namespaces/{}/replicasets",
    "/apis/apps/v1/namespaces/{}/statefulsets",
    "/apis/batch/v1/namespaces/{}/jobs",
    "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
    "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims",
    "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaimtemplates",
)
CLUSTER_WIDE = (
    "/api/v1/nodes",
    "/apis/resource.k8s.io/v1/deviceclasses",
    "/apis/resource.k8s.io/v1/resourceslices",
)

OF_THE_COLLECTOR = {"orphan", "foregroundDeletion"}
"""Finalizers that a deletion in the background takes off."""


class NotAloneError(Exception):
    """The server holds objects that scenarios would meet: somebody uses it."""


def record(scenario: Scenario, ground: Ground) -> str:
    """Run one scenario and return its masked transcript. NotAloneError when the server is in use."""
    caretaker = _Caretaker(ground)
    try:
        caretaker.prepare()
        try:
            with Session(ground) as session:
                scenario.run(session)
        finally:
            caretaker.restore()
    finally:
        caretaker.close()
    return transcript(scenario.title, abridged(masked(session)))


def golden_path(scenario: Scenario, version: str) -> Path:
    """Where the committed transcript of a version of Kubernetes is: one for all versions that do not differ."""
    of_version = GOLDEN / version / f"{scenario.name}.yaml"
    return of_version if of_version.exists() else GOLDEN / f"{scenario.name}.yaml"


def keep(scenario: Scenario, version: str, text: str) -> None:
    """Write a transcript anew. Only where an older version answers otherwise than the newest it has its own."""
    ours, newest = GOLDEN / version / f"{scenario.name}.yaml", GOLDEN / f"{scenario.name}.yaml"
    if version != NEWEST and newest.exists():
        if text == newest.read_text(encoding="utf-8"):
            ours.unlink(missing_ok=True)
            return
        ours.parent.mkdir(exist_ok=True)
    (newest if version == NEWEST else ours).write_text(text, encoding="utf-8")


def difference(scenario: Scenario, version: str, text: str) -> str:
    """What `text` has otherwise than the committed transcript; "" when nothing."""
    path = golden_path(scenario, version)
    golden = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = difflib.unified_diff(
        golden.splitlines(keepends=True), text.splitlines(keepends=True), f"golden/{path.name}", "this run", n=6
    )
    return "".join(lines)


class _Caretaker:
    """Makes the namespace of a scenario, and removes all that it leaves. Nothing of this is recorded."""

    def __init__(self, ground: Ground) -> None:
        self._connection = Connection(ground)

    def close(self) -> None:
        self._connection.close()

    def prepare(self) -> None:
        """Make the namespace, and look that nothing else is there."""
        for path in CLUSTER_WIDE:
            if names := [item["metadata"]["name"] for item in self._items(path)]:
                raise NotAloneError(f"{path} holds {', '.join(names)}: transcripts want a server that nobody uses")
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        self._want("POST", "/api/v1/namespaces", namespace)

    def restore(self) -> None:
        """Remove everything, finalizers and grace periods or not."""
        for path in (*(path.format(NAMESPACE) for path in NAMESPACED), *CLUSTER_WIDE):
            for item in self._items(path):
                self._remove(f"{path}/{item['metadata']['name']}", item)
        self._want("DELETE", f"/api/v1/namespaces/{NAMESPACE}")
        empty = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}, "spec": {"finalizers": []}}
        self._want("PUT", f"/api/v1/namespaces/{NAMESPACE}/finalize", empty)

    def _remove(self, path: str, item: Any) -> None:
        self._want("DELETE", path, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})
        if set(item["metadata"].get("finalizers") or ()) - OF_THE_COLLECTOR:
            self._want("PATCH", path, {"metadata": {"finalizers": None}})

    def _items(self, path: str) -> list[Any]:
        items: list[Any] = self._want("GET", path)["items"]
        return items

    def _want(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        form = {"Content-Type": MERGE if method == "PATCH" else JSON}
        answer = self._connection.send(method, quote(path), data, form if data else {})
        if answer.status >= 300:
            raise AssertionError(f"{method} {path}: {answer.status} {answer.body}")
        return answer.body
