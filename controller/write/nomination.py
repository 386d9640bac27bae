"""Tells kube-scheduler which node to look at first (status.nominatedNodeName, KEP-5278). It is only a hint.

Without it kube-scheduler filters many nodes to find the one that an allocation allows, which takes longer in larger
clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

import structlog

from dracaena.api.decision import decode_decision
from dracaena.api.errors import BadInputError
from dracaena.api.names import decision_annotation
from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.ports import PodApi
from dracaena.kube.errors import KubeError

NEVER: Final = -1
"""`above_nodes` that switches nominations off."""

log = structlog.get_logger()


class Nomination:
    """Writes and clears the hint in clusters of more than `above_nodes` nodes. Holds no state; never raises KubeError.

    Each write is guarded by the pod's resourceVersion, so a value that another client wrote meanwhile stays.
    """

    def __init__(self, pods: PodApi, nodes: Callable[[], int], metrics: ControllerMetrics, *, above_nodes: int) -> None:
        self._pods = pods
        self._nodes = nodes
        self._metrics = metrics
        self._above_nodes = above_nodes

    def set(self, pod: Pod, node: str, *, earlier: Collection[str] = ()) -> Pod:
        """Name a node unless another client has named one; return the pod as far as we know its stored state.
        `earlier`: nodes of our decisions that came to nothing (earlier_nodes); a hint for one of these is overwritten.

        Pods at a scheduling gate get the hint in clusters of any size: kube-scheduler starts on them only once they
        pass the gate, and the hint then saves it the search (`make bench-cluster`).
        """
        if self._above_nodes == NEVER or (self._nodes() <= self._above_nodes and not pod.spec.scheduling_gates):
            return pod
        named = pod.status.nominated_node_name
        if pod.spec.node_name or named == node or (named and named not in earlier):
            return pod
        return self._write(pod, node, "set")

    def clear(self, pod: Pod, node: str) -> None:
        """Remove the hint if it still names this node and the pod is not bound."""
        if pod.status.nominated_node_name == node and not pod.spec.node_name:
            self._write(pod, "", "cleared")

    def nudge(self, pod: Pod, node: str) -> None:
        """Make kube-scheduler retry a pod that it holds back for lack of CPU and the like.

        kube-scheduler treats a nomination that disappears like the deletion of a pod on that node (1.36,
        eventhandlers.go, hasNominatedNodeNameChanged), so it retries all pods of no higher priority that this may help.
        Does nothing where nominations are switched off, or while the pod has one.
        """
        if self._above_nodes == NEVER or pod.spec.node_name or pod.status.nominated_node_name:
            return
        stored = self._write(pod, node, "set")
        if stored is not pod:
            self._write(stored, "", "cleared")

    def _write(self, pod: Pod, node: str, result: str) -> Pod:
        try:
            stored = self._pods.nominate(pod, node)
        except KubeError as error:
            self._metrics.writes.nominations.labels("refused").inc()
            log.debug("nominatedNodeName not written", node=node, error=str(error))
            return pod
        self._metrics.writes.nominations.labels(result).inc()
        return stored


def earlier_nodes(claims: Iterable[ResourceClaim], driver: str) -> frozenset[str]:
    """Return the nodes of the decisions noted on claims that have no allocation.

    A decision is noted on the claim before the hint is written. If its allocation was never written, the hint stays
    behind, and kube-scheduler would keep CPU and memory free there for a pod that goes elsewhere.
    """
    waiting = (claim for claim in claims if claim.status.allocation is None)
    noted = (claim.metadata.annotations.get(decision_annotation(driver)) for claim in waiting)
    return frozenset(node for text in noted if text is not None and (node := _node_in(text)) is not None)


def _node_in(text: str) -> str | None:
    try:
        return decode_decision(text).node
    except BadInputError:
        return None
