"""Documents of the replica set controller. What it does is in test_deployments.py."""

from __future__ import annotations

from dracaena.api.objects import ObjectMeta
from dracaena.demo.controllers.replica_sets import pod_document
from dracaena.demo.objects import ReplicaSetDocument


def test_a_pod_has_labels_and_annotations_of_the_template_and_an_owner() -> None:
    metadata = {"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["example.com/x"]}
    owner = ReplicaSetDocument(ObjectMeta("web-1", uid="u"), {"template": {"metadata": metadata, "spec": {"x": 1}}})
    pod = pod_document(owner)
    assert pod["spec"] == {"x": 1}
    assert pod["metadata"] == {
        "labels": {"a": "b"},
        "annotations": {"c": "d"},
        "generateName": "web-1-",
        "ownerReferences": [
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "name": "web-1",
                "uid": "u",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
