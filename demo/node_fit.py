"""Whether a pod may run on a node, as far as the scheduler stand-in honours it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dracaena.api.objects import Node, Pod, Taint, Toleration
from dracaena.demo.apiserver.selectors import LabelCondition

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
    expressions = [LabelCondition.of(one) for one in term.get("matchExpressions") or ()]
    fields = [LabelCondition.of(one) for one in term.get("matchFields") or ()]
    if not expressions and not fields:
        return False  # an empty term matches nothing (core/v1 NodeSelectorTerm)
    named = {"metadata.name": node.metadata.name}
    return all(one.matches(node.metadata.labels) for one in expressions) and all(one.matches(named) for one in fields)


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
