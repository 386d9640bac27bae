"""Get and list."""

from __future__ import annotations

import json

from transcripts.scenarios.documents import (
    CLAIMS,
    CLASSES,
    CORE,
    EVENTS,
    LEASES,
    NODES,
    PODS,
    RESOURCE,
    SLICES,
    claim,
    consumer,
    device_class,
    lease,
    node,
    pod,
    resource_slice,
)
from transcripts.session import Session


def create_and_get(api: Session) -> None:
    """Creating an object, reading it, and creating what cannot be."""
    api.create("a claim", CLAIMS, claim("c") | {"status": {"reservedFor": [consumer()]}}, fieldManager="a-manager")
    api.get("as it is stored", f"{CLAIMS}/c")
    api.get("its status is the same document", f"{CLAIMS}/c/status")
    api.create("a name that is taken", CLAIMS, claim("c"))
    api.get("a name that nothing has", f"{CLAIMS}/nothing")
    api.create("a namespace that is not there", f"{RESOURCE}/namespaces/nowhere/resourceclaims", claim("c"))
    api.create("another namespace inside than in the path", CLAIMS, claim("d", {"namespace": "other"}))
    api.create("a name that is no DNS subdomain", CLAIMS, claim("C_1"))
    api.create("no name", CLAIMS, claim(""))
    api.create("a version already", CLAIMS, claim("d", {"resourceVersion": "5"}))
    api.create("a uid already", CLAIMS, claim("d", {"uid": "mine"}))


def create_without_a_name(api: Session) -> None:
    """generateName: the server hangs five characters on it."""
    made = api.create("a claim", CLAIMS, claim("", {"generateName": "pod-a-gpus-"}))
    api.get("by its name", f"{CLAIMS}/{made['metadata']['name']}")
    api.create("a name wins", CLAIMS, claim("named", {"generateName": "pod-a-gpus-"}))
    api.create("a bad base", CLAIMS, claim("", {"generateName": "Pod_A-"}))
    long = api.create("a base that is too long is cut", CLAIMS, claim("", {"generateName": "x" * 70}))
    api.create("a slice", SLICES, resource_slice("", [], {"generateName": "node-a-gpu.example.com-"}))
    assert len(long["metadata"]["name"]) == 63


def create_with_bad_metadata(api: Session) -> None:
    """Labels, annotations, finalizers and owners are checked for every kind alike."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "pod-a", "uid": "uid-a"}
    bad = {
        "labels": {"-a": "b", "a": "@"},
        "annotations": {"/x": "y"},
        "finalizers": ["no-domain", "x/y/z"],
        "ownerReferences": [
            {"apiVersion": "", "kind": "", "name": "", "uid": ""},
            owner | {"controller": True},
            owner | {"name": "pod-b", "uid": "uid-b", "controller": True},
        ],
    }
    for field, value in bad.items():
        api.send(f"bad {field}", "POST", CLAIMS, claim("c", {field: value}))
    api.create("a label value of 64 characters", CLAIMS, claim("c", {"labels": {"a": "x" * 64}}))
    api.create("good owners", CLAIMS, claim("c", {"ownerReferences": [owner, owner | {"controller": True}]}))
    api.create("an owner twice", CLAIMS, claim("d", {"ownerReferences": [owner, owner]}))
    api.merge("an owner twice by a patch", f"{CLAIMS}/c", {"metadata": {"ownerReferences": [owner, owner]}})
    api.create(
        "blockOwnerDeletion is kept", CLAIMS, claim("e", {"ownerReferences": [owner | {"blockOwnerDeletion": True}]})
    )


def unknown_fields(api: Session) -> None:
    """Fields that no type has are dropped with a warning, or refused where the client asks for it."""
    body = claim("c") | {"extra": 1}
    body["spec"]["devices"]["requests"][0]["exactly"]["gpus"] = 2
    api.create("strict", CLAIMS, body, fieldValidation="Strict")
    for name, validation in (("warned of", "Warn"), ("ignored", "Ignore")):
        api.create(name, CLAIMS, body, fieldValidation=validation)
        api.delete("away with it", f"{CLAIMS}/c")
    api.create("by default warned of", CLAIMS, body)
    text = json.dumps(claim("d")).replace('"kind"', '"kind": "ResourceClaim", "kind"')
    api.send("a field twice", "POST", CLAIMS, text)
    api.send("a field twice, strict", "POST", CLAIMS, text, query={"fieldValidation": "Strict"})
    api.create("a name in other case is another field", CLAIMS, claim("e") | {"Spec": {}})


def requests_not_understood(api: Session) -> None:
    """Bad bodies and bad paths.

    Left out: media types that nobody reads or writes, because the refusal lists all those that the server knows.
    """
    api.create("another kind than the path's", CLAIMS, pod("p"))
    api.create("no kind", SLICES, {"metadata": {"name": "s"}})
    api.create("a type that does not fit", SLICES, resource_slice("s", [], pool={"generation": "x"}))
    api.send("JSON that ends too early", "POST", SLICES, '{"a":')
    api.send("a long text that ends too early", "POST", SLICES, '{"a":"' + "b" * 100)
    api.send("no JSON", "POST", SLICES, "hello")
    api.send("a long text that is none", "POST", SLICES, "hello " * 10)
    api.send("nothing", "POST", SLICES, "")
    api.send("a patch that is none", "PATCH", f"{SLICES}/s", "{}", form="application/json")
    for method, path in (
        ("GET", "/apis/nothing.example.com/v1/things"),
        ("GET", f"{RESOURCE}/things"),
        ("GET", f"{PODS}/p/nothing"),
        ("PUT", SLICES),
        ("PATCH", SLICES),
        ("POST", f"{SLICES}/s"),
        ("DELETE", f"{PODS}/p/status"),
        ("GET", f"{PODS}/p/binding"),
    ):
        api.send(f"{method} where it has no meaning", method, path, None if method == "GET" else {})
    api.create("an unknown fieldValidation", CLAIMS, claim("c"), fieldValidation="Some")


def list_by_labels(api: Session) -> None:
    """Label selectors."""
    for name, labels in (("a", {"app": "x"}), ("b", {"app": "y", "tier": "1"}), ("c", {})):
        api.create(f"lease {name}", LEASES, lease(name, {"labels": labels}))
    for selector in ("app=x", "app==y", "app!=x", "app", "!app", "app in (x,y),!tier", "app notin (x)", "tier>0"):
        api.get(f"by {selector}", LEASES, labelSelector=selector)
    for selector in ("app in x", "app=b c", "!!app", "app,"):
        api.get(f"by {selector}, which is no selector", LEASES, labelSelector=selector)


def list_by_fields(api: Session) -> None:
    """Field selectors: each kind has its own list of fields."""
    api.create("a bound pod", PODS, pod("bound", nodeName="node-a", restartPolicy="Never"))
    api.create("a free pod", PODS, pod("free"))
    for selector in (
        "spec.nodeName=node-a",
        "spec.nodeName=",
        "status.phase=Pending,metadata.name!=free",
        "spec.restartPolicy=Never,spec.schedulerName=default-scheduler",
        "metadata.namespace=other",
    ):
        api.get(f"pods by {selector}", PODS, fieldSelector=selector)
    api.get("pods of all namespaces", "/api/v1/pods", fieldSelector="metadata.name=free")
    api.create("a slice of a node", SLICES, resource_slice("of-node", []))
    api.create("a slice of all nodes", SLICES, resource_slice("of-all", [], nodeName=None, allNodes=True))
    api.get("slices by node and driver", SLICES, fieldSelector="spec.nodeName=node-a,spec.driver=gpu.example.com")
    api.get("slices of no node", SLICES, fieldSelector="spec.nodeName=")
    api.create("a node", NODES, node("node-a", spec={"unschedulable": True}))
    api.get("nodes by unschedulable", NODES, fieldSelector="spec.unschedulable=true")
    for path in (PODS, CLAIMS, LEASES, SLICES, CLASSES, NODES, EVENTS):
        api.get("a field that cannot be selected", path, fieldSelector="spec.other=1")
    api.get("no selector", PODS, fieldSelector="nonsense")


def list_in_pages(api: Session) -> None:
    """Pages show the collection as it was at the first one."""
    for name in ("a", "b", "c", "d", "e"):
        api.create(f"class {name}", CLASSES, device_class(name))
    first = api.get("the first page", CLASSES, limit=2)
    api.delete("one goes", f"{CLASSES}/d")
    api.create("one comes", CLASSES, device_class("bb"))
    second = api.get("the second page", CLASSES, limit=2, **_rest(first))
    api.get("the last page", CLASSES, limit=2, **_rest(second))
    api.get("now", CLASSES)
    api.get("a page that holds all", CLASSES, limit=10)
    api.get("with a selector nobody counts what is left", CLASSES, limit=1, labelSelector="!x")
    api.get(
        "a version and a token", CLASSES, limit=2, resourceVersion=first["metadata"]["resourceVersion"], **_rest(first)
    )
    api.get("a token that is none", CLASSES, **{"continue": "abc"})
    api.get("no limit", CLASSES, limit=-1, labelSelector="none")
    api.get("a limit that is no number", CLASSES, limit="x")


def list_at_a_version(api: Session) -> None:
    """resourceVersion of a list."""
    old = api.create("a class", CLASSES, device_class("a"))["metadata"]["resourceVersion"]
    api.create("another", CLASSES, device_class("b"))
    api.get("no older than then", CLASSES, resourceVersion=old)
    api.get("with a limit it is exactly then", CLASSES, resourceVersion=old, limit=1)
    api.get("any version knows no pages", CLASSES, resourceVersion=0, limit=1)
    api.get("one object, no older than then", f"{CLASSES}/a", resourceVersion=old)
    api.get("a version that is no number", CLASSES, resourceVersion="x")
    api.get("one object at a version that is no number", f"{CLASSES}/a", resourceVersion="x")


def list_of_a_forgotten_version(api: Session) -> None:
    """What the server has forgotten is expired (410)."""
    for name in ("a", "b"):
        api.create(f"class {name}", CLASSES, device_class(name))
    api.forget_history("a compaction")
    # The version is 1, because a server may still hold the latest ones for its own reasons.
    api.get("a page of then", CLASSES, resourceVersion=1, limit=1)


def _rest(page: dict[str, dict[str, str]]) -> dict[str, str]:
    return {"continue": page["metadata"]["continue"]}


def paths_of_a_namespace(api: Session) -> None:
    """Namespaces themselves: their life until the end."""
    namespaces = "/api/v1/namespaces"
    path = f"{namespaces}/short-lived"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "short-lived"}}
    api.create(
        "a name that is no DNS label",
        namespaces,
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a.b"}},
    )
    api.create("a namespace", namespaces, body)
    api.get("by name", namespaces, fieldSelector="metadata.name=short-lived,status.phase=Active")
    api.delete("its end begins", path)
    api.create("nothing new comes in", f"{path}/pods", pod("p"))
    api.delete("ending it again", path)
    api.replace("its end", f"{path}/finalize", body | {"spec": {"finalizers": []}})
    api.get("it is gone", path)
    api.delete("default stays", f"{namespaces}/default")
    api.merge(
        "its finalizers are not for a patch",
        CORE,
        {"metadata": {"labels": {"a": "b"}}, "spec": {"finalizers": ["x/y"]}, "status": {"phase": "Terminating"}},
    )
