"""The sub-resource scale over HTTP. What kubectl makes of it is in tests/integration/test_kubectl.py."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

PATH = "/apis/apps/v1/namespaces/default/deployments"
LABELS = {"app": "web"}
WEB = {
    "metadata": {"name": "web"},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": LABELS},
        "template": {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "main", "image": "a"}]}},
    },
}
NOT_OBJECTS: tuple[Any, ...] = ("x", 1, True, [1], ["metadata"])


@pytest.fixture
def scale(api):
    assert api.create(PATH, WEB).code == 201
    return f"{PATH}/web/scale"


def test_a_patch_sets_the_number_of_pods(api, scale):
    scaled = api.patch(scale, {"spec": {"replicas": 3}})
    assert (scaled.code, scaled.body["spec"]) == (200, {"replicas": 3})
    assert api.get(f"{PATH}/web").body["spec"]["replicas"] == 3


def test_a_patch_of_another_version_is_refused(api, scale):
    before = api.get(scale).version
    assert api.patch(scale, {"metadata": {"resourceVersion": before}, "spec": {"replicas": 2}}).code == 200
    stale = api.patch(scale, {"metadata": {"resourceVersion": before}, "spec": {"replicas": 3}})
    assert (stale.code, stale.body["reason"]) == (409, "Conflict")


@pytest.mark.parametrize("metadata", NOT_OBJECTS)
def test_metadata_that_is_no_object_is_refused_by_name(api, scale, metadata):
    refused = api.patch(scale, {"metadata": metadata, "spec": {"replicas": 2}})
    assert (refused.code, refused.body["reason"]) == (400, "BadRequest")
    assert "metadata" in refused.body["message"]
    assert api.get(scale).body["spec"] == {"replicas": 1}


def test_no_patch_whatever_is_a_defect_of_the_server(api, scale):
    odd = (*NOT_OBJECTS, None, {}, "", -1, 2**40, 1.5)
    versions = [{"resourceVersion": one} for one in odd]
    numbers = [{"replicas": one} for one in odd]
    for metadata, spec in itertools.product((*odd, *versions), (*odd, *numbers)):
        answer = api.patch(scale, {"metadata": metadata, "spec": spec})
        assert "defect" not in answer.body.get("message", ""), (metadata, spec, answer.body)
    for body in odd:
        assert api.patch(scale, json.dumps(body).encode()).code == 400, body
