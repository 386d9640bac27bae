"""POST: what the server adds, takes away and refuses."""

from __future__ import annotations

import re

PODS = "/api/v1/namespaces/default/pods"


def test_a_new_object_gets_identity_time_and_version(api, pod):
    made = api.create(PODS, pod("a", {"uid": "mine", "creationTimestamp": "2000-01-01T00:00:00Z"}))
    assert made.code == 201
    metadata = made.body["metadata"]
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", metadata["uid"])
    assert metadata["creationTimestamp"] == "2026-11-21T12:00:00Z"
    assert metadata["namespace"] == "default"
    assert api.get(f"{PODS}/a").body == made.body


def test_versions_rise_over_all_kinds(api, pod, claim):
    first = api.create(PODS, pod("a"))
    second = api.create("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims", claim("c"))
    third = api.create("/api/v1/nodes", {"metadata": {"name": "n"}})
    assert int(first.version) < int(second.version) < int(third.version)


def test_generated_names_have_five_characters_and_fit_a_label(api, pod):
    body = pod("x")
    body["metadata"] = {"generateName": "a" * 70 + "-"}
    made = api.create(PODS, body)
    name = made.body["metadata"]["name"]
    assert len(name) == 63
    assert re.fullmatch(r"a{58}[bcdfghjklmnpqrstvwxz2456789]{5}", name)


def test_a_taken_name_is_already_exists(api, pod):
    api.create(PODS, pod("a"))
    again = api.create(PODS, pod("a"))
    assert again.code == 409
    assert again.body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'pods "a" already exists',
        "reason": "AlreadyExists",
        "details": {"name": "a", "kind": "pods"},
        "code": 409,
    }


def test_a_missing_namespace_is_not_found(api, pod):
    reply = api.create("/api/v1/namespaces/nowhere/pods", pod("a"))
    assert (reply.code, reply.body["message"]) == (404, 'namespaces "nowhere" not found')


def test_another_namespace_in_the_body_is_refused(api, pod):
    reply = api.create(PODS, pod("a", {"namespace": "other"}))
    assert reply.code == 400
    assert "does not match the namespace sent on the request" in reply.body["message"]


def test_a_bad_name_is_invalid_and_names_the_field(api, pod):
    reply = api.create(PODS, pod("A_b"))
    assert (reply.code, reply.body["reason"]) == (422, "Invalid")
    assert [field for field, _ in reply.causes] == ["metadata.name"]


def test_no_name_is_invalid(api, pod):
    body = pod("x")
    body["metadata"] = {}
    reply = api.create(PODS, body)
    assert reply.causes == [("metadata.name", "Required value: name or generateName is required")]


def test_a_version_at_creation_is_refused(api, pod):
    reply = api.create(PODS, pod("a", {"resourceVersion": "5"}))
    assert (reply.code, reply.body["message"]) == (500, "resourceVersion should not be set on objects to be created")


def test_an_unknown_field_is_dropped_with_a_warning_by_default(api, pod):
    reply = api.create(PODS, pod("a") | {"foo": 1})
    assert reply.code == 201
    assert reply.headers["warning"] == '299 - "unknown field \\"foo\\""'
    assert "foo" not in reply.body


def test_an_unknown_field_is_dropped_silently_when_ignored(api, pod):
    reply = api.create(PODS, pod("a") | {"foo": 1}, fieldValidation="Ignore")
    assert reply.code == 201
    assert "warning" not in reply.headers


def test_an_unknown_field_is_refused_when_strict(api, pod):
    body = pod("a", bar={"x": 1}) | {"foo": 1}
    reply = api.create(PODS, body, fieldValidation="Strict")
    assert reply.code == 400
    assert reply.body["message"] == (
        'Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field "spec.bar", '
        'unknown field "foo"'
    )


def test_a_field_given_twice_is_refused_when_strict(api):
    body = b'{"metadata":{"name":"n","name":"n"},"kind":"Node","apiVersion":"v1"}'
    reply = api.send("POST", "/api/v1/nodes", body, fieldValidation="Strict")
    assert reply.code == 400
    assert 'duplicate field "metadata.name"' in reply.body["message"]


def test_a_field_without_behaviour_here_is_refused_by_name(api, pod):
    reply = api.create(PODS, pod("a", volumes=[{"name": "v", "emptyDir": {}}]))
    assert (reply.code, reply.body["reason"]) == (501, "NotImplemented")
    assert '"spec.volumes" of Pod' in reply.body["message"]
    assert api.get(f"{PODS}/a").code == 404


def test_a_nested_field_without_behaviour_is_refused_by_name(api, pod):
    probes = [{"name": "main", "image": "x", "livenessProbe": {"httpGet": {"port": 1}}}]
    reply = api.create(PODS, pod("a", containers=probes))
    assert reply.code == 501
    assert "spec.containers[0].livenessProbe" in reply.body["message"]


def test_a_value_of_the_wrong_type_is_refused_with_its_path(api, resource_slice):
    body = resource_slice(pool={"generation": "x"})
    reply = api.create("/apis/resource.k8s.io/v1/resourceslices", body)
    assert reply.code == 400
    assert reply.body["message"].endswith('spec.pool.generation: expected a number (int64), not "x"')


def test_broken_json_is_a_bad_request(api):
    reply = api.send("POST", "/api/v1/nodes", b'{"a":')
    assert (reply.code, reply.body["reason"]) == (400, "BadRequest")


def test_another_kind_is_a_bad_request(api, pod):
    reply = api.create("/apis/resource.k8s.io/v1/resourceslices", pod("a"))
    assert reply.code == 400
    assert "expected a ResourceSlice of resource.k8s.io/v1, not a Pod of v1" in reply.body["message"]


def test_labels_annotations_finalizers_and_owners_are_checked(api, pod):
    metadata = {
        "labels": {"-a": "b", "a": "@"},
        "annotations": {"/x": "y"},
        "finalizers": ["nodomain"],
        "ownerReferences": [{"apiVersion": "", "kind": "", "name": "", "uid": ""}],
    }
    reply = api.create(PODS, pod("a", metadata))
    assert [field for field, _ in reply.causes] == [
        "metadata.labels",
        "metadata.labels",
        "metadata.annotations",
        "metadata.ownerReferences[0].apiVersion",
        "metadata.ownerReferences[0].kind",
        "metadata.ownerReferences[0].name",
        "metadata.ownerReferences[0].uid",
        "metadata.finalizers[0]",
    ]


def test_a_body_that_is_too_large_is_refused_before_it_is_read(api):
    headers = {"Content-Type": "application/json", "Content-Length": str(3 * 1024 * 1024 + 1)}
    reply = api.raw("POST", "/api/v1/nodes", None, headers)
    assert (reply.code, reply.body["reason"]) == (413, "RequestEntityTooLarge")
