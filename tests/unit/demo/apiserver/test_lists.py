"""Lists: selectors, pages and versions."""

from __future__ import annotations

import threading

import pytest

from dracaena.demo.apiserver.errors import ApiError
from dracaena.demo.apiserver.storage import ObjectStorage

PODS = "/api/v1/namespaces/default/pods"
ALL_PODS = "/api/v1/pods"
RESOURCE = "/apis/resource.k8s.io/v1"


def _names(reply):
    assert reply.code == 200, reply.body
    return [item["metadata"]["name"] for item in reply.body["items"]]


@pytest.fixture
def five_pods(api, pod):
    for name in ("p0", "p1", "p2", "p3", "p4"):
        api.create(PODS, pod(name, {"labels": {"even": "yes" if int(name[1]) % 2 == 0 else "no", "n": name[1]}}))


def test_items_carry_no_kind_of_their_own(api, five_pods):
    reply = api.get(PODS)
    assert (reply.body["kind"], reply.body["apiVersion"]) == ("PodList", "v1")
    assert not {"kind", "apiVersion"} & reply.body["items"][0].keys()


def test_an_empty_list_has_items_and_a_version(api):
    reply = api.get(f"{RESOURCE}/resourceslices")
    assert reply.body["items"] == []
    assert int(reply.version) > 0


def test_objects_of_all_namespaces_are_listed_in_the_order_of_their_keys(api, pod):
    api.create("/api/v1/namespaces", {"metadata": {"name": "a-b"}})
    for namespace in ("kube-system", "a-b", "default"):
        api.create(f"/api/v1/namespaces/{namespace}/pods", pod("x"))
    items = api.get(ALL_PODS).body["items"]
    assert [item["metadata"]["namespace"] for item in items] == ["a-b", "default", "kube-system"]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("even=yes", ["p0", "p2", "p4"]),
        ("even==yes,n!=0", ["p2", "p4"]),
        ("n in (1,3)", ["p1", "p3"]),
        ("n notin (1,3),even", ["p0", "p2", "p4"]),
        ("!even", []),
        ("n>2", ["p3", "p4"]),
        ("n<1", ["p0"]),
    ],
)
def test_label_selectors_choose(api, five_pods, selector, expected):
    assert _names(api.get(PODS, labelSelector=selector)) == expected


@pytest.mark.parametrize("selector", ["!!a", "a in 1", "a=b c", "a,", "a=@", "-x", "a>b"])
def test_a_label_selector_that_cannot_be_read_is_a_bad_request(api, selector):
    assert api.get(PODS, labelSelector=selector).code == 400


def test_field_selectors_choose(api, five_pods):
    api.create(f"{PODS}/p1/binding", {"metadata": {"name": "p1"}, "target": {"kind": "Node", "name": "n"}})
    assert _names(api.get(PODS, fieldSelector="spec.nodeName=n")) == ["p1"]
    assert _names(api.get(PODS, fieldSelector="spec.nodeName=,metadata.name!=p0")) == ["p2", "p3", "p4"]
    assert _names(api.get(PODS, fieldSelector="status.phase=Running")) == []


def test_slices_are_selected_by_node_and_driver(api, resource_slice):
    slices = f"{RESOURCE}/resourceslices"
    api.create(slices, resource_slice(name="a"))
    api.create(slices, resource_slice(name="b", nodeName=None, allNodes=True))
    assert _names(api.get(slices, fieldSelector="spec.nodeName=node-a,spec.driver=gpu.example.com")) == ["a"]
    assert _names(api.get(slices, fieldSelector="spec.nodeName=")) == ["b"]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (ALL_PODS, "Pod"),
        (f"{RESOURCE}/resourceslices", "ResourceSlice"),
        (f"{RESOURCE}/resourceclaims", "ResourceClaim"),
    ],
)
def test_a_field_that_cannot_be_selected_by_is_a_bad_request(api, path, kind):
    reply = api.get(path, fieldSelector="spec.foo=x")
    assert reply.code == 400
    assert f"Kind={kind}: spec.foo" in reply.body["message"]


def test_pages_show_the_state_of_the_first_page(api, five_pods, pod):
    first = api.get(PODS, limit=2)
    assert _names(first) == ["p0", "p1"]
    assert first.body["metadata"]["remainingItemCount"] == 3
    api.delete(f"{PODS}/p3")
    api.create(PODS, pod("p31"))
    api.patch(f"{PODS}/p2", {"metadata": {"labels": {"changed": "yes"}}})
    second = api.get(PODS, limit=2, **{"continue": first.body["metadata"]["continue"]})
    assert _names(second) == ["p2", "p3"]
    assert "changed" not in second.body["items"][0]["metadata"]["labels"]
    third = api.get(PODS, limit=2, **{"continue": second.body["metadata"]["continue"]})
    assert _names(third) == ["p4"]
    assert "continue" not in third.body["metadata"]
    assert first.version == second.version == third.version


def test_a_token_out_of_the_window_is_expired(api, five_pods):
    token = api.get(PODS, limit=2).body["metadata"]["continue"]
    for turn in range(201):
        api.patch(f"{PODS}/p4", {"metadata": {"labels": {"turn": str(turn)}}})
    gone = api.get(PODS, limit=2, **{"continue": token})
    assert (gone.code, gone.body["reason"]) == (410, "Expired")


def test_a_broken_token_is_a_bad_request(api):
    for token in ("abc", "e30", "!"):
        assert api.get(PODS, **{"continue": token}).code == 400


def test_a_page_of_a_version_shows_the_past(api, five_pods):
    then = api.get(PODS).version
    api.delete(f"{PODS}/p0")
    past = api.get(PODS, resourceVersion=then, limit=1)
    assert _names(past) == ["p0"]
    assert past.version == then
    assert _names(api.get(PODS, resourceVersion=then))[0] == "p1"


def test_a_page_out_of_the_window_is_expired(api, five_pods):
    then = api.get(PODS).version
    for turn in range(201):
        api.patch(f"{PODS}/p4", {"metadata": {"labels": {"turn": str(turn)}}})
    reply = api.get(PODS, resourceVersion=then, limit=1)
    assert (reply.code, reply.body["reason"]) == (410, "Expired")


def test_a_list_of_any_version_knows_no_pages(api, five_pods):
    assert len(_names(api.get(PODS, resourceVersion="0", limit=2))) == 5


@pytest.mark.parametrize(
    "query",
    [
        {"resourceVersionMatch": "Exact", "resourceVersion": "1"},
        {"resourceVersionMatch": "NotOlderThan", "resourceVersion": "1"},
        {"sendInitialEvents": "true"},
    ],
)
def test_list_options_without_a_behaviour_are_refused_by_name(api, query):
    reply = api.get(PODS, **query)
    assert reply.code == 501
    assert set(query) & set(reply.body["message"].split())


def test_a_version_that_is_no_number_is_refused(api):
    assert api.get(PODS, resourceVersion="abc").code == 400
    assert api.get(f"{PODS}/x", resourceVersion="abc").code == 500, "as kube-apiserver does"


def test_a_read_waits_for_a_version_that_is_on_its_way():
    storage = ObjectStorage(window=10, future_wait_s=30.0)
    waited = threading.Thread(target=storage.wait_for, args=(2,))
    waited.start()
    from dracaena.demo.apiserver.resources import NODE

    storage.put(NODE, "n", {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n"}})
    waited.join(timeout=20)
    assert not waited.is_alive()


def test_a_version_that_does_not_come_is_too_large():
    with pytest.raises(ApiError) as refused:
        ObjectStorage(window=10, future_wait_s=0.01).wait_for(99)
    assert refused.value.code == 504
    assert refused.value.status()["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
    assert refused.value.headers == {"Retry-After": "1"}
