"""How many pods the replica set controller makes at a time. What else it does is in test_deployments.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dracaena.api.objects import ObjectMeta, Pod
from dracaena.demo.apiserver import ApiServer
from dracaena.demo.controllers.pod_owners import pod_document
from dracaena.demo.controllers.replica_sets import ReplicaSetController
from dracaena.demo.objects import ReplicaSetDocument
from dracaena.kube.client import KubeClient
from dracaena.process.clock import SystemClock
from support.kube import client_for, wait_for
from support.pod_writes import PodWrites

NAMESPACE = "default"
BURST = 3


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server


@pytest.fixture
def client(server: ApiServer, tmp_path: Path) -> KubeClient:
    return client_for(server.url, tmp_path)


@pytest.fixture
def controllers_client(server: ApiServer, tmp_path: Path) -> Iterator[KubeClient]:
    """The client of a controller that runs."""
    client = client_for(server.url, tmp_path)
    part = ReplicaSetController(client, SystemClock(), burst=BURST)
    part.start()
    yield client
    part.stop()
    assert part.failure is None


def create(client: KubeClient, replicas: int) -> None:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "a"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    client.create(ReplicaSetDocument, {"metadata": {"name": "web"}, "spec": spec}, namespace=NAMESPACE)


def scale(client: KubeClient, replicas: int) -> None:
    client.merge_patch(ReplicaSetDocument, "web", {"spec": {"replicas": replicas}}, namespace=NAMESPACE)


def wait_for_pods(client: KubeClient, count: int) -> set[str]:
    """The UIDs of the pods, when the controller has seen the present spec and says that it has so many."""

    def is_reported() -> bool:
        now = client.get(ReplicaSetDocument, "web", namespace=NAMESPACE)
        seen = now.status.get("observedGeneration") == now.metadata.generation
        return seen and now.status.get("replicas", 0) == count

    wait_for(is_reported, f"{count} pods to be reported")
    pods = {pod.metadata.uid for pod in client.list(Pod).items}
    assert len(pods) == count
    return pods


def test_more_pods_than_a_burst_are_made_and_deleted_in_several(
    client: KubeClient, controllers_client: KubeClient
) -> None:
    create(client, 2 * BURST + 1)
    wait_for_pods(client, 2 * BURST + 1)
    scale(client, 0)
    wait_for_pods(client, 0)


def test_a_number_that_is_taken_back_is_seen_after_a_burst_of_pods_made(
    client: KubeClient, controllers_client: KubeClient
) -> None:
    made = PodWrites(controllers_client, "create", lambda: scale(client, 1))
    create(client, 40)
    wait_for_pods(client, 1)
    assert made.count == BURST


def test_a_number_that_is_taken_back_is_seen_after_a_burst_of_pods_deleted(
    client: KubeClient, controllers_client: KubeClient
) -> None:
    create(client, 10)
    before = wait_for_pods(client, 10)
    deleted = PodWrites(controllers_client, "delete", lambda: scale(client, 10))
    scale(client, 0)
    wait_for(lambda: deleted.count, "the first pod to be deleted")
    after = wait_for_pods(client, 10)
    assert (deleted.count, len(before & after)) == (BURST, 10 - BURST)


def test_a_pod_has_labels_and_annotations_of_the_template_and_an_owner() -> None:
    metadata = {"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["example.com/x"]}
    owner = ReplicaSetDocument(ObjectMeta("web-1", uid="u"), {"template": {"metadata": metadata, "spec": {"x": 1}}})
    pod = pod_document(owner)
    assert pod["spec"] == {"x": 1}
    assert pod["metadata"] == {
        "labels": {"a": "b"},
        "annotations": {"c": "d"},
        "generateName": "web-1-",
        "ownerReferences": [
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "name": "web-1",
                "uid": "u",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
