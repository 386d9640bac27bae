"""What is particular to pods and nodes."""

from __future__ import annotations

import pytest

STRATEGIC = "application/strategic-merge-patch+json"
PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"


def _bind(api, name):
    body = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "n"}}
    return api.create(f"{PODS}/{name}/binding", body)


def test_a_new_pod_has_the_defaults_of_the_api(api, pod):
    body = api.create(PODS, pod("a")).body
    assert body["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert body["metadata"]["generation"] == 1
    spec = body["spec"]
    assert spec["containers"][0] == {
        "name": "main",
        "image": "busybox:1",
        "resources": {},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }
    assert spec["schedulerName"] == "default-scheduler"
    assert spec["priority"] == 0
    assert {one["key"]: one["tolerationSeconds"] for one in spec["tolerations"]} == {
        "node.kubernetes.io/not-ready": 300,
        "node.kubernetes.io/unreachable": 300,
    }


def test_status_at_creation_is_dropped(api, pod):
    assert api.create(PODS, pod("a") | {"status": {"phase": "Running"}}).body["status"]["phase"] == "Pending"


@pytest.mark.parametrize(
    ("resources", "quality"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1024Mi"}}, "Guaranteed"),
        ({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}, "Burstable"),
    ],
)
def test_quality_of_service_follows_requests_and_limits(api, pod, resources, quality):
    containers = [{"name": "c", "image": "x", "resources": resources}]
    assert api.create(PODS, pod("a", containers=containers)).body["status"]["qosClass"] == quality


def test_quantities_come_back_in_their_canonical_form(api, pod):
    limits = {"cpu": "1500m", "memory": "1024Mi", "example.com/x": "2"}
    made = api.create(PODS, pod("a", containers=[{"name": "c", "image": "x", "resources": {"limits": limits}}]))
    expected = {"cpu": "1500m", "memory": "1Gi", "example.com/x": "2"}
    assert made.body["spec"]["containers"][0]["resources"] == {"limits": expected, "requests": expected}


def test_a_binding_gives_the_pod_its_node(api, pod):
    api.create(PODS, pod("a"))
    api.patch(f"{PODS}/a/status", {"status": {"nominatedNodeName": "x"}})
    assert _bind(api, "a").body["status"] == "Success"
    bound = api.get(f"{PODS}/a").body
    assert bound["spec"]["nodeName"] == "n"
    assert "nominatedNodeName" not in bound["status"]
    (scheduled,) = bound["status"]["conditions"]
    assert (scheduled["type"], scheduled["status"]) == ("PodScheduled", "True")


def test_a_second_binding_is_a_conflict(api, pod):
    api.create(PODS, pod("a"))
    _bind(api, "a")
    reply = _bind(api, "a")
    assert reply.code == 409
    assert reply.body["message"] == (
        'Operation cannot be fulfilled on pods/binding "a": pod a is already assigned to node "n"'
    )


def test_a_pod_being_deleted_is_not_bound(api, pod):
    api.create(PODS, pod("a", {"finalizers": ["a/b"]}))
    api.delete(f"{PODS}/a")
    assert "is being deleted" in _bind(api, "a").body["message"]


def test_a_gated_pod_is_not_bound(api, pod):
    made = api.create(PODS, pod("a", schedulingGates=[{"name": "example.com/wait"}]))
    assert made.body["status"]["conditions"][0]["reason"] == "SchedulingGated"
    assert "non-empty .spec.schedulingGates" in _bind(api, "a").body["message"]
    assert api.patch(f"{PODS}/a", {"spec": {"schedulingGates": None}}).code == 200
    assert _bind(api, "a").code == 201


def test_a_binding_of_another_pod_with_that_name_is_a_conflict(api, pod):
    api.create(PODS, pod("a"))
    body = {"metadata": {"name": "a", "uid": "other"}, "target": {"kind": "Node", "name": "n"}}
    assert api.create(f"{PODS}/a/binding", body).code == 409


def test_only_few_fields_of_a_pod_may_change(api, pod):
    api.create(PODS, pod("a"))
    image = api.patch(f"{PODS}/a", {"spec": {"containers": [{"name": "main", "image": "busybox:2"}]}}, STRATEGIC)
    assert (image.code, image.body["metadata"]["generation"]) == (200, 2)
    refused = api.patch(f"{PODS}/a", {"spec": {"containers": [{"name": "main", "command": ["x"]}]}}, STRATEGIC)
    assert refused.code == 422
    assert refused.mistakes == {("spec", "FieldValueForbidden")}
    assert api.patch(f"{PODS}/a", {"spec": {"nodeName": "n"}}).code == 422, "only a binding names the node"


def test_tolerations_can_be_added_and_not_removed(api, pod):
    tolerations = api.create(PODS, pod("a")).body["spec"]["tolerations"]
    added = [*tolerations, {"key": "x", "operator": "Exists"}]
    assert api.patch(f"{PODS}/a", {"spec": {"tolerations": added}}).code == 200
    refused = api.patch(f"{PODS}/a", {"spec": {"tolerations": tolerations}})
    assert refused.causes == [
        ("spec.tolerations", "Forbidden: existing toleration can not be modified except its tolerationSeconds")
    ]


def test_scheduling_gates_can_only_go(api, pod):
    api.create(PODS, pod("a", schedulingGates=[{"name": "a/b"}]))
    refused = api.patch(f"{PODS}/a", {"spec": {"schedulingGates": [{"name": "c/d"}]}})
    assert refused.causes[0][0] == "spec.schedulingGates[0].name"


def test_narrowing_a_gated_pod_is_refused_by_name(api, pod):
    api.create(PODS, pod("a", schedulingGates=[{"name": "a/b"}]))
    assert api.patch(f"{PODS}/a", {"spec": {"nodeSelector": {"a": "b"}}}).code == 501


def test_resource_claims_of_a_pod_are_checked(api, pod):
    claims = [
        {"name": "a"},
        {"name": "a", "resourceClaimName": "x", "resourceClaimTemplateName": "y"},
        {"name": "B", "resourceClaimName": "X_"},
    ]
    reply = api.create(PODS, pod("p", resourceClaims=claims))
    assert [field for field, _ in reply.causes] == [
        "spec.resourceClaims[0]",
        "spec.resourceClaims[1].name",
        "spec.resourceClaims[1]",
        "spec.resourceClaims[2].name",
        "spec.resourceClaims[2].resourceClaimName",
    ]


def test_a_container_can_only_use_claims_of_its_pod(api, pod):
    containers = [{"name": "c", "image": "x", "resources": {"claims": [{"name": "a"}, {"name": "a"}, {"name": "b"}]}}]
    reply = api.create(PODS, pod("p", resourceClaims=[{"name": "a", "resourceClaimName": "x"}], containers=containers))
    assert reply.mistakes == {
        ("spec.containers[0].resources.claims[1]", "FieldValueDuplicate"),
        ("spec.containers[0].resources.claims[2]", "FieldValueNotFound"),
    }


def test_claim_statuses_must_name_claims_of_the_pod(api, pod):
    api.create(PODS, pod("p", resourceClaims=[{"name": "a", "resourceClaimTemplateName": "t"}]))
    good = {"status": {"resourceClaimStatuses": [{"name": "a", "resourceClaimName": "p-a-x"}]}}
    assert api.patch(f"{PODS}/p/status", good, STRATEGIC).code == 200
    bad = {"status": {"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "x"}]}}
    assert api.patch(f"{PODS}/p/status", bad, STRATEGIC).causes[0][1] == (
        'Invalid value: "b": must match the name of an entry in `spec.resourceClaims`'
    )


def test_a_priority_of_ones_own_is_forbidden(api, pod):
    reply = api.create(PODS, pod("a", priority=5))
    assert (reply.code, reply.body["reason"]) == (403, "Forbidden")


def test_affinity_is_checked(api, pod):
    terms = [{"matchExpressions": [{"key": "a", "operator": "In"}, {"key": "b", "operator": "Foo"}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    reply = api.create(PODS, pod("a", affinity={"nodeAffinity": required}))
    at = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
    assert reply.mistakes == {
        (f"{at}.matchExpressions[0].values", "FieldValueRequired"),
        (f"{at}.matchExpressions[1].operator", "FieldValueInvalid"),
    }


def test_a_new_node_takes_no_pods_until_it_is_ready(api):
    made = api.create(NODES, {"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "4"}}})
    assert made.body["spec"]["taints"] == [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]
    assert made.body["status"]["allocatable"] == {"cpu": "4"}
    assert "taints" not in api.patch(f"{NODES}/n", {"spec": {"taints": None}}).body["spec"]


def test_node_taints_are_checked(api):
    api.create(NODES, {"metadata": {"name": "n"}})
    taints = [
        {"key": "a", "effect": "Sometimes"},
        {"key": "b", "effect": "NoExecute"},
        {"key": "b", "effect": "NoExecute"},
    ]
    reply = api.patch(f"{NODES}/n", {"spec": {"taints": taints}})
    assert {field for field, _ in reply.causes} == {"metadata.taints[0].effect", "metadata.taints[2]"}


def test_an_event_belongs_to_the_namespace_of_its_object(api):
    events = "/api/v1/namespaces/default/events"
    reply = api.create(events, {"metadata": {"name": "e"}, "involvedObject": {"namespace": "other"}})
    assert reply.causes == [("involvedObject.namespace", 'Invalid value: "other": does not match event.namespace')]
    good = {"metadata": {"name": "e"}, "involvedObject": {"namespace": "default", "name": "p"}, "reason": "R"}
    assert api.create(events, good).code == 201
    found = api.get(events, fieldSelector="involvedObject.name=p,reason=R").body["items"]
    assert len(found) == 1


def test_times_of_a_lease_have_six_digits(api):
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    body = {"metadata": {"name": "l"}, "spec": {"renewTime": "2026-01-01T00:00:00Z"}}
    assert api.create(leases, body).code == 400
    body["spec"]["renewTime"] = "2026-01-01T01:00:00.123456+01:00"
    assert api.create(leases, body).body["spec"]["renewTime"] == "2026-01-01T00:00:00.123456Z"
    assert api.patch(f"{leases}/l", {"spec": {"leaseDurationSeconds": 0}}).code == 422


STATEFUL_SETS = "/apis/apps/v1/namespaces/default/statefulsets"


def _stateful_set(**spec):
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "a"}]}}
    spec = {"selector": {"matchLabels": labels}, "template": template} | spec
    return {"metadata": {"name": "web"}, "spec": spec}


def test_what_a_stateful_set_calls_its_pods_stays(api):
    assert api.create(STATEFUL_SETS, _stateful_set()).code == 201
    reply = api.patch(f"{STATEFUL_SETS}/web", {"spec": {"serviceName": "x", "podManagementPolicy": "Parallel"}})
    assert reply.mistakes == {
        ("spec.serviceName", "FieldValueInvalid"),
        ("spec.podManagementPolicy", "FieldValueInvalid"),
    }


@pytest.mark.parametrize("steps", [{"partition": 1}, {"maxUnavailable": 2}, {"maxUnavailable": "50%"}])
def test_an_update_of_a_stateful_set_that_nothing_here_makes_is_refused_by_name(api, steps):
    reply = api.create(STATEFUL_SETS, _stateful_set(updateStrategy={"rollingUpdate": steps}))
    assert (reply.code, reply.body["reason"]) == (501, "NotImplemented")
    assert f"spec.updateStrategy.rollingUpdate.{next(iter(steps))}" in reply.body["message"]
    reply = api.create(STATEFUL_SETS, _stateful_set(volumeClaimTemplates=[{}]))
    assert (reply.code, '"spec.volumeClaimTemplates"' in reply.body["message"]) == (501, True)
