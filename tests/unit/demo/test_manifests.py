"""The manifests of the demo and the examples, as far as they can be read without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dracaena.api import attributes
from dracaena.api.names import DEFAULT_DRIVER_NAME
from dracaena.api.objects import ObjectMeta
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.legal.read.claims import Claim, read_claim
from dracaena.demo.objects import KINDS
from dracaena.demo.scenario import WAITING, load_manifests
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted((ROOT / "deploy" / "examples").glob("*/*.yaml"))
OF_A_REAL_CLUSTER = {("v1", "Namespace"), ("batch/v1", "Job"), ("apps/v1", "Deployment")} | {
    ("node.k8s.io/v1", "RuntimeClass"),
}
"""Kinds of examples that the demo does not play."""


def read(spec: dict[str, Any]) -> object:
    return read_claim(ResourceClaim(ObjectMeta(name="c"), spec))


def test_the_demos_device_class_is_the_deployed_one() -> None:
    deployed = (ROOT / "deploy" / "deviceclasses" / "gpu.dracaena.dev.yaml").read_text()
    first = load_manifests()[0]
    assert first.documents == (yaml.safe_load(deployed),)
    assert first.documents[0]["metadata"]["name"] == DEFAULT_DRIVER_NAME


def test_the_demo_asks_for_1_2_3_4_and_8_gpus_and_for_what_cannot_run() -> None:
    counts = {}
    for manifest in load_manifests()[2:-1]:
        template, pod = manifest.documents
        asked = read(template["spec"]["spec"])
        assert isinstance(asked, Claim)
        assert pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == template["metadata"]["name"]
        counts[pod["metadata"]["name"]] = asked.requests[0].alternatives[0].count
    assert sorted(count for name, count in counts.items() if name not in WAITING) == [1, 2, 3, 4, 8]
    assert counts.keys() > WAITING
    assert all(manifest.comment for manifest in load_manifests())


def test_the_first_of_the_demo_are_two_slices_of_one_gpu() -> None:
    device_class, *rest = load_manifests()[1].documents
    deployed = ROOT / "deploy" / "deviceclasses" / f"mig.{DEFAULT_DRIVER_NAME}.yaml"
    assert device_class == yaml.safe_load(deployed.read_text())
    assert len(rest) == 4
    for template, pod in zip(rest[::2], rest[1::2], strict=True):
        asked = read(template["spec"]["spec"])
        assert isinstance(asked, Claim)
        assert asked.requests[0].alternatives[0].class_name == device_class["metadata"]["name"]
        assert pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == template["metadata"]["name"]


def test_the_last_of_the_demo_are_two_pods_that_share_a_gpu() -> None:
    device_class, template, *pods = load_manifests()[-1].documents
    name = f"share.{DEFAULT_DRIVER_NAME}"
    deployed = (ROOT / "deploy" / "deviceclasses" / f"{name}.yaml").read_text()
    assert device_class == yaml.safe_load(deployed)
    asked = read(template["spec"]["spec"])
    assert isinstance(asked, Claim)
    (request,) = asked.requests[0].alternatives
    assert request.class_name == name
    assert request.capacity is not None
    names = [pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] for pod in pods]
    assert names == [template["metadata"]["name"]] * 2


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_examples_hold_known_kinds_and_readable_claims(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        assert (document["apiVersion"], document["kind"]) in KINDS.keys() | OF_A_REAL_CLUSTER
        if document["kind"].startswith("ResourceClaim"):
            spec = document["spec"].get("spec", document["spec"])
            assert isinstance(read(spec), Claim)


def test_there_are_examples() -> None:
    assert EXAMPLES


def test_each_profile_of_a_gpu_of_80_gb_has_an_example() -> None:
    expressions = {
        request["exactly"]["selectors"][0]["cel"]["expression"]
        for path in EXAMPLES
        if path.parent.name == "mig-slices"
        for request in requests_of(path)
    }
    profiles = read_machine("h100-x1").gpus[0].mig_profiles
    attribute = f'device.attributes["{DEFAULT_DRIVER_NAME}"].{attributes.PROFILE.name}'
    assert expressions == {f'{attribute} == "{profile.name}"' for profile in profiles}


def test_the_two_slices_of_an_example_are_kept_on_one_gpu() -> None:
    (path,) = (path for path in EXAMPLES if path.parent.name == "mig-pair")
    template = next(yaml.safe_load_all(path.read_text()))
    (constraint,) = template["spec"]["spec"]["devices"]["constraints"]
    assert constraint["matchAttribute"] == f"{DEFAULT_DRIVER_NAME}/{attributes.PARENT_UUID.name}"
    assert constraint["requests"] == [request["name"] for request in requests_of(path)]


def requests_of(path: Path) -> list[dict[str, Any]]:
    """The requests of the template in an example."""
    requests: list[dict[str, Any]] = next(yaml.safe_load_all(path.read_text()))["spec"]["spec"]["devices"]["requests"]
    return requests
