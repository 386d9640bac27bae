"""What each ServiceAccount may do and may not, and what no user may ask for, as the API server answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from e2e.install.chart_cluster import NAMESPACE, NODE_NAME, ChartCluster
from e2e.install.impersonation import As, controller, plugin, plugin_as_node
from e2e.installation import DRIVER
from e2e.waiting import eventually

ALL_SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
PODS = "/api/v1/namespaces/default/pods"
OTHER_NODE = "other-node"
LABEL_S = 60.0
"""Labels of namespaces take a moment to reach the API server's admission."""
OTHER_DRIVER = "other.example.com"
GATE = f"{DRIVER}/allocation"
OTHER_GATE = "example.com/quota"
TAINT = f"{DRIVER}/controller-allocated"

REFUSED = (403, 422)
"""By rights or a policy; by the server's own rules about who may change what in a claim's status."""


def a_slice(
    name: str, *, node: str | None = NODE_NAME, driver: str = DRIVER, pool: str | None = None
) -> dict[str, Any]:
    scope: dict[str, Any] = {"nodeName": node} if node else {"allNodes": True}
    where = {"name": pool or node or NODE_NAME, "generation": 1, "resourceSliceCount": 1}
    spec = {**scope, "driver": driver, "pool": where}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


def a_claim(name: str, **request: Any) -> dict[str, Any]:
    requests = [{"name": "gpu", **(request or {"exactly": {"deviceClassName": "no-such-class"}})}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "annotations": {"example.com/mine": "1"}, "labels": {"mine": "1"}},
        "spec": {"devices": {"requests": requests}},
    }


def a_pod(name: str, node: str | None, *gates: str) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "schedulingGates": [{"name": gate} for gate in gates],
        "containers": [{"name": "main", "image": "example/none:1"}],
        "automountServiceAccountToken": False,
        # Never scheduled where no node is named; nothing runs it where one is that does not exist.
        "schedulerName": "nobody",
    }
    if node:
        spec["nodeName"] = node
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {"example.com/mine": "1"}, "labels": {"mine": "1"}},
        "spec": spec,
    }


def allocation(driver: str = DRIVER, node: str = NODE_NAME) -> dict[str, Any]:
    result = {"request": "gpu", "driver": driver, "pool": node, "device": "gpu-0"}
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    return {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": terms}}


def device_status(driver: str = DRIVER, node: str = NODE_NAME) -> dict[str, Any]:
    return {"status": {"devices": [{"driver": driver, "pool": node, "device": "gpu-0", "data": {"uuid": "GPU-0"}}]}}


def unscheduled(message: str = "no node", **fields: str) -> dict[str, Any]:
    """The status of a pod as kube-scheduler leaves it."""
    at = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"status": {"conditions": [{**condition, **at, **fields}]}}


PROBED = {"lastProbeTime": "2026-01-01T00:00:09Z"}


@dataclass(frozen=True, slots=True)
class Stage:
    """A cluster with objects to try things on."""

    chart: ChartCluster
    controller: As
    plugin: As


@pytest.fixture
def stage(chart: ChartCluster) -> Iterator[Stage]:
    api = chart.api
    api.create(ALL_SLICES, a_slice("slice-of-other-node", node=OTHER_NODE))
    api.create(ALL_SLICES, a_slice("slice-of-other-driver", driver=OTHER_DRIVER))
    for name in ("here", "elsewhere", "of-other-driver", "free"):
        api.create(CLAIMS, a_claim(name))
    for name, node, driver in (
        ("here", NODE_NAME, DRIVER),
        ("elsewhere", OTHER_NODE, DRIVER),
        ("of-other-driver", NODE_NAME, OTHER_DRIVER),
    ):
        api.patch(f"{CLAIMS}/{name}", metadata(finalizers=[MINE]))
        api.patch(f"{CLAIMS}/{name}/status", {"status": {"allocation": allocation(driver, node)}})
    for name, on in (("bound-here", NODE_NAME), ("bound-elsewhere", OTHER_NODE), ("unbound", None)):
        api.create(PODS, a_pod(name, on))
    api.patch(f"{PODS}/unbound/status", unscheduled())
    api.create(TEMPLATES, gpu_template(name="users-own", is_ours=False))
    api.create(TEMPLATES, gpu_template(name="users-own-with-our-label"))
    api.patch("/api/v1/namespaces/default", metadata(labels={f"{DRIVER}/rewrite": "true"}))
    api.create(PODS, a_pod("gated", None, GATE))
    api.create(PODS, a_pod("gated-twice", None, GATE, OTHER_GATE))
    control_plane = chart.control_plane
    stage = Stage(chart, controller(control_plane), plugin(control_plane, NODE_NAME))
    eventually(
        lambda: stage.controller.send("POST", f"{TEMPLATES}?dryRun=All", gpu_template()).is_good,
        "the namespace's label counts",
        within_s=LABEL_S,
    )
    yield stage
    for name in ("slice-of-other-node", "slice-of-other-driver", "new"):
        api.delete(f"{ALL_SLICES}/{name}")
    for name in ("bound-here", "bound-elsewhere", "unbound", "gated", "gated-twice"):
        api.delete(f"{PODS}/{name}", grace_s=0)
    api.patch("/api/v1/namespaces/default", metadata(labels={f"{DRIVER}/rewrite": None}))
    for name in ("users-own", "users-own-with-our-label"):
        api.delete(f"{TEMPLATES}/{name}")
    for name in ("here", "elsewhere", "of-other-driver", "free"):
        api.patch(f"{CLAIMS}/{name}/status", {"status": {"allocation": None, "devices": None}})
        api.patch(f"{CLAIMS}/{name}", metadata(finalizers=None))
        api.delete(f"{CLAIMS}/{name}")


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    method: str
    path: str
    body: Any = None

    def __str__(self) -> str:
        said = "" if self.body is None else f" {json.dumps(self.body)[:90]}"
        return f"{self.method} {self.path.rpartition('/v1/')[2]}{said}"


def metadata(**fields: Any) -> dict[str, Any]:
    return {"metadata": fields}


def gpu_template(count: int = 1, name: str = "", *, is_ours: bool = True) -> dict[str, Any]:
    """A ResourceClaimTemplate as the controller makes it, or one that differs."""
    labels = {"app.kubernetes.io/managed-by": "dracaena-controller"} if is_ours else {"mine": "1"}
    requests = [{"name": "gpus", "exactly": {"deviceClassName": DRIVER, "count": count}}]
    return {
        "metadata": {"name": name or f"gpus-1.{DRIVER}", "labels": labels},
        "spec": {"spec": {"devices": {"requests": requests}}},
    }


def mig_template(name: str = "mig-1g.10gb.me-2", *, profile: str = "1g.10gb+me", ends: str = '"') -> dict[str, Any]:
    """A ResourceClaimTemplate for MIG devices as the controller makes it, or one that differs."""
    expression = f'device.attributes["{DRIVER}"].profile == "{profile}{ends}'
    exactly = {"deviceClassName": f"mig.{DRIVER}", "selectors": [{"cel": {"expression": expression}}], "count": 2}
    return {
        "metadata": {"name": f"{name}.mig.{DRIVER}", "labels": {"app.kubernetes.io/managed-by": "dracaena-controller"}},
        "spec": {"spec": {"devices": {"requests": [{"name": "mig", "exactly": exactly}]}}},
    }


CONSUMER = {"resource": "pods", "name": "bound-here", "uid": "1"}

PLUGIN_NEEDS = (
    Call("GET", f"{ALL_SLICES}?fieldSelector=spec.driver={DRIVER},spec.nodeName={NODE_NAME}"),
    Call("POST", ALL_SLICES, a_slice("new")),
    Call("PATCH", f"{ALL_SLICES}/new", {"spec": {"pool": {"generation": 2}}}),
    Call("DELETE", f"{ALL_SLICES}/new"),
    Call("PATCH", f"{PODS}/bound-here", metadata(annotations={f"{DRIVER}/devices": "{}", f"{DRIVER}/uuids": "GPU-0"})),
    Call("PATCH", f"{PODS}/bound-here", metadata(annotations={f"{DRIVER}/devices": None, f"{DRIVER}/uuids": None})),
    Call("GET", f"{CLAIMS}/here"),
    Call("PATCH", f"{CLAIMS}/here/status", device_status()),
)

PLUGIN_NEEDS_AS_NODE = (
    Call("GET", f"/api/v1/nodes/{NODE_NAME}"),
    Call("GET", f"/api/v1/nodes?fieldSelector=metadata.name={NODE_NAME}"),
    Call("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={NODE_NAME}"),
    Call("GET", f"{PODS}?fieldSelector=metadata.name=bound-here,spec.nodeName={NODE_NAME}"),
)

PLUGIN_MUST_NOT_AS_NODE = (
    Call("GET", "/api/v1/pods"),
    Call("GET", PODS),
    Call("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={OTHER_NODE}"),
    Call("GET", f"/api/v1/pods?fieldSelector=spec.nodeName!={NODE_NAME}"),
    Call("GET", f"{PODS}?fieldSelector=metadata.name=bound-elsewhere"),
    Call("GET", f"{PODS}/bound-here"),
    Call("GET", f"{PODS}/bound-elsewhere"),
    Call("GET", "/api/v1/nodes"),
    Call("GET", f"/api/v1/nodes/{OTHER_NODE}"),
    Call("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps/kube-root-ca.crt"),
    Call("GET", "/api/v1/namespaces/kube-system/secrets"),
    Call("GET", f"{CLAIMS}/here"),
    Call("PATCH", f"/api/v1/nodes/{NODE_NAME}", metadata(labels={"mine": "1"})),
    Call("PATCH", f"/api/v1/nodes/{NODE_NAME}/status", {"status": {"phase": "Running"}}),
    Call("PATCH", f"{PODS}/bound-here/status", {"status": {"phase": "Failed"}}),
    Call("DELETE", f"{PODS}/bound-here"),
    Call("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default/token", {"spec": {}}),
)

PLUGIN_MUST_NOT = (
    Call("GET", "/api/v1/pods"),
    Call("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={NODE_NAME}"),
    Call("GET", f"{PODS}/bound-here"),
    Call("GET", f"{PODS}/bound-elsewhere"),
    Call("GET", "/api/v1/nodes"),
    Call("GET", f"/api/v1/nodes/{NODE_NAME}"),
    Call("POST", ALL_SLICES, a_slice("new", node=OTHER_NODE)),
    Call("POST", ALL_SLICES, a_slice("new", node=None)),
    Call("POST", ALL_SLICES, a_slice("new", driver=OTHER_DRIVER)),
    # A slice of its own node that claims to belong to another node's pool would make that pool unusable.
    Call("POST", ALL_SLICES, a_slice("new", pool=OTHER_NODE)),
    Call("PATCH", f"{ALL_SLICES}/slice-of-other-node", {"spec": {"pool": {"generation": 2}}}),
    Call("PATCH", f"{ALL_SLICES}/slice-of-other-driver", {"spec": {"pool": {"generation": 2}}}),
    Call("DELETE", f"{ALL_SLICES}/slice-of-other-node"),
    Call("DELETE", f"{ALL_SLICES}/slice-of-other-driver"),
    Call("DELETE", ALL_SLICES),
    Call("PATCH", f"{PODS}/bound-elsewhere", metadata(annotations={f"{DRIVER}/devices": "{}"})),
    Call("PATCH", f"{PODS}/unbound", metadata(annotations={f"{DRIVER}/devices": "{}"})),
    Call("PATCH", f"{PODS}/bound-here", metadata(annotations={"example.com/mine": "2"})),
    Call("PATCH", f"{PODS}/bound-here", metadata(annotations={"example.com/mine": None})),
    Call("PATCH", f"{PODS}/bound-here", metadata(annotations={"example.com/new": "1"})),
    Call("PATCH", f"{PODS}/bound-here", metadata(labels={"mine": "2"})),
    Call("PATCH", f"{PODS}/bound-here", metadata(finalizers=["example.com/stay"])),
    Call("PATCH", f"{PODS}/bound-here", {"spec": {"activeDeadlineSeconds": 1}}),
    Call("PATCH", f"{PODS}/bound-here/status", {"status": {"phase": "Failed"}}),
    Call("DELETE", f"{PODS}/bound-here"),
    Call("POST", PODS, a_pod("new", NODE_NAME)),
    Call("PATCH", f"{CLAIMS}/elsewhere/status", device_status(node=OTHER_NODE)),
    Call("PATCH", f"{CLAIMS}/of-other-driver/status", device_status(driver=OTHER_DRIVER)),
    Call("PATCH", f"{CLAIMS}/free/status", {"status": {"allocation": allocation()}}),
    Call("PATCH", f"{CLAIMS}/here/status", {"status": {"allocation": None}}),
    Call(
        "PATCH", f"{CLAIMS}/here/status", {"status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}}
    ),
    Call("PATCH", f"{CLAIMS}/here", metadata(labels={"mine": "2"})),
    Call("GET", CLAIMS),
    Call("DELETE", f"{CLAIMS}/free"),
    Call("PATCH", f"/api/v1/nodes/{NODE_NAME}", metadata(labels={"mine": "1"})),
    Call("GET", "/api/v1/namespaces/kube-system/secrets"),
    Call("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets"),
    Call("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps"),
    Call("GET", f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/controller.{DRIVER}"),
)

MINE = "resource.kubernetes.io/delete-protection"

CONTROLLER_NEEDS = (
    Call("GET", CLAIMS),
    Call("GET", f"{CLAIMS}/free"),
    Call("PATCH", f"{CLAIMS}/free", metadata(finalizers=[MINE])),
    Call("PATCH", f"{CLAIMS}/free/status", {"status": {"allocation": allocation()}}),
    Call("PATCH", f"{CLAIMS}/free/status", {"status": {"allocation": None}}),
    Call("GET", ALL_SLICES),
    Call("GET", "/apis/resource.k8s.io/v1/deviceclasses"),
    Call("GET", "/api/v1/nodes"),
    Call("GET", "/api/v1/pods"),
    Call("GET", f"{PODS}/unbound"),
    Call("PATCH", f"{PODS}/unbound/status", {"status": {"nominatedNodeName": NODE_NAME}}),
    Call("PATCH", f"{PODS}/unbound/status", {"status": {"nominatedNodeName": None}}),
    Call("PATCH", f"{PODS}/unbound/status", unscheduled(**PROBED)),
    Call("PATCH", f"{PODS}/gated", {"spec": {"schedulingGates": None}}),
    Call("POST", TEMPLATES, gpu_template()),
    Call("GET", "/apis/resource.k8s.io/v1/resourceclaimtemplates?labelSelector=app.kubernetes.io/managed-by"),
    Call("DELETE", f"{TEMPLATES}/gpus-1.{DRIVER}"),
    Call("POST", TEMPLATES, mig_template()),
    Call("DELETE", f"{TEMPLATES}/mig-1g.10gb.me-2.mig.{DRIVER}"),
    Call("PATCH", f"{PODS}/gated-twice", {"spec": {"schedulingGates": [{"name": OTHER_GATE}]}}),
    Call("GET", f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/controller.{DRIVER}"),
)

CONTROLLER_MUST_NOT = (
    Call("PATCH", f"{CLAIMS}/free/status", {"status": {"allocation": allocation(driver=OTHER_DRIVER)}}),
    Call("PATCH", f"{CLAIMS}/of-other-driver/status", {"status": {"allocation": None}}),
    Call("PATCH", f"{CLAIMS}/of-other-driver/status", device_status(driver=OTHER_DRIVER)),
    Call("PATCH", f"{CLAIMS}/free", metadata(labels={"mine": "2"})),
    Call("PATCH", f"{CLAIMS}/free", metadata(annotations={"example.com/mine": "2"})),
    Call("PATCH", f"{CLAIMS}/free", metadata(annotations={f"{DRIVER}/decision": "{}"})),
    Call("PATCH", f"{CLAIMS}/free", metadata(annotations={"example.com/mine": None})),
    Call("PATCH", f"{CLAIMS}/free", metadata(finalizers=["example.com/stay"])),
    # kube-controller-manager's to take: without it a claim in use could be deleted.
    Call("PATCH", f"{CLAIMS}/of-other-driver", metadata(finalizers=None)),
    Call("DELETE", f"{CLAIMS}/free"),
    Call("POST", CLAIMS, a_claim("new")),
    Call("POST", TEMPLATES, gpu_template(count=2)),
    Call("POST", TEMPLATES, gpu_template(name="users-own")),
    Call("POST", TEMPLATES, gpu_template(is_ours=False)),
    Call("POST", TEMPLATES, mig_template("mig-1g.10gb-2")),
    Call("POST", TEMPLATES, mig_template("mig-1g.10gb.me-1")),
    Call("POST", TEMPLATES, mig_template("gpus-2")),
    Call("POST", TEMPLATES, mig_template(ends='" || true')),
    Call("POST", TEMPLATES, mig_template(ends='" || "" == ""')),
    Call("POST", TEMPLATES.replace("/default/", "/kube-public/"), gpu_template()),
    Call("DELETE", f"{TEMPLATES}/users-own"),
    Call("DELETE", f"{TEMPLATES}/users-own-with-our-label"),
    Call("POST", ALL_SLICES, a_slice("new")),
    Call("PATCH", f"{ALL_SLICES}/slice-of-other-node", {"spec": {"pool": {"generation": 2}}}),
    Call("DELETE", f"{ALL_SLICES}/slice-of-other-node"),
    Call("PATCH", f"{PODS}/unbound", metadata(annotations={f"{DRIVER}/devices": "{}"})),
    Call("PATCH", f"{PODS}/unbound", {"spec": {"activeDeadlineSeconds": 1}}),
    # Of gates only its own, and nothing beside it.
    Call("PATCH", f"{PODS}/gated-twice", {"spec": {"schedulingGates": None}}),
    Call("PATCH", f"{PODS}/gated-twice", {"spec": {"schedulingGates": [{"name": GATE}]}}),
    Call("PATCH", f"{PODS}/gated", metadata(labels={"mine": "2"})),
    Call("PATCH", f"{PODS}/gated", metadata(annotations={"example.com/mine": "2"})),
    Call("PATCH", f"{PODS}/gated", metadata(finalizers=["example.com/stay"])),
    Call("PATCH", f"{PODS}/gated", {"spec": {"nodeSelector": {"mine": "1"}}}),
    Call("PATCH", f"{PODS}/gated", {"spec": {"tolerations": [{"operator": "Exists"}]}}),
    Call("PATCH", f"{PODS}/gated", {"spec": {"containers": [{"name": "main", "image": "example/other:1"}]}}),
    Call(
        "PATCH",
        f"{PODS}/gated",
        {"metadata": {"labels": {"mine": "2"}}, "spec": {"schedulingGates": None}},
    ),
    Call("PATCH", f"{PODS}/unbound/status", {"status": {"phase": "Failed"}}),
    Call("PATCH", f"{PODS}/unbound/status", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
    Call("PATCH", f"{PODS}/unbound/status", unscheduled("another message", **PROBED)),
    Call("PATCH", f"{PODS}/unbound/status", unscheduled(status="True")),
    Call("PATCH", f"{PODS}/unbound/status", {"status": {"conditions": None}}),
    Call("PATCH", f"{PODS}/unbound/status", {"status": {"podIP": "10.98.0.99"}}),
    Call("PATCH", f"{PODS}/unbound/status", {"status": {"resources": {"requests": {"cpu": "1"}}}}),
    Call("PATCH", f"{PODS}/unbound/status", metadata(finalizers=["example.com/stay"])),
    Call("POST", f"{PODS}/unbound/binding", {"metadata": {"name": "unbound"}, "target": {"name": NODE_NAME}}),
    Call("DELETE", f"{PODS}/unbound"),
    Call("PATCH", f"/api/v1/nodes/{NODE_NAME}", {"spec": {"unschedulable": True}}),
    Call("GET", "/api/v1/namespaces/kube-system/secrets"),
    Call("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets"),
    Call("GET", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"),
    Call("GET", f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/somebody-elses"),
    Call("POST", "/apis/coordination.k8s.io/v1/namespaces/default/leases", metadata(name="new")),
)


TRIES = 20
"""It is slower than three requests in a row at least once in so many times."""


def answers(who: As, calls: tuple[Call, ...], *, refused: bool) -> list[str]:
    """Send all, and return those that were not answered as they should."""
    wrong = []
    for call in calls:
        answer = who.send(call.method, call.path, call.body)
        good = answer.status in REFUSED if refused else answer.is_good
        if not good:
            wrong.append(f"{call}: {answer.status} {answer.message[:300]}")
    return wrong


def test_plugin_may_do_what_it_needs(stage: Stage) -> None:
    """The plugin that runs on the node deletes slices that it did not publish, and may be faster than this one."""
    for _ in range(TRIES):
        wrong = answers(stage.plugin, PLUGIN_NEEDS, refused=False)
        if not any(": 404 " in line for line in wrong):
            break
    assert wrong == []


def test_plugin_may_not_do_anything_else(stage: Stage) -> None:
    assert answers(stage.plugin, PLUGIN_MUST_NOT, refused=True) == []


def test_plugin_reads_pods_and_its_node_as_the_node(stage: Stage) -> None:
    own = plugin_as_node(stage.chart, NODE_NAME)
    assert answers(own, PLUGIN_NEEDS_AS_NODE, refused=False) == []
    seen = own.send("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={NODE_NAME}").document["items"]
    names = {pod["metadata"]["name"] for pod in seen}
    assert "bound-here" in names
    assert not names & {"bound-elsewhere", "unbound"}


def test_plugin_may_not_do_anything_else_as_the_node(stage: Stage) -> None:
    assert answers(plugin_as_node(stage.chart, NODE_NAME), PLUGIN_MUST_NOT_AS_NODE, refused=True) == []


def test_plugin_may_not_speak_as_another_node(stage: Stage) -> None:
    calls = (*PLUGIN_NEEDS_AS_NODE, Call("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={OTHER_NODE}"))
    assert answers(plugin_as_node(stage.chart, OTHER_NODE), calls, refused=True) == []


def test_token_without_a_node_writes_no_slice_and_no_pod(stage: Stage) -> None:
    """As one made with `kubectl create token`, which belongs to no pod."""
    nobody = plugin(stage.chart.control_plane)
    calls = tuple(call for call in PLUGIN_NEEDS if call.method != "GET" and not call.path.endswith("/new"))
    assert len(calls) == 4
    assert answers(nobody, calls, refused=True) == []


def test_refusals_say_what_is_wrong(stage: Stage) -> None:
    other_node = stage.plugin.send("POST", ALL_SLICES, a_slice("new", node=OTHER_NODE))
    assert f"a plugin on node {NODE_NAME} may only write slices of that node, not of {OTHER_NODE}" in other_node.message
    label = stage.plugin.send("PATCH", f"{PODS}/bound-here", metadata(labels={"mine": "2"}))
    assert "a plugin may only write annotations of pods" in label.message


def test_controller_may_do_what_it_needs(stage: Stage) -> None:
    assert answers(stage.controller, CONTROLLER_NEEDS, refused=False) == []


def test_controller_may_not_do_anything_else(stage: Stage) -> None:
    assert answers(stage.controller, CONTROLLER_MUST_NOT, refused=True) == []


TOLERATED = (
    {"key": TAINT, "operator": "Exists"},
    {"key": TAINT, "operator": "Exists", "effect": "NoSchedule"},
    {"key": TAINT, "operator": "Equal", "value": "true"},
    {"key": TAINT, "value": "true", "effect": "NoSchedule"},
    {"operator": "Exists"},
    {"operator": "Exists", "effect": "NoSchedule"},
    {"operator": "Exists", "effect": "NoSchedule", "key": ""},
)
"""Each tolerates our taint."""

HARMLESS = (
    {"key": "example.com/maintenance", "operator": "Exists"},
    {"key": TAINT, "operator": "Exists", "effect": "NoExecute"},
    {"key": TAINT, "operator": "Equal", "value": "false"},
    {"operator": "Exists", "effect": "NoExecute"},
)
"""None of them does."""


def forms(toleration: dict[str, str]) -> list[tuple[str, dict[str, Any]]]:
    """Return every place where a toleration can stand: collection, object."""
    request = {"deviceClassName": DRIVER, "tolerations": [{"key": "a", "operator": "Exists"}, toleration]}
    plain = {"name": "plain", "deviceClassName": DRIVER}
    claims = [
        a_claim("tolerant", exactly=request),
        a_claim("tolerant", firstAvailable=[plain, {"name": "second", **request}]),
    ]
    templates = [{**claim, "kind": "ResourceClaimTemplate", "spec": {"spec": claim["spec"]}} for claim in claims]
    return [(CLAIMS, claim) for claim in claims] + [(TEMPLATES, template) for template in templates]


@pytest.mark.parametrize("toleration", TOLERATED, ids=json.dumps)
def test_claim_that_tolerates_the_taint_is_refused(chart: ChartCluster, toleration: dict[str, str]) -> None:
    for path, document in forms(toleration):
        answer = chart.api.send("POST", f"{path}?dryRun=All", document)
        assert answer.status == 422, document
        assert f"must not tolerate the taint {TAINT}" in answer.message


def test_a_claim_that_holds_devices_keeps_its_finalizer_whoever_takes_it_off(stage: Stage) -> None:
    """An administrator, or a manifest that replaces the claim."""
    without, path = metadata(finalizers=None), f"{CLAIMS}/here"
    for answer in (stage.chart.api.patch(path, without), stage.controller.send("PATCH", path, without).document):
        assert answer["metadata"]["finalizers"] == [MINE]


@pytest.mark.parametrize("toleration", HARMLESS, ids=json.dumps)
def test_claim_that_tolerates_something_else_is_taken(chart: ChartCluster, toleration: dict[str, str]) -> None:
    for path, document in forms(toleration):
        answer = chart.api.send("POST", f"{path}?dryRun=All", document)
        assert answer.status == 201, answer.message


def test_policies_have_no_type_errors(chart: ChartCluster) -> None:
    """The API server checks each expression against its types, and writes what it finds into the status."""
    policies = chart.api.items("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies")
    ours = [policy for policy in policies if policy["metadata"]["name"].endswith(f".{DRIVER}")]
    assert len(ours) == 10
    found = {p["metadata"]["name"]: p.get("status", {}).get("typeChecking", {}).get("expressionWarnings") for p in ours}
    assert {name: warnings for name, warnings in found.items() if warnings} == {}
