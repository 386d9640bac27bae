"""One coordination.k8s.io/v1 Lease: read, created and changed, each change guarded by the previous resourceVersion."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

import msgspec

from dracaena.api.objects import KubeObject, Wire
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import NotFoundError


class LeaseSpec(Wire, frozen=True):
    """spec of a Lease. Times are strings: they are compared for change, never with a clock."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(KubeObject, frozen=True):
    """A Lease."""

    API_VERSION: ClassVar[str] = "coordination.k8s.io/v1"
    RESOURCE: ClassVar[str] = "leases"
    KIND: ClassVar[str] = "Lease"

    spec: LeaseSpec = LeaseSpec()


msgspec.json.Decoder(Lease)  # looked into by the thread that imports: see kube.client


class KubeLease:
    """The Lease of one name. All methods raise KubeError; each returns the Lease as it is stored."""

    def __init__(self, client: KubeClient, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name

    def read(self) -> Lease | None:
        """Read it from the server; None when there is none."""
        try:
            return self._client.get(Lease, self._name, namespace=self._namespace)
        except NotFoundError:
            return None

    def create(self, spec: LeaseSpec) -> Lease:
        """Create it. Raises AlreadyExistsError if another process was faster."""
        document = {"metadata": {"name": self._name}, "spec": msgspec.to_builtins(spec)}
        return self._client.create(Lease, document, namespace=self._namespace)

    def write(self, lease: Lease, spec: LeaseSpec) -> Lease:
        """Change the spec of a Lease that was read; what others keep in its metadata stays.

        Raises ConflictError when it has changed since, NotFoundError when it is gone.
        """
        meta = lease.metadata
        guard = {"resourceVersion": meta.resource_version, "uid": meta.uid}
        fields: dict[str, Any] = dict.fromkeys(LeaseSpec.__struct_encode_fields__)
        patch = {"metadata": guard, "spec": fields | msgspec.to_builtins(spec)}
        return self._client.merge_patch(Lease, self._name, patch, namespace=self._namespace)


def microtime(moment: datetime) -> str:
    """Return an aware time in the form of a Lease: UTC with microseconds, `2026-11-21T03:25:50.000000Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
