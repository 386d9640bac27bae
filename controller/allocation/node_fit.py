"""Whether a pod may run on a node, as far as the node itself says: name, selector, affinity, cordon, taints.

Kubernetes' own rules (core/v1, NodeSelector and Taint). kube-scheduler decides in the end; this keeps us from pinning
a pod to a node that it will refuse. Not here yet: cpu, memory, pod count, pod affinity and spread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dracaena.api.objects import Node, Pod, Taint, Toleration

UNSCHEDULABLE_TAINT: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
"""What `kubectl cordon` adds; a pod that tolerates it may still go there."""

_BLOCKING_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})


def unfit_reason(pod: Pod, node: Node) -> str | None:
    """Return why the pod cannot run on the node, in words that follow a count of nodes; None when it can.

    A pod that names its node (spec.nodeName) has passed the scheduler by: only the name counts then.
    """
    if pod.spec.node_name:
        return None if pod.spec.node_name == node.metadata.name else "not named by the pod"
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return "not matching the pod's nodeSelector"
    required = required_affinity(pod)
    if required is not None and not node_selector_matches(required, node):
        return "not matching the pod's node affinity"
    if node.spec.unschedulable and not tolerates(pod.spec.tolerations, UNSCHEDULABLE_TAINT):
        return "cordoned"
    taint = first_untolerated(node.spec.taints, pod.spec.tolerations)
    return f"with taint {taint.key} that the pod does not tolerate" if taint is not None else None


def node_selector_matches(selector: Mapping[str, Any], node: Node) -> bool:
    """Evaluate a raw core/v1 NodeSelector: any of its terms. An empty term, and no term at all, match nothing."""
    return any(_term_matches(term, node) for term in selector.get("nodeSelectorTerms") or ())


def first_untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> Taint | None:
    """Return the first taint with effect NoSchedule or NoExecute that nothing tolerates. Other effects do not count."""
    known = tuple(tolerations)
    for taint in taints:
        if taint.effect in _BLOCKING_EFFECTS and not tolerates(known, taint):
            return taint
    return None


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    """Return whether any toleration covers the taint; the rules are the same for nodes and for devices."""
    return any(_covers(toleration, taint) for toleration in tolerations)


def _covers(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator == "Exists":
        return True
    # An empty key stands for all keys only with Exists.
    return toleration.operator in ("", "Equal") and toleration.key != "" and toleration.value == taint.value


def required_affinity(pod: Pod) -> Mapping[str, Any] | None:
    """Return the raw NodeSelector that a node has to match for the pod, None when it has none."""
    node_affinity = pod.spec.affinity.get("nodeAffinity") or {}
    required: Mapping[str, Any] | None = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required


def _term_matches(term: Mapping[str, Any], node: Node) -> bool:
    expressions = term.get("matchExpressions") or ()
    fields = term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    # metadata.name is the only field that the API takes here.
    names = {"metadata.name": node.metadata.name}
    return all(_matches(rule, node.metadata.labels) for rule in expressions) and all(
        _matches(rule, names) for rule in fields
    )


def _matches(rule: Mapping[str, Any], values: Mapping[str, str]) -> bool:
    """Evaluate one requirement; an operator that we do not know matches nothing, so no pod lands where it must not."""
    operator = rule.get("operator")
    wanted = rule.get("values") or ()
    seen = values.get(rule.get("key", ""))
    if operator == "In":
        return seen is not None and seen in wanted
    if operator == "NotIn":
        return seen is None or seen not in wanted
    if operator == "Exists":
        return seen is not None
    if operator == "DoesNotExist":
        return seen is None
    if operator in ("Gt", "Lt"):
        return _compares(str(operator), seen, wanted)
    return False


def _compares(operator: str, seen: str | None, wanted: Iterable[str]) -> bool:
    limits = tuple(wanted)
    if seen is None or len(limits) != 1:
        return False
    try:
        value, limit = int(seen), int(limits[0])
    except ValueError:
        return False
    return value > limit if operator == "Gt" else value < limit
