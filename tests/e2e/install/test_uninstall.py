"""helm uninstall: refused while it would hurt, and nothing left behind afterwards."""

from __future__ import annotations

from e2e.install.chart_cluster import NAMESPACE, NODE_NAME, PLUGIN_GONE_S, RELEASE, ChartCluster
from e2e.install.seen import ALL_CLAIMS, allocated, gpus_in, wait_pods
from e2e.installation import DRIVER
from e2e.node import CDI_ROOT
from e2e.pods import PODS, Pod, claim_spec, create_pod, create_template
from e2e.waiting import eventually

CLUSTER_WIDE = (
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
    "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "/apis/resource.k8s.io/v1/deviceclasses",
    "/apis/resource.k8s.io/v1/resourceslices",
    "/api/v1/nodes",
)

OF_KUBERNETES = {"serviceaccounts": {"default"}, "configmaps": {"kube-root-ca.crt"}}
"""What every namespace has."""

DOCUMENTED = {"leases": {f"controller.{DRIVER}"}, "files": {"settings-section", "boot-id"}}
"""What the chart's README says that stays; lock files too."""


def uninstall(chart: ChartCluster, *more: str) -> tuple[int, str]:
    said = chart.helm.run("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", *more)
    return said.code, said.text


def test_uninstall_is_refused_while_claims_hold_devices(chart: ChartCluster) -> None:
    template = create_template(chart.api, "held", claim_spec(1))
    pod = Pod("holder", templates={"gpu": "held"})
    chart.api.create(PODS, pod.document())
    wait_pods(chart, "default", "Running")
    (claim,) = allocated(chart.api)
    code, text = uninstall(chart)
    assert code != 0
    assert f"ResourceClaim {claim} holds devices of {DRIVER}" in text
    assert "Delete the pods first" in text
    # All is as it was.
    assert len(gpus_in(chart, "default", pod.name, "main")) == 1
    chart.kubectl("--namespace", NAMESPACE, "rollout", "status", f"daemonset/{RELEASE}-kubelet-plugin", "--timeout=60s")
    chart.kubectl("delete", "pod", pod.name, "--grace-period=1", "--timeout=60s")
    chart.api.delete(template)
    eventually(lambda: not allocated(chart.api), "the claim is gone", within_s=60)


def test_uninstall_leaves_nothing_behind(chart: ChartCluster) -> None:
    # A pod that came and went has left its traces everywhere.
    template = create_template(chart.api, "gone", claim_spec(2))
    pod = Pod("guest", templates={"gpu": "gone"})
    chart.api.create(PODS, pod.document())
    wait_pods(chart, "default", "Running")
    chart.kubectl("delete", "pod", pod.name, "--grace-period=1", "--timeout=60s")
    chart.api.delete(template)
    eventually(lambda: not allocated(chart.api), "the claim is gone", within_s=60)
    # And one waits at the controller's gate, in vain.
    create_template(chart.api, "huge", claim_spec(99))
    gated = Pod("gated", templates={"gpu": "huge"}, more={"schedulingGates": [{"name": f"{DRIVER}/allocation"}]})
    create_pod(chart.api, gated)
    code, text = uninstall(chart)
    assert code == 0, text
    assert "schedulingGates" not in chart.api.get(gated.path)["spec"]
    chart.api.delete(gated.path, grace_s=0)
    eventually(lambda: not chart.slices(), "kubelet deletes the slices", within_s=PLUGIN_GONE_S)
    api = chart.api
    for path in CLUSTER_WIDE:
        named = [one["metadata"]["name"] for one in api.items(path) if DRIVER in one["metadata"]["name"]]
        assert named == [], path
    node = api.get(f"/api/v1/nodes/{NODE_NAME}")
    assert not node["spec"].get("taints")
    assert not [key for kind in ("labels", "annotations") for key in node["metadata"].get(kind, {}) if DRIVER in key]
    for path in ("/api/v1/pods", ALL_CLAIMS):
        for one in api.items(path):
            assert not [key for key in one["metadata"].get("annotations", {}) if DRIVER in key]
            assert "resource.kubernetes.io/delete-protection" not in one["metadata"].get("finalizers", ())
    for kind in ("pods", "configmaps", "secrets", "serviceaccounts", "services"):
        left = {one["metadata"]["name"] for one in api.items(f"/api/v1/namespaces/{NAMESPACE}/{kind}")}
        assert left == OF_KUBERNETES.get(kind, set()), kind
    leases = api.items(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases")
    assert {lease["metadata"]["name"] for lease in leases} == DOCUMENTED["leases"]
    assert sorted(path.name for path in CDI_ROOT.iterdir()) == []
    assert chart.podlist() == []
    assert sorted(path.name for path in (chart.node.kubelet_root / "plugins_registry").iterdir()) == []
    files = [path for path in chart.plugin_data.rglob("*") if not path.is_dir()]
    assert [path.name for path in files if path.suffix != ".lock" and path.name not in DOCUMENTED["files"]] == []
