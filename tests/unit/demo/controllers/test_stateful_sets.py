"""The stateful set controller: on the embedded server, which pods there are and when; and its choices alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.objects import ObjectMeta, OwnerReference, Pod, PodCondition, PodSpec, PodStatus
from dracaena.demo.apiserver import ApiServer
from dracaena.demo.controllers.stateful_sets import (
    REVISION_LABEL,
    OrdinalPods,
    StatefulSetController,
    ordinal_of,
    ordinal_pod,
    revision_of,
)
from dracaena.demo.objects import StatefulSetDocument
from dracaena.kube.client import KubeClient
from dracaena.process.clock import SystemClock
from support.kube import client_for, wait_for

NAMESPACE = "default"
LABELS = {"app": "web"}
READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def template(image: str = "a") -> dict[str, Any]:
    return {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "main", "image": image}]}}


def owner(**spec: Any) -> StatefulSetDocument:
    given = {
        "replicas": 3,
        "podManagementPolicy": "OrderedReady",
        "updateStrategy": {"type": "RollingUpdate"},
        "template": template(),
    }
    return StatefulSetDocument(ObjectMeta("web", namespace=NAMESPACE, uid="u"), given | spec)


def pods_of(one: StatefulSetDocument, **states: str) -> OrdinalPods:
    """Pods by place: `p0="ready"`, "old", "waiting", "going" or "failed"."""
    made = []
    for place, state in states.items():
        name = f"web-{place.removeprefix('p')}"
        reference = OwnerReference(kind=one.KIND, name="web", uid="u", api_version=one.API_VERSION, controller=True)
        labels = {REVISION_LABEL: "old" if state == "old" else revision_of(one)}
        going = "2026-01-01T00:00:00Z" if state == "going" else None
        metadata = ObjectMeta(
            name, NAMESPACE, "x", labels=labels, owner_references=[reference], deletion_timestamp=going
        )
        ready = [PodCondition("Ready", "True")] if state in ("ready", "old") else []
        phase = "Failed" if state == "failed" else "Running"
        made.append(Pod(metadata, PodSpec(), PodStatus(phase=phase, conditions=ready)))
    return OrdinalPods.of(one, made)


@pytest.mark.parametrize(
    ("spec", "states", "made", "deleted"),
    [
        ({}, {}, [0], []),
        ({}, {"p0": "waiting"}, [], []),
        ({}, {"p0": "ready"}, [1], []),
        ({}, {"p0": "ready", "p1": "going"}, [], []),
        ({}, {"p0": "ready", "p2": "ready"}, [1], []),
        ({}, {"p0": "ready", "p1": "failed", "p2": "ready"}, [], [1]),
        ({}, {"p0": "ready", "p1": "ready", "p2": "ready", "p3": "ready", "p4": "ready"}, [], [4]),
        ({}, {"p0": "ready", "p1": "ready", "p2": "ready", "p3": "ready", "p4": "going"}, [], []),
        ({}, {"p0": "old", "p1": "old", "p2": "old"}, [], [2]),
        ({}, {"p0": "old", "p1": "old", "p2": "waiting"}, [], []),
        ({}, {"p0": "old", "p1": "old", "p2": "ready"}, [], [1]),
        ({}, {"p0": "old", "p1": "old", "p2": "going"}, [], []),
        ({"updateStrategy": {"type": "OnDelete"}}, {"p0": "old", "p1": "old", "p2": "old"}, [], []),
        ({"podManagementPolicy": "Parallel"}, {"p1": "waiting"}, [0, 2], []),
        ({}, {"p0": "waiting", "p1": "ready", "p2": "ready", "p3": "ready"}, [], []),
        ({}, {"p0": "old", "p1": "waiting", "p2": "old"}, [], []),
        ({"podManagementPolicy": "Parallel"}, {"p0": "old", "p1": "old", "p2": "old"}, [], [2]),
        ({"podManagementPolicy": "Parallel"}, {"p0": "old", "p1": "old", "p2": "waiting"}, [], []),
        ({"podManagementPolicy": "Parallel", "replicas": 0}, {"p0": "ready", "p1": "ready"}, [], [0, 1]),
    ],
)
def test_next_step(spec: dict[str, Any], states: dict[str, str], made: list[int], deleted: list[int]) -> None:
    pods = pods_of(owner(**spec), **states)
    assert (pods.to_make(), pods.to_delete()) == (made, deleted)


@pytest.mark.parametrize(
    ("name", "place"), [("web-0", 0), ("web-12", 12), ("web-01", -1), ("web-x", -1), ("other-1", -1), ("web-²", -1)]
)
def test_place_of_a_pod_by_its_name(name: str, place: int) -> None:
    assert ordinal_of(owner(), name) == place


def test_a_pod_is_known_by_its_place() -> None:
    document = ordinal_pod(owner(), 2)
    assert document["metadata"]["name"] == "web-2"
    assert document["metadata"]["labels"] == LABELS | {
        "apps.kubernetes.io/pod-index": "2",
        "statefulset.kubernetes.io/pod-name": "web-2",
        REVISION_LABEL: revision_of(owner()),
    }
    assert document["metadata"]["ownerReferences"][0]["kind"] == "StatefulSet"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[KubeClient]:
    with ApiServer() as server:
        yield client_for(server.url, tmp_path)


@pytest.fixture
def running(client: KubeClient) -> Iterator[None]:
    part = StatefulSetController(client, SystemClock())
    part.start()
    yield
    part.stop()
    assert part.failure is None


def names(client: KubeClient) -> list[str]:
    return sorted(pod.metadata.name for pod in client.list(Pod).items)


def make_ready(client: KubeClient) -> bool:
    """Let all pods run; whether there is nothing left to do."""
    for pod in client.list(Pod).items:
        if not pod.status.conditions:
            client.merge_patch(Pod, pod.metadata.name, {"status": READY}, namespace=NAMESPACE, subresource="status")
    now = client.get(StatefulSetDocument, "web", namespace=NAMESPACE)
    status, wanted = now.status, now.spec["replicas"]
    is_seen = status.get("observedGeneration") == now.metadata.generation
    counts = {status.get(name, 0) for name in ("replicas", "readyReplicas", "updatedReplicas", "currentReplicas")}
    return is_seen and counts == {wanted} and status["currentRevision"] == status["updateRevision"]


def test_pods_come_in_order_are_replaced_by_a_new_template_and_go_from_the_last(
    client: KubeClient, running: None
) -> None:
    spec = {"replicas": 2, "selector": {"matchLabels": LABELS}, "template": template()}
    client.create(StatefulSetDocument, {"metadata": {"name": "web"}, "spec": spec}, namespace=NAMESPACE)
    wait_for(lambda: names(client) == ["web-0"], "the first pod alone")
    wait_for(lambda: make_ready(client), "both to run")
    assert names(client) == ["web-0", "web-1"]
    before = {pod.metadata.uid for pod in client.list(Pod).items}
    client.merge_patch(StatefulSetDocument, "web", {"spec": {"template": template("b")}}, namespace=NAMESPACE)
    wait_for(lambda: make_ready(client), "the new template to be everywhere")
    assert names(client) == ["web-0", "web-1"]
    assert not before & {pod.metadata.uid for pod in client.list(Pod).items}
    client.delete(Pod, "web-0", namespace=NAMESPACE)
    wait_for(lambda: make_ready(client) and len(names(client)) == 2, "the deleted pod to come back by its name")
    client.merge_patch(StatefulSetDocument, "web", {"spec": {"replicas": 1}}, namespace=NAMESPACE)
    # The pod that came back may not run yet: in order, none goes before it does.
    wait_for(lambda: make_ready(client) and names(client) == ["web-0"], "the last to go")
