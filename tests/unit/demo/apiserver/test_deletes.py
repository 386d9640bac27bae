"""DELETE: at once, after a grace period, after the last finalizer."""

from __future__ import annotations

PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
NAMESPACES = "/api/v1/namespaces"


def _bind(api, name):
    binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "n"}}
    assert api.create(f"{PODS}/{name}/binding", binding).code == 201


def test_a_claim_without_finalizers_goes_at_once(api, claim):
    made = api.create(CLAIMS, claim("c"))
    gone = api.delete(f"{CLAIMS}/c")
    assert gone.code == 200
    assert gone.body["metadata"]["uid"] == made.body["metadata"]["uid"]
    assert api.get(f"{CLAIMS}/c").code == 404


def test_nodes_leases_and_events_answer_with_a_status(api):
    made = api.create("/api/v1/nodes", {"metadata": {"name": "n"}})
    assert api.delete("/api/v1/nodes/n").body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {"name": "n", "kind": "nodes", "uid": made.body["metadata"]["uid"]},
    }


def test_finalizers_hold_the_object_until_the_last_is_gone(api, claim):
    api.create(CLAIMS, claim("c") | {"metadata": {"name": "c", "finalizers": ["a/b", "c/d"]}})
    held = api.delete(f"{CLAIMS}/c")
    assert held.body["metadata"]["deletionTimestamp"] == "2026-11-21T12:00:00Z"
    assert held.body["metadata"]["deletionGracePeriodSeconds"] == 0
    again = api.delete(f"{CLAIMS}/c")
    assert again.body == held.body, "deleting twice changes nothing"
    assert api.patch(f"{CLAIMS}/c", {"metadata": {"finalizers": ["a/b"]}}).code == 200
    assert api.get(f"{CLAIMS}/c").code == 200
    last = api.patch(f"{CLAIMS}/c", {"metadata": {"finalizers": None}})
    assert last.code == 200
    assert "finalizers" not in last.body["metadata"]
    assert api.get(f"{CLAIMS}/c").code == 404


def test_no_new_finalizer_while_deleting(api, claim):
    api.create(CLAIMS, claim("c") | {"metadata": {"name": "c", "finalizers": ["a/b"]}})
    api.delete(f"{CLAIMS}/c")
    reply = api.patch(f"{CLAIMS}/c", {"metadata": {"finalizers": ["a/b", "new/one"]}})
    assert reply.code == 422
    assert reply.causes[0][0] == "metadata.finalizers"
    assert reply.causes[0][1].endswith("found new/one")


def test_preconditions_guard_a_deletion(api, claim):
    made = api.create(CLAIMS, claim("c"))
    for wrong in ({"uid": "other"}, {"resourceVersion": "1"}):
        reply = api.delete(f"{CLAIMS}/c", {"preconditions": wrong})
        assert (reply.code, reply.body["reason"]) == (409, "Conflict")
    right = {"uid": made.body["metadata"]["uid"], "resourceVersion": made.version}
    assert api.delete(f"{CLAIMS}/c", {"preconditions": right}).code == 200


def test_an_unknown_propagation_policy_is_invalid(api, claim):
    api.create(CLAIMS, claim("c"))
    assert api.delete(f"{CLAIMS}/c", {"propagationPolicy": "Sometimes"}).code == 422


def test_background_deletes_and_foreground_waits_for_the_collector(api, claim):
    api.create(CLAIMS, claim("c"))
    assert api.delete(f"{CLAIMS}/c", propagationPolicy="Background").code == 200
    assert api.get(f"{CLAIMS}/c").code == 404
    api.create(CLAIMS, claim("c"))
    assert api.delete(f"{CLAIMS}/c", {"propagationPolicy": "Foreground"}).body["metadata"]["finalizers"] == [
        "foregroundDeletion"
    ]


def test_an_unbound_pod_goes_at_once(api, pod):
    api.create(PODS, pod("a"))
    assert api.delete(f"{PODS}/a").code == 200
    assert api.get(f"{PODS}/a").code == 404


def test_a_bound_pod_waits_for_its_grace_and_a_second_delete(api, pod, clock):
    api.create(PODS, pod("a"))
    _bind(api, "a")
    marked = api.delete(f"{PODS}/a")
    assert marked.body["metadata"]["deletionGracePeriodSeconds"] == 30
    assert marked.body["metadata"]["deletionTimestamp"] == "2026-11-21T12:00:30Z"
    assert marked.body["metadata"]["generation"] == 2
    clock.advance(3600)
    assert api.get(f"{PODS}/a").code == 200, "only a kubelet ends a bound pod"
    assert api.delete(f"{PODS}/a", gracePeriodSeconds=0).code == 200
    assert api.get(f"{PODS}/a").code == 404


def test_a_grace_period_can_only_be_shortened(api, pod):
    api.create(PODS, pod("a"))
    _bind(api, "a")
    api.delete(f"{PODS}/a")
    assert api.delete(f"{PODS}/a", {"gracePeriodSeconds": 60}).body["metadata"]["deletionGracePeriodSeconds"] == 30
    shorter = api.delete(f"{PODS}/a", {"gracePeriodSeconds": 10})
    assert shorter.body["metadata"]["deletionGracePeriodSeconds"] == 10
    assert shorter.body["metadata"]["deletionTimestamp"] == "2026-11-21T12:00:10Z"


def test_a_finished_pod_goes_at_once(api, pod):
    api.create(PODS, pod("a"))
    _bind(api, "a")
    api.patch(f"{PODS}/a/status", {"status": {"phase": "Succeeded"}})
    api.delete(f"{PODS}/a")
    assert api.get(f"{PODS}/a").code == 404


def test_a_namespace_terminates_and_goes_when_finalized(api, pod):
    api.create(NAMESPACES, {"metadata": {"name": "x"}})
    marked = api.delete(f"{NAMESPACES}/x")
    assert marked.body["status"]["phase"] == "Terminating"
    refused = api.create(f"{NAMESPACES}/x/pods", pod("a"))
    assert refused.code == 403
    assert refused.body["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    assert api.put(f"{NAMESPACES}/x/finalize", {"metadata": {"name": "x"}, "spec": {}}).code == 200
    assert api.get(f"{NAMESPACES}/x").code == 404


def test_the_first_namespaces_stay(api):
    for name in ("default", "kube-system"):
        assert api.delete(f"{NAMESPACES}/{name}").code == 403
        assert api.get(f"{NAMESPACES}/{name}").body["status"]["phase"] == "Active"
