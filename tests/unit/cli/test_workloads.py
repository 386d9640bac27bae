"""The pods that workloads make, as decisions read them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.errors import BadInputError
from dracaena.api.objects import Node, Pod
from dracaena.cli.document import read_documents
from dracaena.cli.manifests import Manifest, Source
from dracaena.cli.workloads import is_workload, workload_pods
from dracaena.controller.allocation.state.gangs import Sizes, family_of
from support.allocation import node

TEMPLATE = {
    "metadata": {"labels": {"app": "a"}, "annotations": {"note": "n"}},
    "spec": {"containers": [{"name": "main"}], "resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}]},
}
APIS = {
    "ReplicationController": "v1",
    "DaemonSet": "apps/v1",
    "Deployment": "apps/v1",
    "ReplicaSet": "apps/v1",
    "StatefulSet": "apps/v1",
    "CronJob": "batch/v1",
    "Job": "batch/v1",
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1",
}
COUNTS = st.none() | st.integers(0, 4)


def workload(kind: str, spec: dict[str, Any], name: str = "w", **meta: Any) -> Manifest:
    metadata = {"name": name, "namespace": "team", **meta}
    text = yaml.safe_dump({"apiVersion": APIS[kind], "kind": kind, "metadata": metadata, "spec": spec})
    (document,) = read_documents(text.encode())
    manifest = Manifest(document.value, Source("w.yaml", 1, document.place))
    assert is_workload(manifest)
    return manifest


def given_counts(**fields: int | None) -> dict[str, int]:
    return {name: number for name, number in fields.items() if number is not None}


def made(*manifests: Manifest, nodes: tuple[Node, ...] = (), present: tuple[Pod, ...] = ()) -> tuple[Pod, ...]:
    pods = workload_pods(manifests, nodes, present).pods
    assert len({pod.metadata.uid for pod in pods}) == len(pods)
    for pod in pods:
        assert pod.metadata.namespace == "team"
        assert pod.metadata.labels["app"] == "a"
        assert pod.metadata.annotations["note"] == "n"
        assert [claim.name for claim in pod.spec.resource_claims] == ["g"]
        assert [owner.controller for owner in pod.metadata.owner_references] == [True]
    return pods


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "ReplicationController"])
@given(replicas=COUNTS)
def test_replicas_are_pods_without_a_family(kind: str, replicas: int | None) -> None:
    pods = made(workload(kind, {**given_counts(replicas=replicas), "template": TEMPLATE}))
    assert len(pods) == (1 if replicas is None else replicas)
    assert {family_of(pod) for pod in pods} <= {None}


@given(replicas=COUNTS, start=COUNTS)
def test_the_pods_of_a_stateful_set_are_one_family_and_numbered(replicas: int | None, start: int | None) -> None:
    spec = {**given_counts(replicas=replicas), "template": TEMPLATE, "ordinals": given_counts(start=start)}
    one, other = made(workload("StatefulSet", spec)), made(workload("StatefulSet", spec, "other"))
    numbers = range(start or 0, (start or 0) + (1 if replicas is None else replicas))
    assert [pod.metadata.name for pod in one] == [f"w-{number}" for number in numbers]
    assert len({family_of(pod) for pod in one}) == (1 if one else 0)
    assert not {family_of(pod) for pod in one} & {family_of(pod) for pod in other}


@pytest.mark.parametrize(("kind", "path"), [("Job", ()), ("CronJob", ("jobTemplate", "spec"))])
@given(parallelism=COUNTS, completions=COUNTS, indexed=st.booleans())
def test_a_job_runs_its_parallelism_and_never_more_than_its_completions(
    kind: str, path: tuple[str, ...], parallelism: int | None, completions: int | None, *, indexed: bool
) -> None:
    spec: dict[str, Any] = {**given_counts(parallelism=parallelism, completions=completions), "template": TEMPLATE}
    if indexed:
        spec["completionMode"] = "Indexed"
    for step in reversed(path):
        spec = {step: spec}
    pods = made(workload(kind, spec))
    at_once = 1 if parallelism is None else parallelism
    assert len(pods) == (at_once if completions is None else min(at_once, completions))
    families = {family_of(pod) for pod in pods}
    assert len(families) == 1 if indexed and pods else families <= {None}


@given(
    jobs=st.lists(st.tuples(COUNTS, COUNTS), max_size=3),
)
def test_the_pods_of_all_jobs_of_a_job_set_are_one_family(jobs: list[tuple[int | None, int | None]]) -> None:
    listed = [
        {
            "name": f"j{number}",
            **given_counts(replicas=replicas),
            "template": {"spec": {**given_counts(parallelism=parallelism), "template": TEMPLATE}},
        }
        for number, (replicas, parallelism) in enumerate(jobs)
    ]
    pods = made(workload("JobSet", {"replicatedJobs": listed}))
    sizes = [(1 if a is None else a) * (1 if b is None else b) for a, b in jobs]
    assert len(pods) == sum(sizes)
    families = {family_of(pod) for pod in pods}
    assert {family.kind for family in families if family} == ({"JobSet"} if pods else set())
    assert len(families) == min(1, len(pods))


@given(groups=COUNTS, size=COUNTS, has_leader=st.booleans())
def test_each_group_of_a_leader_worker_set_is_a_family_that_tells_its_size(
    groups: int | None, size: int | None, *, has_leader: bool
) -> None:
    leader = msgspec.to_builtins(TEMPLATE)
    leader["spec"]["priority"] = 5
    part = {**given_counts(size=size), "workerTemplate": TEMPLATE, **({"leaderTemplate": leader} if has_leader else {})}
    pods = made(workload("LeaderWorkerSet", {**given_counts(replicas=groups), "leaderWorkerTemplate": part}))
    of_group = 1 if size is None else size
    assert len(pods) == (1 if groups is None else groups) * of_group
    assert set(Counter(family_of(pod) for pod in pods).values()) <= {of_group}
    assert {gang.size for pod in pods if (gang := Sizes().gang_of(pod))} <= {of_group}
    assert sum(pod.spec.priority == 5 for pod in pods) == (len(pods) // of_group if has_leader and of_group else 0)


def test_a_daemon_set_makes_a_pod_for_each_node_that_it_may_run_on_and_that_node_alone() -> None:
    template = msgspec.to_builtins(TEMPLATE)
    template["spec"]["nodeSelector"] = {"gpu": "yes"}
    template["spec"]["tolerations"] = [{"key": "mine", "operator": "Exists"}]
    taint = {"key": "mine", "effect": "NoSchedule"}
    nodes = tuple(
        msgspec.convert({"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints, **spec}}, Node)
        for name, labels, taints, spec in (
            ("b", {"gpu": "yes"}, [], {}),
            ("a", {"gpu": "yes"}, [taint], {}),
            ("cordoned", {"gpu": "yes"}, [], {"unschedulable": True}),
            ("other", {"gpu": "no"}, [], {}),
            ("tainted", {"gpu": "yes"}, [taint | {"key": "others"}], {}),
        )
    )
    pods = made(workload("DaemonSet", {"template": template}), nodes=nodes)
    assert [pod.metadata.name for pod in pods] == ["w-a", "w-b", "w-cordoned"]
    for pod in pods:
        ((field,),) = (
            term["matchFields"]
            for term in pod.spec.affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
                "nodeSelectorTerms"
            ]
        )
        assert field["values"] == [pod.metadata.name.removeprefix("w-")]


def there(name: str, owner: dict[str, Any], phase: str = "Running", **fields: Any) -> Pod:
    labels = fields.pop("labels", {})
    meta = {"name": name, "namespace": "team", "labels": labels, "ownerReferences": [owner | {"controller": True}]}
    return msgspec.convert({"metadata": meta, "spec": fields, "status": {"phase": phase}}, Pod)


def test_pods_that_a_workload_of_a_cluster_has_are_not_made_again() -> None:
    job = {"parallelism": 3, "completions": 4, "completionMode": "Indexed", "template": TEMPLATE}
    cases = [
        (
            workload("StatefulSet", {"replicas": 3, "template": TEMPLATE}, uid="u"),
            [there("w-1", {"uid": "u"})],
            ["w-0", "w-2"],
        ),
        (
            workload("Deployment", {"replicas": 3, "template": TEMPLATE}, uid="u"),
            [
                there(
                    "w-abc-x", {"uid": "r", "kind": "ReplicaSet", "name": "w-abc"}, labels={"pod-template-hash": "abc"}
                ),
                there(
                    "z-abc-x", {"uid": "s", "kind": "ReplicaSet", "name": "z-abc"}, labels={"pod-template-hash": "abc"}
                ),
            ],
            ["w-0", "w-1"],
        ),
        (
            workload("Job", job, uid="u"),
            [there("w-0-xxxxx", {"uid": "u"}, "Succeeded"), there("w-1-xxxxx", {"uid": "u"})],
            ["w-2", "w-3"],
        ),
        (workload("Job", job, uid="u"), [there("w-0-xxxxx", {"uid": "u"}, "Failed")], ["w-0", "w-1", "w-2"]),
        (
            workload("LeaderWorkerSet", {"leaderWorkerTemplate": {"size": 3, "workerTemplate": TEMPLATE}}, uid="u"),
            [there("w-0", {"uid": "s"}, labels={"leaderworkerset.sigs.k8s.io/name": "w"})],
            ["w-0-1", "w-0-2"],
        ),
        (
            workload("DaemonSet", {"template": TEMPLATE}, uid="u"),
            [there("w-xxxxx", {"uid": "u"}, nodeName="n1")],
            ["w-n2"],
        ),
    ]
    for manifest, present, names in cases:
        pods = made(manifest, nodes=(node("n1"), node("n2")), present=tuple(present))
        assert [pod.metadata.name for pod in pods] == names


def test_what_a_workload_of_the_input_owns_makes_no_pods_of_its_own() -> None:
    owner = [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "w", "uid": "u", "controller": True}]
    deployment = workload("Deployment", {"replicas": 3, "template": TEMPLATE}, uid="u")
    replica_set = workload("ReplicaSet", {"replicas": 3, "template": TEMPLATE}, "w-abc", uid="r", ownerReferences=owner)
    present = (there("w-abc-x", {"uid": "r"}),)
    assert len(made(deployment, replica_set, present=present)) == 2
    assert len(made(replica_set, present=present)) == 2


def test_a_suspended_workload_is_taken_as_if_it_were_not_and_reported() -> None:
    found = workload_pods([workload("Job", {"suspend": True, "template": TEMPLATE})], (), ())
    assert len(found.pods) == 1
    assert found.remarks == ("Job team/w is suspended: simulated as if it were not",)


@pytest.mark.parametrize(
    ("kind", "spec", "said"),
    [
        ("Deployment", {}, "w.yaml:6:1: Deployment team/w: spec.template: no pod template"),
        ("Deployment", {"template": 5}, "Deployment team/w: spec.template: no pod template"),
        (
            "Deployment",
            {"template": TEMPLATE, "replicas": -1},
            "spec.replicas: -1, expected a whole number of 0 or more",
        ),
        ("Deployment", {"template": TEMPLATE, "replicas": True}, "spec.replicas: True, expected a whole number"),
        ("Deployment", {"template": TEMPLATE, "replicas": 100_001}, "makes more than 100,000 pods"),
        ("Deployment", {"template": {"spec": {"containers": 5}}}, "Pod does not decode"),
        ("Job", {"template": TEMPLATE, "parallelism": "2"}, "spec.parallelism: '2', expected a whole number"),
        (
            "JobSet",
            {"replicatedJobs": [{"name": "a"}]},
            "spec.replicatedJobs[0].template.spec.template: no pod template",
        ),
        ("LeaderWorkerSet", {"leaderWorkerTemplate": []}, "spec.leaderWorkerTemplate.workerTemplate: no pod template"),
    ],
)
def test_what_cannot_be_read_is_reported_with_its_place(kind: str, spec: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInputError) as raised:
        workload_pods([workload(kind, spec)], (), ())
    assert str(raised.value).startswith("w.yaml:")
    assert said in str(raised.value)


def test_another_workload_of_the_same_name_is_an_error_and_the_same_one_is_not() -> None:
    one, other = ({"replicas": replicas, "template": TEMPLATE} for replicas in (1, 2))
    assert len(made(workload("Deployment", one), workload("Deployment", one), workload("StatefulSet", one))) == 2
    with pytest.raises(BadInputError, match="another Deployment team/w is already in the input"):
        made(workload("Deployment", one), workload("Deployment", other))


def test_the_manifests_of_kinds_without_pods_are_no_workloads() -> None:
    for path in sorted((Path(__file__).parents[3] / "deploy" / "deviceclasses").glob("*.yaml")):
        for document in read_documents(path.read_bytes()):
            if document.value:
                assert not is_workload(Manifest(document.value, Source(str(path), 1, document.place)))
