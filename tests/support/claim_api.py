"""A fake of controller.ports: claims and pods in memory, with resourceVersions, conflicts and faults on demand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import msgspec

from dracaena.api.gpu_templates import MANAGED_BY, MANAGER, GpuTemplate
from dracaena.api.names import DELETE_PROTECTION_FINALIZER
from dracaena.api.objects import KubeObject, Pod
from dracaena.api.resource_objects import (
    ConsumerReference,
    ResourceClaim,
    ResourceClaimTemplate,
)
from dracaena.controller.adapters.kube import KubeClaimWrites
from dracaena.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from support.interleaver.server import Server


class FakeClaims:
    """Implements ports.ClaimApi and ports.PodApi by the product's own adapter, over the interleaver's server.

    `before` is called with (verb, claim key) before each write: it may change the state, or raise what the server
    would answer. `after` is called after a write was stored: raising there is an answer that got lost.
    """

    def __init__(self, *objects: Pod | ResourceClaim) -> None:
        self.server = Server()
        self.claims, self.pods = self.server.claims, self.server.pods
        self.claims.update({item.key: item for item in objects if isinstance(item, ResourceClaim)})
        self.pods.update({item.key: item for item in objects if isinstance(item, Pod)})
        self.writes: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda verb, key: None
        self.after: Callable[[str, str], None] = lambda verb, key: None
        self.on_change: Callable[[ResourceClaim | None, ResourceClaim | None], None] = lambda old, new: None
        self.on_pod_change: Callable[[Pod | None, Pod | None], None] = lambda old, new: None
        self._adapter = KubeClaimWrites(_Client(self.server))  # type: ignore[arg-type]

    def read_claim(self, namespace: str, name: str) -> ResourceClaim | None:
        return self._adapter.read_claim(namespace, name)

    def read_pod(self, namespace: str, name: str) -> Pod | None:
        return self._adapter.read_pod(namespace, name)

    def nominate(self, pod: Pod, node: str) -> Pod:
        return self._write_pod("nominate", pod, lambda: self._adapter.nominate(pod, node))

    def probe(self, pod: Pod, at: str) -> Pod:
        return self._write_pod("probe", pod, lambda: self._adapter.probe(pod, at))

    def ungate(self, pod: Pod) -> Pod:
        changed = self._write_pod("ungate", pod, lambda: self._adapter.ungate(pod))
        self.after("ungate", pod.key)
        return changed

    def mark(self, claim: ResourceClaim) -> ResourceClaim:
        return self._write("mark", claim, lambda: self._adapter.mark(claim))

    def allocate(
        self, claim: ResourceClaim, allocation: Mapping[str, Any], reserved_for: ConsumerReference
    ) -> ResourceClaim:
        changed = self._write("allocate", claim, lambda: self._adapter.allocate(claim, allocation, reserved_for))
        assert DELETE_PROTECTION_FINALIZER in changed.metadata.finalizers, "no finalizer before the allocation"
        return changed

    def reserve(self, claim: ResourceClaim, consumers: Sequence[ConsumerReference]) -> ResourceClaim:
        return self._write("reserve", claim, lambda: self._adapter.reserve(claim, consumers))

    def deallocate(self, claim: ResourceClaim) -> ResourceClaim:
        return self._write("deallocate", claim, lambda: self._adapter.deallocate(claim))

    def put(self, claim: ResourceClaim) -> ResourceClaim:
        """Store a claim as somebody else would: with a new resourceVersion."""
        old = self.claims.get(claim.key)
        stored = self.server.put(claim)
        self.on_change(old, stored)
        return stored

    def put_pod(self, pod: Pod) -> Pod:
        """Store a pod as somebody else would: with a new resourceVersion."""
        return self.server.put(pod)

    def remove(self, key: str) -> None:
        self.on_change(self.claims.pop(key), None)

    def _write_pod(self, verb: str, pod: Pod, send: Callable[[], Pod]) -> Pod:
        self.before(verb, pod.key)
        old, changed = self.pods.get(pod.key), send()
        self.writes.append((verb, pod.key))
        self.on_pod_change(old, changed)
        return changed

    def _write(self, verb: str, claim: ResourceClaim, send: Callable[[], ResourceClaim]) -> ResourceClaim:
        self.before(verb, claim.key)
        old, changed = self.claims.get(claim.key), send()
        self.on_change(old, changed)
        self.writes.append((verb, claim.key))
        self.after(verb, claim.key)
        return changed


class _Client:
    """What the adapter uses of a KubeClient."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def get(self, kind: type[Any], name: str, *, namespace: str) -> Any:
        key = f"{namespace}/{name}"
        found = self._server.objects(kind).get(key)
        if found is None:
            raise NotFoundError(f"GET {key}", 404, "NotFound", "not found")
        return found

    def merge_patch(
        self, kind: type[Any], name: str, patch: Mapping[str, Any], *, namespace: str, subresource: str = ""
    ) -> Any:
        return self._server.patch(kind, f"{namespace}/{name}", patch)


class FakeTemplates:
    """Implements ports.TemplateApi. `before` is called with the verb and `namespace/name` before each write."""

    def __init__(self) -> None:
        self.templates: dict[str, ResourceClaimTemplate] = {}
        self.writes: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda verb, key: None
        self._made = 0

    def create(self, template: GpuTemplate, namespace: str) -> None:
        key = f"{namespace}/{template.name}"
        self.before("create", key)
        self.writes.append(("create", key))
        if key in self.templates:
            raise AlreadyExistsError(f"POST {key}", 409, "AlreadyExists", "already exists")
        self._made += 1
        document = {**template.document()}
        document["metadata"] = {**document["metadata"], "namespace": namespace, "uid": f"template-{self._made}"}
        self.templates[key] = msgspec.convert(document, ResourceClaimTemplate)

    def exists(self, namespace: str, name: str) -> bool:
        self.before("list", f"{namespace}/{name}")
        return f"{namespace}/{name}" in self.templates

    def names(self, namespace: str) -> Collection[str]:
        self.before("list-names", namespace)
        return [one.metadata.name for one in self.templates.values() if one.metadata.namespace == namespace]

    def ours(self) -> Sequence[ResourceClaimTemplate]:
        return [one for one in self.templates.values() if one.metadata.labels.get(MANAGED_BY) == MANAGER]

    def delete(self, template: ResourceClaimTemplate) -> None:
        self.before("delete", template.key)
        stored = self.templates.get(template.key)
        if stored is None:
            raise NotFoundError(f"DELETE {template.key}", 404, "NotFound", "not found")
        if stored.metadata.uid != template.metadata.uid:
            raise ConflictError(f"DELETE {template.key}", 409, "Conflict", "the UID in the precondition does not match")
        self.writes.append(("delete", template.key))
        del self.templates[template.key]


class FakeEvents:
    """Implements ports.EventSink."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    def record(
        self,
        subject: KubeObject,
        type: Literal["Normal", "Warning"],  # noqa: A002
        reason: str,
        message: str,
        *,
        latest: bool = False,
    ) -> None:
        assert type in ("Normal", "Warning")
        self.seen.append((f"{subject.KIND} {subject.key}", reason, message))
