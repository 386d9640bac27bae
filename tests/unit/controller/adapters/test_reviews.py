"""What is sent to ask about a token and a right, and what is made of the answers. Over a real client and sockets."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from kubernetes import client as official

from dracaena.controller.adapters.reviews import Identity, KubeReviews
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import KubeError
from dracaena.kube.transport import Transport

USER = {"username": "dev", "uid": "u1", "groups": ["a", "b"], "extra": {"k.example.com/x": ["1", "2"]}}
DEV = Identity("dev", "u1", ("a", "b"), (("k.example.com/x", ("1", "2")),))


class Server(ThreadingHTTPServer):
    """Answers each POST with `answer`, and keeps what was sent."""

    answer: tuple[int, Any] = (201, {})

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.sent: list[tuple[str, Any]] = []


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.sent.append((self.path.partition("?")[0], body))
        status, answer = self.server.answer
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def reviews(server: Server) -> KubeReviews:
    configuration = official.Configuration(host=f"http://127.0.0.1:{server.server_address[1]}")
    return KubeReviews(KubeClient(Transport(configuration, user_agent="tests")))


def review(**status: Any) -> tuple[int, Any]:
    return 201, {"metadata": {"creationTimestamp": None}, "spec": {"token": "t"}, "status": status}


def test_a_token_that_the_server_takes_has_an_owner(server: Server, reviews: KubeReviews) -> None:
    server.answer = review(authenticated=True, user=USER, audiences=["x"])
    assert reviews.identify("t") == DEV
    assert server.sent == [
        (
            "/apis/authentication.k8s.io/v1/tokenreviews",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "t"}},
        )
    ]


@pytest.mark.parametrize(
    "status", [{}, {"authenticated": False, "user": USER}, {"authenticated": True}, {"error": "expired"}]
)
def test_without_a_clear_yes_nobody_owns_it(server: Server, reviews: KubeReviews, status: dict[str, Any]) -> None:
    server.answer = review(**status)
    assert reviews.identify("t") is None


@pytest.mark.parametrize("namespace", ["", "team"])
def test_a_right_is_asked_for_with_all_that_the_token_said(
    server: Server, reviews: KubeReviews, namespace: str
) -> None:
    server.answer = review(allowed=True)
    assert reviews.may_list_pods(DEV, namespace)
    ((path, body),) = server.sent
    assert path == "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    assert body["spec"] == {
        "user": "dev",
        "uid": "u1",
        "groups": ["a", "b"],
        "extra": {"k.example.com/x": ["1", "2"]},
        "resourceAttributes": {"verb": "list", "version": "v1", "resource": "pods", "namespace": namespace},
    }


@pytest.mark.parametrize("status", [{}, {"allowed": False}, {"denied": True}])
def test_without_a_clear_yes_there_is_no_right(server: Server, reviews: KubeReviews, status: dict[str, Any]) -> None:
    server.answer = review(**status)
    assert not reviews.may_list_pods(DEV, "team")


def test_a_refusal_is_an_error_that_does_not_hold_the_token(server: Server, reviews: KubeReviews) -> None:
    server.answer = 403, {"kind": "Status", "reason": "Forbidden", "message": "may not create tokenreviews"}
    with pytest.raises(KubeError) as caught:
        reviews.identify("very-secret")
    assert "very-secret" not in str(caught.value)
