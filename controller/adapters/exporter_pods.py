"""Asks the API server where the exporter of a node is."""

from __future__ import annotations

from dracaena.api.errors import BadInputError
from dracaena.api.exporter_objects import AddressedPod
from dracaena.kube.client import KubeClient


class ExporterPods:
    """The pods of an exporter, by node."""

    def __init__(self, client: KubeClient, where: str) -> None:
        """`where` is NAMESPACE/SELECTOR. Raises BadInputError."""
        self._client = client
        self._namespace, _, self._selector = where.partition("/")
        if not self._namespace or not self._selector:
            raise BadInputError(
                f"page exporters {where!r}: expected NAMESPACE/SELECTOR, for example gpu-system/app=exporter"
            )

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
