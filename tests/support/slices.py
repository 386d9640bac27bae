"""ResourceSlices of one node in memory: what the publisher's ports see of an API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from dracaena.api.objects import Node, ObjectMeta
from dracaena.api.resource_objects import ResourceSlice, ResourceSliceSpec
from dracaena.kube.errors import ApiUnavailableError, ConflictError


class FakeTurn:
    """Implements WriteTurn."""

    def __init__(self, may_land: int | None) -> None:
        self.may_land = may_land
        self.sent: list[int] = []
        self.settled = False

    def sends(self, generation: int) -> None:
        self.sent.append(generation)

    def is_settled(self) -> None:
        self.settled = True


class FakeWriters:
    """Implements Writers. Another instance that is newer publishes, or nobody else does."""

    def __init__(self) -> None:
        self.may_land: int | None = None
        self.newer_publishes = False
        self.turns: list[FakeTurn] = []

    @contextmanager
    def hold(self) -> Iterator[FakeTurn | None]:
        if self.newer_publishes:
            yield None
            return
        self.turns.append(FakeTurn(self.may_land))
        yield self.turns[-1]
        self.may_land = None if self.turns[-1].settled else max(self.turns[-1].sent, default=self.may_land)


class FakeSlices:
    """Implements SliceAccess and SliceCache. The cache shows what show() last copied, or all when `live`."""

    def __init__(self, *, live: bool = True) -> None:
        self.stored: dict[str, ResourceSlice] = {}
        self.synced = True
        self.live = live
        self.writes: list[str] = []
        self.lists = 0
        self.failures = 0
        """So many of the next writes fail."""
        self.change: Callable[[ResourceSliceSpec], ResourceSliceSpec] = lambda spec: spec
        """What the server makes of a spec that is written."""
        self.seen: list[ResourceSliceSpec] = []
        """Every state of any slice that a reader could have seen."""
        self._shown: dict[str, ResourceSlice] = {}
        self._version = 0

    def show(self) -> None:
        self._shown = dict(self.stored)

    def values(self) -> tuple[ResourceSlice, ...]:
        shown = self.stored if self.live else self._shown
        return tuple(shown[key] for key in sorted(shown))

    def read_node(self) -> Node:
        return Node(metadata=ObjectMeta("node-1", uid="node-uid"))

    def list_slices(self) -> tuple[ResourceSlice, ...]:
        self.lists += 1
        return tuple(self.stored[key] for key in sorted(self.stored))

    def create_slice(self, document: Mapping[str, Any]) -> ResourceSlice:
        self.writes.append("create")
        self._fail()
        assert document["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
        return self._store(f"{document['metadata']['generateName']}{self._version:05d}", document["spec"])

    def update_slice(self, published: ResourceSlice, spec: Mapping[str, Any]) -> ResourceSlice:
        self.writes.append("update")
        self._fail()
        self._same(published)
        return self._store(published.metadata.name, spec)

    def delete_slice(self, published: ResourceSlice) -> None:
        self.writes.append("delete")
        self._fail()
        self._same(published)
        del self.stored[published.metadata.name]

    def _store(self, name: str, spec: Mapping[str, Any]) -> ResourceSlice:
        self._version += 1
        kept = self.change(msgspec.convert(spec, ResourceSliceSpec))
        self.seen.append(kept)
        metadata = ObjectMeta(name, resource_version=str(self._version))
        self.stored[name] = ResourceSlice(metadata=metadata, spec=kept)
        return self.stored[name]

    def _same(self, published: ResourceSlice) -> None:
        if self.stored.get(published.metadata.name) != published:
            raise ConflictError("PATCH", 409, "Conflict", "changed")

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise ApiUnavailableError("POST", 503, "ServiceUnavailable", "later")
