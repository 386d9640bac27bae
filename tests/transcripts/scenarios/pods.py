"""Pods: as far as claims, binding and status go. Left out: what the ServiceAccount admission plugin adds."""

from __future__ import annotations

from typing import Any

from transcripts.scenarios.documents import PODS, pod
from transcripts.session import Session

PATH = f"{PODS}/a"


def pod_defaults(api: Session) -> None:
    """What the server fills in."""
    api.create("a small pod", PODS, pod("a"))
    containers = [
        {
            "name": "main",
            "image": "registry:5000/x",
            "resources": {"limits": {"cpu": "1500m", "memory": "1024Mi"}, "requests": {"cpu": "1"}},
        }
    ]
    spec: dict[str, Any] = {"containers": containers, "restartPolicy": "Never", "nodeSelector": {"a": "b"}}
    api.create("a pod with resources", PODS, pod("b", **spec), fieldManager="a-manager")


def pod_validation(api: Session) -> None:
    """Pods that are refused."""
    api.create("no container", PODS, pod("a", containers=None))
    bad: list[Any] = [
        {"name": "C_", "imagePullPolicy": "Sometimes"},
        {"name": "main", "image": "x"},
        {"name": "main", "image": "y", "env": [{"value": "x"}]},
    ]
    tolerations = [
        {"key": "", "operator": "Equal"},
        {"key": "a", "operator": "Like"},
        {"operator": "Exists", "value": "d"},
    ]
    api.create(
        "bad parts", PODS, pod("a", containers=bad, tolerations=tolerations, restartPolicy="Maybe", nodeName="N_")
    )
    resources = {"requests": {"cpu": "2"}, "limits": {"cpu": "1", "memory": "-1"}}
    containers = [{"name": "main", "image": "x", "resources": resources}]
    api.send("bad resources", "POST", PODS, pod("a", containers=containers))
    terms = [
        {"matchExpressions": [{"key": "a", "operator": "In"}, {"key": "b", "operator": "Exists", "values": ["x"]}]},
        {"matchFields": [{"key": "x", "operator": "In", "values": ["a"]}]},
    ]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    api.create("a bad affinity", PODS, pod("a", affinity=affinity))
    api.create("a priority by hand", PODS, pod("a", priority=5))


def pod_claims(api: Session) -> None:
    """How pods name claims, and who says which were made of templates."""
    uses = [{"name": "main", "image": "x", "resources": {"claims": [{"name": "gpus"}]}}]
    bad = [
        {"name": "a"},
        {"name": "a", "resourceClaimName": "x", "resourceClaimTemplateName": "y"},
        {"name": "B", "resourceClaimName": "X_"},
    ]
    api.create("bad claims", PODS, pod("a", resourceClaims=bad))
    api.create("a container names a claim that the pod has not", PODS, pod("a", containers=uses))
    claims = [{"name": "gpus", "resourceClaimTemplateName": "t"}, {"name": "own", "resourceClaimName": "c"}]
    twice = [uses[0] | {"resources": {"claims": [{"name": "gpus"}, {"name": "gpus"}]}}]
    api.create("a container names one twice", PODS, pod("a", containers=twice, resourceClaims=claims))
    api.create("a good pod", PODS, pod("a", containers=uses, resourceClaims=claims))
    unknown = [{"name": "gpus", "resourceClaimName": "a-gpus-x"}, {"name": "other", "resourceClaimName": "y"}]
    api.strategic(
        "a status of a claim that the pod has not", f"{PATH}/status", {"status": {"resourceClaimStatuses": unknown}}
    )
    api.strategic("a status", f"{PATH}/status", {"status": {"resourceClaimStatuses": unknown[:1]}})
    api.merge("the claims of a pod stay", PATH, {"metadata": {"annotations": {"gpu.example.com/uuids": "x"}}})


def pod_changes(api: Session) -> None:
    """What may change in a pod: images, and more tolerations.

    Left out: a change that may not be, because its message prints the specs as Go does.
    """
    api.create("a pod", PODS, pod("a"))
    api.strategic("another image", PATH, {"spec": {"containers": [{"name": "main", "image": "busybox:2"}]}})
    api.strategic("one container more", PATH, {"spec": {"containers": [{"name": "more", "image": "busybox:2"}]}})
    toleration = {"key": "x", "operator": "Exists"}
    api.json_patch("one toleration more", PATH, [{"op": "add", "path": "/spec/tolerations/-", "value": toleration}])


def binding(api: Session) -> None:
    """A pod is bound once, to one node."""
    path = f"{PATH}/binding"
    api.create("a pod", PODS, pod("a"))
    api.create("to nothing", path, {"metadata": {"name": "a"}, "target": {"kind": "Pod", "name": ""}})
    api.create("of another kind", path, pod("a"))
    api.create("of another name", path, {"metadata": {"name": "b"}, "target": {"name": "node-a"}})
    api.create("of another uid", path, {"metadata": {"name": "a", "uid": "other"}, "target": {"name": "node-a"}})
    good = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "a", "annotations": {"by": "scheduler"}},
        "target": {"kind": "Node", "name": "node-a"},
    }
    api.create("to a node", path, good)
    api.get("bound", PATH)
    api.create("once more", path, good)
    api.create("a pod that is not there", f"{PODS}/b/binding", good | {"metadata": {"name": "b"}})


def scheduling_gates(api: Session) -> None:
    """A gated pod cannot be bound; gates only go."""
    api.create("a gated pod", PODS, pod("a", schedulingGates=[{"name": "x/a"}, {"name": "b"}]))
    api.create(
        "its binding", f"{PATH}/binding", {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "node-a"}}
    )
    api.merge("the gates go", PATH, {"spec": {"schedulingGates": None}})
    api.create(
        "its binding", f"{PATH}/binding", {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "node-a"}}
    )


def pod_status(api: Session) -> None:
    """What kubelet and the scheduler write."""
    api.create("a pod", PODS, pod("a", nodeName="node-a"))
    running = {"startedAt": "2026-01-01T00:00:00Z"}
    container = {
        "name": "main",
        "ready": True,
        "restartCount": 0,
        "image": "busybox:1",
        "imageID": "x",
        "state": {"running": running},
    }
    status = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "podIP": "10.0.0.1",
        "containerStatuses": [container],
    }
    api.strategic("running", f"{PATH}/status", {"status": status}, fieldManager="kubelet")
    api.merge("a hint for the scheduler", f"{PATH}/status", {"status": {"nominatedNodeName": "node-b"}})
    api.merge("a hint that is no name", f"{PATH}/status", {"status": {"nominatedNodeName": "N_"}})
