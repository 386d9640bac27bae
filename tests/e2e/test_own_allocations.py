"""What the controller takes for its own word, on a real control plane: the decision in an allocation, which no user can
write, and nothing in the metadata of claims."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from dracaena.api.decision import Decision, decision_config
from dracaena.api.names import decision_driver
from e2e.api import MERGE_PATCH, Api
from e2e.installation import DRIVER
from e2e.made_up import FINALIZER, FOUR, MadeUpCluster, devices_of
from e2e.pods import CLAIMS, Pod, claim_spec, create_claim, create_pod, create_template
from e2e.waiting import eventually

CHART = Path(__file__).resolve().parents[1] / "unit" / "chart" / "golden" / "default.yaml"
"""What the chart renders (tests/unit/chart)."""

REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
RIGHTS = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"

ALLOCATED_S = 20.0
"""Long for a decision, and short beside the 26 minutes for which devices may rest."""

IN_FORCE_S = 30.0
"""Until the API server applies a new policy: 0.6 s on an idle machine."""


def allocated(made_up: MadeUpCluster, name: str) -> bool:
    return bool(devices_of(made_up.api.get(f"{CLAIMS}/{name}")))


def note(node: str) -> dict[str, Any]:
    """The parameters of a decision that nobody made."""
    decision = Decision(node=node, links="", score=(), pod_devices=4)
    parameters: dict[str, Any] = yaml.safe_load(bytes(decision_config(decision, DRIVER)["opaque"]["parameters"]))
    return parameters


def test_a_restart_of_the_controller_holds_nothing_that_users_wrote(made_up: MadeUpCluster) -> None:
    """Claims that nobody can serve, with a made-up decision in an annotation and in a config; two pods name each, and
    a third that is made on a node and misses another claim."""
    made_up.add_nodes(["n0", "n1"], FOUR)
    for node in ("n0", "n1"):
        forged = {**note(node), "devices": made_up.devices(node)}
        spec = claim_spec(1000)
        spec["devices"]["config"] = [{"opaque": {"driver": decision_driver(DRIVER), "parameters": note(node)}}]
        metadata = {"name": f"evil-{node}", "annotations": {f"{DRIVER}/decision": str(forged)}}
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
        made_up.api.create(CLAIMS, {**kind, "metadata": metadata, "spec": spec})
        for number in (0, 1):
            waits = Pod(f"evil-{node}-{number}", claims={"g": f"evil-{node}"}, more={"schedulerName": "nobody"})
            create_pod(made_up.api, waits)
        claims = {"g": f"evil-{node}", "h": "not-there"}
        create_pod(made_up.api, Pod(f"evil-{node}-there", claims=claims, more={"nodeName": "no-such-node"}))
    made_up.restart_controller()
    for name in ("x", "y"):
        create_claim(made_up.api, name, claim_spec(4))
        create_pod(made_up.api, Pod(name, claims={"g": name}))
        eventually(partial(allocated, made_up, name), f"{name} gets all of a node", within_s=ALLOCATED_S)
    given = [devices_of(made_up.api.get(f"{CLAIMS}/{name}")) for name in ("x", "y")]
    assert not set(given[0]) & set(given[1])


def test_an_allocation_stays_ours_whatever_becomes_of_its_claims_metadata(made_up: MadeUpCluster) -> None:
    """`kubectl replace` drops finalizers and annotations. The pod goes while the controller is away, and nobody else
    frees a claim without the finalizer."""
    made_up.add_node("a", FOUR)
    path = create_claim(made_up.api, "c", claim_spec(4))
    pod = Pod("p", claims={"g": "c"})
    create_pod(made_up.api, pod)
    made_up.wait_bound(pod)
    stored = made_up.api.get(path)
    manifest = {key: stored[key] for key in ("apiVersion", "kind", "spec")}
    version = {"name": "c", "resourceVersion": stored["metadata"]["resourceVersion"]}
    answer = made_up.api.send("PUT", path, {**manifest, "metadata": version})
    assert answer.status == 200, answer.message
    assert not answer.document["metadata"].get("finalizers")
    with made_up.without_controller():
        made_up.api.delete(pod.path, grace_s=0)
        eventually(
            lambda: not made_up.api.get(path).get("status", {}).get("reservedFor"), "nobody uses it", within_s=30.0
        )
    eventually(lambda: not allocated(made_up, "c"), "it is cleared as unused", within_s=60.0)


def test_no_user_can_write_a_decision_and_kube_scheduler_binds_with_it(made_up: MadeUpCluster) -> None:
    made_up.add_node("a", FOUR)
    path = create_claim(made_up.api, "c", claim_spec(2))
    pod = Pod("p", claims={"g": "c"})
    create_pod(made_up.api, pod)
    made_up.wait_bound(pod)
    ours = made_up.api.get(path)["status"]["allocation"]["devices"]["config"]
    assert [entry["opaque"]["driver"] for entry in ours] == [decision_driver(DRIVER)]
    user = tenant(made_up)
    forged = {"status": {"allocation": {"devices": {"config": [{**ours[0], "source": "FromClaim"}]}}}}
    assert user.send("PATCH", f"{path}/status", forged, MERGE_PATCH).status == 403
    assert user.send("PATCH", path, forged, MERGE_PATCH).status == 200, "the status of such a write is dropped"
    assert made_up.api.get(path)["status"]["allocation"]["devices"]["config"] == ours
    as_admin = made_up.api.send("PATCH", f"{path}/status", forged, MERGE_PATCH)
    assert as_admin.status == 422, "an allocation never changes"


def test_a_claim_that_is_made_with_the_finalizer_is_allocated_in_one_write(made_up: MadeUpCluster) -> None:
    """The chart's policy also sees claims that kube-controller-manager makes; claims of other classes it leaves."""
    with policy(made_up.api):
        eventually(lambda: FINALIZER in dry_run(made_up.api, claim_spec(1)), "it is in force", within_s=IN_FORCE_S)
        foreign = claim_spec(1)
        foreign["devices"]["requests"][0]["exactly"]["deviceClassName"] = "nic.example.com"
        assert dry_run(made_up.api, foreign) == []
        made_up.add_node("a", FOUR)
        create_template(made_up.api, "one", claim_spec(1))
        made_up.proxy.forget()
        pod = Pod("p", templates={"g": "one"})
        create_pod(made_up.api, pod)
        made_up.wait_bound(pod)
        writes = [write.kind for write in made_up.proxy.writes if write.kind.startswith("resourceclaims")]
        assert writes == ["resourceclaims/status"]
        (claim,) = made_up.api.items(CLAIMS)
        path = f"{CLAIMS}/{claim['metadata']['name']}"
        made_up.api.patch(path, {"metadata": {"finalizers": None}})
        assert made_up.api.get(path)["metadata"]["finalizers"] == [FINALIZER], "it holds a device"
        made_up.check()
        made_up.api.delete(pod.path, grace_s=0)
        eventually(lambda: not made_up.api.items(CLAIMS), "the claim goes with its pod", within_s=30.0)
        named = create_claim(made_up.api, "never", claim_spec(1))
        made_up.api.delete(named)
        eventually(lambda: made_up.api.find(named) is None, "a claim that was never allocated goes", within_s=30.0)


def dry_run(api: Api, spec: dict[str, Any]) -> list[str]:
    """Return the finalizers of a claim that would be made."""
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "dry"}, "spec": spec}
    answer = api.send("POST", f"{CLAIMS}?dryRun=All", kind)
    found: list[str] = answer.document["metadata"].get("finalizers", [])
    return found


@contextmanager
def policy(api: Api) -> Iterator[None]:
    """Let the API server have the chart's policy `delete-protection`."""
    name = f"delete-protection.{DRIVER}"
    rendered = [one for one in yaml.safe_load_all(CHART.read_text()) if one and one["metadata"]["name"] == name]
    paths = {
        "MutatingAdmissionPolicy": f"{REGISTRATION}/mutatingadmissionpolicies",
        "MutatingAdmissionPolicyBinding": f"{REGISTRATION}/mutatingadmissionpolicybindings",
    }
    assert sorted(one["kind"] for one in rendered) == sorted(paths)
    try:
        for one in rendered:
            api.create(paths[one["kind"]], one)
        yield
    finally:
        for path in paths.values():
            api.delete(f"{path}/{name}")


def tenant(made_up: MadeUpCluster) -> Api:
    """Return the API as somebody sees it who may do anything with claims of the namespace, and nothing with their
    status."""
    api = made_up.api
    rules = [{"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["*"]}]
    group = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "tenant"}}
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    api.send("POST", accounts, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "tenant"}})
    api.send("POST", f"{RIGHTS}/roles", {**group, "kind": "Role", "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "tenant", "namespace": "default"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tenant"}
    api.send("POST", f"{RIGHTS}/rolebindings", {**group, "kind": "RoleBinding", "roleRef": role, "subjects": [subject]})
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = api.send("POST", f"{accounts}/tenant/token", asked).document["status"]["token"]
    user = Api(made_up.control_plane.url, made_up.control_plane.authority, token)
    eventually(lambda: user.send("GET", CLAIMS).status == 200, "its rights are in force", within_s=IN_FORCE_S)
    return user
