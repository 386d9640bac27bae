"""Tells kube-scheduler which node to look at first (status.nominatedNodeName, KEP-5278). It is only a hint.

Without it kube-scheduler filters many nodes to find the one that an allocation allows, which takes longer in larger
clusters.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import structlog

from dracaena.api.objects import Pod
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.ports import PodApi
from dracaena.kube.errors import KubeError

NEVER: Final = -1
"""`above_nodes` that switches nominations off."""

log = structlog.get_logger()


class Nomination:
    """Writes and clears the hint in clusters of more than `above_nodes` nodes. Never raises KubeError. Safe to use from
    many threads.

    Each write is guarded by the pod's resourceVersion, so a value that another client wrote meanwhile stays. It
    remembers which hints are its own, since the allocation that one belongs to may never be written: kube-scheduler
    would keep CPU and memory free there for a pod that goes elsewhere. A hint that an earlier leader left behind goes
    with kube-scheduler's next failed attempt.
    """

    def __init__(self, pods: PodApi, nodes: Callable[[], int], metrics: ControllerMetrics, *, above_nodes: int) -> None:
        self._pods = pods
        self._nodes = nodes
        self._metrics = metrics
        self._above_nodes = above_nodes
        self._lock = threading.Lock()
        self._ours: dict[str, tuple[str, str]] = {}  # unbound pod → its UID, the node that we last named

    def set(self, pod: Pod, node: str) -> Pod:
        """Name a node unless another client has named one; return the pod as far as we know its stored state. A hint of
        ours for another node is overwritten.

        Pods at a scheduling gate get the hint in clusters of any size: kube-scheduler starts on them only once they
        pass the gate, and the hint then saves it the search (`make bench-cluster`).
        """
        if self._above_nodes == NEVER or (self._nodes() <= self._above_nodes and not pod.spec.scheduling_gates):
            return pod
        named = pod.status.nominated_node_name
        if pod.spec.node_name or named == node or (named and not self._is_ours(pod)):
            return pod
        with self._lock:
            self._ours[pod.key] = pod.metadata.uid, node
        return self._write(pod, node, "set")

    def clear(self, pod: Pod, node: str) -> None:
        """Remove the hint if it still names this node and the pod is not bound."""
        if pod.status.nominated_node_name == node and not pod.spec.node_name:
            self._write(pod, "", "cleared")

    def withdraw(self, pod: Pod) -> None:
        """Remove the hint if it is ours, whatever node it names."""
        if self._is_ours(pod):
            self.clear(pod, pod.status.nominated_node_name)

    def forget(self, pod_key: str) -> None:
        """Forget the hint of a pod that is bound or gone."""
        with self._lock:
            self._ours.pop(pod_key, None)

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

    def _is_ours(self, pod: Pod) -> bool:
        with self._lock:
            return self._ours.get(pod.key) == (pod.metadata.uid, pod.status.nominated_node_name)

    def _write(self, pod: Pod, node: str, result: str) -> Pod:
        try:
            stored = self._pods.nominate(pod, node)
        except KubeError as error:
            self._metrics.writes.nominations.labels("refused").inc()
            log.debug("nominatedNodeName not written", node=node, error=str(error))
            return pod
        self._metrics.writes.nominations.labels(result).inc()
        return stored
