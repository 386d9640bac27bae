"""Instances of the plugin that publish one node's pool side by side, step by step, on a server in memory.

Everything but the server and the steps is the product's own: Publisher, WriterLock with real files and real flocks. An
instance may be started, killed or left standing at any step; a write may land, land without its answer, land later or
be lost. After each change of the server it is checked what a reader would allocate from.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from dracaena.api.names import NodeName, PoolName
from dracaena.api.objects import Node, ObjectMeta, Taint
from dracaena.api.resource_objects import Device, ResourceSlice, ResourceSliceSpec
from dracaena.host.adapters.files.lock import FileLock
from dracaena.kube.errors import ApiUnavailableError, ConflictError
from dracaena.kubelet_plugin.adapters.files.writer_lock import HeldTurn, OvertakenError, WriterLock
from dracaena.kubelet_plugin.discovery.publish.pool import Page, PoolIdentity
from dracaena.kubelet_plugin.metrics import PluginMetrics
from dracaena.kubelet_plugin.node.publisher import Publisher
from support.clock import FakeClock
from support.interleaver.strands import Strand

POOL = PoolIdentity("gpu.dracaena.dev", PoolName("node-1"), NodeName("node-1"))
TAINT = Taint("gpu.dracaena.dev/controller-allocated", "true", "NoSchedule")
SLEEP_S = 7.0
"""What each pause of a waiting instance takes, so that three are longer than it waits."""

LANDS, UNANSWERED, LATE, LOST = "lands", "unanswered", "late", "lost"
FATES = (LANDS, LANDS, LANDS, UNANSWERED, LATE, LATE, LATE, LOST)


class ViolationError(AssertionError):
    """A reader would allocate from what it must not."""


class _Clock(FakeClock):
    """Waiting is a step."""

    def sleep_until_set(self, event: threading.Event, timeout_s: float) -> bool:
        Strand.pause("sleep")
        self.advance(SLEEP_S)
        return event.is_set()


class Server:
    """Slices with versions. Tells after each change."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.stored: dict[str, ResourceSlice] = {}
        self.late: list[Callable[[], object]] = []
        self._changed = changed
        self._version = 0

    def create(self, prefix: str, spec: Mapping[str, Any]) -> ResourceSlice:
        return self._store(f"{prefix}{self._version:05d}", spec)

    def update(self, published: ResourceSlice, spec: Mapping[str, Any]) -> ResourceSlice:
        self._same(published)
        return self._store(published.metadata.name, spec)

    def delete(self, published: ResourceSlice) -> None:
        if published.metadata.name in self.stored:
            self._same(published)
            del self.stored[published.metadata.name]
            self._changed()

    def _store(self, name: str, spec: Mapping[str, Any]) -> ResourceSlice:
        self._version += 1
        metadata = ObjectMeta(name, resource_version=str(self._version))
        self.stored[name] = ResourceSlice(metadata=metadata, spec=msgspec.convert(spec, ResourceSliceSpec))
        self._changed()
        return self.stored[name]

    def _same(self, published: ResourceSlice) -> None:
        if self.stored.get(published.metadata.name) != published:
            raise ConflictError("PATCH", 409, "Conflict", "changed")


@dataclass(frozen=True)
class _Access:
    """Implements SliceAccess and SliceCache for one instance. Each request is a step."""

    server: Server
    sends: Callable[[], None]
    synced: bool = True

    def values(self) -> tuple[ResourceSlice, ...]:
        return tuple(self.server.stored[key] for key in sorted(self.server.stored))

    def read_node(self) -> Node:
        return Node(metadata=ObjectMeta("node-1", uid="node-uid"))

    def list_slices(self) -> tuple[ResourceSlice, ...]:
        Strand.pause("list")
        return self.values()

    def create_slice(self, document: Mapping[str, Any]) -> ResourceSlice:
        stored: ResourceSlice = self._send(
            lambda: self.server.create(document["metadata"]["generateName"], document["spec"])
        )
        return stored

    def update_slice(self, published: ResourceSlice, spec: Mapping[str, Any]) -> ResourceSlice:
        stored: ResourceSlice = self._send(lambda: self.server.update(published, spec))
        return stored

    def delete_slice(self, published: ResourceSlice) -> None:
        self._send(lambda: self.server.delete(published))

    def _send(self, write: Callable[[], Any]) -> Any:
        fate = Strand.pause("write")
        self.sends()
        if fate == LATE:
            self.server.late.append(write)
        answer = write() if fate in (LANDS, UNANSWERED) else None
        if fate == LANDS:
            return answer
        raise ApiUnavailableError("PATCH", 504, "Timeout", "no answer")


class _Writers(WriterLock):
    """Tells who is in its turn, and when one was ended in order."""

    turn: HeldTurn | None = None
    settled: Callable[[], None]

    def note(self, generation: int, *, is_in_doubt: bool) -> None:
        super().note(generation, is_in_doubt=is_in_doubt)
        if self.turn is not None and not is_in_doubt:
            self.settled()

    @contextmanager
    def hold(self) -> Iterator[HeldTurn | None]:
        with super().hold() as turn:
            self.turn = turn
            try:
                yield turn
            finally:
                self.turn = None


@dataclass
class Instance:
    """One instance, which publishes devices that nobody else does."""

    number: int
    lock: FileLock
    writers: _Writers
    publisher: Publisher
    strand: Strand | None = None
    is_alive: bool = True
    has_published: bool = False


@dataclass
class PublishingWorld:
    """A node whose plugin is updated again and again."""

    folder: Path
    rng: random.Random
    instances: list[Instance] = field(default_factory=list)
    settled: int = -1
    """Who last ended a turn of its own in order."""
    sent: set[int] = field(default_factory=set)
    """Who has sent something since then."""

    def __post_init__(self) -> None:
        self.server = Server(self.check)
        self.clock = _Clock()

    def start(self) -> None:
        """Start the next instance."""
        number = len(self.instances)
        lock = FileLock(self.folder / f"instance-{number}.lock")
        assert lock.try_acquire()
        writers = _Writers(self.folder / "publish.lock", lock.path, "this boot", self.clock)
        access = _Access(self.server, lambda: self.sent.add(number))
        publisher = Publisher(
            pool=POOL,
            cache=access,
            access=access,
            writers=writers,
            clock=self.clock,
            metrics=PluginMetrics(CollectorRegistry()),
        )
        publisher.set_pages(_pages(number))
        publisher.kubelet_registered()
        instance = Instance(number, lock, writers, publisher)
        writers.settled = lambda: self._settled(instance)
        self.instances.append(instance)

    def kill(self, instance: Instance) -> None:
        """End an instance where it is."""
        if instance.strand is not None:
            instance.strand.kill()
        instance.is_alive = False
        instance.lock.release()

    def step(self, instance: Instance, fate: str) -> None:
        """Let an instance go on, or look at its slices again."""
        if instance.strand is None or instance.strand.done:
            instance.strand = Strand(f"instance {instance.number}", lambda: self._look(instance))
        instance.strand.step(fate if instance.strand.waits_for == "write" else None)
        if isinstance(instance.strand.error, ViolationError):
            raise instance.strand.error

    def land(self) -> None:
        """Let one of the writes land that are late. Where the slice is another by now, the server refuses it."""
        write = self.server.late.pop(self.rng.randrange(len(self.server.late)))
        try:
            write()
        except ConflictError:
            return

    def check(self) -> None:
        """Raise ViolationError where a reader may allocate from what the newest instance did not publish."""
        seen = self.shown()
        if seen is None:
            return
        living = [one.number for one in self.instances if one.is_alive and one.has_published]
        if living and seen < max(living):
            raise ViolationError(f"devices of instance {seen} although {max(living)} has published and lives")
        if seen not in self.sent | {self.settled}:
            raise ViolationError(f"devices of instance {seen}, which {self.settled} had replaced")

    def shown(self) -> int | None:
        """Return whose devices a reader sees, None where it sees no complete pool."""
        slices = self.server.stored.values()
        newest = max((one.spec.pool.generation for one in slices), default=0)
        current = [one for one in slices if one.spec.pool.generation == newest]
        if not current or any(one.spec.pool.resource_slice_count != len(current) for one in current):
            return None
        names = [device.name for one in current for device in one.spec.devices]
        whose = {int(name.partition("-")[0]) for name in names}
        if len(names) != len(set(names)):
            return None  # two devices of one name: the pool is invalid
        if len(whose) != 1:
            raise ViolationError(f"devices of instances {sorted(whose)} at once")
        return whose.pop()

    def come_to_rest(self) -> None:
        """Let everything land and every instance look again, without faults."""
        while self.server.late:
            self.land()
        for _ in range(4):
            for instance in self.instances:
                while instance.is_alive:
                    self.step(instance, LANDS)
                    if instance.strand is not None and instance.strand.done:
                        break

    def end(self) -> None:
        """End all instances."""
        for instance in self.instances:
            if instance.is_alive:
                self.kill(instance)

    def _settled(self, instance: Instance) -> None:
        self.settled, self.sent, instance.has_published = instance.number, set(), True
        self.check()

    def _look(self, instance: Instance) -> None:
        try:
            instance.publisher.sync()
        except (ApiUnavailableError, ConflictError, OvertakenError):
            return


def _pages(number: int) -> list[Page]:
    """Two pages of an even instance, one of an odd one; the first is tainted and the second is not, and so on."""
    taints = [TAINT] if number % 2 == 0 else []
    pages: list[Page] = [(Device(f"{number}-a", taints=taints),)]
    return pages if number % 2 else [*pages, (Device(f"{number}-b", taints=taints),)]
