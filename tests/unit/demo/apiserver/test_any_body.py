"""Whatever a client sends, the server answers as an API and not with a defect of its own."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.seeds import fewer_examples

RESOURCE = "/apis/resource.k8s.io/v1"
CLAIM = {
    "metadata": {"name": "x", "labels": {"a": "b"}, "finalizers": ["a/b"], "ownerReferences": [{"uid": "u"}]},
    "spec": {
        "devices": {
            "requests": [
                {"name": "r", "exactly": {"deviceClassName": "c", "count": 1, "tolerations": [{"key": "k"}]}},
                {"name": "f", "firstAvailable": [{"name": "s", "deviceClassName": "c", "selectors": [{"cel": {}}]}]},
            ],
            "constraints": [{"matchAttribute": "a/b", "requests": ["r"]}],
            "config": [{"opaque": {"driver": "d", "parameters": {"a": 1}}}],
        }
    },
}
STATUS = {
    "allocation": {
        "devices": {
            "results": [{"request": "r", "driver": "d", "pool": "p", "device": "g", "shareID": "x"}],
            "config": [{"source": "FromClass", "opaque": {"driver": "d", "parameters": {}}}],
        },
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In"}]}]},
    },
    "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
    "devices": [
        {"driver": "d", "pool": "p", "device": "g", "conditions": [{"type": "t"}], "networkData": {"ips": ["x"]}}
    ],
}
SLICE = {
    "metadata": {"name": "x", "annotations": {"a": "b"}},
    "spec": {
        "driver": "d",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "nodeName": "n",
        "devices": [
            {
                "name": "g",
                "attributes": {"a": {"string": "s"}, "v": {"version": "1.2.3"}},
                "capacity": {
                    "m": {"value": "1Gi", "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}}}
                },
                "allowMultipleAllocations": True,
                "taints": [{"key": "k", "effect": "NoSchedule"}],
                "consumesCounters": [{"counterSet": "c", "counters": {"x": {"value": "1"}}}],
            }
        ],
    },
}
POD = {
    "metadata": {"name": "x", "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}]},
    "spec": {
        "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}, "claims": [{"name": "a"}]}}],
        "resourceClaims": [{"name": "a", "resourceClaimName": "b"}],
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}},
            "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {"matchLabels": {}}}]},
        },
        "schedulingGates": [{"name": "a"}],
    },
}
NODE = {"metadata": {"name": "x"}, "spec": {"taints": [{"key": "k"}]}, "status": {"capacity": {"cpu": "1"}}}

BODIES = {
    f"{RESOURCE}/namespaces/default/resourceclaims": CLAIM,
    f"{RESOURCE}/resourceslices": SLICE,
    "/api/v1/namespaces/default/pods": POD,
    "/api/v1/nodes": NODE,
}
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.floats(-1, 1)
    | st.sampled_from(["", "x", "A_", "1Gi", "@", "é"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "a", "", "$patch"]), inner, max_size=3)
    ),
    max_leaves=4,
)


def _paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        yield from _paths(part, (*at, name))


def _with(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(document)
    place = changed
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return changed


def _spoilt(document: Any) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda path, value: _with(document, path, value), st.sampled_from(sorted(_paths(document), key=str)), JSON
    )


SETTINGS = settings(
    max_examples=fewer_examples(2), suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


def _assert_an_answer(reply: Any) -> None:
    assert reply.code in (200, 201, 400, 403, 404, 409, 422, 500, 501), reply.body
    assert "defect" not in str(reply.body.get("message", "")), reply.body


@pytest.mark.parametrize("path", BODIES)
@SETTINGS
@given(data=st.data())
def test_creating_from_any_body_is_answered(api, path, data):
    body = data.draw(_spoilt(BODIES[path]))
    _assert_an_answer(api.create(path, body))


@pytest.mark.parametrize("form", ["merge-patch+json", "strategic-merge-patch+json"])
@SETTINGS
@given(data=st.data())
def test_patching_with_any_body_is_answered(api, claim, form, data):
    path = f"{RESOURCE}/namespaces/default/resourceclaims"
    api.create(path, claim("x", [{"name": "r", "exactly": {"deviceClassName": "c"}}]))
    main = data.draw(_spoilt(CLAIM | {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}))
    status = data.draw(_spoilt({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "status": STATUS}))
    for door, body in (("x", main), ("x/status", status)):
        _assert_an_answer(
            api.patch(f"{path}/{door}", json.dumps(body).encode(), f"application/{form}", fieldManager="m")
        )


@SETTINGS
@given(operations=st.lists(st.dictionaries(st.sampled_from(["op", "path", "value", "from"]), JSON), max_size=3) | JSON)
def test_any_json_patch_is_answered(api, claim, operations):
    path = f"{RESOURCE}/namespaces/default/resourceclaims"
    api.create(path, claim("x"))
    _assert_an_answer(api.patch(f"{path}/x", json.dumps(operations).encode(), "application/json-patch+json"))


@SETTINGS
@given(selector=st.text(st.sampled_from("ab=!,()<> in/\\"), max_size=12))
def test_any_selector_is_answered(api, selector):
    for name in ("labelSelector", "fieldSelector"):
        assert api.get("/api/v1/pods", **{name: selector}).code in (200, 400)


@SETTINGS
@given(body=st.binary(max_size=30) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_answered(api, body):
    _assert_an_answer(api.send("POST", "/api/v1/nodes", body))
