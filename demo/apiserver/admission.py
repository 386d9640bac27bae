"""The admission rules of a default kube-apiserver that matter for the kinds served here.

NamespaceLifecycle, DefaultTolerationSeconds, Priority and TaintNodesByCondition act as there. Others do not run:
PodTopologyLabels (no node of the demo has a region or zone), ServiceAccount (there are no service accounts, and no
tokens to mount), and plugins whose kinds are not served.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from dracaena.demo.apiserver.errors import ApiError, Qualified, forbidden, not_found
from dracaena.demo.apiserver.resources import Kind

Document = dict[str, Any]

_NAMESPACES: Final = Qualified("", "namespaces")
_PERMANENT: Final = frozenset({"default", "kube-system", "kube-public"})
_DEFAULT_TOLERATION_S: Final = 300
_NOT_READY: Final = "node.kubernetes.io/not-ready"
_UNREACHABLE: Final = "node.kubernetes.io/unreachable"


PodPolicy = Callable[[Document, Document], Mapping[str, Any]]
"""From a new pod and its namespace to the pod as it is stored."""


def unchanged(pod: Document, _namespace: Document) -> Document:
    """Policy of a server without policies."""
    return pod


def check_namespace(kind: Kind, name: str, namespace: str, stored: Document | None) -> None:
    """A creation needs its namespace (404), and one that is not being deleted (403)."""
    if stored is None:
        raise not_found(_NAMESPACES, namespace)
    if stored["status"].get("phase") == "Terminating":
        why = f"unable to create new content in namespace {namespace} because it is being terminated"
        cause = {
            "reason": "NamespaceTerminating",
            "message": f"namespace {namespace} is being terminated",
            "field": "metadata.namespace",
        }
        raise forbidden(kind.qualified_resource, name, why, [cause])


def check_namespace_deletion(name: str) -> None:
    """The namespaces that every cluster has cannot be deleted."""
    if name in _PERMANENT:
        raise forbidden(_NAMESPACES, name, "this namespace may not be deleted")


def admit_creation(kind: Kind, document: Document) -> Document:
    """A new object as admission leaves it."""
    if kind.kind == "Node":
        return _tainted(document)
    return _prioritised(_tolerating(document)) if kind.kind == "Pod" else document


def admit_update(kind: Kind, new: Document, old: Document) -> Document:
    """A changed object as admission leaves it."""
    if kind.kind != "Pod":
        return new
    spec = dict(new["spec"])
    for name in ("priority", "preemptionPolicy"):
        if name not in spec and name in old["spec"]:
            spec[name] = old["spec"][name]
    return _tolerating(new | {"spec": spec})


def _tainted(node: Document) -> Document:
    """A new node takes no pods until its kubelet (or a stand-in for it) has said that it is ready."""
    taint = {"key": _NOT_READY, "effect": "NoSchedule"}
    taints = node["spec"].get("taints") or []
    if any(one["key"] == _NOT_READY and one["effect"] == "NoSchedule" for one in taints):
        return node
    return node | {"spec": node["spec"] | {"taints": [*taints, taint]}}


def _tolerating(pod: Document) -> Document:
    tolerations = list(pod["spec"].get("tolerations") or [])
    for key in (_NOT_READY, _UNREACHABLE):
        if not any(
            one.get("key", "") in ("", key) and one.get("effect", "") in ("", "NoExecute") for one in tolerations
        ):
            tolerations.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": _DEFAULT_TOLERATION_S,
                }
            )
    return pod | {"spec": pod["spec"] | {"tolerations": tolerations}}


def _prioritised(pod: Document) -> Document:
    spec = pod["spec"]
    computed = {"priority": 0, "preemptionPolicy": "PreemptLowerPriority"}
    for name, value in computed.items():
        if spec.get(name, value) != value:
            shown = pod["metadata"].get("name", "")
            why = f'pods "{shown}" is forbidden: {name} is computed from the priority class, here it is {value}'
            raise ApiError(403, "Forbidden", why, {"name": shown, "kind": "pods"})
    return pod | {"spec": spec | computed}
