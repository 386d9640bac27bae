"""What the demo, `validate` and `simulate` make of pods that ask for nvidia.com/gpu: the same as the chart's policy,
which the end-to-end tests run with these pods (e2e/install/test_unchanged_manifests.py)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from dracaena.api.pod_rewriting import missing_for_claims, rewritten

DRIVER = "gpu.dracaena.dev"
CLASS = f"{DRIVER}/class"
GPU = "nvidia.com/gpu"
OPTED_IN = {"metadata": {"labels": {f"{DRIVER}/rewrite": "true"}}}


def container(name: str, gpus: Any = None, **resources: Any) -> dict[str, Any]:
    limits = {"limits": {GPU: gpus}, "requests": {GPU: gpus}} if gpus is not None else {}
    return {"name": name, "resources": limits | resources}


def pod(*containers: dict[str, Any], metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": metadata or {}, "spec": {"containers": list(containers)} | spec}


def templates_of(document: Mapping[str, Any]) -> dict[str, str]:
    return {one["name"]: one["resourceClaimTemplateName"] for one in document["spec"].get("resourceClaims", ())}


def claims_of(document: Mapping[str, Any], kind: str = "containers") -> dict[str, list[str]]:
    return {one["name"]: [use["name"] for use in one["resources"].get("claims", ())] for one in document["spec"][kind]}


def test_each_container_gets_a_claim_and_one_that_ends_first_shares_it() -> None:
    before = pod(
        container("one", "1"),
        container("two", "2"),
        container("none"),
        initContainers=[container("ends", "2"), container("big", "4"), container("idle")],
    )
    untouched = copy.deepcopy(before)
    after = rewritten(before, OPTED_IN)
    assert before == untouched
    assert templates_of(after) == {
        "dracaena-0": f"gpus-1.{DRIVER}",
        "dracaena-1": f"gpus-2.{DRIVER}",
        "dracaena-init-1": f"gpus-4.{DRIVER}",
    }
    assert claims_of(after) == {"one": ["dracaena-0"], "two": ["dracaena-1"], "none": []}
    assert claims_of(after, "initContainers") == {"ends": ["dracaena-1"], "big": ["dracaena-init-1"], "idle": []}
    assert GPU not in str(after)


def test_other_resources_and_claims_stay() -> None:
    asked = {"limits": {GPU: "1", "cpu": "2"}, "requests": {GPU: "1"}, "claims": [{"name": "mine"}]}
    after = rewritten(pod({"name": "main", "resources": asked}, resourceClaims=[{"name": "mine"}]), OPTED_IN)
    (main,) = after["spec"]["containers"]
    assert main["resources"] == {"limits": {"cpu": "2"}, "claims": [{"name": "mine"}, {"name": "dracaena-0"}]}
    assert [one["name"] for one in after["spec"]["resourceClaims"]] == ["mine", "dracaena-0"]


@pytest.mark.parametrize(
    ("pods", "namespaces", "device_class"),
    [
        ("", "", DRIVER),
        ("", "nvlink", f"nvlink.{DRIVER}"),
        ("pcie-switch", "nvlink", f"pcie-switch.{DRIVER}"),
        ("gold.example.com", "", "gold.example.com"),
    ],
)
def test_the_class_is_the_pods_the_namespaces_or_our_own(pods: str, namespaces: str, device_class: str) -> None:
    metadata = {"annotations": {f"{DRIVER}/class": pods}} if pods else {}
    labels = OPTED_IN["metadata"]["labels"] | ({f"{DRIVER}/class": namespaces} if namespaces else {})
    after = rewritten(pod(container("main", "2"), metadata=metadata), {"metadata": {"labels": labels}})
    assert templates_of(after) == {"dracaena-0": f"gpus-2.{device_class}"}


@pytest.mark.parametrize(
    "document",
    [
        pod(container("main")),
        pod(container("main", "0")),
        pod(container("main", "1500m")),
        pod({"name": "main", "resources": {"limits": {GPU: "2"}, "requests": {GPU: "1"}}}),
        pod({"name": "main", "resources": {"limits": {GPU: "-1"}}}),
        pod({"name": "main", "resources": {"requests": {GPU: "1"}}}),
        pod(container("main", "1"), metadata={"labels": {f"{DRIVER}/rewrite": "false"}}),
        pod(container("main", "1"), metadata={"annotations": {"kubernetes.io/config.mirror": "x"}}),
    ],
)
def test_a_pod_that_asks_for_none_or_wrongly_or_opts_out_is_left_alone(document: dict[str, Any]) -> None:
    assert rewritten(document, OPTED_IN) is document


def test_a_sidecar_has_a_claim_of_its_own() -> None:
    sidecar = container("sidecar", "1") | {"restartPolicy": "Always"}
    after = rewritten(pod(container("main", "1"), initContainers=[container("ends", "1"), sidecar]), OPTED_IN)
    assert templates_of(after) == {"dracaena-0": f"gpus-1.{DRIVER}", "dracaena-init-1": f"gpus-1.{DRIVER}"}
    assert claims_of(after, "initContainers") == {"ends": ["dracaena-0"], "sidecar": ["dracaena-init-1"]}


def test_labels_and_classes_are_those_of_the_driver() -> None:
    labels = {"other.example.com/rewrite": "true", f"{DRIVER}/class": "nvlink"}
    document = pod(container("main", 2), metadata={"annotations": {"other.example.com/class": "gold"}})
    after = rewritten(document, {"metadata": {"labels": labels}}, "other.example.com")
    assert templates_of(after) == {"dracaena-0": "gpus-2.gold.other.example.com"}
    assert rewritten(document, {"metadata": {"labels": labels}}) is document


WRONG: tuple[Any, ...] = (None, 7, "text", True, [], ["x"], [None], {}, {"a": "b"}, 10**5000, float("nan"))


PLACES: tuple[tuple[str | int, ...], ...] = (
    *(("metadata",), ("metadata", "labels"), ("metadata", "annotations"), ("metadata", "annotations", CLASS)),
    *(("spec",), ("spec", "resourceClaims"), ("spec", "containers"), ("spec", "initContainers")),
    *(("spec", "containers", 0, *rest) for rest in ((), ("resources",), ("resources", "limits"))),
    *(("spec", "containers", 0, "resources", *rest) for rest in (("claims",), ("requests",), ("limits", GPU))),
)


@pytest.mark.parametrize("path", PLACES, ids=lambda path: ".".join(map(str, path)))
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: repr(wrong)[:10] if wrong != 10**5000 else "huge")
def test_what_is_not_of_the_shape_of_the_api_is_left_alone(path: tuple[str | int, ...], wrong: Any) -> None:
    document = pod(
        container("main", "1"),
        metadata={"labels": {"a": "b"}, "annotations": {CLASS: "nvlink"}},
        initContainers=[container("ends", "1")],
        resourceClaims=[],
    )
    holder: Any = document
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = wrong
    after = rewritten(document, OPTED_IN)
    assert after is document or missing_for_claims(document, DRIVER) is None


@pytest.mark.parametrize("labels", [None, {}, {f"{DRIVER}/rewrite": "false"}])
def test_a_namespace_that_has_not_opted_in_is_left_alone(labels: dict[str, str] | None) -> None:
    document = pod(container("main", "1"))
    assert rewritten(document, {"metadata": {"labels": labels}}) is document
