"""resource.k8s.io/v1 claims, templates and classes."""

from __future__ import annotations

import json

import pytest

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
RESOURCE = "/apis/resource.k8s.io/v1"
CLAIMS = f"{RESOURCE}/namespaces/default/resourceclaims"
TEMPLATES = f"{RESOURCE}/namespaces/default/resourceclaimtemplates"
CLASSES = f"{RESOURCE}/deviceclasses"
STATUS = f"{CLAIMS}/c/status"
ADMIN_LABEL_MISSING = (
    "admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace"
)
CONSUMER = {"resource": "pods", "name": "p", "uid": "u"}


def _exactly(name="gpus", **fields):
    return {"name": name, "exactly": {"deviceClassName": "gpu"} | fields}


def _result(device="gpu-0", **fields):
    return {"request": "gpus", "driver": "gpu.example.com", "pool": "node-a", "device": device} | fields


def _allocation(*results, **fields):
    return {"devices": {"results": list(results)}} | fields


@pytest.fixture
def allocated(api, claim):
    api.create(CLAIMS, claim("c"))
    return api.patch(STATUS, {"status": {"allocation": _allocation(_result()), "reservedFor": [CONSUMER]}}).body


def test_requests_get_their_defaults(api, claim):
    made = api.create(CLAIMS, claim("c")).body
    assert made["spec"]["devices"]["requests"][0]["exactly"] == {
        "deviceClassName": "gpu",
        "allocationMode": "ExactCount",
        "count": 1,
    }


def test_status_at_creation_is_dropped(api, claim):
    body = claim("c") | {"status": {"reservedFor": [CONSUMER]}}
    assert api.create(CLAIMS, body).body["status"] == {}


def test_the_spec_cannot_change(api, claim):
    api.create(CLAIMS, claim("c"))
    reply = api.patch(f"{CLAIMS}/c", {"spec": {"devices": {"requests": [_exactly(count=2)]}}})
    assert reply.code == 422
    assert reply.causes[0][0] == "spec"
    assert reply.causes[0][1].endswith("field is immutable")


def test_requests_are_checked(api, claim):
    requests = [
        _exactly("A_"),
        {"name": "none"},
        _exactly("a"),
        _exactly("a"),
        {
            "name": "both",
            "exactly": {"deviceClassName": "c"},
            "firstAvailable": [{"name": "s", "deviceClassName": "c"}],
        },
        _exactly("all", allocationMode="All", count=2),
        _exactly("minus", count=-1),
        _exactly("mode", allocationMode="Some"),
        _exactly("class", deviceClassName=""),
        _exactly(
            "tol", tolerations=[{"operator": "Exists", "value": "x"}, {"key": "k", "operator": "Foo", "effect": "Bar"}]
        ),
        _exactly("sel", selectors=[{}]),
    ]
    reply = api.create(CLAIMS, claim("c", requests))
    at = "spec.devices.requests"
    assert {field for field, _ in reply.causes} == {
        f"{at}[0].name",
        f"{at}[1]",
        f"{at}[3]",
        f"{at}[4]",
        f"{at}[5].exactly.count",
        f"{at}[6].exactly.count",
        f"{at}[7].exactly.allocationMode",
        f"{at}[8].exactly.deviceClassName",
        f"{at}[9].exactly.tolerations[0].value",
        f"{at}[9].exactly.tolerations[1].operator",
        f"{at}[9].exactly.tolerations[1].effect",
        f"{at}[10].exactly.selectors[0].cel",
    }


def test_what_only_an_allocator_finds_is_taken(api, claim):
    assert api.create(CLAIMS, claim("c", [_exactly(count=33)])).code == 201


def test_a_subrequest_can_be_named(api, claim):
    requests = [{"name": "f", "firstAvailable": [{"name": "s", "deviceClassName": "c"}]}]
    assert (
        api.create(CLAIMS, claim("c", requests, constraints=[{"requests": ["f/s"], "matchAttribute": "a.b/c"}])).code
        == 201
    )


def test_a_cel_expression_is_kept_as_it_is(api, claim):
    requests = [_exactly(selectors=[{"cel": {"expression": "device.driver  ==  'a'"}}])]
    made = api.create(CLAIMS, claim("c", requests))
    assert (
        made.body["spec"]["devices"]["requests"][0]["exactly"]["selectors"][0]["cel"]["expression"]
        == "device.driver  ==  'a'"
    )


def test_admin_access_needs_the_label_of_the_namespace(api, claim):
    body = claim("c", [_exactly(adminAccess=True)])
    refused = api.create(CLAIMS, body)
    assert refused.causes == [
        (
            "spec.devices.requests[0].adminAccess",
            f"Forbidden: {ADMIN_LABEL_MISSING}",
        )
    ]
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    api.patch("/api/v1/namespaces/default", label)
    assert api.create(CLAIMS, body).code == 201


def test_an_admin_result_needs_the_label_too(api, claim):
    api.create(CLAIMS, claim("c"))
    reply = api.patch(STATUS, {"status": {"allocation": _allocation(_result(adminAccess=True))}})
    assert reply.causes[0][0] == "status.allocation.devices.results[0].adminAccess"


def test_an_allocation_comes_and_goes_whole(api, allocated):
    changed = api.patch(STATUS, {"status": {"allocation": _allocation(_result("gpu-1"))}})
    assert changed.causes[0][0] == "status.allocation"
    assert changed.causes[0][1].endswith("field is immutable")
    assert api.patch(STATUS, {"status": {"allocation": allocated["status"]["allocation"]}}).code == 200
    freed = api.patch(STATUS, {"status": {"allocation": None, "reservedFor": None}})
    assert freed.body["status"] == {}
    assert api.patch(STATUS, {"status": {"allocation": _allocation(_result("gpu-1"))}}).code == 200


def test_an_allocation_is_checked(api, claim):
    api.create(CLAIMS, claim("c"))
    results = [_result(request="nope"), _result(driver=""), _result(pool=""), _result("D_"), _result(shareID="x")]
    config = [
        {"opaque": {"driver": "d", "parameters": {}}},
        {"source": "Foo", "opaque": {"driver": "d", "parameters": {}}},
    ]
    allocation = {"devices": {"results": results, "config": config}, "nodeSelector": {"nodeSelectorTerms": []}}
    reply = api.patch(STATUS, {"status": {"allocation": allocation}})
    at = "status.allocation"
    assert reply.mistakes == {
        (f"{at}.devices.results[0].request", "FieldValueInvalid"),
        (f"{at}.devices.results[1].driver", "FieldValueRequired"),
        (f"{at}.devices.results[2].pool", "FieldValueRequired"),
        (f"{at}.devices.results[3].device", "FieldValueInvalid"),
        (f"{at}.devices.results[4].shareID", "FieldValueInvalid"),
        (f"{at}.devices.config[0].source", "FieldValueRequired"),
        (f"{at}.devices.config[1].source", "FieldValueNotSupported"),
        (f"{at}.nodeSelector.nodeSelectorTerms", "FieldValueRequired"),
    }


def test_a_result_may_name_a_subrequest(api, claim):
    api.create(CLAIMS, claim("c", [{"name": "f", "firstAvailable": [{"name": "s", "deviceClassName": "c"}]}]))
    assert api.patch(STATUS, {"status": {"allocation": _allocation(_result(request="f/x"))}}).code == 422
    assert api.patch(STATUS, {"status": {"allocation": _allocation(_result(request="f/s"))}}).code == 200


def test_a_reservation_needs_an_allocation(api, claim, allocated):
    api.create(CLAIMS, claim("free"))
    forbidden = {("status.reservedFor", "FieldValueForbidden")}
    reply = api.patch(f"{CLAIMS}/free/status", {"status": {"reservedFor": [CONSUMER]}})
    assert reply.mistakes == forbidden
    kept = api.patch(STATUS, {"status": {"allocation": None}})
    assert kept.mistakes == forbidden, "both go in one write"


def test_reservations_are_unique_by_uid_and_at_most_256(api, allocated):
    twice = api.patch(STATUS, {"status": {"reservedFor": [CONSUMER, CONSUMER | {"name": "q"}]}})
    assert twice.mistakes == {("status.reservedFor[1]", "FieldValueDuplicate")}
    many = [CONSUMER | {"uid": str(i)} for i in range(257)]
    refused = api.patch(STATUS, {"status": {"reservedFor": many}})
    assert refused.mistakes == {("status.reservedFor", "FieldValueTooMany")}
    assert api.patch(STATUS, {"status": {"reservedFor": many[:256]}}).code == 200


def test_reservations_are_merged_and_removed_by_uid(api, allocated):
    other = CONSUMER | {"name": "q", "uid": "v"}
    added = api.patch(STATUS, {"status": {"reservedFor": [other]}}, STRATEGIC)
    assert {one["uid"] for one in added.body["status"]["reservedFor"]} == {"u", "v"}
    removed = api.patch(STATUS, {"status": {"reservedFor": [{"$patch": "delete", "uid": "u"}]}}, STRATEGIC)
    assert [one["uid"] for one in removed.body["status"]["reservedFor"]] == ["v"]


def test_a_claim_being_deleted_takes_no_new_reservation(api, allocated):
    api.patch(f"{CLAIMS}/c", {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}})
    api.delete(f"{CLAIMS}/c")
    more = [CONSUMER, CONSUMER | {"name": "q", "uid": "v"}]
    reply = api.patch(STATUS, {"status": {"reservedFor": more}})
    assert reply.causes[0][0] == "status.reservedFor"
    assert api.patch(STATUS, {"status": {"reservedFor": []}}).code == 200, "giving up a reservation is always allowed"


def test_the_status_door_leaves_metadata_and_spec(api, allocated):
    metadata = {"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["e/f"]}
    reply = api.patch(
        STATUS, {"metadata": metadata, "spec": {"devices": {"requests": []}}, "status": {"reservedFor": []}}
    )
    assert reply.code == 200
    assert not {"labels", "annotations", "finalizers"} & reply.body["metadata"].keys()
    assert reply.body["spec"] == allocated["spec"]


def test_the_main_door_leaves_status(api, allocated):
    reply = api.patch(f"{CLAIMS}/c", {"metadata": {"labels": {"a": "b"}}, "status": {"allocation": None}})
    assert reply.body["status"] == allocated["status"]


def test_device_status_is_for_allocated_devices(api, allocated):
    stray = {"driver": "gpu.example.com", "pool": "node-a", "device": "gpu-9"}
    reply = api.patch(STATUS, {"status": {"devices": [stray]}})
    assert reply.causes[0][0] == "status.devices[0]"
    assert "not a device of this claim" in reply.causes[0][1]


def test_device_status_goes_with_the_device(api, allocated):
    mine = {"driver": "gpu.example.com", "pool": "node-a", "device": "gpu-0", "data": {"a": 1}}
    assert api.patch(STATUS, {"status": {"devices": [mine]}}).code == 200
    freed = api.patch(STATUS, {"status": {"allocation": None, "reservedFor": None}})
    assert freed.body["status"] == {}


def test_device_status_is_checked(api, allocated):
    bad = {
        "driver": "gpu.example.com",
        "pool": "node-a",
        "device": "gpu-0",
        "data": "text",
        "conditions": [{"type": "", "status": "Maybe"}],
        "networkData": {"interfaceName": "x" * 257, "ips": ["1.2.3.4", "1.2.3.4/24", "1.2.3.4/24"]},
    }
    reply = api.patch(STATUS, {"status": {"devices": [bad]}})
    assert {field.removeprefix("status.devices[0].") for field, _ in reply.causes} == {
        "data",
        "conditions[0].type",
        "conditions[0].status",
        "conditions[0].lastTransitionTime",
        "conditions[0].reason",
        "networkData.interfaceName",
        "networkData.ips[0]",
        "networkData.ips[2]",
    }


def test_a_template_takes_labels_and_annotations_only(api):
    body = {
        "metadata": {"name": "t"},
        "spec": {"metadata": {"labels": {"a": "b"}, "name": "x"}, "spec": {"devices": {}}},
    }
    assert api.create(TEMPLATES, body).causes == [("spec.metadata.name", "Forbidden: cannot be set")]


def test_the_spec_of_a_template_cannot_change(api):
    body = {"metadata": {"name": "t"}, "spec": {"spec": {"devices": {"requests": [_exactly()]}}}}
    assert api.create(TEMPLATES, body).code == 201
    reply = api.patch(f"{TEMPLATES}/t", {"spec": {"metadata": {"labels": {"a": "b"}}}})
    assert (reply.code, reply.causes[0][0]) == (422, "spec")


def test_a_class_can_change_and_counts_its_generations(api):
    api.create(CLASSES, {"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": "true"}}]}})
    reply = api.patch(f"{CLASSES}/gpu", {"spec": {"extendedResourceName": "example.com/gpu"}})
    assert reply.body["metadata"]["generation"] == 2
    assert api.patch(f"{CLASSES}/gpu", {"spec": {"extendedResourceName": "cpu"}}).code == 422


CLAIM_TEXT = (
    '{"kind":"ResourceClaim","apiVersion":"resource.k8s.io/v1","metadata":{"name":"c"},"spec":{"devices":{"requests":'
    '[{"name":"r","exactly":{"deviceClassName":"c"}}],"config":[{"opaque":{"driver":"d","parameters":%s}}]}}}'
)


@pytest.mark.parametrize(
    ("parameters", "merge", "strategic"),
    [
        ('{"a":1,"b":2}', 200, 200),
        ('{"b":1,"a":2}', 200, 422),
        ('{"a": 1}', 422, 422),
        ('{"a":"<"}', 422, 422),
    ],
)
def test_opaque_parameters_are_compared_as_text(api, parameters, merge, strategic):
    """kube-apiserver 1.36.3 does so: a patch writes the text anew, and an immutable spec then counts as changed."""
    made = api.send("POST", CLAIMS, (CLAIM_TEXT % parameters).encode())
    assert made.body["spec"]["devices"]["config"][0]["opaque"]["parameters"] == json.loads(parameters)
    assert api.patch(f"{CLAIMS}/c", {"metadata": {"finalizers": ["a/b"]}}).code == merge
    operations = [{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]
    assert api.patch(f"{CLAIMS}/c", operations, JSON_PATCH).code == merge
    assert api.patch(f"{CLAIMS}/c", {"metadata": {"annotations": {"a": "b"}}}, STRATEGIC).code == strategic
    same_text = (CLAIM_TEXT % parameters).replace('"name":"c"', '"name":"c","labels":{"x":"y"}')
    assert api.send("PUT", f"{CLAIMS}/c", same_text.encode()).code == 200
