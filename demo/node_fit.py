"""Whether a pod may run on a node, as far as the scheduler stand-in honours it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dracaena.api.objects import Node, Pod, Taint, Toleration

BLOCKING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
"""PreferNoSchedule only lowers a score, and there are no scores here."""


def misfit(pod: Pod, node: Node) -> str | None:
    """Return why the pod cannot run on the node, in words of kube-scheduler, or None when it can.

    Honoured: spec.unschedulable, taints, nodeSelector and required node affinity. The API server refuses pods with
    other affinity.
    """
    if node.spec.unschedulable and not _tolerated(
        Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule"), pod.spec.tolerations
    ):
        return "node(s) were unschedulable"
    for taint in node.spec.taints:
        if taint.effect in BLOCKING_EFFECTS and not _tolerated(taint, pod.spec.tolerations):
            return f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
    if any(node.metadata.labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return "node(s) didn't match Pod's node affinity/selector"
    required = pod.spec.affinity.get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None and not selects(required, node):
        return "node(s) didn't match Pod's node affinity/selector"
    return None


def selects(selector: Mapping[str, Any], node: Node) -> bool:
    """Whether a core/v1 NodeSelector matches: any of its terms, all requirements of that term."""
    return any(_term_matches(term, node) for term in selector.get("nodeSelectorTerms", ()))


def _term_matches(term: Mapping[str, Any], node: Node) -> bool:
    expressions: list[Mapping[str, Any]] = term.get("matchExpressions") or []
    fields: list[Mapping[str, Any]] = term.get("matchFields") or []
    if not expressions and not fields:
        return False  # an empty term matches nothing (core/v1 NodeSelectorTerm)
    return all(_matches(need, node.metadata.labels) for need in expressions) and all(
        _matches(need, {"metadata.name": node.metadata.name}) for need in fields
    )


def _matches(requirement: Mapping[str, Any], values: Mapping[str, str]) -> bool:
    value = values.get(requirement["key"])
    wanted: list[str] = requirement.get("values") or []
    match requirement["operator"]:
        case "In":
            return value is not None and value in wanted
        case "NotIn":
            return value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            return _compares(value, wanted, operator)
        case _:
            return False


def _compares(value: str | None, wanted: list[str], operator: str) -> bool:
    try:
        seen, bound = int(value or ""), int(wanted[0])
    except (ValueError, IndexError):
        return False
    return seen > bound if operator == "Gt" else seen < bound


def _tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    return any(
        toleration.effect in ("", taint.effect)
        and toleration.key in ("", taint.key)
        and (
            toleration.operator == "Exists"
            or (toleration.operator in ("", "Equal") and toleration.value == taint.value)
        )
        for toleration in tolerations
    )
