"""Paths, methods, media types, discovery, and the server as a process part."""

from __future__ import annotations

import http.client
import json
import urllib.request
from contextlib import closing
from typing import Any

import pytest
import yaml

from dracaena.demo.apiserver import ApiServer
from dracaena.demo.apiserver.resources import KINDS
from dracaena.demo.apiserver.version import RELEASES

PODS = "/api/v1/namespaces/default/pods"
RESOURCE = "/apis/resource.k8s.io/v1"


@pytest.mark.parametrize("path", ["/nope", "/apis/foo/v1", "/apis/foo/v1/bars"])
def test_a_path_of_no_group_is_plain_text(api, path):
    reply = api.get(path)
    assert (reply.code, reply.body) == (404, "404 page not found\n")


@pytest.mark.parametrize(
    "path",
    [
        f"{RESOURCE}/bars",
        "/apis/resource.k8s.io/v9",
        "/api/v2",
        "/api/v1/namespaces/x/nodes",
        "/api/v1/pods/a",
        f"{PODS}/a/foo",
        f"{RESOURCE}/resourceslices/a/status",
    ],
)
def test_an_unknown_resource_is_not_found(api, path):
    reply = api.get(path)
    assert (reply.code, reply.body["message"]) == (404, "the server could not find the requested resource")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/api/v1/namespaces/default/configmaps", "configmaps"),
        ("/api/v1/watch/pods", "watch"),
        ("/apis/apps/v1/daemonsets", "daemonsets"),
        ("/apis/rbac.authorization.k8s.io/v1/roles", "rbac.authorization.k8s.io"),
        (f"{PODS}/a/log", "pods/log"),
        (f"{PODS}/a/ephemeralcontainers", "pods/ephemeralcontainers"),
        (f"{PODS}/a/exec", "pods/exec"),
        ("/api/v1/nodes/n/proxy/metrics", "nodes/proxy"),
        ("/openapi/v3/apis/policy/v1", "/openapi/v3/apis/policy/v1"),
    ],
)
def test_what_kubernetes_has_and_this_server_has_not_is_refused_by_name(api, path, name):
    reply = api.get(path)
    assert (reply.code, reply.body["reason"]) == (501, "NotImplemented")
    assert name in reply.body["message"]


def test_requests_without_a_behaviour_are_refused_by_name(api, pod, resource_slice):
    gated = [{"name": "d", "attributes": {"x": {"ints": [1]}}}]
    for reply, name in (
        (api.create(PODS, pod("a"), dryRun="All"), "dryRun"),
        (api.create(PODS, pod("a", activeDeadlineSeconds=1)), "spec.activeDeadlineSeconds"),
        (api.create(PODS, pod("a", affinity={"podAffinity": {}})), "spec.affinity.podAffinity"),
        (api.create(f"{RESOURCE}/resourceslices", resource_slice(gated)), "spec.devices[0].attributes.x.ints"),
        (api.delete(PODS), "all objects of a collection"),
        (api.delete(f"{PODS}/a", {"dryRun": ["All"]}), "dryRun"),
        (api.delete(f"{PODS}/a", orphanDependents="true"), "orphanDependents"),
    ):
        assert (reply.code, reply.body["reason"]) == (501, "NotImplemented")
        assert name in reply.body["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", PODS),
        ("PATCH", PODS),
        ("POST", f"{PODS}/a"),
        ("POST", "/api/v1/pods"),
        ("DELETE", "/api/v1/pods"),
        ("POST", f"{PODS}/a/status"),
        ("DELETE", f"{PODS}/a/status"),
        ("GET", f"{PODS}/a/binding"),
        ("POST", "/api"),
    ],
)
def test_a_verb_that_the_path_has_not_is_not_allowed(api, method, path):
    reply = api.send(method, path, {})
    assert (reply.code, reply.body["reason"]) == (405, "MethodNotAllowed")


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        "application/json",
        "application/*;q=0.5",
        "application/json;as=Table;v=v2;g=meta.k8s.io,application/json",
        "application/vnd.kubernetes.protobuf,application/json",
        "application/json;stream=watch",
    ],
)
def test_plain_json_is_served_to_whoever_takes_it(api, accept):
    reply = api.raw("GET", PODS, None, {"Accept": accept})
    assert (reply.code, reply.body["kind"]) == (200, "PodList")


@pytest.mark.parametrize(
    "accept",
    [
        "application/vnd.kubernetes.protobuf",
        "application/json;as=Table;v=v2;g=meta.k8s.io",
        "application/yaml",
        "text/html",
        "application/json;q=0",
    ],
)
def test_who_takes_no_plain_json_is_refused(api, accept):
    reply = api.raw("GET", PODS, None, {"Accept": accept})
    assert (reply.code, reply.body["reason"]) == (406, "NotAcceptable")


@pytest.mark.parametrize("form", ["application/vnd.kubernetes.protobuf", "application/yaml", "text/plain"])
def test_a_body_in_another_form_is_refused(api, form):
    reply = api.send("POST", PODS, b"x", form=form)
    assert (reply.code, reply.body["reason"]) == (415, "UnsupportedMediaType")
    assert reply.body["message"].endswith(f"as application/json, this one was sent as {form}")


def test_every_kind_can_be_discovered(api):
    groups = [group["name"] for group in api.get("/apis").body["groups"]]
    assert groups == ["apps", "batch", "coordination.k8s.io", "resource.k8s.io"]
    assert api.get("/api").body["versions"] == ["v1"]
    found = {}
    for path in ("/api/v1", "/apis/apps/v1", "/apis/batch/v1", "/apis/coordination.k8s.io/v1", RESOURCE):
        for entry in api.get(path).body["resources"]:
            found[entry["name"]] = entry
    for kind in KINDS:
        assert found[kind.plural]["kind"] == kind.kind
        assert found[kind.plural]["namespaced"] is kind.namespaced
        assert f"{kind.plural}/status" in found or "status" not in kind.subresources
    assert found["pods"]["shortNames"] == ["po"]
    assert found["pods/binding"]["kind"] == "Binding"


def test_the_schema_documents_hold_every_kind_and_its_merge_rules(api):
    index = api.get("/openapi/v3").body["paths"]
    assert set(index) == {
        "api/v1",
        "apis/apps/v1",
        "apis/batch/v1",
        "apis/coordination.k8s.io/v1",
        "apis/resource.k8s.io/v1",
    }
    schemas: dict[str, Any] = {}
    for entry in index.values():
        document = api.get(entry["serverRelativeURL"]).body
        schemas |= document["components"]["schemas"]
        for operations in document["paths"].values():
            assert all("x-kubernetes-group-version-kind" in operation for operation in operations.values())
    assert {kind.kind for kind in KINDS} <= schemas.keys()
    containers = schemas["PodSpec"]["properties"]["containers"]
    assert containers["x-kubernetes-patch-merge-key"] == "name"


def test_health_and_version_answer(api):
    for path in ("/healthz", "/livez", "/readyz", "/readyz/ping"):
        assert (api.get(path).code, api.get(path).body) == (200, "ok")
    assert api.get("/version").body["gitVersion"].startswith("v1.37.")


@pytest.mark.parametrize("version", RELEASES)
def test_a_server_answers_as_the_version_that_it_is_given(version: str) -> None:
    with ApiServer(version=version) as server:
        said, schema = (
            json.loads(urllib.request.urlopen(f"{server.url}{path}", timeout=20).read())
            for path in ("/version", "/openapi/v3/apis/apps/v1")
        )
    assert (f"{said['major']}.{said['minor']}", said["gitVersion"]) == (
        version,
        f"{RELEASES[version]}+dracaena-embedded",
    )
    steps = schema["components"]["schemas"]["RollingUpdateStatefulSetStrategy"]["properties"]
    assert ("maxUnavailable" in steps) is (version == "1.37")


def test_a_version_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Kubernetes '1\.30' is not supported, expected one of 1\.37, 1\.36"):
        ApiServer(version="1.30")


def test_a_connection_serves_many_requests_also_refused_ones(api, pod):
    for _ in range(3):
        assert api.create(PODS, pod("A_")).code == 422
        assert api.send("POST", PODS, b"x", form="text/plain").code == 415
        assert api.get(PODS).code == 200


def test_a_chunked_body_is_read(server):
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)
    body = json.dumps({"metadata": {"name": "n"}}).encode()
    connection.request("POST", "/api/v1/nodes", iter([body[:5], body[5:]]), encode_chunked=True)
    assert connection.getresponse().status == 201
    connection.close()


def test_kubeconfig_is_plain_data_that_names_the_server(server):
    document = server.kubeconfig()
    assert yaml.safe_load(yaml.safe_dump(document)) == document
    assert document["clusters"][0]["cluster"]["server"] == server.url
    assert document["current-context"] == document["contexts"][0]["name"]


def test_the_server_listens_on_the_loopback_address(server):
    assert server.url.startswith("http://127.0.0.1:")


def test_the_url_is_known_only_while_it_runs():
    server = ApiServer()
    with pytest.raises(RuntimeError, match=r"call start\(\) first"):
        _ = server.url
    server.start()
    url = server.url
    server.stop()
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection(url.removeprefix("http://"), timeout=5).connect()


def test_a_taken_port_is_an_error(server):
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(OSError, match="in use"):
        ApiServer(port=port).start()


def test_default_and_kube_system_are_there_from_the_start(api):
    items = api.get("/api/v1/namespaces").body["items"]
    assert [item["metadata"]["name"] for item in items] == ["default", "kube-system"]
    assert items[0]["metadata"]["labels"] == {"kubernetes.io/metadata.name": "default"}
    assert items[0]["spec"] == {"finalizers": ["kubernetes"]}


def answer_and_end(server, header, value, body=b""):
    """What the server answers to a POST with this header, and what it sends after that."""
    with closing(http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)) as connection:
        connection.putrequest("POST", "/api/v1/nodes")
        connection.putheader(header, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())["message"], connection.sock.recv(1)


@pytest.mark.parametrize("length", ["-1", "many", "1e3", "+1", "99999999999"])
def test_a_length_that_is_none_is_refused_and_ends_the_connection(server, length):
    seen = answer_and_end(server, "Content-Length", length)
    assert seen == (400, f"Content-Length is no number: {length!r}", b"")


@pytest.mark.parametrize("size", ["-5", "zz", "", "123456789"])
def test_a_chunk_whose_size_is_none_is_refused_and_ends_the_connection(server, size):
    seen = answer_and_end(server, "Transfer-Encoding", "chunked", f"{size}\r\n".encode())
    assert seen == (400, f"the size of a chunk is no number: {size!r}", b"")


def test_openapi_v2_says_that_it_describes_nothing_in_json_and_in_protobuf(server):
    request = urllib.request.Request(f"{server.url}/openapi/v2", headers={"Accept": "application/json"})
    with urllib.request.urlopen(request) as answer:
        document = json.load(answer)
    assert (document["swagger"], document["paths"]) == ("2.0", {})
    assert "/openapi/v3" in document["info"]["description"]
    request.add_header("Accept", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")
    with urllib.request.urlopen(request) as answer:
        assert answer.headers["Content-Type"].endswith("+protobuf")
        text = answer.read()
    assert text.startswith(b"\n\x032.0\x12")
    assert len(text) == 7 + text[6]
    assert document["info"]["description"].encode() in text
