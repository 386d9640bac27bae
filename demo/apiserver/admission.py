"""The admission rules of a default kube-apiserver that matter for the kinds served here.

NamespaceLifecycle, DefaultTolerationSeconds, Priority, TaintNodesByCondition and PodTopologyLabels act as there.
ServiceAccount does not run (there are no service accounts, and no tokens to mount), nor do plugins whose kinds are
not served.
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
_TOPOLOGY_LABELS: Final = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")


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


def admit_creation(kind: Kind, document: Document, node: Document | None) -> Document:
    """A new object as admission leaves it. `node` is the pod's node, when it names one that exists."""
    if kind.kind == "Node":
        return _tainted(document)
    if kind.kind != "Pod":
        return document
    return labelled_by_node(_prioritised(_tolerating(document)), node)


def admit_update(kind: Kind, new: Document, old: Document, node: Document | None) -> Document:
    """A changed object as admission leaves it. `node` as for a creation."""
    if kind.kind != "Pod":
        return new
    spec = dict(new["spec"])
    for name in ("priority", "preemptionPolicy"):
        if name not in spec and name in old["spec"]:
            spec[name] = old["spec"][name]
    return labelled_by_node(_tolerating(new | {"spec": spec}), node)


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
    for name, computed, shown in (("priority", 0, "integer"), ("preemptionPolicy", "PreemptLowerPriority", "string")):
        given = spec.get(name, computed)
        if given != computed:
            title = "priority" if name == "priority" else "PreemptionPolicy"
            raise ApiError(
                403,
                "Forbidden",
                (
                    f'pods "{pod["metadata"].get("name", "")}" is forbidden: the {shown} value of {title} ({given}) '
                    f"must not be "
                    f"provided in pod spec; priority admission controller computed {computed} from the given "
                    f"PriorityClass name"
                ),
                {"name": pod["metadata"].get("name", ""), "kind": "pods"},
            )
    return pod | {"spec": spec | {"priority": 0, "preemptionPolicy": "PreemptLowerPriority"}}


def labelled_by_node(pod: Document, node: Document | None) -> Document:
    """A pod carries the region and zone of its node."""
    known = (node or {}).get("metadata", {}).get("labels") or {}
    found = {name: known[name] for name in _TOPOLOGY_LABELS if name in known}
    if not found:
        return pod
    labels = (pod["metadata"].get("labels") or {}) | found
    ordered = {name: labels[name] for name in sorted(labels)}
    return pod | {"metadata": pod["metadata"] | {"labels": ordered}}
