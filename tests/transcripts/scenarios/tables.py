"""Tables, as kubectl asks for them. Left out: the descriptions of columns, which are Kubernetes' documentation."""

from __future__ import annotations

from typing import Any

from transcripts.scenarios.documents import (
    CLAIMS,
    CLASSES,
    EVENTS,
    LEASES,
    NAMESPACE,
    NODES,
    PODS,
    PROTECTION,
    SLICES,
    TEMPLATES,
    allocation,
    claim,
    consumer,
    device_class,
    event,
    exactly,
    lease,
    node,
    pod,
    resource_slice,
    result,
    template,
)
from transcripts.session import JSON, Session

TABLE = f"{JSON};as=Table;v=v1;g=meta.k8s.io"
KUBECTL = f"{TABLE},{JSON};as=Table;v=v1beta1;g=meta.k8s.io,{JSON}"
"""What kubectl accepts."""


def table_forms(api: Session) -> None:
    """What a client may ask of a table: a list, one object, rows without objects or with whole ones."""
    for name in ("a", "b", "c"):
        api.create(f"class {name}", CLASSES, device_class(name))
    _table(api, "a list", CLASSES)
    _table(api, "one object", f"{CLASSES}/a")
    for included in ("None", "Object", "Metadata", "Everything"):
        _table(api, f"with includeObject={included}", f"{CLASSES}/a", includeObject=included)
    first = _table(api, "the first page", CLASSES, limit=2)
    _table(api, "the last page", CLASSES, limit=2, **{"continue": first["metadata"]["continue"]})
    _table(api, "nothing", CLASSES, labelSelector="a=b")
    _table(api, "a name that nothing has", f"{CLASSES}/nothing")
    for accept in (
        f"{JSON};as=Table;v=v1beta1;g=meta.k8s.io",
        TABLE,
        f"{JSON};as=Table;v=v9;g=meta.k8s.io,{JSON}",
        f"{JSON},{TABLE}",
    ):
        api.send(accept, "GET", f"{CLASSES}/a", accept=accept)
    api.send("a creation", "POST", CLASSES, device_class("d"), accept=KUBECTL)
    api.send("a deletion", "DELETE", f"{CLASSES}/d", accept=KUBECTL)


def watched_tables(api: Session) -> None:
    """A watch as tables of one row: the columns come with the first one."""
    version = api.create("a claim", CLAIMS, claim("a"))["metadata"]["resourceVersion"]
    stream = api.watch("from here on", CLAIMS, accept=KUBECTL, resourceVersion=version)
    api.create("another", CLAIMS, claim("b"))
    api.merge("its status", f"{CLAIMS}/b/status", {"status": {"reservedFor": [consumer()]}})
    api.merge("its allocation", f"{CLAIMS}/b/status", {"status": {"allocation": allocation(result())}})
    api.delete("a deletion", f"{CLAIMS}/a")
    stream.take(3, "three rows")
    whole = api.watch("whole objects", CLAIMS, accept=KUBECTL, resourceVersion=version, includeObject="Object")
    whole.take(1, "the first row")


def table_of_claims(api: Session) -> None:
    """The state of a claim."""
    api.create("one that waits", CLAIMS, claim("waits"))
    api.create("one that is allocated", CLAIMS, claim("held", {"finalizers": [PROTECTION]}))
    allocated = {"status": {"allocation": allocation(result())}}
    api.merge("its allocation", f"{CLAIMS}/held/status", allocated)
    api.create("one that is reserved", CLAIMS, claim("used", {"finalizers": [PROTECTION]}))
    api.merge(
        "its reservation", f"{CLAIMS}/used/status", {"status": allocated["status"] | {"reservedFor": [consumer()]}}
    )
    api.create("one that goes", CLAIMS, claim("goes", {"finalizers": [PROTECTION]}))
    api.delete("its deletion", f"{CLAIMS}/goes")
    api.delete("the deletion of the one that is allocated", f"{CLAIMS}/held")
    _table(api, "claims", CLAIMS)
    api.create("a template", TEMPLATES, template("t", {"requests": [exactly()]}))
    _table(api, "templates", TEMPLATES)


def table_of_slices(api: Session) -> None:
    """Slices of one node and of all."""
    api.create("a slice of a node", SLICES, resource_slice("of-node", []))
    api.create("a slice of all nodes", SLICES, resource_slice("of-all", [], nodeName=None, allNodes=True))
    _table(api, "slices", SLICES)


def table_of_nodes(api: Session) -> None:
    """The state of a node."""
    api.create("a node of which nothing is known", NODES, node("unknown"))
    labels = {"node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/a": "", "kubernetes.io/role": "b"}
    api.create("a node with everything", NODES, node("ready", {"labels": labels}, spec={"unschedulable": True}))
    status = {
        "conditions": [{"type": "Ready", "status": "True"}],
        "addresses": [
            {"type": "InternalIP", "address": "10.0.0.1"},
            {"type": "ExternalIP", "address": "192.0.2.1"},
            {"type": "Hostname", "address": "ready"},
        ],
        "nodeInfo": {
            "kubeletVersion": "v1.37.1",
            "osImage": "Debian",
            "kernelVersion": "6.1.0",
            "containerRuntimeVersion": "containerd://2.2.0",
            "architecture": "amd64",
            "operatingSystem": "linux",
            "machineID": "",
            "systemUUID": "",
            "bootID": "",
            "kubeProxyVersion": "",
        },
    }
    api.merge("its status", f"{NODES}/ready/status", {"status": status})
    api.create("a node that is not ready", NODES, node("unready", {"labels": {"node-role.kubernetes.io/": ""}}))
    unready = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
    api.merge("its status", f"{NODES}/unready/status", {"status": unready})
    _table(api, "nodes", NODES)


def table_of_events_leases_and_namespaces(api: Session) -> None:
    """Events; leases; a namespace."""
    about = {"kind": "Pod", "namespace": NAMESPACE, "name": "pod-a", "fieldPath": "spec.containers{main}"}
    source = {"component": "kubelet", "host": "node-a"}
    api.create(
        "an Event of the old form", EVENTS, event("old", involvedObject=about, source=source, message=" x \n", count=3)
    )
    api.create(
        "an Event without anything", EVENTS, event("bare", involvedObject={"kind": "Pod", "namespace": NAMESPACE})
    )
    for name in ("old", "bare"):
        _table(api, f"the Event {name}", f"{EVENTS}/{name}")
    api.create("a lease", LEASES, lease("held", holderIdentity="somebody"))
    api.create("a free lease", LEASES, lease("free"))
    _table(api, "leases", LEASES)
    _table(api, "a namespace", f"/api/v1/namespaces/{NAMESPACE}")


def table_of_pods(api: Session) -> None:
    """The state of a pod, in one word.

    Left out: what no stand-in writes, such as signals, lost nodes and init containers that fail.
    """
    api.create("one that waits", PODS, pod("waits"))
    api.create("one at a gate", PODS, pod("gated", schedulingGates=[{"name": "example.com/gate"}]))
    running = {"name": "main", "image": "busybox:1", "imageID": "", "ready": True, "restartCount": 0}
    started = running | {"state": {"running": {}}}
    ready = [{"type": "Ready", "status": "True"}, {"type": "Initialized", "status": "True"}]
    ended = {"exitCode": 0, "reason": "Completed"}
    over = running | {"ready": False, "state": {"terminated": ended}}
    for name, status in {
        "runs": {
            "phase": "Running",
            "conditions": ready,
            "containerStatuses": [started],
            "podIP": "10.1.0.1",
            "nominatedNodeName": "node-b",
        },
        "unready": {"phase": "Running", "containerStatuses": [started | {"ready": False, "restartCount": 2}]},
        "pulls": {
            "phase": "Pending",
            "containerStatuses": [running | {"ready": False, "state": {"waiting": {"reason": "ImagePullBackOff"}}}],
        },
        "done": {"phase": "Succeeded", "containerStatuses": [over]},
        "failed": {
            "phase": "Failed",
            "containerStatuses": [over | {"state": {"terminated": {"exitCode": 3, "reason": "Error"}}}],
        },
        "evicted": {"phase": "Failed", "reason": "Evicted"},
    }.items():
        api.create(f"pod {name}", PODS, pod(name, nodeName="node-a"))
        api.merge("its status", f"{PODS}/{name}/status", {"status": status})
    api.create("pod goes", PODS, pod("goes", nodeName="node-a"))
    api.delete("its deletion", f"{PODS}/goes")
    _table(api, "pods", PODS, includeObject="None")


def _table(api: Session, title: str, path: str, **query: Any) -> Any:
    return api.send(title, "GET", path, query=query, accept=KUBECTL)
