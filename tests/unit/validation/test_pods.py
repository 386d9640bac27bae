"""The claims of pods and of what makes pods, and what pods and claims of one input say about each other."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dracaena.validation import Severity, is_checked, is_understood, validate_all
from support.api_documents import ABSENT, claim, device_class, edited, errors, paths, pod, pod_spec, template, warnings

CLAIM = "spec.resourceClaims[0]"
USE = "spec.containers[0].resources.claims"


GOOD = [
    ("spec.resourceClaims", []),
    ("spec", {}),
    (f"{USE}[0].request", ""),
    (f"{USE}[0].request", ABSENT),
    (f"{USE}[2]", {"name": "gpus", "request": "more"}),
    ("spec.containers[0].resources.limits", {"cpu": "anything: not about claims"}),
    ("spec.anything", {"not": "about claims"}),
]


@pytest.mark.parametrize(("path", "value"), GOOD)
def test_what_the_server_takes_has_no_error(path: str, value: Any) -> None:
    document = edited(pod(), path, value)
    if path == "spec.resourceClaims":
        document = edited(edited(document, USE, []), "spec.initContainers", [])
    assert errors(document) == []


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ({"limits": {"nvidia.com/gpu": 4}}, "the extended resource nvidia.com/gpu"),
        ({"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "2"}}, "extended resource nvidia.com/gpu"),
        ({"requests": {"nvidia.com/gpu.shared": 1}}, "the extended resource nvidia.com/gpu.shared"),
        ({"limits": {"nvidia.com/mig-1g.10gb": 1}}, "the extended resource nvidia.com/mig-1g.10gb"),
        (
            {"limits": {"deviceclass.resource.kubernetes.io/gpu.dracaena.dev": 1}},
            "the extended resource deviceclass.resource.kubernetes.io/gpu.dracaena.dev",
        ),
    ],
)
def test_an_extended_resource_is_reported_once_with_what_to_do(resources: dict[str, Any], words: str) -> None:
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    containers = [{"name": "main", "image": "a", "resources": resources}]
    (told,) = warnings({**document, "spec": {"containers": containers}})
    assert words in told
    assert ("gpu.dracaena.dev/rewrite=true on the namespace" in told) is words.endswith(("nvidia.com/gpu", "1g.10gb"))
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}
    (told,) = warnings({**deployment, "spec": {"template": {"spec": {"containers": containers}}}})
    assert told.startswith("spec.template.spec.containers[0].resources.")


@pytest.mark.parametrize("size", ["0", "-4", "4097", "four", "", "4.0"])
def test_a_gang_without_a_size_is_reported_in_pods_and_in_templates(size: str) -> None:
    labels = {"gpu.dracaena.dev/gang": size}
    metadata = {"name": "p", "labels": labels}
    (told,) = warnings({**pod(), "metadata": metadata})
    assert told.startswith('metadata.labels["gpu.dracaena.dev/gang"]')
    assert "expected 1 to 4096" in told
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}}
    template = {"metadata": {"labels": labels}, "spec": pod()["spec"]}
    (told,) = warnings({**job, "spec": {"template": template}})
    assert told.startswith('spec.template.metadata.labels["gpu.dracaena.dev/gang"]')


@pytest.mark.parametrize("size", ["1", "4096", "32"])
def test_a_gang_with_a_size_is_not_reported(size: str) -> None:
    assert warnings({**pod(), "metadata": {"name": "p", "labels": {"gpu.dracaena.dev/gang": size}}}) == []


@pytest.mark.parametrize("amount", [0, "0"])
def test_none_of_an_extended_resource_is_no_mistake(amount: Any) -> None:
    container = {"name": "main", "image": "a", "resources": {"limits": {"nvidia.com/gpu": amount, "cpu": 1}}}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}
    assert warnings(document) == []


BAD = [
    (f"{CLAIM}.name", ABSENT, f"{CLAIM}.name: missing"),
    (f"{CLAIM}.name", "GPUs", f"{CLAIM}.name: not a DNS label"),
    (f"{CLAIM}.name", "nic", "spec.resourceClaims[1].name: a second claim of this name"),
    (
        f"{CLAIM}.resourceClaimName",
        ABSENT,
        f"{CLAIM}: neither resourceClaimName nor resourceClaimTemplateName",
    ),
    (f"{CLAIM}.resourceClaimTemplateName", "x", f"{CLAIM}: both resourceClaimName and resourceClaimTemplateName"),
    (f"{CLAIM}.resourceClaimName", "", f"{CLAIM}.resourceClaimName: missing"),
    (f"{CLAIM}.resourceClaimName", "a_b", f"{CLAIM}.resourceClaimName: not a DNS name"),
    (f"{CLAIM}.source", {}, f"{CLAIM}.source: unknown field"),
    (f"{USE}[0].name", "gpu", f"{USE}[0]: no claim gpu in spec.resourceClaims: an object, expected one of gpus, nic"),
    (f"{USE}[0].name", ABSENT, f"{USE}[0]: no name"),
    (f"{USE}[0].request", "A", f"{USE}[0].request: not a DNS label"),
    (f"{USE}[0].requests", [], f"{USE}[0].requests: unknown field"),
    (f"{USE}[2]", {"name": "nic"}, f"{USE}[2]: named twice in one container"),
    (f"{USE}[2]", {"name": "nic", "request": "r"}, f"{USE}[2]: named twice in one container"),
    (f"{USE}[2]", {"name": "gpus"}, f"{USE}[2]: named twice in one container"),
    (f"{USE}[2]", {"name": "gpus", "request": "gpus"}, f"{USE}[2]: named twice in one container"),
    ("spec.resourceClaims", {}, "spec.resourceClaims: wrong type"),
    (
        "spec.initContainers[0].resources.claims[0].name",
        "x",
        "spec.initContainers[0].resources.claims[0]: no claim x in spec.resourceClaims",
    ),
    ("metadata.annotations", {"kubernetes.io/config.mirror": "x"}, "spec.resourceClaims: claims of a static pod"),
]


@pytest.mark.parametrize(("path", "value", "found"), BAD)
def test_what_the_server_refuses_is_an_error_with_its_place(path: str, value: Any, found: str) -> None:
    assert any(found in error for error in errors(edited(pod(), path, value)))


def test_a_claim_that_no_container_uses_is_warned_of() -> None:
    (warning,) = warnings(edited(edited(pod(), USE, [{"name": "gpus"}]), "spec.initContainers", []))
    assert warning.startswith("spec.resourceClaims[1]: no container uses this claim")


WORKLOADS = [
    ("apps/v1", "Deployment", "spec.template.spec"),
    ("apps/v1", "StatefulSet", "spec.template.spec"),
    ("apps/v1", "DaemonSet", "spec.template.spec"),
    ("apps/v1", "ReplicaSet", "spec.template.spec"),
    ("batch/v1", "Job", "spec.template.spec"),
    ("batch/v1", "CronJob", "spec.jobTemplate.spec.template.spec"),
    ("v1", "ReplicationController", "spec.template.spec"),
    ("v1", "PodTemplate", "template.spec"),
    ("jobset.x-k8s.io/v1alpha2", "JobSet", "spec.replicatedJobs[0].template.spec.template.spec"),
    ("jobset.x-k8s.io/v1alpha2", "JobSet", "spec.replicatedJobs[1].template.spec.template.spec"),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "spec.leaderWorkerTemplate.leaderTemplate.spec"),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "spec.leaderWorkerTemplate.workerTemplate.spec"),
]
OF_OTHERS = [
    ("ray.io/v1", "RayCluster", "spec.headGroupSpec.template.spec"),
    ("ray.io/v1", "RayCluster", "spec.workerGroupSpecs[1].template.spec"),
    ("ray.io/v1", "RayJob", "spec.rayClusterSpec.workerGroupSpecs[0].template.spec"),
    ("kubeflow.org/v1", "PyTorchJob", "spec.pytorchReplicaSpecs.Worker.template.spec"),
    ("kubeflow.org/v2beta1", "MPIJob", "spec.mpiReplicaSpecs.Launcher.template.spec"),
    ("batch.volcano.sh/v1alpha1", "Job", "spec.tasks[0].template.spec"),
    ("serving.knative.dev/v1", "Service", "spec.template.spec"),
    ("example.com/v1", "Anything", "spec.some.podTemplate.spec"),
]
"""Kinds that are known by the pod templates in them alone."""


def workload(api_version: str, kind: str, path: str) -> dict[str, Any]:
    value: Any = pod_spec()
    for step in reversed(re.findall(r"\w+", path)):
        value = [{}] * int(step) + [value] if step.isdigit() else {step: value}
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "w"}, **value}


@pytest.mark.parametrize(("api_version", "kind", "path"), [*WORKLOADS, *OF_OTHERS])
def test_the_pods_of_workloads_are_checked(api_version: str, kind: str, path: str) -> None:
    document = workload(api_version, kind, path)
    assert is_checked(document)
    assert errors(document) == []
    (error, *_) = errors(edited(document, f"{path}.resourceClaims[0].name", "A"))
    assert error.startswith(f"{path}.resourceClaims[0].name: not a DNS label")
    (findings,) = validate_all([document])
    assert findings == ()


@pytest.mark.parametrize("broken", [None, 5, "x", [], {"replicatedJobs": 5}, {"replicatedJobs": [None, 5, {}]}])
def test_a_workload_without_pods_has_no_finding_about_them(broken: Any) -> None:
    for api_version, kind, _ in WORKLOADS:
        document = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "w"}, "spec": broken}
        assert is_checked(document)
        assert errors(document) == []


@pytest.mark.parametrize(
    ("api_version", "spec", "understood"),
    [
        ("apps.nvidia.com/v1alpha1", {"resources": {"limits": {"nvidia.com/gpu": 1}}}, False),
        ("example.com/v1", {"template": {"spec": {"containers": []}}}, False),
        ("kyverno.io/v1", {"rules": [{"pattern": {"spec": {"containers": [{"name": "a"}]}}}]}, False),
        ("example.com/v1", {"template": {"spec": {"containers": [{"name": "a"}]}}}, True),
        ("v1", {}, True),
        ("networking.k8s.io/v1", {}, True),
        ("scheduling.x-k8s.io/v1", {}, False),
    ],
)
def test_a_kind_of_others_without_a_pod_template_is_not_understood(
    api_version: str, spec: dict[str, Any], understood: bool
) -> None:
    document = {"apiVersion": api_version, "kind": "Thing", "metadata": {"name": "w"}, "spec": spec}
    assert is_understood(document) is understood
    assert is_checked(document) is ("template" in spec and understood)


def errors_among(*documents: dict[str, Any]) -> list[str]:
    return [str(each) for findings in validate_all(documents) for each in findings if each.severity is Severity.ERROR]


@pytest.mark.parametrize("first", ["claim", "pod"])
def test_a_request_that_the_claim_of_the_input_does_not_have_is_an_error(first: str) -> None:
    wrong = edited(pod(), f"{USE}[0].request", "gpu")
    documents = (claim(), wrong) if first == "claim" else (wrong, claim())
    (error,) = errors_among(*documents)
    assert error == (
        f"{USE}[0].request: no request gpu in claim gpus (there: gpus, nic): the container gets nothing by that name: "
        '"gpu", expected the name of a request, or none for all of them'
    )


def test_a_request_that_the_template_of_the_input_does_not_have_is_an_error() -> None:
    document = edited(pod(), f"{USE}[1].request", "fast")
    (error,) = errors_among(template(), document)
    assert error.startswith(f"{USE}[1].request: no request")


def test_a_claim_that_is_not_in_the_input_or_in_another_namespace_says_nothing() -> None:
    wrong = edited(pod(), f"{USE}[0].request", "gpu")
    assert errors_among(wrong) == []
    assert errors_among(edited(claim(), "metadata.namespace", "other"), wrong) == []
    assert errors_among(template(), wrong) == []


def test_pods_of_workloads_are_held_against_the_claims_too() -> None:
    for workload_of in WORKLOADS:
        place = f"{workload_of[2]}.containers[0].resources.claims[0].request"
        (error,) = errors_among(edited(workload(*workload_of), place, "gpu"), claim())
        assert error.startswith(f"{place}: no request gpu in claim")


def test_an_object_that_stands_twice_is_warned_of_once() -> None:
    one, two, three = validate_all([device_class(), claim(), device_class()])
    assert (one, two) == ((), ())
    assert paths(three, Severity.WARNING) == ["metadata.name"]


def test_objects_with_generated_names_are_different_objects() -> None:
    generated = edited(edited(claim(), "metadata.name", ABSENT), "metadata.generateName", "train-")
    assert validate_all([generated, generated]) == ((), ())
