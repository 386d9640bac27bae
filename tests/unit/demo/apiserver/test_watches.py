"""Watches: what is replayed, what is filtered, how they end."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

PODS = "/api/v1/namespaces/default/pods"


def _seen(events):
    return [(event["type"], event["object"]["metadata"].get("name")) for event in events]


def test_without_a_version_the_present_comes_first(api, pod, watch):
    api.create(PODS, pod("a"))
    stream = watch(PODS)
    api_pod = stream.next()
    assert _seen([api_pod]) == [("ADDED", "a")]
    api.create(PODS, pod("b"))
    assert _seen(stream.take(1)) == [("ADDED", "b")]


def test_events_carry_kind_and_version(api, pod, watch):
    made = api.create(PODS, pod("a"))
    event = watch(PODS).next()
    assert event == {"type": "ADDED", "object": made.body}


def test_from_a_version_every_later_event_is_replayed(api, pod, watch):
    api.create(PODS, pod("a"))
    since = api.get(PODS).version
    api.patch(f"{PODS}/a", {"metadata": {"labels": {"x": "1"}}})
    api.create(PODS, pod("b"))
    api.delete(f"{PODS}/a")
    stream = watch(PODS, resourceVersion=since)
    events = stream.take(4)
    assert _seen(events) == [("MODIFIED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "a")]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(set(versions))
    assert versions[0] > int(since)


def test_other_kinds_and_namespaces_are_not_seen(api, pod, watch):
    stream = watch(PODS, resourceVersion=api.get(PODS).version)
    api.create("/api/v1/namespaces/kube-system/pods", pod("other"))
    api.create("/api/v1/nodes", {"metadata": {"name": "n"}})
    api.create(PODS, pod("mine"))
    assert _seen(stream.take(1)) == [("ADDED", "mine")]


def test_an_object_that_starts_to_match_is_added_and_one_that_stops_is_deleted(api, pod, watch):
    api.create(PODS, pod("a", {"labels": {"x": "1"}}))
    api.create(PODS, pod("b"))
    stream = watch(PODS, resourceVersion=api.get(PODS).version, labelSelector="x=1")
    left = api.patch(f"{PODS}/a", {"metadata": {"labels": {"x": "2"}}})
    api.patch(f"{PODS}/b", {"metadata": {"labels": {"x": "1"}}})
    api.patch(f"{PODS}/b", {"metadata": {"labels": {"y": "1"}}})
    events = stream.take(3)
    assert _seen(events) == [("DELETED", "a"), ("ADDED", "b"), ("MODIFIED", "b")]
    assert events[0]["object"]["metadata"]["labels"] == {"x": "1"}, "the last state that matched"
    assert events[0]["object"]["metadata"]["resourceVersion"] == left.version


def test_a_pod_that_is_bound_appears_for_its_node(api, pod, watch):
    api.create(PODS, pod("a"))
    stream = watch(PODS, resourceVersion=api.get(PODS).version, fieldSelector="spec.nodeName=n")
    api.create(f"{PODS}/a/binding", {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n"}})
    assert _seen(stream.take(1)) == [("ADDED", "a")]


def test_the_deletion_of_a_pod_shows_its_mark_first(api, pod, watch):
    api.create(PODS, pod("a"))
    stream = watch(PODS, resourceVersion=api.get(PODS).version)
    api.delete(f"{PODS}/a")
    marked, deleted = stream.take(2)
    assert marked["type"] == "MODIFIED"
    assert marked["object"]["metadata"]["deletionGracePeriodSeconds"] == 0
    assert deleted["type"] == "DELETED"
    assert int(deleted["object"]["metadata"]["resourceVersion"]) > int(marked["object"]["metadata"]["resourceVersion"])


def test_a_version_out_of_the_window_is_an_error_event(api, pod, watch):
    api.create(PODS, pod("a"))
    since = api.get(PODS).version
    for turn in range(201):
        api.patch(f"{PODS}/a", {"metadata": {"labels": {"turn": str(turn)}}})
    stream = watch(PODS, resourceVersion=since)
    assert stream.response.status == 200, "kube-apiserver says it inside the stream"
    event = stream.next()
    assert event["type"] == "ERROR"
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
    assert stream.next() is None


def test_a_version_that_is_no_number_is_refused(api):
    assert api.get(PODS, watch="true", resourceVersion="abc").code == 500, "as kube-apiserver does"


def test_a_watch_gets_a_bookmark_two_seconds_before_its_time_out(api, pod, watch, clock):
    api.create(PODS, pod("a"))
    version = api.get(PODS).version
    stream = watch(PODS, resourceVersion=version, timeoutSeconds=30, allowWatchBookmarks="true")
    clock.advance(28)
    bookmark = stream.next()
    assert bookmark["type"] == "BOOKMARK"
    assert bookmark["object"]["metadata"] == {"resourceVersion": version}
    assert bookmark["object"]["kind"] == "Pod"
    clock.advance(2)
    assert stream.rest() == []


def test_a_watch_shorter_than_two_seconds_gets_no_bookmark(api, pod, watch, clock):
    stream = watch(PODS, resourceVersion=api.get(PODS).version, timeoutSeconds=2, allowWatchBookmarks="true")
    clock.advance(2)
    assert stream.rest() == []


def test_a_watch_that_asks_for_no_bookmarks_gets_none(api, pod, watch, clock):
    stream = watch(PODS, resourceVersion=api.get(PODS).version, timeoutSeconds=100)
    clock.advance(200)
    assert stream.rest() == []


def test_a_bookmark_comes_every_minute(api, pod, watch, clock):
    stream = watch(PODS, resourceVersion=api.get(PODS).version, allowWatchBookmarks="true", timeoutSeconds=600)
    node = api.create("/api/v1/nodes", {"metadata": {"name": "n"}})
    clock.advance(61)
    assert stream.next()["object"]["metadata"]["resourceVersion"] == node.version
    clock.advance(61)
    assert stream.next()["type"] == "BOOKMARK"


def test_initial_events_end_with_a_marked_bookmark(api, pod, watch):
    api.create(PODS, pod("a"))
    stream = watch(PODS, sendInitialEvents="true", resourceVersionMatch="NotOlderThan", allowWatchBookmarks="true")
    added, bookmark = stream.take(2)
    assert _seen([added]) == [("ADDED", "a")]
    assert bookmark["type"] == "BOOKMARK"
    assert bookmark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_initial_events_need_their_match_rule(api):
    assert api.get(PODS, watch="true", sendInitialEvents="true").code == 422
    assert api.get(PODS, watch="true", resourceVersionMatch="NotOlderThan").code == 422


def test_stopping_the_server_ends_its_watches(server, api, pod, watch):
    stream = watch(PODS)
    server.stop()
    assert stream.next() is None


def test_a_client_that_goes_away_leaves_no_watch_behind(server, api, pod, watch):
    watch(PODS).close()
    api.create(PODS, pod("a"))
    assert api.get(f"{PODS}/a").code == 200


def test_forgotten_versions_are_expired_for_lists_and_watches(server, api, pod, watch):
    old = api.create(PODS, pod("a")).version
    api.create(PODS, pod("b"))
    server.forget_history()
    assert api.get(PODS, resourceVersion=old, limit=1).code == 410
    event = watch(PODS, resourceVersion=old).next()
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


def test_watches_go_on_when_the_history_is_forgotten(server, api, pod, watch):
    stream = watch(PODS, resourceVersion=api.create(PODS, pod("a")).version)
    api.create(PODS, pod("b"))
    server.forget_history()
    api.create(PODS, pod("c"))
    assert [event["object"]["metadata"]["name"] for event in stream.take(2)] == ["b", "c"]


def test_bookmarks_in_a_watch_of_tables_are_refused_by_name(api):
    table = "application/json;as=Table;v=v1;g=meta.k8s.io"
    path = "/api/v1/namespaces/default/pods?watch=true&allowWatchBookmarks=true"
    request = urllib.request.Request(api.url + path, headers={"Accept": table})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    assert refused.value.code == 501
    assert "bookmarks in a watch of tables" in refused.value.read().decode()
