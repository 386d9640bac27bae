"""Server-side apply and managedFields."""

from __future__ import annotations

import json

import pytest

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


@pytest.fixture
def apply(api):
    def send(path, document, manager, **query):
        return api.patch(path, document, APPLY, fieldManager=manager, **query)

    return send


def _owners(reply):
    return {entry["manager"]: entry for entry in reply.body["metadata"].get("managedFields", [])}


def _labelled(document, **labels):
    return document | {"metadata": document["metadata"] | {"labels": labels}}


def test_apply_creates_what_is_not_there(apply, claim):
    made = apply(f"{CLAIMS}/c", claim("c"), "me")
    assert made.code == 201
    entry = _owners(made)["me"]
    assert (entry["operation"], entry["fieldsV1"]) == ("Apply", {"f:spec": {"f:devices": {"f:requests": {}}}})


def test_apply_reads_yaml(api):
    body = b"apiVersion: v1\nkind: Node\nmetadata:\n  name: n\n  labels: {a: b}\n"
    reply = api.send("PATCH", "/api/v1/nodes/n", body, form=APPLY, fieldManager="me")
    assert (reply.code, reply.body["metadata"]["labels"]) == (201, {"a": "b"})


def test_apply_needs_a_manager(api, claim):
    reply = api.patch(f"{CLAIMS}/c", claim("c"), APPLY)
    assert reply.causes == [("fieldManager", "Required value: is required for apply patch")]


def test_force_is_for_apply_only(api, claim):
    reply = api.patch(f"{CLAIMS}/c", {}, MERGE, force="true")
    assert reply.causes == [("force", "Forbidden: may not be specified for non-apply patch")]


def test_a_field_of_another_manager_is_a_conflict(apply, pod):
    apply(f"{PODS}/a", _labelled(pod("a"), x="1"), "one")
    reply = apply(f"{PODS}/a", _labelled(pod("a"), x="2"), "two")
    assert (reply.code, reply.body["reason"]) == (409, "Conflict")
    assert reply.body["message"] == 'Apply failed with 1 conflict: conflict with "one": .metadata.labels.x'
    assert reply.body["details"]["causes"] == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "one"', "field": ".metadata.labels.x"}
    ]


def test_force_takes_the_field_over(apply, pod):
    apply(f"{PODS}/a", _labelled(pod("a"), x="1", y="1"), "one")
    taken = apply(f"{PODS}/a", _labelled(pod("a"), x="2"), "two", force="true")
    assert taken.body["metadata"]["labels"] == {"x": "2", "y": "1"}
    owners = _owners(taken)
    assert owners["one"]["fieldsV1"]["f:metadata"] == {"f:labels": {"f:y": {}}}
    assert owners["two"]["fieldsV1"]["f:metadata"] == {"f:labels": {"f:x": {}}}


def test_the_same_value_is_shared(apply, pod):
    apply(f"{PODS}/a", _labelled(pod("a"), x="1"), "one")
    shared = apply(f"{PODS}/a", _labelled(pod("a"), x="1"), "two")
    assert shared.code == 200
    assert all(entry["fieldsV1"]["f:metadata"] == {"f:labels": {"f:x": {}}} for entry in _owners(shared).values())


def test_what_is_not_applied_any_more_is_removed(apply, pod):
    apply(f"{PODS}/a", _labelled(pod("a"), x="1", y="1"), "one")
    apply(f"{PODS}/a", _labelled(pod("a"), y="1"), "two")
    reply = apply(f"{PODS}/a", pod("a"), "one")
    assert reply.body["metadata"]["labels"] == {"y": "1"}, "the other manager still applies y"


def test_a_list_item_is_merged_by_key_and_removed_by_its_owner(api, apply, pod):
    api.create(PODS, pod("a"))
    status = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
    api.patch(f"{PODS}/a/status", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, fieldManager="k")
    mine = status | {"status": {"conditions": [{"type": "Mine", "status": "True"}]}}
    both = apply(f"{PODS}/a/status", mine, "me")
    assert [one["type"] for one in both.body["status"]["conditions"]] == ["Ready", "Mine"]
    left = apply(f"{PODS}/a/status", status | {"status": {}}, "me")
    assert [one["type"] for one in left.body["status"]["conditions"]] == ["Ready"]


def test_an_atomic_list_is_one_field(apply, claim):
    apply(f"{CLAIMS}/c", claim("c"), "one")
    reply = apply(f"{CLAIMS}/c", claim("c"), "two")
    assert reply.code == 409, "the stored list has defaults that the applied one has not"
    assert [cause["field"] for cause in reply.body["details"]["causes"]] == [".spec.devices.requests"]


def test_applying_the_same_again_is_no_write(apply, pod, clock):
    first = apply(f"{PODS}/a", _labelled(pod("a"), x="1"), "me")
    clock.advance(60)
    assert apply(f"{PODS}/a", _labelled(pod("a"), x="1"), "me").body == first.body


def test_an_unknown_field_is_refused(apply, pod):
    reply = apply(f"{PODS}/a", pod("a") | {"foo": 1}, "me")
    assert reply.code == 500
    assert (
        reply.body["message"]
        == "failed to create typed patch object (/a; v1, Kind=Pod): .foo: field not declared in schema"
    )


def test_a_field_without_behaviour_here_is_refused_by_name(apply, pod):
    reply = apply(f"{PODS}/a", pod("a", volumes=[]), "me")
    assert (reply.code, "spec.volumes" in reply.body["message"]) == (501, True)


def test_apply_takes_no_managed_fields(apply, pod):
    reply = apply(f"{PODS}/a", pod("a", {"managedFields": [{"manager": "x"}]}), "me")
    assert (reply.code, reply.body["message"]) == (400, "metadata.managedFields must be nil")


def test_status_of_what_is_not_there_cannot_be_applied(apply, pod):
    assert apply(f"{PODS}/a/status", pod("a"), "me").code == 404


def test_taking_over_from_client_side_apply_is_refused_by_name(api, apply, pod):
    api.create(PODS, pod("a", {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}))
    reply = apply(f"{PODS}/a", pod("a"), "kubectl")
    assert (reply.code, "client-side apply" in reply.body["message"]) == (501, True)


def test_an_update_owns_what_it_changes_and_takes_it_from_others(api, apply, pod):
    apply(f"{PODS}/a", _labelled(pod("a"), x="1", y="1"), "one")
    changed = api.patch(f"{PODS}/a", {"metadata": {"labels": {"x": "2"}}}, fieldManager="two")
    owners = _owners(changed)
    assert owners["one"]["fieldsV1"]["f:metadata"] == {"f:labels": {"f:y": {}}}
    assert owners["two"]["fieldsV1"] == {"f:metadata": {"f:labels": {"f:x": {}}}}
    assert owners["two"]["operation"] == "Update"


def test_without_a_name_the_user_agent_is_the_manager(api, pod):
    assert set(_owners(api.create(PODS, pod("a")))) == {"test"}


def test_writes_through_status_are_told_apart(api, pod):
    api.create(PODS, pod("a"), fieldManager="m")
    reply = api.patch(f"{PODS}/a/status", {"status": {"phase": "Running"}}, fieldManager="m")
    entries = reply.body["metadata"]["managedFields"]
    assert [entry.get("subresource", "") for entry in entries] == ["", "status"]


def test_only_the_times_of_owners_differ_is_no_write(api, pod, clock):
    made = api.create(PODS, pod("a"), fieldManager="m")
    clock.advance(60)
    assert api.patch(f"{PODS}/a", {"metadata": {"labels": {}}}, fieldManager="m").version == made.version


def test_the_eleventh_updater_joins_the_oldest(api, pod, clock):
    api.create(PODS, pod("a"), fieldManager="m0")
    for turn in range(1, 12):
        clock.advance(1)
        api.patch(f"{PODS}/a", {"metadata": {"annotations": {f"k{turn}": "v"}}}, fieldManager=f"m{turn}")
    names = [entry["manager"] for entry in api.get(f"{PODS}/a").body["metadata"]["managedFields"]]
    assert len(names) == 10
    assert "ancient-changes" in names
    assert "m11" in names
    assert "m0" not in names


def test_an_empty_entry_erases_all_owners(api, pod):
    api.create(PODS, pod("a"))
    erased = api.patch(f"{PODS}/a", {"metadata": {"managedFields": [{}]}})
    assert "managedFields" not in erased.body["metadata"]
    later = api.patch(f"{PODS}/a", {"metadata": {"labels": {"a": "b"}}})
    assert "managedFields" not in later.body["metadata"], "an object without owners is not tracked again by an update"


def test_the_first_apply_finds_the_past_under_one_name(api, apply, pod):
    api.create(PODS, pod("a"))
    api.patch(f"{PODS}/a", {"metadata": {"managedFields": [{}]}})
    owners = _owners(
        apply(f"{PODS}/a", _labelled({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}, q="1"), "me")
    )
    assert set(owners) == {"before-first-apply", "me"}
    assert "f:spec" in owners["before-first-apply"]["fieldsV1"]
    assert json.dumps(owners["me"]["fieldsV1"]) == '{"f:metadata": {"f:labels": {"f:q": {}}}}'
