"""Tells kube-scheduler on which node to look first (status.nominatedNodeName, KEP-5278): a hint, and nothing more.

It would find the one node that an allocation allows by filtering many. The more nodes there are, the more that takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from dracaena.api.objects import Pod
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.ports import PodApi
from dracaena.kube.errors import KubeError

NEVER: Final = -1
"""`above_nodes` for no nominations at all."""

log = structlog.get_logger()


class Nomination:
    """Writes and clears the hint, in clusters of more than `above_nodes` nodes. Holds no state; never raises KubeError.

    Each write is guarded by the pod's resourceVersion: a value that somebody else gave meanwhile stays.
    """

    def __init__(self, pods: PodApi, nodes: Callable[[], int], metrics: ControllerMetrics, *, above_nodes: int) -> None:
        self._pods = pods
        self._nodes = nodes
        self._metrics = metrics
        self._above_nodes = above_nodes

    def set(self, pod: Pod, node: str) -> Pod:
        """Name a node, unless the pod has one already; return the pod as it is stored now, as far as is known."""
        if self._above_nodes == NEVER or self._nodes() <= self._above_nodes:
            return pod
        if pod.status.nominated_node_name or pod.spec.node_name:
            return pod
        return self._write(pod, node, "set")

    def clear(self, pod: Pod, node: str) -> None:
        """Take the hint away, if it still names this node and the pod is not bound."""
        if pod.status.nominated_node_name == node and not pod.spec.node_name:
            self._write(pod, "", "cleared")

    def _write(self, pod: Pod, node: str, result: str) -> Pod:
        try:
            stored = self._pods.nominate(pod, node)
        except KubeError as error:
            self._metrics.nominations.labels("refused").inc()
            log.debug("nominatedNodeName not written", node=node, error=str(error))
            return pod
        self._metrics.nominations.labels(result).inc()
        return stored
