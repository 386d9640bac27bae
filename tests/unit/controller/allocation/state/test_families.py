from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from dracaena.api.objects import Pod
from dracaena.controller.allocation.state.families import Families, Family, Kin, family_of, family_size
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.cache.pods import kept_pod
from support.allocation import DRIVER

INDEX = {"batch.kubernetes.io/job-completion-index": "0"}
JOB = {"batch.kubernetes.io/controller-uid": "j", **INDEX}
JOB_SET = {"jobset.sigs.k8s.io/jobset-uid": "s"}
GROUP = {"leaderworkerset.sigs.k8s.io/group-key": "g"}
SIZE = "leaderworkerset.sigs.k8s.io/size"


def owner(kind: str, api_version: str = "apps/v1", *, controller: bool = True, uid: str = "o") -> dict[str, Any]:
    return {"uid": uid, "kind": kind, "apiVersion": api_version, "controller": controller, "name": "o"}


def told(
    labels: dict[str, str] | None = None,
    *owners: dict[str, Any],
    group: str = "",
    annotations: dict[str, str] | None = None,
    name: str = "p",
) -> Pod:
    metadata = {
        "name": name,
        "namespace": "team",
        "uid": name,
        "labels": labels or {},
        "annotations": annotations or {},
        "ownerReferences": list(owners),
    }
    spec: dict[str, Any] = {"resourceClaims": [{"name": "gpus", "resourceClaimName": "c"}]}
    if group:
        spec["schedulingGroup"] = {"podGroupName": group}
    return msgspec.convert({"metadata": metadata, "spec": spec}, Pod)


@pytest.mark.parametrize(
    ("pod", "kind", "name"),
    [
        (told(JOB), "Job", "j"),
        (told({**JOB, **JOB_SET}), "JobSet", "s"),
        (told(GROUP, owner("StatefulSet")), "LeaderWorkerSet", "g"),
        (told(None, owner("StatefulSet")), "StatefulSet", "o"),
        (told({**JOB, **GROUP, **JOB_SET}, owner("StatefulSet"), group="pg"), "PodGroup", "pg"),
    ],
)
def test_a_pod_names_its_family_whole_and_as_it_is_kept(pod: Pod, kind: str, name: str) -> None:
    assert family_of(pod) == Family("team", kind, name)
    assert family_of(kept_pod(pod)) == family_of(pod)
    assert Inventory(DRIVER).kin(pod) == Kin({}, None)


@pytest.mark.parametrize(
    "pod",
    [
        told(),
        told({"batch.kubernetes.io/controller-uid": "", **INDEX}),
        told({"batch.kubernetes.io/controller-uid": "j"}),
        told(INDEX),
        told(None, owner("ReplicaSet")),
        told(None, owner("StatefulSet", "example.com/v1")),
        told(None, owner("StatefulSet", controller=False)),
        told(None, owner("StatefulSet", uid="u" * 65)),
    ],
)
def test_other_pods_have_none(pod: Pod) -> None:
    assert family_of(pod) is None
    assert family_of(kept_pod(pod)) is None
    assert Inventory(DRIVER).kin(pod) is None


@pytest.mark.parametrize(
    ("text", "size"),
    [("4", 4), ("1", 1), ("0", None), ("-4", None), ("four", None), ("", None), ("٤", None), ("9" * 5_000, None)],
)
def test_only_a_leader_worker_set_says_how_many_there_are(text: str, size: int | None) -> None:
    pod = told(GROUP, annotations={SIZE: text, "other": "x"})
    assert family_size(pod) == size
    assert family_size(kept_pod(pod)) == size
    assert family_size(told(JOB, annotations={SIZE: text})) is None
    assert "other" not in kept_pod(pod).metadata.annotations


def test_nothing_of_it_is_kept_of_a_pod_without_claims() -> None:
    pod = told(GROUP, owner("StatefulSet"), annotations={SIZE: "4"})
    kept = kept_pod(msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, resource_claims=[])))
    assert (kept.metadata.annotations, kept.metadata.owner_references) == ({}, [])


def test_the_index_knows_what_the_last_calls_said() -> None:
    """Against a list of all pods, after each of many random changes."""
    chance = random.Random(1)
    inventory, books = Inventory(DRIVER), dict[str, tuple[Pod, str]]()
    for _ in range(3_000):
        labels = chance.choice([JOB, {**JOB, **GROUP}, {}])
        size = {SIZE: str(chance.choice([1, 3, 20]))}
        pod = told(labels, name=f"p{chance.randrange(12)}", annotations=size)
        node = chance.choice([None, "a", "b", "c"])
        inventory.place(pod, node)
        books.pop(pod.key, None)
        if node is not None:
            books[pod.key] = pod, node
        asking = told(chance.choice([JOB, GROUP]), name=f"p{chance.randrange(15)}", annotations=size)
        siblings: dict[str, int] = {}
        for key, (other, on) in books.items():
            if key != asking.key and family_of(other) == family_of(asking):
                siblings[on] = siblings.get(on, 0) + 1
        known = family_size(asking)
        left = None if known is None else max(1, known - sum(siblings.values()))
        assert inventory.kin(asking) == Kin(siblings, left)
    for key, (pod, _) in books.items():
        inventory.place(pod, None)
        assert key == pod.key
    assert not inventory.families._nodes
    assert not inventory.families.placed


def test_families_of_two_namespaces_are_two() -> None:
    families, pod = Families(), told(JOB)
    families.place(pod, "a")
    stranger = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, namespace="other"))
    assert families.of(stranger) == Kin({}, None)
