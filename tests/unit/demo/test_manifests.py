"""The manifests of the demo and the examples, as far as they can be read without a server."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dracaena.api.names import DEFAULT_DRIVER_NAME
from dracaena.api.resourceclaim import ClaimSpec, read_claim_spec
from dracaena.demo.objects import KINDS
from dracaena.demo.scenario import WAITING, load_manifests

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted((ROOT / "deploy" / "examples").glob("*/*.yaml"))


def test_the_demos_device_class_is_the_deployed_one() -> None:
    deployed = (ROOT / "deploy" / "deviceclasses" / "gpu.dracaena.dev.yaml").read_text()
    first = load_manifests()[0]
    assert first.documents == (yaml.safe_load(deployed),)
    assert first.documents[0]["metadata"]["name"] == DEFAULT_DRIVER_NAME


def test_the_demo_asks_for_1_2_3_4_and_8_gpus_and_for_what_cannot_run() -> None:
    counts = {}
    for manifest in load_manifests()[1:]:
        template, pod = manifest.documents
        spec = read_claim_spec(template["spec"]["spec"])
        assert isinstance(spec, ClaimSpec)
        assert pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == template["metadata"]["name"]
        counts[pod["metadata"]["name"]] = spec.requests[0].count
    assert sorted(count for name, count in counts.items() if name not in WAITING) == [1, 2, 3, 4, 8]
    assert counts.keys() > WAITING
    assert all(manifest.comment for manifest in load_manifests())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_examples_hold_known_kinds_and_readable_claims(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        assert (document["apiVersion"], document["kind"]) in KINDS
        if document["kind"].startswith("ResourceClaim"):
            spec = document["spec"].get("spec", document["spec"])
            assert isinstance(read_claim_spec(spec), ClaimSpec)


def test_there_are_examples() -> None:
    assert EXAMPLES
