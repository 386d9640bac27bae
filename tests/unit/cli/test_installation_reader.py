"""What is read of a server over HTTP, in pages, with and without rights: the objects of a healthy installation."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pytest
import yaml

from dracaena.cli.installation.control_plane import NEEDED
from dracaena.cli.installation.examination import examine
from dracaena.cli.installation.snapshot import Right, Snapshot, State
from dracaena.cli.installation_reader import READS, read_installation
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import KubeError
from dracaena.kube.transport import Transport
from support.allocation import DRIVER
from support.installation import NODES, NOW, documents, page


@dataclass
class Server:
    """What a small API server has, and what it refuses."""

    url: str = ""
    objects: dict[str, list[Any]] = field(default_factory=documents)
    refuses: dict[str, int] = field(default_factory=dict)
    """Resource → status of the answer."""
    answers: dict[str, Any] = field(default_factory=dict)
    """Path → answer instead of what there is."""
    forbidden: set[str] = field(default_factory=set)
    """Resources that the user may do nothing with, by SelfSubjectAccessReviews."""
    asked: list[str] = field(default_factory=list)

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, Any]:
        self.asked.append(path)
        *root, resource = path.strip("/").split("/")
        if path in self.answers:
            return 200, self.answers[path]
        if path == "/version":
            return 200, {"major": "1", "minor": "37"}
        if path.removeprefix("/apis/") in NEEDED:
            return 200, {"resources": [{"name": name} for name in NEEDED[path.removeprefix("/apis/")]]}
        if resource in self.refuses:
            return self.refuses[resource], {"message": "no"}
        if resource not in READS or f"/{'/'.join(root)}" != READS[resource][0]:
            return 404, {}
        found = self.objects[resource]
        if resource == "resourceslices" and query.get("fieldSelector") == f"spec.driver={DRIVER}":
            found = [msgspec.to_builtins(page(name)) for name in NODES]
        begin = int(query.get("continue", 0))
        end = begin + 2  # a page of two, however many are asked for
        rest = {"continue": str(end)} if end < len(found) else {}
        return 200, {"metadata": {"resourceVersion": "1", **rest}, "items": found[begin:end]}

    def review(self, document: Any) -> tuple[int, Any]:
        asked = document["spec"]["resourceAttributes"]
        return 201, {"metadata": {}, "status": {"allowed": asked["resource"] not in self.forbidden}}


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            self.reply(*made.answer(parts.path, dict(parse_qsl(parts.query))))

        def do_POST(self) -> None:
            self.reply(*made.review(json.loads(self.rfile.read(int(self.headers["Content-Length"])))))

        def reply(self, status: int, document: Any) -> None:
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        made.url = f"http://127.0.0.1:{http.server_port}"
        yield made
        http.shutdown()
        thread.join()


@pytest.fixture
def client(server: Server, tmp_path: Path) -> KubeClient:
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    document = {
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "contexts": [context],
        "users": [{"name": "u", "user": {}}],
    }
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "c", **document})
    (tmp_path / "kubeconfig").write_text(text, encoding="utf-8")
    return KubeClient(Transport.from_kubeconfig(str(tmp_path / "kubeconfig"), user_agent="tests"))


def read(client: KubeClient) -> Snapshot:
    return read_installation(client, DRIVER, NOW)


def states(snapshot: Snapshot) -> dict[str, State]:
    return {one.check: one.state for one in examine(snapshot)}


def test_everything_is_read_in_pages_and_a_healthy_installation_is_found_so(server: Server, client: KubeClient) -> None:
    snapshot = read(client)
    assert {kind: list(found.objects) for kind, found in snapshot.kinds.items()} == server.objects
    assert [one.spec.node_name for one in snapshot.slices] == list(NODES)
    assert set(states(snapshot).values()) == {State.OK}
    assert not [path for path in server.asked if "secrets" in path or "configmaps" in path]


def test_what_may_not_be_read_is_not_called_missing(server: Server, client: KubeClient) -> None:
    server.refuses = {"nodes": 403, "leases": 403, "events": 500, "resourceslices": 403}
    server.forbidden = {"nodes"}
    snapshot = read(client)
    assert snapshot.kinds["nodes"].why_unread == "an admin has to grant `list`"
    assert "500" in snapshot.kinds["events"].why_unread
    found = states(snapshot)
    assert {found[name] for name in ("gpu-nodes", "leader", "reports", "pools")} == {State.UNKNOWN}
    assert snapshot.rights[Right("list", "", "nodes")] is False
    assert snapshot.rights[Right("list", "", "events")] is True
    assert found["your-rights"] is State.TO_FIX


def test_kinds_that_the_server_does_not_have_are_none(server: Server, client: KubeClient) -> None:
    server.refuses = {"devicetaintrules": 404, "mutatingadmissionpolicies": 404}
    snapshot = read(client)
    assert not snapshot.kinds["devicetaintrules"].is_served
    assert "/apis/resource.k8s.io/v1beta2/devicetaintrules" in server.asked
    assert states(snapshot)["taint-rules"] is State.OK
    assert states(snapshot)["policies"] is State.TO_FIX  # bindings without policies


@pytest.mark.parametrize(
    "answer",
    [b"", b"not JSON", b"[1, 2]", {"items": 7}, {"items": [7, None, "x"]}, {"metadata": 1}, {"resources": 7}],
)
def test_any_answer_is_read(server: Server, client: KubeClient, answer: Any) -> None:
    for kind, (root, _) in READS.items():
        if kind not in ("leases", "resourceslices"):  # read by type, too
            server.answers[f"{root}/{kind}"] = answer
    server.answers |= {f"/apis/{group}": answer for group in NEEDED}
    found = states(read(client))
    assert found["controller"] is State.TO_FIX


def test_a_server_that_is_not_there_is_an_error(tmp_path: Path, client: KubeClient, server: Server) -> None:
    server.answers["/version"] = {}
    assert read(client).server_version == ""
    document = yaml.safe_load((tmp_path / "kubeconfig").read_text(encoding="utf-8"))
    document["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(document), encoding="utf-8")
    with pytest.raises(KubeError):
        read(KubeClient(Transport.from_kubeconfig(str(tmp_path / "kubeconfig"), user_agent="tests")))
