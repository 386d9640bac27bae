"""Pods of namespaces that opt in by a Namespace of the input are checked with the claims that admission makes of
nvidia.com/gpu."""

from __future__ import annotations

from typing import Any

import pytest

from dracaena.validation import Rewriting, validate_all

LABEL = "gpu.dracaena.dev/rewrite"


def namespace(name: str, value: str = "true") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {LABEL: value}}}


def spec(**resources: Any) -> dict[str, Any]:
    return {"containers": [{"name": "main", "image": "a", "resources": resources or {"limits": {"nvidia.com/gpu": 2}}}]}


def pod(namespace: str = "team", labels: dict[str, str] | None = None, **resources: Any) -> dict[str, Any]:
    metadata = {"name": "p", "namespace": namespace, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec(**resources)}


def said(*documents: dict[str, Any]) -> list[str]:
    return [str(finding) for findings in validate_all(documents) for finding in findings]


def ray_cluster() -> dict[str, Any]:
    groups = [{"replicas": 2, "template": {"spec": spec()}}]
    head = {"template": {"spec": spec()}}
    metadata = {"name": "ray", "namespace": "team"}
    document = {"headGroupSpec": head, "workerGroupSpecs": groups}
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": document}


@pytest.mark.parametrize("document", [pod(), ray_cluster()], ids=["pod", "pod templates of another kind"])
def test_a_namespace_of_the_input_with_the_label_makes_the_request_right(document: dict[str, Any]) -> None:
    assert said(document)
    assert said(document, namespace("other"), namespace("team", "false"))
    assert said(document, namespace("team")) == []
    assert said(namespace("team"), document) == []


def test_a_pod_without_a_namespace_is_in_the_one_of_kubectl() -> None:
    assert said(pod(""), namespace("default")) == []


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (pod(labels={LABEL: "false"}), f"no label {LABEL}=false: the namespace has {LABEL}=true, and the pod opts out"),
        (pod(limits={"nvidia.com/gpu": "1500m"}), "limits in whole numbers for nvidia.com/gpu"),
        (pod(limits={"nvidia.com/gpu": 2}, requests={"nvidia.com/gpu": 1}), "limits in whole numbers"),
        (pod(requests={"nvidia.com/gpu": 1}), "and requests that equal them: the API server refuses anything else"),
    ],
)
def test_a_pod_that_gets_no_claims_in_such_a_namespace_learns_why(document: dict[str, Any], words: str) -> None:
    (text,) = said(document, namespace("team"))
    assert text.startswith("spec.containers[0].resources.")
    assert words in text
    assert "on the namespace" not in text


def test_a_pod_that_a_server_has_admitted_stays_as_it_is() -> None:
    created = pod()
    created["metadata"]["uid"] = "u-1"
    (text,) = said(created, namespace("team"))
    assert "expected a new pod: this one was created without claims" in text


def test_the_other_resources_of_such_a_pod_are_still_judged() -> None:
    (text,) = said(pod(limits={"nvidia.com/gpu": 1, "nvidia.com/mig-1g.10gb": 1}), namespace("team"))
    assert "nvidia.com/mig-1g.10gb" in text


def test_what_was_written_is_not_changed_and_keeps_its_places() -> None:
    document = ray_cluster()
    document["spec"]["workerGroupSpecs"][0]["template"]["spec"]["resourceClaims"] = [{"name": "mine"}]
    after = Rewriting([namespace("team")], "gpu.dracaena.dev")(document)
    worker = after["spec"]["workerGroupSpecs"][0]["template"]["spec"]
    assert [one["name"] for one in worker["resourceClaims"]] == ["mine", "dracaena-0"]
    assert document["spec"]["workerGroupSpecs"][0]["template"]["spec"] == spec() | {
        "resourceClaims": [{"name": "mine"}]
    }
    (neither, unused) = said(document, namespace("team"))
    assert neither.startswith("spec.workerGroupSpecs[0].template.spec.resourceClaims[0]:")
    assert unused.startswith("spec.workerGroupSpecs[0].template.spec.resourceClaims[0]:")
