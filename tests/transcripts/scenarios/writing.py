"""Replacing and patching."""

from __future__ import annotations

import json
from typing import Any

from transcripts.scenarios.documents import CLAIMS, CLASSES, LEASES, PODS, claim, device_class, lease, opaque, pod
from transcripts.session import Session

PATH = f"{CLAIMS}/c"


def replace_and_conflicts(api: Session) -> None:
    """PUT: the version guards it, the identity must be right."""
    made = api.create("a claim", CLAIMS, claim("c"))
    api.merge("somebody else writes", PATH, {"metadata": {"labels": {"by": "other"}}})
    api.replace("with the version from before", PATH, made)
    now = api.get("read again", PATH)
    now["metadata"]["labels"]["by"] = "us"
    written = api.replace("with the version of now", PATH, now)
    api.replace("what is there already takes no version", PATH, written)
    api.replace("a version that never was", PATH, claim("c", {"resourceVersion": "1"}))
    api.replace("without a version nothing guards it", PATH, claim("c", {"labels": {"by": "nobody"}}))
    api.replace("another uid", PATH, claim("c", {"uid": "other"}))
    api.replace("another name", PATH, claim("d"))
    api.replace("no name", PATH, claim(""))
    api.replace("another namespace", PATH, claim("c", {"namespace": "other"}))
    api.replace("a version that is no number", PATH, claim("c", {"resourceVersion": "x"}))
    api.replace("a claim that is not there", f"{CLAIMS}/d", claim("d"))
    api.replace("a lease that is not there is made", f"{LEASES}/l", lease("l", holderIdentity="a"))


def merge_patch(api: Session) -> None:
    """RFC 7386: null removes, lists are replaced.

    Left out: a type that does not fit, and strict field validation, because the refusal prints the object as Go does.
    """
    old = api.create("a claim", CLAIMS, claim("c", {"labels": {"a": "1", "b": "1"}, "finalizers": ["x/a"]}))
    api.merge("one label goes, one comes", PATH, {"metadata": {"labels": {"a": None, "c": "1"}}})
    api.merge("a list is replaced", PATH, {"metadata": {"finalizers": ["x/b", "x/c"]}})
    api.merge("nothing changes", PATH, {"metadata": {"labels": {"c": "1"}}})
    api.merge("an empty patch", PATH, {})
    version = {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"], "labels": {"d": "1"}}}
    api.merge("guarded by a version that is past", PATH, version)
    now = api.get("read again", PATH)["metadata"]
    uid = {"metadata": {"uid": now["uid"], "resourceVersion": now["resourceVersion"], "labels": {"d": "1"}}}
    api.merge("guarded by uid and version", PATH, uid)
    api.merge("a version that is no number", PATH, {"metadata": {"resourceVersion": "x"}})
    api.merge("another uid", PATH, {"metadata": {"uid": "other"}})
    api.merge("another name", PATH, {"metadata": {"name": "other"}})
    api.merge("a field that no type has", PATH, {"spec": {"extra": 1}})
    api.merge("an object that is not there", f"{CLAIMS}/d", {"metadata": {"labels": {"a": "1"}}})
    api.merge("force is for apply", PATH, {}, force="true")


def json_patch(api: Session) -> None:
    """RFC 6902: all operations or none."""
    api.create("a claim", CLAIMS, claim("c", {"labels": {"a": "1"}, "finalizers": ["x/a"]}))
    add: Any = {"op": "add", "path": "/metadata/labels/x~1y", "value": "2"}
    api.json_patch("add", PATH, [add])
    guard = {"op": "test", "path": "/metadata/labels/a", "value": "1"}
    api.json_patch(
        "test, replace and remove",
        PATH,
        [
            guard,
            {"op": "replace", "path": "/metadata/labels/a", "value": "3"},
            {"op": "remove", "path": "/metadata/finalizers/0"},
        ],
    )
    api.json_patch("append to a list", PATH, [{"op": "add", "path": "/metadata/finalizers", "value": ["x/b"]}])
    api.json_patch("the test fails", PATH, [guard, {"op": "remove", "path": "/metadata/labels/a"}])
    api.json_patch("nothing to remove", PATH, [{"op": "remove", "path": "/metadata/annotations/a"}])
    api.json_patch("an unknown operation", PATH, [{"op": "put", "path": "/metadata/labels/a"}])


def strategic_patch(api: Session) -> None:
    """Kubernetes' own patch: lists are merged by their key."""
    pod_a = f"{PODS}/a"
    claims = [{"name": "gpus", "resourceClaimName": "c"}]
    api.create("a pod", PODS, pod("a", {"labels": {"a": "1"}, "finalizers": ["x/a"]}, resourceClaims=claims))
    api.strategic("labels", pod_a, {"metadata": {"labels": {"a": None, "b": "1"}}})
    api.strategic("finalizers are a set", pod_a, {"metadata": {"finalizers": ["x/b"]}})
    api.strategic("one leaves it", pod_a, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["x/a"]}})
    api.strategic("a container by its name", pod_a, {"spec": {"containers": [{"name": "main", "image": "busybox:2"}]}})
    ready = {"type": "Ready", "status": "True"}
    api.strategic("a condition", f"{pod_a}/status", {"status": {"conditions": [ready]}})
    api.strategic("a second", f"{pod_a}/status", {"status": {"conditions": [{"type": "Other", "status": "False"}]}})
    api.strategic("the first changes", f"{pod_a}/status", {"status": {"conditions": [ready | {"status": "False"}]}})
    api.strategic(
        "the first goes", f"{pod_a}/status", {"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}
    )
    api.strategic("all are replaced", f"{pod_a}/status", {"status": {"conditions": [{"$patch": "replace"}, ready]}})
    api.strategic("no key", f"{pod_a}/status", {"status": {"conditions": [{"status": "True"}]}})


def status_apart(api: Session) -> None:
    """The status is written through its own path, and nothing else is."""
    pod_a = f"{PODS}/a"
    api.create("a pod, with a status already", PODS, pod("a") | {"status": {"phase": "Running", "podIP": "10.0.0.1"}})
    api.merge("its status by the main path", pod_a, {"status": {"phase": "Running"}})
    api.merge(
        "its labels and spec by the status path",
        f"{pod_a}/status",
        {"metadata": {"labels": {"by": "status"}}, "spec": {"nodeName": "node-a"}, "status": {"phase": "Running"}},
    )
    api.create("a claim", CLAIMS, claim("c", {"labels": {"a": "1"}}))
    api.merge(
        "its finalizers and spec by the status path",
        f"{PATH}/status",
        {"metadata": {"labels": {"a": "2"}, "finalizers": ["x/a"]}, "spec": {"devices": {"requests": []}}},
    )
    body = claim("c") | {"status": {"allocation": {"devices": {}}}}
    api.replace("its status by the main path", PATH, body)
    api.create("creating a status", f"{PATH}/status", body)


def opaque_parameters_with_blanks(api: Session) -> None:
    """Opaque parameters are stored as they were sent, and compared so.

    A claim that was sent with blanks in them cannot be patched: the patch writes them without, which is a change of the
    spec. A PUT of the same bytes goes.
    """
    for name, parameters in (
        ("compact", '{"b":1,"a":2}'),
        ("blanks", '{"b": 1, "a": 2}'),
        ("marks", '{"a":"&","b":"<"}'),
    ):
        path = f"{CLAIMS}/{name}"
        body = json.dumps(claim(name, config=[opaque("@")]), separators=(",", ":")).replace('"@"', parameters)
        api.send(f"{name}: sent as text", "POST", CLAIMS, body)
        api.get(f"{name}: as it is read", path)
        api.merge(f"{name}: a merge patch", path, {"metadata": {"finalizers": ["x/a"]}})
        api.strategic(f"{name}: a strategic patch", path, {"metadata": {"labels": {"a": "1"}}})
        api.json_patch(f"{name}: a JSON patch", path, [{"op": "add", "path": "/metadata/labels", "value": {"b": "1"}}])
        api.send(f"{name}: the same bytes again", "PUT", path, body)


def generation(api: Session) -> None:
    """The generation of a class counts changes of its spec, and of nothing else."""
    api.create("a class", CLASSES, device_class("gpu", selectors=[{"cel": {"expression": "true"}}]))
    api.merge("a label", f"{CLASSES}/gpu", {"metadata": {"labels": {"a": "1"}}})
    api.merge("the spec", f"{CLASSES}/gpu", {"spec": {"selectors": None}})
