"""One Lease in memory: with resourceVersions and conflicts, as the API server keeps it."""

from __future__ import annotations

import msgspec

from dracaena.api.objects import ObjectMeta
from dracaena.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from dracaena.kube.lease import Lease, LeaseSpec


class StoredLease:
    """Implements controller.ports.LeaseApi. `writes` counts what was stored."""

    def __init__(self, spec: LeaseSpec | None = None) -> None:
        self._version = 0
        self.writes = 0
        self.stored: Lease | None = None
        if spec is not None:
            self.create(spec)

    def read(self) -> Lease | None:
        return self.stored

    def create(self, spec: LeaseSpec) -> Lease:
        if self.stored is not None:
            raise AlreadyExistsError("POST lease", 409, "AlreadyExists", "it is there")
        return self._store(ObjectMeta(name="l", uid=f"uid-{self._version}"), spec)

    def write(self, lease: Lease, spec: LeaseSpec) -> Lease:
        if self.stored is None:
            raise NotFoundError("PATCH lease", 404, "NotFound", "it is gone")
        seen, meta = lease.metadata, self.stored.metadata
        if (seen.uid, seen.resource_version) != (meta.uid, meta.resource_version):
            raise ConflictError("PATCH lease", 409, "Conflict", "it has changed")
        return self._store(meta, spec)

    def delete(self) -> None:
        self.stored = None

    @property
    def holder(self) -> str | None:
        return self.stored.spec.holder_identity if self.stored is not None else None

    def _store(self, meta: ObjectMeta, spec: LeaseSpec) -> Lease:
        self._version += 1
        self.writes += 1
        self.stored = Lease(metadata=msgspec.structs.replace(meta, resource_version=str(self._version)), spec=spec)
        return self.stored
