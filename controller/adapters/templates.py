"""ports.TemplateApi over the Kubernetes API."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from dracaena.api.gpu_templates import MANAGED_BY, MANAGER, GpuTemplate
from dracaena.api.resource_objects import ResourceClaimTemplate
from dracaena.controller.adapters.counting import counted
from dracaena.kube.client import KubeClient


class KubeTemplates:
    """See ports.TemplateApi."""

    def __init__(self, client: KubeClient, count: Callable[[str, str], None] = lambda verb, result: None) -> None:
        """`count` is called after each write with its verb and its result (counting.counted)."""
        self._client = client
        self._count = count

    def create(self, template: GpuTemplate, namespace: str) -> None:
        """See ports.TemplateApi."""
        with counted("make-template", self._count):
            self._client.create(ResourceClaimTemplate, template.document(), namespace=namespace)

    def ours(self) -> Sequence[ResourceClaimTemplate]:
        """See ports.TemplateApi."""
        return self._client.list(ResourceClaimTemplate, label_selector=f"{MANAGED_BY}={MANAGER}").items

    def exists(self, namespace: str, name: str) -> bool:
        """See ports.TemplateApi."""
        selector = f"metadata.name={name}"  # the controller may list, not get
        return bool(self._client.list(ResourceClaimTemplate, namespace=namespace, field_selector=selector).items)

    def names(self, namespace: str) -> Collection[str]:
        """See ports.TemplateApi."""
        return [one.metadata.name for one in self._client.list(ResourceClaimTemplate, namespace=namespace).items]

    def delete(self, template: ResourceClaimTemplate) -> None:
        """See ports.TemplateApi."""
        meta = template.metadata
        with counted("delete-template", self._count):
            self._client.delete(ResourceClaimTemplate, meta.name, namespace=meta.namespace, uid=meta.uid)
