from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as official
from kubernetes import config as official_config

from dracaena.api.errors import BadInputError
from dracaena.api.objects import Node, Pod
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import (
    AlreadyExistsError,
    ApiUnavailableError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    KubeError,
    NotFoundError,
    TooManyRequestsError,
)
from dracaena.kube.transport import Transport
from support.kube import client_for
from support.scripted_server import Request, ScriptedServer


def status(code: int, reason: str, message: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "code": code,
        "message": message,
    }


def pod(name: str, version: str = "1") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "resourceVersion": version}}


def always(code: int, document: Any) -> Callable[[Request], None]:
    return lambda request: request.answer(code, document)


def test_requests_carry_credentials_and_our_name(tmp_path: Path) -> None:
    with ScriptedServer(always(200, pod("a"))) as server:
        client_for(server.url, tmp_path, user_agent="dracaena-controller/1").get(Pod, "a", namespace="ns")
    (request,) = server.requests
    assert request.path == "/api/v1/namespaces/ns/pods/a"
    assert request.headers["authorization"] == "Bearer secret-token"
    assert request.headers["user-agent"] == "dracaena-controller/1"


def test_cluster_scoped_and_grouped_kinds_have_their_paths(tmp_path: Path) -> None:
    with ScriptedServer(always(404, status(404, "NotFound", "no"))) as server:
        client = client_for(server.url, tmp_path)
        for kind in (Node, ResourceSlice):
            with pytest.raises(NotFoundError):
                client.get(kind, "a")
    assert [request.path for request in server.requests] == [
        "/api/v1/nodes/a",
        "/apis/resource.k8s.io/v1/resourceslices/a",
    ]


def test_list_follows_pages_to_the_end(tmp_path: Path) -> None:
    def answer(request: Request) -> None:
        if "continue" not in request.query:
            request.answer(200, {"metadata": {"resourceVersion": "7", "continue": "next"}, "items": [pod("a")]})
        else:
            request.answer(200, {"metadata": {"resourceVersion": "7"}, "items": [pod("b")]})

    with ScriptedServer(answer) as server:
        listing = client_for(server.url, tmp_path).list(Pod, field_selector="spec.nodeName=n")
    assert [item.metadata.name for item in listing.items] == ["a", "b"]
    assert listing.resource_version == "7"
    assert [request.query.get("fieldSelector") for request in server.requests] == ["spec.nodeName=n"] * 2
    assert {request.query["limit"] for request in server.requests} == {"500"}


def test_names_never_leave_their_part_of_the_path(tmp_path: Path) -> None:
    with ScriptedServer(always(404, status(404, "NotFound", "no"))) as server:
        with pytest.raises(NotFoundError):
            client_for(server.url, tmp_path).get(Pod, "../../nodes/n?x=1", namespace="a/b")
    assert server.requests[0].path == "/api/v1/namespaces/a%2Fb/pods/..%2F..%2Fnodes%2Fn%3Fx%3D1"


def test_credentials_that_cannot_be_read_just_now_are_like_no_answer(tmp_path: Path) -> None:
    configuration = official.Configuration(host="http://127.0.0.1:1")
    configuration.api_key["BearerToken"] = "x"

    def refresh(_: object) -> None:
        raise official_config.ConfigException("Token file exists but empty.")

    configuration.refresh_api_key_hook = refresh
    client = KubeClient(Transport(configuration, user_agent="tests"))
    with pytest.raises(ApiUnavailableError, match="no credentials: Token file exists but empty"):
        client.get(Pod, "a")


def test_writes_name_their_kind_and_tell_the_server_when_to_give_up(tmp_path: Path) -> None:
    with ScriptedServer(always(201, pod("a"))) as server:
        client_for(server.url, tmp_path).create(Pod, {"metadata": {"name": "a"}}, namespace="ns")
    (request,) = server.requests
    assert request.query == {"timeout": "10s"}
    assert json.loads(request.body) == {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}


def test_patch_goes_to_the_subresource_as_a_merge_patch(tmp_path: Path) -> None:
    with ScriptedServer(always(200, pod("a"))) as server:
        client_for(server.url, tmp_path).merge_patch(
            ResourceClaim, "a", {"status": {"allocation": None}}, namespace="ns", subresource="status"
        )
    (request,) = server.requests
    assert (request.method, request.path) == ("PATCH", "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/a/status")
    assert request.headers["content-type"] == "application/merge-patch+json"
    assert json.loads(request.body) == {"status": {"allocation": None}}


def test_delete_sends_its_preconditions(tmp_path: Path) -> None:
    with ScriptedServer(always(200, {"kind": "Status"})) as server:
        client_for(server.url, tmp_path).delete(ResourceSlice, "s", uid="u", resource_version="4", grace_period_s=0)
    document = json.loads(server.requests[0].body)
    assert document["preconditions"] == {"uid": "u", "resourceVersion": "4"}
    assert document["gracePeriodSeconds"] == 0
    assert server.requests[0].query == {"timeout": "10s"}


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (401, "Unauthorized", ForbiddenError),
        (403, "Forbidden", ForbiddenError),
        (404, "NotFound", NotFoundError),
        (409, "Conflict", ConflictError),
        (409, "AlreadyExists", AlreadyExistsError),
        (410, "Expired", GoneError),
        (415, "UnsupportedMediaType", KubeError),
        (422, "Invalid", InvalidError),
        (429, "TooManyRequests", TooManyRequestsError),
        (500, "InternalError", ApiUnavailableError),
        (503, "ServiceUnavailable", ApiUnavailableError),
    ],
)
def test_refusals_become_their_own_errors(code: int, reason: str, expected: type[KubeError], tmp_path: Path) -> None:
    with ScriptedServer(always(code, status(code, reason, "why it is so"))) as server:
        with pytest.raises(KubeError) as caught:
            client_for(server.url, tmp_path).get(Pod, "a", namespace="ns")
    assert type(caught.value) is expected
    assert str(caught.value) == f"GET /api/v1/namespaces/ns/pods/a: {code} {reason}: why it is so"


def test_how_long_the_server_asks_to_be_left_alone_is_told_whatever_was_asked(tmp_path: Path) -> None:
    def refuse(request: Request) -> None:
        request.answer(503 if request.method == "PUT" else 429, b"Too many requests", {"Retry-After": "7"})

    document = {"metadata": {"name": "a"}}
    with ScriptedServer(refuse) as server:
        client = client_for(server.url, tmp_path)
        for call in (
            lambda: client.get(Pod, "a", namespace="ns"),
            lambda: client.list(Pod),
            lambda: client.watch(Pod, resource_version="1", timeout_s=1, read_timeout_s=30.0),
            lambda: client.create(Pod, document, namespace="ns"),
            lambda: client.merge_patch(Pod, "a", {}, namespace="ns"),
            lambda: client.delete(Pod, "a", namespace="ns"),
        ):
            with pytest.raises(TooManyRequestsError, match="429 Unknown: Too many requests") as caught:
                call()
            assert caught.value.retry_after_s == 7.0
            assert caught.value.is_refusal
        with pytest.raises(ApiUnavailableError) as unavailable:
            client.replace(Pod, document, namespace="ns")
        assert unavailable.value.retry_after_s == 7.0
        assert not unavailable.value.is_refusal, "it may have been done"


def test_an_error_in_the_middle_of_a_watch_tells_it_in_its_details(tmp_path: Path) -> None:
    refused = {**status(429, "TooManyRequests", "storage is initializing"), "details": {"retryAfterSeconds": 3}}

    def answer(request: Request) -> None:
        request.begin_stream()
        request.send_event("ERROR", refused)
        request.end_stream()

    with ScriptedServer(answer) as server:
        watch = client_for(server.url, tmp_path).watch(Pod, resource_version="1", timeout_s=1, read_timeout_s=30.0)
        with pytest.raises(TooManyRequestsError) as caught:
            list(watch)
    assert caught.value.retry_after_s == 3.0


@pytest.mark.parametrize("body", [b"<html>\nbad gateway</html>", b"\xff<html> bad gateway</html>"])
def test_answer_of_a_proxy_in_between_is_quoted(body: bytes, tmp_path: Path) -> None:
    with ScriptedServer(always(502, body)) as server:
        with pytest.raises(ApiUnavailableError, match="<html> bad gateway</html>"):
            client_for(server.url, tmp_path).get(Pod, "a")


def test_no_server_is_said_as_such(tmp_path: Path) -> None:
    with ScriptedServer(always(200, {})) as server:
        url = server.url
    with pytest.raises(ApiUnavailableError, match="no answer"):
        client_for(url, tmp_path).get(Pod, "a")


@pytest.mark.parametrize("body", [b'{"metadata": []}', b'{"metadata": {"name": "\xff"}}', b"<html>", b""])
def test_answer_of_another_shape_is_an_error(body: bytes, tmp_path: Path) -> None:
    with ScriptedServer(always(200, body)) as server:
        with pytest.raises(KubeError, match="does not decode"):
            client_for(server.url, tmp_path).get(Pod, "a")


@pytest.mark.parametrize("text", ["", "no: [", "contexts: []\n", "a string"])
def test_unreadable_kubeconfig_is_bad_input_with_its_path(text: str, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(BadInputError, match="no connection to Kubernetes from") as caught:
        Transport.from_kubeconfig(str(path), user_agent="tests")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


FIRST_LOOKS = """
import msgspec
from dracaena.kube import client
from dracaena.api.objects import KubeObject

def look(_):
    raise SystemExit("a type is looked into only now")

assert hasattr(msgspec._utils, "_get_class_mro_and_typevar_mappings")
msgspec._utils._get_class_mro_and_typevar_mappings = look
own = [shape for shape in vars(client).values() if isinstance(shape, type) and issubclass(shape, msgspec.Struct)]
for shape in (*KubeObject.__subclasses__(), *own):
    if shape is not KubeObject:
        msgspec.json.Decoder(shape)
print("none")
"""


def test_no_thread_is_the_first_to_look_into_a_type() -> None:
    """Two that do so at once crash the process: an error of msgspec that no lock of ours would be sure to cover."""
    done = subprocess.run([sys.executable, "-P", "-c", FIRST_LOOKS], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("none\n", "", 0)
