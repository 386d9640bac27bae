"""The stand-in for the namespace controller against the embedded API server over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.demo.apiserver import ApiServer
from dracaena.demo.apiserver.resources import KINDS
from dracaena.demo.controllers.namespaces import CONTENT, NamespaceController, conditions_of
from dracaena.demo.objects import NamespaceDocument
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import KubeError
from dracaena.process.clock import SystemClock
from support.kube import client_for, wait_for

CLAIM = {"spec": {"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "gpu"}}]}}}
POD = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main", "image": "busybox"}]}}
HELD = "example.com/held"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[KubeClient]:
    with ApiServer() as server:
        client = client_for(server.url, tmp_path)
        client.create(NamespaceDocument, {"metadata": {"name": "desk"}})
        part = NamespaceController(client, SystemClock())
        part.start()
        yield client
        part.stop()
        assert part.failure is None


def names(client: KubeClient) -> set[str]:
    return {item.metadata.name for item in client.list(NamespaceDocument).items}


def conditions(client: KubeClient) -> dict[str, str]:
    status = client.get(NamespaceDocument, "desk").status
    return {one["type"]: one["message"] for one in status.get("conditions", ()) if one["status"] == "True"}


def test_a_namespace_goes_with_all_that_is_in_it_and_others_stay(client: KubeClient) -> None:
    client.create(Pod, POD, namespace="desk")
    client.create(Pod, POD, namespace="default")
    client.create(ResourceClaim, CLAIM | {"metadata": {"name": "c"}}, namespace="desk")
    client.delete(NamespaceDocument, "desk")
    wait_for(lambda: "desk" not in names(client), "the namespace to go")
    assert not client.list(ResourceClaim).items
    assert [pod.metadata.namespace for pod in client.list(Pod).items] == ["default"]
    assert "default" in names(client)


def test_finalizers_of_others_are_waited_for_and_named(client: KubeClient) -> None:
    client.create(ResourceClaim, CLAIM | {"metadata": {"name": "c", "finalizers": [HELD]}}, namespace="desk")
    client.delete(NamespaceDocument, "desk")
    wait_for(lambda: len(conditions(client)) == 2, "the conditions")
    assert conditions(client) == {
        "NamespaceContentRemaining": (
            "Some resources are remaining: resourceclaims.resource.k8s.io has 1 resource instances"
        ),
        "NamespaceFinalizersRemaining": (
            f"Some content in the namespace has finalizers remaining: {HELD} in 1 resource instances"
        ),
    }
    with pytest.raises(KubeError, match="because it is being terminated"):
        client.create(Pod, POD, namespace="desk")
    client.merge_patch(ResourceClaim, "c", {"metadata": {"finalizers": None}}, namespace="desk")
    wait_for(lambda: "desk" not in names(client), "the namespace to go")


def test_a_finalizer_in_the_metadata_of_the_namespace_itself_is_honoured(client: KubeClient) -> None:
    client.merge_patch(NamespaceDocument, "desk", {"metadata": {"finalizers": [HELD]}})
    client.delete(NamespaceDocument, "desk")
    wait_for(lambda: client.get(NamespaceDocument, "desk").spec.get("finalizers", []) == [], "our own finalizer to go")
    client.merge_patch(NamespaceDocument, "desk", {"metadata": {"finalizers": None}})
    wait_for(lambda: "desk" not in names(client), "the namespace to go")


def test_an_empty_namespace_has_nothing_left_and_no_finalizers() -> None:
    said = {(one["status"], one["reason"]) for one in conditions_of([])}
    assert said == {("False", "ContentRemoved"), ("False", "ContentHasNoFinalizers")}


def test_every_kind_that_is_served_in_a_namespace_is_deleted_with_it() -> None:
    assert {(kind.API_VERSION, kind.RESOURCE) for kind in CONTENT} == {
        (kind.api_version, kind.plural) for kind in KINDS if kind.namespaced
    }
