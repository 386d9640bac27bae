"""The stand-ins for the deployment and the replica set controller against the embedded API server over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.objects import Node, Pod
from dracaena.demo.apiserver import ApiServer
from dracaena.demo.controllers.deployments import HASH_LABEL, REVISION, DeploymentController
from dracaena.demo.controllers.garbage import GarbageCollector
from dracaena.demo.controllers.replica_sets import ReplicaSetController
from dracaena.demo.objects import DeploymentDocument, ReplicaSetDocument
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import KubeError, NotFoundError
from dracaena.kube.events import Event
from dracaena.process.clock import SystemClock
from support.kube import client_for, wait_for

NAMESPACE = "default"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[KubeClient]:
    with ApiServer() as server:
        client = client_for(server.url, tmp_path)
        kinds = (DeploymentController, ReplicaSetController, GarbageCollector)
        parts = [kind(client, SystemClock()) for kind in kinds]
        for part in parts:
            part.start()
        yield client
        for part in parts:
            part.stop()
            assert part.failure is None


def create(client: KubeClient, **spec: Any) -> None:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "a"}]}}
    document = {"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": labels}, "template": template} | spec}
    client.create(DeploymentDocument, document, namespace=NAMESPACE)


def deployment(client: KubeClient) -> DeploymentDocument:
    return client.get(DeploymentDocument, "web", namespace=NAMESPACE)


def change(client: KubeClient, **spec: Any) -> None:
    client.merge_patch(DeploymentDocument, "web", {"spec": spec}, namespace=NAMESPACE)


def use_image(client: KubeClient, image: str) -> None:
    change(client, template={"spec": {"containers": [{"name": "main", "image": image}]}})


def sets(client: KubeClient) -> list[ReplicaSetDocument]:
    return sorted(client.list(ReplicaSetDocument).items, key=lambda one: int(one.metadata.annotations[REVISION]))


def make_ready(client: KubeClient) -> None:
    """What kubelets do; a pod that the controllers deleted since it was listed is nothing to them."""
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    for pod in client.list(Pod).items:
        if pod.status.phase == "Pending":
            with suppress(NotFoundError):
                client.merge_patch(Pod, pod.metadata.name, ready, namespace=NAMESPACE, subresource="status")


def progress(client: KubeClient) -> tuple[int, str]:
    """How many pods of the present template are available, and what the deployment says of its way there."""
    now = deployment(client)
    if now.status.get("observedGeneration") != now.metadata.generation:
        return 0, ""
    said = {one["type"]: one["reason"] for one in now.status.get("conditions", ())}
    return now.status.get("availableReplicas", 0), said.get("Progressing", "")


def roll_out(client: KubeClient, pods: int) -> None:
    def is_done() -> bool:
        make_ready(client)
        return progress(client) == (pods, "NewReplicaSetAvailable")

    wait_for(is_done, "the rollout")


def test_a_deployment_has_a_replica_set_and_pods_with_its_hash(client: KubeClient) -> None:
    create(client, replicas=2)
    wait_for(lambda: len(client.list(Pod).items) == 2, "two pods")
    (only,) = sets(client)
    label = only.metadata.labels[HASH_LABEL]
    assert only.metadata.name == f"web-{label}"
    assert only.spec["selector"]["matchLabels"] == {"app": "web", HASH_LABEL: label}
    for pod in client.list(Pod).items:
        assert pod.metadata.name.startswith(f"web-{label}-")
        assert pod.metadata.labels == {"app": "web", HASH_LABEL: label}
        assert [owner.uid for owner in pod.metadata.owner_references] == [only.metadata.uid]
    wait_for(lambda: deployment(client).status.get("unavailableReplicas") == 2, "the status")
    wait_for(lambda: progress(client)[1] == "ReplicaSetUpdated", "the condition")
    roll_out(client, 2)
    status = deployment(client).status
    assert (status["replicas"], status["updatedReplicas"], status["readyReplicas"]) == (2, 2, 2)
    assert deployment(client).metadata.annotations[REVISION] == "1"


def test_another_template_is_rolled_out_and_the_one_before_comes_back(client: KubeClient) -> None:
    create(client, replicas=3)
    roll_out(client, 3)
    use_image(client, "b")
    roll_out(client, 3)
    old, new = sets(client)
    assert (old.spec["replicas"], new.spec["replicas"]) == (0, 3)
    wait_for(lambda: len(client.list(Pod).items) == 3, "the old pods to go")
    use_image(client, "a")
    roll_out(client, 3)
    assert [one.metadata.uid for one in sets(client)] == [new.metadata.uid, old.metadata.uid]
    assert deployment(client).metadata.annotations[REVISION] == "3"

    def told() -> list[str]:
        return [event.message for event in client.list(Event).items if event.reason == "ScalingReplicaSet"]

    wait_for(lambda: f"Scaled up replica set {old.metadata.name} from 0 to 3" in told(), "the Event")


def test_a_pod_that_is_deleted_or_ends_is_replaced(client: KubeClient) -> None:
    create(client, replicas=2)
    roll_out(client, 2)
    first, second = client.list(Pod).items
    client.delete(Pod, first.metadata.name, namespace=NAMESPACE)
    client.merge_patch(
        Pod, second.metadata.name, {"status": {"phase": "Failed"}}, namespace=NAMESPACE, subresource="status"
    )

    def are_others_running() -> bool:
        make_ready(client)
        running = {pod.metadata.name for pod in client.list(Pod).items if pod.status.phase == "Running"}
        return len(running - {first.metadata.name, second.metadata.name}) == 2

    wait_for(are_others_running, "two other pods")


def test_fewer_pods_are_kept_that_run_and_history_is_forgotten(client: KubeClient) -> None:
    create(client, replicas=2, revisionHistoryLimit=1)
    roll_out(client, 2)
    runs = {pod.metadata.name for pod in client.list(Pod).items}
    change(client, replicas=4)
    wait_for(lambda: len(client.list(Pod).items) == 4, "more pods")
    change(client, replicas=2)
    wait_for(lambda: {pod.metadata.name for pod in client.list(Pod).items} == runs, "those that run")
    for image in ("b", "c"):
        use_image(client, image)
        roll_out(client, 2)
    wait_for(lambda: len(sets(client)) == 2, "the oldest replica set to go")


def test_a_deployment_is_deleted_with_all_that_it_made(client: KubeClient) -> None:
    create(client, replicas=2)
    wait_for(lambda: len(client.list(Pod).items) == 2, "two pods")
    client.delete(DeploymentDocument, "web", namespace=NAMESPACE)
    wait_for(lambda: not sets(client) and not client.list(Pod).items, "replica sets and pods to go")


def orphan_all(client: KubeClient) -> Sequence[ReplicaSetDocument]:
    """Delete the deployment without what it made; its replica sets then."""
    client.delete(DeploymentDocument, "web", namespace=NAMESPACE, propagation_policy="Orphan")
    wait_for(lambda: not client.list(DeploymentDocument).items, "the deployment to go")
    left = client.list(ReplicaSetDocument).items
    assert [one.metadata.owner_references for one in left] == [[] for _ in left]
    return left


def test_a_deployment_made_anew_takes_over_what_the_one_before_left(client: KubeClient) -> None:
    create(client, replicas=2)
    roll_out(client, 2)
    use_image(client, "b")
    roll_out(client, 2)
    wait_for(lambda: len(client.list(Pod).items) == 2, "the old pods to go")
    runs = {pod.metadata.uid for pod in client.list(Pod).items}
    left = orphan_all(client)
    assert len(left) == 2
    create(client, replicas=2)
    use_image(client, "b")
    roll_out(client, 2)
    wait_for(lambda: {pod.metadata.uid for pod in client.list(Pod).items} == runs, "the pods of the first image to go")
    mine = deployment(client).metadata.uid
    assert {one.metadata.uid for one in sets(client)} == {one.metadata.uid for one in left}
    assert [[owner.uid for owner in one.metadata.owner_references] for one in sets(client)] == [[mine], [mine]]


class Interrupted:
    """A client: right after its first read, something happens, once."""

    def __init__(self, client: KubeClient, happens: Callable[[], object]) -> None:
        self._client = client
        self._happens = [happens]

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*arguments: Any, **named: Any) -> Any:
            answer = method(*arguments, **named)
            while name in ("get", "list") and self._happens:
                self._happens.pop()()
            return answer

        return call


def test_a_replica_set_that_is_orphaned_during_a_look_is_not_adopted_by_who_is_gone(client: KubeClient) -> None:
    create(client, replicas=1)
    roll_out(client, 1)
    seen = deployment(client)
    interrupted: Any = Interrupted(client, lambda: orphan_all(client))
    with suppress(NotFoundError):
        DeploymentController(interrupted, SystemClock())._sync(seen)
    (left,) = client.list(ReplicaSetDocument).items
    assert left.metadata.owner_references == []


def test_a_replica_set_made_by_hand_is_adopted_with_its_other_owners(client: KubeClient) -> None:
    labels = {"app": "web", "by": "hand"}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": "n",
        "uid": client.create(Node, {"metadata": {"name": "n"}}).metadata.uid,
    }
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "a"}]}}
    metadata = {"labels": labels, "ownerReferences": [node], "annotations": {REVISION: "none of ours"}}
    for name in ("old", "other"):
        shown = metadata | {"name": name, "labels": labels if name == "old" else {"app": "other"}}
        document = {
            "metadata": shown,
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
        }
        client.create(ReplicaSetDocument, document, namespace=NAMESPACE)
    create(client, replicas=1)
    roll_out(client, 1)
    one, other = (client.get(ReplicaSetDocument, name, namespace=NAMESPACE) for name in ("old", "other"))
    owners = [(owner.kind, owner.controller) for owner in one.metadata.owner_references]
    assert sorted(owners) == [("Deployment", True), ("Node", False)]
    assert one.spec["replicas"] == 0
    assert [owner.kind for owner in other.metadata.owner_references] == ["Node"]
    assert other.spec["replicas"] == 1


def test_a_name_that_another_has_leads_to_another_name(client: KubeClient) -> None:
    create(client, replicas=1)
    roll_out(client, 1)
    (left,) = orphan_all(client)
    client.merge_patch(
        ReplicaSetDocument, left.metadata.name, {"metadata": {"labels": {"app": "another"}}}, namespace=NAMESPACE
    )
    create(client, replicas=1)
    roll_out(client, 1)
    (new,) = (one for one in client.list(ReplicaSetDocument).items if one.metadata.uid != left.metadata.uid)
    assert deployment(client).status["collisionCount"] == 1
    assert new.metadata.name == f"web-{new.metadata.labels[HASH_LABEL]}" != left.metadata.name
    assert client.get(ReplicaSetDocument, left.metadata.name, namespace=NAMESPACE).spec["replicas"] == 1
    use_image(client, "b")
    roll_out(client, 1)
    use_image(client, "a")
    roll_out(client, 1)
    assert deployment(client).status["collisionCount"] == 1
    assert new.metadata.uid in {one.metadata.uid for one in client.list(ReplicaSetDocument).items}
    assert len(client.list(ReplicaSetDocument).items) == 3


@pytest.mark.parametrize(("count", "reason"), [(0, "cannot be decremented"), (-1, "greater than or equal to 0")])
def test_collisions_are_never_counted_down(client: KubeClient, count: int, reason: str) -> None:
    create(client, replicas=0)

    def patch(collisions: int) -> None:
        status = {"status": {"collisionCount": collisions}}
        client.merge_patch(DeploymentDocument, "web", status, namespace=NAMESPACE, subresource="status")

    patch(1)
    with pytest.raises(KubeError, match=reason):
        patch(count)
    assert deployment(client).status["collisionCount"] == 1
