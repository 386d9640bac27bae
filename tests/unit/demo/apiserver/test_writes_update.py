"""PUT and the three ways of PATCH."""

from __future__ import annotations

import copy

import pytest

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


@pytest.fixture
def stored(api, claim):
    return api.create(CLAIMS, claim("c")).body


def test_put_with_the_present_version_is_taken(api, stored):
    stored["metadata"]["labels"] = {"a": "b"}
    reply = api.put(f"{CLAIMS}/c", stored)
    assert reply.code == 200
    assert reply.body["metadata"]["labels"] == {"a": "b"}
    assert int(reply.version) > int(stored["metadata"]["resourceVersion"])


def test_put_with_an_older_version_is_a_conflict(api, stored):
    api.patch(f"{CLAIMS}/c", {"metadata": {"labels": {"a": "b"}}})
    reply = api.put(f"{CLAIMS}/c", stored)
    assert reply.code == 409
    assert reply.body["reason"] == "Conflict"
    assert reply.body["details"] == {"name": "c", "group": "resource.k8s.io", "kind": "resourceclaims"}
    assert reply.body["message"] == f'Operation cannot be fulfilled on resourceclaims.resource.k8s.io "c": {MODIFIED}'


def test_put_without_a_version_overwrites(api, stored):
    del stored["metadata"]["resourceVersion"]
    stored["metadata"]["labels"] = {"a": "b"}
    assert api.put(f"{CLAIMS}/c", stored).code == 200


def test_put_of_a_lease_needs_a_version(api):
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    body = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}}
    assert api.put(f"{leases}/l", body).code == 201, "a lease is created by PUT"
    reply = api.put(f"{leases}/l", body)
    assert reply.code == 422
    assert reply.causes == [("metadata.resourceVersion", "Invalid value: 0: must be specified for an update")]


def test_put_of_what_is_not_there_is_not_found(api, claim):
    assert api.put(f"{CLAIMS}/c", claim("c")).code == 404


def test_put_with_another_uid_is_a_conflict(api, stored):
    stored["metadata"]["uid"] = "other"
    reply = api.put(f"{CLAIMS}/c", stored)
    assert reply.code == 409
    assert "the request names other" in reply.body["message"]


def test_put_with_another_name_is_refused(api, stored):
    stored["metadata"]["name"] = "d"
    reply = api.put(f"{CLAIMS}/c", stored)
    assert reply.body["message"] == "the name of the object (d) does not match the name on the URL (c)"


def test_a_write_that_changes_nothing_is_no_write(api, stored):
    for reply in (
        api.put(f"{CLAIMS}/c", stored),
        api.patch(f"{CLAIMS}/c", {"spec": stored["spec"]}),
        api.patch(f"{CLAIMS}/c", {}, STRATEGIC),
    ):
        assert reply.code == 200
        assert reply.version == stored["metadata"]["resourceVersion"]


@pytest.mark.parametrize("form", [MERGE, STRATEGIC])
def test_a_patch_that_states_another_version_is_a_conflict(api, stored, form):
    reply = api.patch(f"{CLAIMS}/c", {"metadata": {"resourceVersion": "1", "labels": {"a": "b"}}}, form)
    assert (reply.code, reply.body["reason"]) == (409, "Conflict")


def test_a_patch_that_states_the_present_version_is_taken(api, stored):
    version = stored["metadata"]["resourceVersion"]
    reply = api.patch(f"{CLAIMS}/c", {"metadata": {"resourceVersion": version, "labels": {"a": "b"}}})
    assert reply.code == 200


def test_a_patch_cannot_change_identity(api, stored):
    uid = api.patch(f"{CLAIMS}/c", {"metadata": {"uid": "zz"}})
    assert uid.causes == [("metadata.uid", 'Invalid value: "zz": field is immutable')]
    assert api.patch(f"{CLAIMS}/c", {"metadata": {"name": "zz"}}).code == 400


def test_merge_patch_removes_with_null(api, stored):
    api.patch(f"{CLAIMS}/c", {"metadata": {"labels": {"a": "1", "b": "2"}}})
    reply = api.patch(f"{CLAIMS}/c", {"metadata": {"labels": {"a": None}}})
    assert reply.body["metadata"]["labels"] == {"b": "2"}


def test_json_patch_applies_in_order(api, stored):
    operations = [
        {"op": "add", "path": "/metadata/labels", "value": {"a": "1"}},
        {"op": "test", "path": "/metadata/labels/a", "value": "1"},
        {"op": "replace", "path": "/metadata/labels/a", "value": "2"},
    ]
    assert api.patch(f"{CLAIMS}/c", operations, JSON_PATCH).body["metadata"]["labels"] == {"a": "2"}


def test_a_failed_test_of_a_json_patch_changes_nothing(api, stored):
    operations = [
        {"op": "add", "path": "/metadata/labels", "value": {"a": "1"}},
        {"op": "test", "path": "/metadata/name", "value": "zz"},
    ]
    reply = api.patch(f"{CLAIMS}/c", operations, JSON_PATCH)
    assert reply.code == 422
    assert reply.body["message"] == "the server rejected our request due to an error in our request"
    assert api.get(f"{CLAIMS}/c").body == stored


def test_an_unknown_media_type_of_a_patch_is_refused(api, stored):
    reply = api.patch(f"{CLAIMS}/c", {}, "application/json")
    assert (reply.code, reply.body["reason"]) == (415, "UnsupportedMediaType")


def test_server_side_apply_is_refused_by_name_and_changes_nothing(api, stored, claim):
    applied = claim("c") | {"metadata": {"name": "c", "labels": {"a": "b"}}}
    reply = api.patch(f"{CLAIMS}/c", applied, "application/apply-patch+yaml", fieldManager="me")
    assert (reply.code, reply.body["reason"]) == (415, "UnsupportedMediaType")
    assert "does not implement server-side apply" in reply.body["message"]
    assert api.get(f"{CLAIMS}/c").body == stored


def test_fields_have_no_owners_whatever_a_client_sends(api, stored):
    owners = [{"manager": "me", "operation": "Update", "fieldsV1": {"f:spec": {}}}]
    assert "managedFields" not in stored["metadata"]
    for reply in (
        api.patch(f"{CLAIMS}/c", {"metadata": {"managedFields": owners}}),
        api.put(f"{CLAIMS}/c", stored | {"metadata": stored["metadata"] | {"managedFields": owners}}),
        api.create(CLAIMS, {"metadata": {"name": "d", "managedFields": owners}, "spec": stored["spec"]}),
    ):
        assert reply.code in (200, 201)
        assert "managedFields" not in reply.body["metadata"]


def test_strategic_merge_merges_conditions_by_type(api, pod):
    api.create(PODS, pod("a"))
    ready = {"type": "Ready", "status": "True"}
    api.patch(f"{PODS}/a/status", {"status": {"conditions": [ready, {"type": "X", "status": "True"}]}}, STRATEGIC)
    reply = api.patch(f"{PODS}/a/status", {"status": {"conditions": [ready | {"status": "False"}]}}, STRATEGIC)
    assert {one["type"]: one["status"] for one in reply.body["status"]["conditions"]} == {
        "Ready": "False",
        "X": "True",
    }


def test_strategic_merge_merges_finalizers_as_a_set(api, stored):
    api.patch(f"{CLAIMS}/c", {"metadata": {"finalizers": ["a/b", "c/d"]}}, STRATEGIC)
    patch = {"metadata": {"finalizers": ["e/f"], "$deleteFromPrimitiveList/finalizers": ["a/b"]}}
    reply = api.patch(f"{CLAIMS}/c", patch, STRATEGIC)
    assert sorted(reply.body["metadata"]["finalizers"]) == ["c/d", "e/f"]


def test_strategic_merge_replaces_lists_without_a_key(api, stored):
    reply = api.patch(f"{CLAIMS}/c", {"spec": {"devices": {"requests": []}}}, STRATEGIC)
    assert reply.code == 422, "the requests would be replaced, and the spec is immutable"


def test_strategic_merge_needs_the_merge_key(api, pod):
    api.create(PODS, pod("a"))
    reply = api.patch(f"{PODS}/a", {"spec": {"containers": [{"image": "x"}]}}, STRATEGIC)
    assert reply.code == 500
    assert "does not contain declared merge key: name" in reply.body["message"]


def test_the_main_door_cannot_change_status_nor_the_status_door_spec(api, pod):
    api.create(PODS, pod("a"))
    main = api.patch(f"{PODS}/a", {"status": {"phase": "Running"}})
    assert main.body["status"]["phase"] == "Pending"
    status = api.patch(f"{PODS}/a/status", {"spec": {"nodeName": "n"}, "status": {"phase": "Running"}})
    assert status.body["status"]["phase"] == "Running"
    assert "nodeName" not in status.body["spec"]


def test_generation_rises_with_the_spec_only(api, resource_slice):
    slices = "/apis/resource.k8s.io/v1/resourceslices"
    made = api.create(slices, resource_slice())
    labelled = api.patch(f"{slices}/slice", {"metadata": {"labels": {"a": "b"}, "generation": 7}})
    changed = api.patch(f"{slices}/slice", {"spec": {"pool": {"generation": 2}}})
    assert [reply.body["metadata"]["generation"] for reply in (made, labelled, changed)] == [1, 1, 2]


def test_an_update_cannot_begin_or_end_a_deletion(api, stored):
    changed = copy.deepcopy(stored)
    changed["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    reply = api.put(f"{CLAIMS}/c", changed)
    assert (reply.code, reply.causes[0][0]) == (422, "metadata.deletionTimestamp")


def test_a_patch_that_makes_an_unreadable_object_is_invalid(api, stored):
    reply = api.patch(f"{CLAIMS}/c", {"metadata": {"labels": {"a": 1}}})
    assert reply.code == 422
    assert reply.body["details"]["causes"][0]["field"] == "patch"
