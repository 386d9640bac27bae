"""Whether a pod may run on a node, and whether a selector matches one, read from the objects at each call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dracaena.api.objects import Node, Pod
from dracaena.controller.allocation.nodes.matching import read_node_selector, required_affinity, unfit_for
from dracaena.controller.allocation.nodes.node_filter import tolerations_of


def unfit_reason(pod: Pod, node: Node) -> str | None:
    """Why the pod cannot run on the node; None when it can."""
    return unfit_for(pod, required_affinity(pod), tolerations_of(pod), node)


def node_selector_matches(selector: Mapping[str, Any], node: Node) -> bool:
    """Evaluate a raw core/v1 NodeSelector."""
    return read_node_selector(selector).matches(node)
