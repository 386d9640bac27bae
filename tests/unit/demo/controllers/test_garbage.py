"""The stand-in for the garbage collector. What goes with jobs and pods is in test_jobs.py and test_stand_ins.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dracaena.api.objects import KubeObject, Pod
from dracaena.demo.apiserver import ApiServer
from dracaena.demo.apiserver.resources import KINDS
from dracaena.demo.controllers.garbage import OWNED, OWNERS, GarbageCollector
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import ConflictError
from dracaena.process.clock import SystemClock
from support.kube import client_for

NAMESPACE = "default"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[KubeClient]:
    with ApiServer() as server:
        yield client_for(server.url, tmp_path)


def pod_of_a_job_that_is_gone(client: KubeClient) -> Pod:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
    spec = {"containers": [{"name": "main", "image": "busybox"}]}
    document = {"metadata": {"name": "p", "ownerReferences": [owner]}, "spec": spec}
    return client.create(Pod, document, namespace=NAMESPACE)


def pods_after_a_look(client: KubeClient, seen: Pod) -> list[str]:
    """What is left after the collector has looked once at a pod as its cache has it."""
    GarbageCollector(client, SystemClock())._collect(seen)
    return [pod.metadata.name for pod in client.list(Pod, namespace=NAMESPACE).items]


def test_only_kinds_that_are_served_are_collected_or_own_others() -> None:
    served = {(kind.api_version, kind.plural) for kind in KINDS}
    assert {(kind.API_VERSION, kind.RESOURCE) for kind in (*OWNED, *OWNERS)} <= served


def test_what_belonged_to_an_owner_that_is_gone_is_deleted(client: KubeClient) -> None:
    assert pods_after_a_look(client, pod_of_a_job_that_is_gone(client)) == []


def test_a_pod_that_was_orphaned_behind_the_cache_stays(client: KubeClient) -> None:
    seen = pod_of_a_job_that_is_gone(client)
    client.merge_patch(Pod, "p", {"metadata": {"ownerReferences": None}}, namespace=NAMESPACE)
    assert pods_after_a_look(client, seen) == ["p"]


def test_a_pod_that_is_orphaned_after_it_was_read_stays(client: KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = pod_of_a_job_that_is_gone(client)
    read = client.get

    def read_and_orphan(kind: type[KubeObject], name: str, *, namespace: str = "") -> KubeObject:
        found = read(kind, name, namespace=namespace)
        client.merge_patch(Pod, "p", {"metadata": {"ownerReferences": None}}, namespace=NAMESPACE)
        return found

    monkeypatch.setattr(client, "get", lambda kind, *a, **k: (read_and_orphan if kind is Pod else read)(kind, *a, **k))
    with pytest.raises(ConflictError):
        pods_after_a_look(client, seen)
    assert [pod.metadata.name for pod in client.list(Pod, namespace=NAMESPACE).items] == ["p"]
