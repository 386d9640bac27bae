"""A fake of controller.ports: claims and pods in memory, with resourceVersions, conflicts and faults on demand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import msgspec

from dracaena.api.gpu_templates import MANAGED_BY, MANAGER, GpuTemplate
from dracaena.api.names import DELETE_PROTECTION_FINALIZER
from dracaena.api.objects import KubeObject, Pod
from dracaena.api.resource_objects import (
    AllocationResult,
    ConsumerReference,
    ResourceClaim,
    ResourceClaimStatus,
    ResourceClaimTemplate,
)
from dracaena.kube.errors import AlreadyExistsError, ConflictError, NotFoundError


class FakeClaims:
    """Implements ports.ClaimApi and ports.PodApi.

    `before` is called with (verb, claim key) before each write: it may change the state, or raise what the server
    would answer. `after` is called after a write was stored: raising there is an answer that got lost.
    """

    def __init__(self, *objects: Pod | ResourceClaim) -> None:
        self.claims = {item.key: item for item in objects if isinstance(item, ResourceClaim)}
        self.pods = {item.key: item for item in objects if isinstance(item, Pod)}
        self.writes: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda verb, key: None
        self.after: Callable[[str, str], None] = lambda verb, key: None
        self.on_change: Callable[[ResourceClaim | None, ResourceClaim | None], None] = lambda old, new: None
        self.on_pod_change: Callable[[Pod | None, Pod | None], None] = lambda old, new: None
        self._version = 100

    def read_claim(self, namespace: str, name: str) -> ResourceClaim | None:
        return self.claims.get(f"{namespace}/{name}")

    def read_pod(self, namespace: str, name: str) -> Pod | None:
        return self.pods.get(f"{namespace}/{name}")

    def nominate(self, pod: Pod, node: str) -> Pod:
        return self._patch_pod("nominate", pod, lambda stored: {"nominated_node_name": node})

    def probe(self, pod: Pod, at: str) -> Pod:
        replace = msgspec.structs.replace
        return self._patch_pod(
            "probe",
            pod,
            lambda stored: {"conditions": [replace(one, last_probe_time=at) for one in stored.status.conditions]},
        )

    def ungate(self, pod: Pod) -> Pod:
        def is_it(stored: Pod) -> bool:
            return stored.metadata.uid == pod.metadata.uid

        def without_gates(stored: Pod) -> Pod:
            return msgspec.structs.replace(stored, spec=msgspec.structs.replace(stored.spec, scheduling_gates=[]))

        changed = self._change_pod("ungate", pod.key, is_it, without_gates)
        self.after("ungate", pod.key)
        return changed

    def _patch_pod(self, verb: str, pod: Pod, change: Callable[[Pod], dict[str, Any]]) -> Pod:
        """Change fields of a pod's status, guarded by its version."""

        def is_newest(stored: Pod) -> bool:
            return stored.metadata.resource_version == pod.metadata.resource_version

        def with_status(stored: Pod) -> Pod:
            return msgspec.structs.replace(stored, status=msgspec.structs.replace(stored.status, **change(stored)))

        return self._change_pod(verb, pod.key, is_newest, with_status)

    def _change_pod(self, verb: str, key: str, guard: Callable[[Pod], bool], change: Callable[[Pod], Pod]) -> Pod:
        """Change a pod if the guard holds; the watch shows it."""
        self.before(verb, key)
        stored = self.pods.get(key)
        if stored is None:
            raise NotFoundError(f"PATCH {key}", 404, "NotFound", "not found")
        if not guard(stored):
            raise ConflictError(f"PATCH {key}", 409, "Conflict", "the object has been modified")
        self._version += 1
        metadata = msgspec.structs.replace(stored.metadata, resource_version=str(self._version))
        changed = self.pods[key] = msgspec.structs.replace(change(stored), metadata=metadata)
        self.writes.append((verb, key))
        self.on_pod_change(stored, changed)
        return changed

    def put(self, claim: ResourceClaim) -> ResourceClaim:
        """Store a claim as somebody else would: with a new resourceVersion."""
        self._version += 1
        metadata = msgspec.structs.replace(claim.metadata, resource_version=str(self._version))
        stored = msgspec.structs.replace(claim, metadata=metadata)
        old, self.claims[claim.key] = self.claims.get(claim.key), stored
        self.on_change(old, stored)
        return stored

    def put_pod(self, pod: Pod) -> Pod:
        """Store a pod as somebody else would: with a new resourceVersion."""
        self._version += 1
        metadata = msgspec.structs.replace(pod.metadata, resource_version=str(self._version))
        self.pods[pod.key] = msgspec.structs.replace(pod, metadata=metadata)
        return self.pods[pod.key]

    def remove(self, key: str) -> None:
        self.on_change(self.claims.pop(key), None)

    def mark(self, claim: ResourceClaim) -> ResourceClaim:
        def change(stored: ResourceClaim) -> ResourceClaim:
            meta = stored.metadata
            finalizers = [
                *(f for f in meta.finalizers if f != DELETE_PROTECTION_FINALIZER),
                DELETE_PROTECTION_FINALIZER,
            ]
            return msgspec.structs.replace(stored, metadata=msgspec.structs.replace(meta, finalizers=finalizers))

        return self._write("mark", claim, change)

    def allocate(
        self, claim: ResourceClaim, allocation: Mapping[str, Any], reserved_for: ConsumerReference
    ) -> ResourceClaim:
        typed = msgspec.json.decode(msgspec.json.encode(allocation), type=AllocationResult)

        def change(stored: ResourceClaim) -> ResourceClaim:
            assert stored.status.allocation is None, "status.allocation is immutable"
            assert DELETE_PROTECTION_FINALIZER in stored.metadata.finalizers, "no finalizer before the allocation"
            status = ResourceClaimStatus(allocation=typed, reserved_for=[reserved_for])
            return msgspec.structs.replace(stored, status=status)

        return self._write("allocate", claim, change)

    def reserve(self, claim: ResourceClaim, consumers: Sequence[ConsumerReference]) -> ResourceClaim:
        def change(stored: ResourceClaim) -> ResourceClaim:
            status = msgspec.structs.replace(stored.status, reserved_for=list(consumers))
            return msgspec.structs.replace(stored, status=status)

        return self._write("reserve", claim, change)

    def deallocate(self, claim: ResourceClaim) -> ResourceClaim:
        return self._write(
            "deallocate", claim, lambda stored: msgspec.structs.replace(stored, status=ResourceClaimStatus())
        )

    def _write(
        self, verb: str, claim: ResourceClaim, change: Callable[[ResourceClaim], ResourceClaim]
    ) -> ResourceClaim:
        key = claim.key
        self.before(verb, key)
        stored = self.claims.get(key)
        if stored is None:
            raise NotFoundError(f"PATCH {key}", 404, "NotFound", "not found")
        if stored.metadata.resource_version != claim.metadata.resource_version:
            raise ConflictError(f"PATCH {key}", 409, "Conflict", "the object has been modified")
        result = self.put(change(stored))
        self.writes.append((verb, key))
        self.after(verb, key)
        return result


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
