"""What the services need from the outside, and no more. adapters/kube.py implements it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, Protocol

from dracaena.api.gpu_templates import GpuTemplate
from dracaena.api.objects import KubeObject, Pod
from dracaena.api.resource_objects import ConsumerReference, ResourceClaim, ResourceClaimTemplate
from dracaena.kube.lease import Lease, LeaseSpec


class ClaimApi(Protocol):
    """Reads and guarded writes of claims. Writes carry the claim's resourceVersion: ConflictError when it changed.

    All methods raise KubeError; each returns the claim as it is stored afterwards.
    """

    def read_claim(self, namespace: str, name: str) -> ResourceClaim | None:
        """Read a claim from the server, not from a cache; None when there is none."""
        ...

    def mark(self, claim: ResourceClaim) -> ResourceClaim:
        """Add the delete-protection finalizer."""
        ...

    def allocate(
        self, claim: ResourceClaim, allocation: Mapping[str, Any], reserved_for: ConsumerReference
    ) -> ResourceClaim:
        """Write status.allocation and the reservation."""
        ...

    def reserve(self, claim: ResourceClaim, consumers: Sequence[ConsumerReference]) -> ResourceClaim:
        """Replace status.reservedFor; an empty sequence drops it and keeps the allocation."""
        ...

    def deallocate(self, claim: ResourceClaim) -> ResourceClaim:
        """Clear status.allocation and all that depends on it."""
        ...


class PodApi(Protocol):
    """Reads of pods, and writes of their status and gates. All methods raise KubeError."""

    def read_pod(self, namespace: str, name: str) -> Pod | None:
        """Read a pod from the server, not from a cache; None when there is none."""
        ...

    def nominate(self, pod: Pod, node: str) -> Pod:
        """Write status.nominatedNodeName, or clear it with an empty name. Carries the pod's resourceVersion."""
        ...

    def probe(self, pod: Pod, at: str) -> Pod:
        """Write a lastProbeTime (RFC 3339) into the condition PodScheduled of a pod as it was read from the server.

        kube-scheduler writes that condition without one, and only when it differs, so its next failing attempt wipes
        ours. Carries the pod's resourceVersion.
        """
        ...

    def ungate(self, pod: Pod) -> Pod:
        """Remove all scheduling gates of a pod that had only ours when it was read; gates never come back.

        Carries the pod's UID and no resourceVersion. Raises ConflictError for another pod of that name.
        """
        ...


class TemplateApi(Protocol):
    """The ResourceClaimTemplates that the controller makes (api.gpu_templates). All methods raise KubeError."""

    def create(self, template: GpuTemplate, namespace: str) -> None:
        """Make it. Raises AlreadyExistsError when there is one of this name, by any author."""
        ...

    def ours(self) -> Sequence[ResourceClaimTemplate]:
        """Return the templates of all namespaces that carry our label."""
        ...

    def exists(self, namespace: str, name: str) -> bool:
        """Return whether there is a template of this name, by any author."""
        ...

    def names(self, namespace: str) -> Collection[str]:
        """Return the names of all templates of a namespace, by any author."""
        ...

    def delete(self, template: ResourceClaimTemplate) -> None:
        """Delete a template that was read. Raises NotFoundError if it is gone, ConflictError if another has its
        name."""
        ...


class LeaseApi(Protocol):
    """The Lease that decides who leads. All methods raise KubeError; kube/lease.py implements it."""

    def read(self) -> Lease | None:
        """Read it from the server; None when there is none."""
        ...

    def create(self, spec: LeaseSpec) -> Lease:
        """Make it. Raises AlreadyExistsError when another process was faster."""
        ...

    def write(self, lease: Lease, spec: LeaseSpec) -> Lease:
        """Change it. Raises ConflictError when it has changed since it was read, NotFoundError when it is gone."""
        ...


class EventSink(Protocol):
    """Tells users."""

    def record(
        self,
        subject: KubeObject,
        type: Literal["Normal", "Warning"],  # noqa: A002
        reason: str,
        message: str,
        *,
        latest: bool = False,
    ) -> None:
        """Attach an Event to an object. Never blocks, never raises. With `latest` only the newest message of this
        reason matters: it replaces the one before.
        """
        ...
