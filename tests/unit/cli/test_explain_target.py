"""How `explain` reads what it is asked about, and finds a workload's pods."""

from __future__ import annotations

import pytest

from dracaena.api.errors import BadInputError
from dracaena.api.objects import ObjectMeta, OwnerReference, Pod, PodSpec
from dracaena.cli.explain_target import Target, read_target

HASH = "pod-template-hash"


def pod(name: str, kind: str, owner: str, *, node: str = "", labels: dict[str, str] | None = None) -> Pod:
    owners = [OwnerReference(uid=f"uid-{owner}", kind=kind, name=owner, controller=True)] if owner else []
    meta = ObjectMeta(name=name, namespace="team", uid=name, owner_references=owners, labels=labels or {})
    return Pod(metadata=meta, spec=PodSpec(node_name=node))


PODS = [
    pod("serve-5d-a", "ReplicaSet", "serve-5d", node="n", labels={HASH: "5d"}),
    pod("serve-5d-b", "ReplicaSet", "serve-5d", labels={HASH: "5d"}),
    pod("serve-b-7f-a", "ReplicaSet", "serve-b-7f", labels={HASH: "7f"}),
    pod("by-hand-a", "ReplicaSet", "by-hand"),
    pod("train-0", "Job", "train"),
    pod("alone", "", ""),
]


def names(kind: str, name: str) -> list[str]:
    return [one.metadata.name for one in Target(kind, name).owned(PODS)]


@pytest.mark.parametrize(
    ("words", "kind", "name"),
    [
        (["pod", "x"], "pod", "x"),
        (["pod/x"], "pod", "x"),
        (["po", "x"], "pod", "x"),
        (["Pods/x"], "pod", "x"),
        (["resourceclaim/x"], "claim", "x"),
        (["deploy/x"], "deployment", "x"),
        (["sts", "x"], "statefulset", "x"),
        (["RayCluster", "x"], "raycluster", "x"),
    ],
)
def test_kind_and_name_are_read_as_kubectl_reads_them(words: list[str], kind: str, name: str) -> None:
    assert read_target(words) == Target(kind, name)


@pytest.mark.parametrize("words", [["x"], ["pod/"], ["/x"], ["pod/x", "y"], ["pod", "x", "y"], ["a/b/c"], ["pod", ""]])
def test_anything_else_is_refused_with_the_form_that_was_expected(words: list[str]) -> None:
    with pytest.raises(BadInputError, match="expected KIND NAME or KIND/NAME"):
        read_target(words)


def test_pods_without_a_node_come_first() -> None:
    assert names("replicaset", "serve-5d") == ["serve-5d-b", "serve-5d-a"]


def test_the_pods_of_a_deployment_are_those_of_its_replica_sets() -> None:
    assert names("deployment", "serve") == ["serve-5d-b", "serve-5d-a"]
    assert names("deployment", "serve-b") == ["serve-b-7f-a"]
    assert names("deployment", "by") == names("deployment", "by-hand") == []


def test_a_workload_of_any_kind_has_the_pods_that_name_it() -> None:
    assert names("job", "train") == ["train-0"]
    assert names("statefulset", "train") == []


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        ("deployment", "server", "did you mean serve?"),
        ("job", "trian", "did you mean train?"),
        ("deploymnet", "serve", "did you mean deployment?"),
        ("job", "unlike", "it does not exist, or has made no pods yet"),
    ],
)
def test_a_workload_without_pods_is_named_with_what_was_probably_meant(kind: str, name: str, hint: str) -> None:
    assert Target(kind, name).why_none("team", PODS) == f"no pod in namespace team belongs to {kind} {name}: {hint}"
