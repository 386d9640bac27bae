from __future__ import annotations

import pytest

from dracaena.api.objects import ObjectMeta, Pod, PodResourceClaim
from dracaena.api.resource_objects import ResourceClaimTemplate, ResourceClaimTemplateSpec
from dracaena.demo.kube_controller_manager import claim_document, generate_name


@pytest.mark.parametrize(
    ("pod", "entry", "name"),
    [
        ("p", "gpus", "p-gpus-"),
        ("p" * 40, "c" * 16, "p" * 40 + "-" + "c" * 16 + "-"),
        ("p" * 41, "c" * 16, "p" * 40 + "-" + "c" * 15 + "-"),
        ("p" * 253, "c" * 63, "p" * 45 + "-" + "c" * 11 + "-"),
    ],
)
def test_names_are_shortened_in_proportion(pod: str, entry: str, name: str) -> None:
    assert generate_name(pod, entry) == name
    assert len(name) <= 58  # five random characters follow, and 63 is the most for a DNS label


def test_a_generated_claim_carries_owner_entry_name_and_the_templates_metadata() -> None:
    pod = Pod(metadata=ObjectMeta(name="p", namespace="default", uid="p-uid"))
    template = ResourceClaimTemplate(
        metadata=ObjectMeta(name="t"),
        spec=ResourceClaimTemplateSpec(
            spec={"devices": {}}, metadata={"labels": {"a": "b"}, "annotations": {"x": "y"}}
        ),
    )
    document = claim_document(pod, PodResourceClaim("gpus", resource_claim_template_name="t"), template)
    assert document["spec"] == {"devices": {}}
    assert document["metadata"]["generateName"] == "p-gpus-"
    assert document["metadata"]["labels"] == {"a": "b"}
    assert document["metadata"]["annotations"] == {"x": "y", "resource.kubernetes.io/pod-claim-name": "gpus"}
    (owner,) = document["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Pod", "p-uid", True)
