"""Whether a pod may run on a node, as far as the node itself says: name, selector, affinity, cordon, taints.

Kubernetes' own rules (core/v1, NodeSelector and Taint, as kube-scheduler 1.36 reads them). kube-scheduler decides in
the end; this keeps us from pinning a pod to a node that it will refuse. How much of a node is left: node_resources. Not
here: pod affinity, spread and volumes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from dracaena.api.objects import Node, Pod, Taint, Toleration
from dracaena.api.packed import unpacked
from dracaena.controller.allocation.effort import Effort
from dracaena.controller.allocation.nodes.node_selector import NodeSelector, read_node_selector

UNSCHEDULABLE_TAINT: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
"""What `kubectl cordon` adds; a pod that tolerates it may still go there."""

_BLOCKING_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})
"""PreferNoSchedule only lowers kube-scheduler's score. Other effects of devices, None among them, keep nobody away."""


def unfit_reason(pod: Pod, node: Node) -> str | None:
    """Return why the pod cannot run on the node, in words that follow a count of nodes; None when it can.

    A pod that names its node (spec.nodeName) has passed the scheduler by: only the name counts then.
    """
    return unfit_for(pod, required_affinity(pod), tolerations_of(pod), node)


def unfit_for(pod: Pod, required: NodeSelector | None, tolerations: Sequence[Toleration], node: Node) -> str | None:
    """Answer as unfit_reason() does, with the pod's required_affinity() and tolerations_of() it at hand."""
    if pod.spec.node_name:
        return None if pod.spec.node_name == node.metadata.name else "not named by the pod"
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return "not matching the pod's nodeSelector"
    if required is not None and not required.matches(node):
        if required.problems:
            return f"not matching the pod's node affinity, which cannot be read whole: {required.problems[0]}"
        return "not matching the pod's node affinity"
    if node.spec.unschedulable and not tolerates(tolerations, UNSCHEDULABLE_TAINT):
        return "cordoned"
    taint = first_untolerated(node.spec.taints, tolerations)
    return f"with taint {taint.key} that the pod does not tolerate" if taint is not None else None


def node_selector_matches(selector: Mapping[str, Any], node: Node) -> bool:
    """Evaluate a raw core/v1 NodeSelector."""
    return read_node_selector(selector).matches(node)


def required_affinity(pod: Pod, effort: Effort | None = None) -> NodeSelector | None:
    """Return what a node has to match for the pod, None when the pod says nothing. What cannot be read matches none.
    Each term is charged.
    """
    node_affinity = pod.spec.affinity.get("nodeAffinity")
    if node_affinity is None:
        return None
    if not isinstance(node_affinity, Mapping):
        return NodeSelector((), ("nodeAffinity is no object",))
    required = unpacked(node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    return None if required is None else read_node_selector(required, effort)


def tolerations_of(pod: Pod) -> Sequence[Toleration]:
    """Return what the pod tolerates, packed or not. Cost: O(tolerations)."""
    return msgspec.convert(unpacked(pod.spec.tolerations), list[Toleration])


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
    # No key stands for every key, with Equal too. Lt and Gt are for nodes, behind a gate that is off in 1.36.
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    return toleration.operator == "Exists" or (toleration.operator in ("", "Equal") and toleration.value == taint.value)
