"""Asks the API server where the exporter of a node is."""

from __future__ import annotations

from dracaena.api.exporter_objects import AddressedPod
from dracaena.kube.client import KubeClient


class ExporterPods:
    """The pods of an exporter, by node."""

    def __init__(self, client: KubeClient, namespace: str, selector: str) -> None:
        self._client, self._namespace, self._selector = client, namespace, selector

    def address(self, node: str) -> str | None:
        """Return the address of the exporter on a node; None: there is none. Raises KubeError."""
        found = self._client.list(
            AddressedPod,
            namespace=self._namespace,
            label_selector=self._selector,
            field_selector=f"spec.nodeName={node}",
        ).items
        addresses = [pod.status.pod_i_p for pod in found if pod.status.phase == "Running" and pod.status.pod_i_p]
        return min(addresses, default=None)
