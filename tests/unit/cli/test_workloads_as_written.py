"""What people write, by the kinds of their tools: what `validate --strict` and `simulate --strict` answer to each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.simulated import Run, written

POD: dict[str, Any] = {
    "spec": {
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "two"}],
        "containers": [{"name": "main", "image": "ubuntu:24.04", "resources": {"claims": [{"name": "gpus"}]}}],
    }
}
TEMPLATE: dict[str, Any] = {"template": POD}


def some(replicas: int) -> dict[str, Any]:
    return {"replicas": replicas, **TEMPLATE}


JOB = {"template": {"spec": {"parallelism": 2, **TEMPLATE}}}
LWS = {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": POD}}
RAY = {"headGroupSpec": TEMPLATE, "workerGroupSpecs": [{"groupName": "gpu", **some(3)}]}
KINDS: list[tuple[str, str, dict[str, Any], int]] = [
    ("apps/v1", "Deployment", some(3), 3),
    ("apps/v1", "ReplicaSet", some(2), 2),
    ("apps/v1", "StatefulSet", some(2), 2),
    ("batch/v1", "Job", {"parallelism": 2, "completions": 4, **TEMPLATE}, 2),
    ("batch/v1", "CronJob", {"jobTemplate": {"spec": TEMPLATE}}, 1),
    ("v1", "ReplicationController", some(1), 1),
    ("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": [{"name": "a", "replicas": 2, **JOB}]}, 4),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", LWS, 4),
    ("ray.io/v1", "RayCluster", RAY, 4),
    ("ray.io/v1", "RayJob", {"rayClusterSpec": RAY}, 4),
    ("kubeflow.org/v1", "PyTorchJob", {"pytorchReplicaSpecs": {"Master": TEMPLATE, "Worker": some(2)}}, 3),
    ("kubeflow.org/v2beta1", "MPIJob", {"mpiReplicaSpecs": {"Launcher": some(1), "Worker": some(2)}}, 3),
    ("batch.volcano.sh/v1alpha1", "Job", {"tasks": [some(1), some(3)]}, 4),
    ("argoproj.io/v1alpha1", "Rollout", some(2), 2),
    ("serving.knative.dev/v1", "Service", TEMPLATE, 1),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob", {"trainer": {"numNodes": 2}}, 0),
    ("apps.nvidia.com/v1alpha1", "NIMService", {"replicas": 1, "resources": {"limits": {"nvidia.com/gpu": 1}}}, 0),
]
"""API version, kind, spec, and the pods to simulate; 0: the kind has no pod template."""


@pytest.mark.parametrize(("api_version", "kind", "spec", "pods"), KINDS)
def test_each_kind_that_people_write_is_checked_and_simulated_or_named(
    api_version: str, kind: str, spec: dict[str, Any], pods: int, run: Run, tmp_path: Path
) -> None:
    document = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "w"}, "spec": spec}
    path = str(written(tmp_path / "w.yaml", document))
    named = f"not understood: {kind} w ({path}:1)"

    checked = run("validate", "--strict", "-o", "json", path)
    assert json.loads(checked.out)["summary"]["notChecked"] == (0 if pods else 1)
    simulated = run("simulate", "--strict", "-o", "json", "-f", path)
    outcomes = json.loads(simulated.out)
    assert len({outcome["pod"] for outcome in outcomes}) == len(outcomes) == pods
    for answer in (checked, simulated):
        assert (answer.code, named in answer.err) == ((0, False) if pods else (2, True))
    assert run("validate", path).code == run("simulate", "-f", path).code == 0


def test_what_a_server_has_of_an_unknown_kind_makes_no_pods_again(run: Run, tmp_path: Path) -> None:
    document = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "w", "uid": "u"}, "spec": RAY}
    path = str(written(tmp_path / "w.yaml", document))
    assert json.loads(run("simulate", "-o", "json", "-f", path).out) == []


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"template": {"spec": {"containers": [{"image": "a"}]}}}, "missing required field `name`"),
        ({"replicas": "3", **TEMPLATE}, "'3', expected a whole number of 0 or more"),
        ({"template": {"spec": {"containers": ["a"]}}}, "Expected `object`, got `str`"),
    ],
)
def test_a_template_that_only_its_own_api_understands_leaves_the_rest_of_the_input_simulated(
    spec: dict[str, Any], why: str, run: Run, tmp_path: Path
) -> None:
    """A container of a Knative Service, for one, needs no name."""
    odd = written(
        tmp_path / "odd.yaml",
        {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "w"}, "spec": spec},
    )
    good = written(
        tmp_path / "good.yaml",
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": some(2)},
    )
    for options, code in ((["--strict"], 2), ([], 0)):
        answer = run("simulate", *options, "-o", "json", "-f", str(odd), "-f", str(good))
        assert answer.code == code
        assert len(json.loads(answer.out)) == 2
        assert "dracaena: Service is not simulated: " in answer.err
        assert why in answer.err


def test_jobs_of_two_groups_may_have_one_name(run: Run, tmp_path: Path) -> None:
    named = {"kind": "Job", "metadata": {"name": "w"}}
    ours = written(tmp_path / "a.yaml", {"apiVersion": "batch/v1", **named, "spec": TEMPLATE})
    theirs = written(
        tmp_path / "b.yaml", {"apiVersion": "batch.volcano.sh/v1alpha1", **named, "spec": {"tasks": [some(2)]}}
    )
    answer = run("simulate", "-o", "json", "-f", str(ours), "-f", str(theirs))
    assert (answer.code, len(json.loads(answer.out))) == (0, 3)
