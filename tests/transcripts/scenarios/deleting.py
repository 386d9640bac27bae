"""Deletion."""

from __future__ import annotations

from transcripts.scenarios.documents import (
    CLAIMS,
    LEASES,
    PODS,
    PROTECTION,
    SLICES,
    claim,
    lease,
    pod,
    resource_slice,
)
from transcripts.session import Session

PATH = f"{CLAIMS}/c"


def finalizers(api: Session) -> None:
    """An object with finalizers stays, marked, until they are gone."""
    api.create("a claim", CLAIMS, claim("c", {"finalizers": [PROTECTION, "x/a"]}))
    api.delete("a deletion", PATH)
    api.get("it is still there", PATH)
    api.delete("a second deletion", PATH)
    api.merge("no new finalizer now", PATH, {"metadata": {"finalizers": [PROTECTION, "x/a", "x/b"]}})
    api.merge("one goes", PATH, {"metadata": {"finalizers": [PROTECTION]}})
    api.merge("the last goes, and the claim with it", PATH, {"metadata": {"finalizers": None}})
    api.get("gone", PATH)
    api.create("without finalizers", CLAIMS, claim("c"))
    api.delete("it is gone at once", PATH)
    api.delete("nothing is left to delete", PATH)


def delete_with_preconditions(api: Session) -> None:
    """Deleting only what one has seen."""
    old = api.create("a claim", CLAIMS, claim("c"))["metadata"]
    api.merge("it changes", PATH, {"metadata": {"labels": {"a": "1"}}})
    api.delete("another uid", PATH, {"preconditions": {"uid": "other"}})
    api.delete("the version from before", PATH, {"preconditions": {"resourceVersion": old["resourceVersion"]}})
    api.delete("an unknown policy", PATH, {"propagationPolicy": "Sideways"})
    api.delete("another kind of options", PATH, {"apiVersion": "v1", "kind": "Pod"})
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": old["uid"]}}
    api.delete("the right uid", PATH, options)


def delete_with_a_policy(api: Session) -> None:
    """Foreground and orphan deletions leave a finalizer for the garbage collector."""
    for policy in ("Foreground", "Orphan", "Background"):
        api.create(f"{policy}: a claim", CLAIMS, claim(policy.lower()))
        api.delete(f"{policy}: its deletion", f"{CLAIMS}/{policy.lower()}", {"propagationPolicy": policy})


def what_a_deletion_answers(api: Session) -> None:
    """Some kinds answer the deleted object, some a Status."""
    api.create("a slice", SLICES, resource_slice("s", []))
    api.delete("it is gone", f"{SLICES}/s")
    api.create("a lease", LEASES, lease("l"))
    api.delete("it is gone", f"{LEASES}/l")


def delete_a_pod(api: Session) -> None:
    """A bound pod gets its grace period; kubelet ends it with a deletion without one."""
    path = f"{PODS}/a"
    api.create("a bound pod", PODS, pod("a", nodeName="node-a"))
    api.delete("its end begins", path)
    api.create("binding it now", f"{path}/binding", {"metadata": {"name": "a"}, "target": {"name": "node-b"}})
    api.delete("more time", path, {"gracePeriodSeconds": 90})
    api.delete("the same again", path)
    api.delete("kubelet is done", path, {"gracePeriodSeconds": 0})
    api.get("gone", path)
    api.create("a pod that is nowhere", PODS, pod("b"))
    api.delete("it is gone at once", f"{PODS}/b")
    api.create("a bound pod with a finalizer", PODS, pod("c", {"finalizers": ["x/a"]}, nodeName="node-a"))
    api.delete("by force", f"{PODS}/c", gracePeriodSeconds=0)
    api.merge("the finalizer goes", f"{PODS}/c", {"metadata": {"finalizers": None}})
    api.get("gone", f"{PODS}/c")
    api.create(
        "a bound pod with a long grace period", PODS, pod("d", nodeName="node-a", terminationGracePeriodSeconds=90)
    )
    api.delete("a uid that is not its own", f"{PODS}/d", {"preconditions": {"uid": "other"}})
    api.delete("its end begins", f"{PODS}/d")
    api.delete("a grace period that is no number", f"{PODS}/d", gracePeriodSeconds="x")
