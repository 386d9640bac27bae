"""As whom the plugin reads and writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client as official

from dracaena.api.objects import ObjectMeta, Pod
from dracaena.kube.client import KubeClient
from dracaena.kube.transport import Transport
from dracaena.kubelet_plugin.adapters.kube import KubePods, KubeSlices
from support.scripted_server import Request, ScriptedServer

NODE = "system:node:node-1"
POD = {"metadata": {"name": "p", "namespace": "team", "uid": "u"}, "spec": {"nodeName": "node-1", "containers": []}}


class World:
    """A server with one pod, and clients that speak as the plugin and as the node."""

    def __init__(self) -> None:
        self.pods: list[Any] = [POD]
        self.server = ScriptedServer(self._answer)

    def _answer(self, request: Request) -> None:
        if request.path.endswith("/pods"):
            request.answer(200, {"metadata": {"resourceVersion": "1"}, "items": self.pods})
        else:
            request.answer(200, {"metadata": {"name": "node-1"}} if "/nodes/" in request.path else POD)

    def client(self, impersonated: str = "") -> KubeClient:
        configuration = official.Configuration(host=self.server.url)
        return KubeClient(Transport(configuration, user_agent="tests", impersonated=impersonated))


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    with world.server:
        yield world


def test_a_pod_is_read_as_the_node_by_a_list_that_names_it(world: World) -> None:
    """A list: the node authorizer allows it by its selector, before it has itself seen the pod."""
    pods = KubePods(world.client(), world.client(NODE), "node-1")
    found = pods.read_pod("team", "p")
    assert found is not None
    assert found.metadata.uid == "u"
    (request,) = world.server.requests
    assert (request.method, request.path) == ("GET", "/api/v1/namespaces/team/pods")
    assert request.query["fieldSelector"] == "metadata.name=p,spec.nodeName=node-1"
    assert request.headers["impersonate-user"] == NODE


def test_a_pod_that_is_not_on_the_node_is_not_found(world: World) -> None:
    world.pods = []
    assert KubePods(world.client(), world.client(NODE), "node-1").read_pod("team", "p") is None


def test_a_pod_is_written_as_ourselves(world: World) -> None:
    """The node authorizer lets no node patch pods, and the admission policy knows the plugin by its name."""
    pods = KubePods(world.client(), world.client(NODE), "node-1")
    pods.annotate_pod(Pod(metadata=ObjectMeta(name="p", namespace="team", uid="u")), {"a": "1"})
    (request,) = world.server.requests
    assert request.method == "PATCH"
    assert json.loads(request.body) == {"metadata": {"uid": "u", "annotations": {"a": "1"}}}
    assert "impersonate-user" not in request.headers


def test_the_node_is_read_as_itself_and_slices_are_not(world: World) -> None:
    slices = KubeSlices(world.client(), world.client(NODE), "gpu.example.com", "node-1")
    slices.read_node()
    slices.list_slices()
    assert [request.headers.get("impersonate-user") for request in world.server.requests] == [NODE, None]
