"""Keeps this node's ResourceSlices as they should be, whoever changes or deletes them.

Kubelet deletes all slices of its node when it starts, and those of a driver that was away for 30 s (kubelet, DRA plugin
manager). So the publisher follows its slices by watch and rewrites what is missing. The watch only hints that something
may differ: before each write a fresh list decides, so that a late watch never leads to a second slice.

During an update two instances run side by side, possibly with different settings. The newest one that has something to
publish writes; the others write only once it is gone (ports.Writers).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from enum import Enum

import structlog

from dracaena.api.errors import DracaenaError
from dracaena.api.objects import Node
from dracaena.api.resource_objects import CounterSet, Device, ResourceSlice
from dracaena.kube.reflector import Backoff
from dracaena.kubelet_plugin.discovery.publish.pool import (
    Page,
    PoolIdentity,
    PoolWrites,
    devices_of,
    page_of,
    plan_pool,
    same_page,
    uncounted,
    untainted,
)
from dracaena.kubelet_plugin.metrics import PluginMetrics
from dracaena.kubelet_plugin.ports import SliceAccess, SliceCache, Writers, WriteTurn
from dracaena.kubelet_plugin.worker import Worker, WorkerService
from dracaena.process.clock import Clock

DEBOUNCE_S = 1.0
"""Pause between a change of our slices and the look at them: kubelet deletes one page after the other."""

LONGEST_DEBOUNCE_S = 30.0
"""Longest pause while something else keeps changing our slices, such as the other instance of this plugin during an
upgrade, which sees other devices: neither must flood the API server."""

CALM_S = 60.0
"""After this long without a write the pause is short again."""

RESYNC_S = 60.0
"""Look at the cache at least this often, whatever the watch says. Costs no request unless something differs."""

REFUSED_RETRY_S = 600.0
"""Pause after the server dropped taints or counters: an admin may turn the feature gate on, which takes a server
restart."""

log = structlog.get_logger()


class GatedField(Enum):
    """A field that the server drops from devices while its feature gate is off."""

    TAINTS = "DRADeviceTaints"
    COUNTERS = "DRAPartitionableDevices"


class FieldDroppedError(DracaenaError):
    """The server stores our devices without their taint, or without their counters: kube-scheduler would allocate them,
    or parts of a GPU beside the whole.
    """

    def __init__(self, field: GatedField, message: str) -> None:
        super().__init__(message)
        self.field = field


class Publisher(WorkerService):
    """Publishes one pool. A separate thread writes; ready() says whether the first publication is done.

    Writes nothing until set_pages() was called and kubelet has registered this plugin; slices of an earlier run stay. A
    pod that is bound before kubelet knows the driver would wait a minute or more for kubelet's next look at it. The
    slices outlive stop(): the devices are still there, and a restart must not disturb pods.
    """

    def __init__(
        self,
        *,
        pool: PoolIdentity,
        cache: SliceCache,
        access: SliceAccess,
        writers: Writers,
        clock: Clock,
        metrics: PluginMetrics,
        on_refused: Callable[[Node, str], None] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._pool = pool
        self._pages: list[Page] | None = None
        self._cache = cache
        self._access = access
        self._writers = writers
        self._clock = clock
        self._metrics = metrics
        self._on_refused = on_refused
        self._backoff = Backoff(rng or random.Random())  # noqa: S311 - jitter, no secret
        self._taint_kept = self._counters_kept = False
        self._withheld: frozenset[GatedField] = frozenset()  # devices that need these are not published
        self._refused_until_s: float | None = None
        self._registered = False
        self._published = False
        self._debounce_s = DEBOUNCE_S
        self._wrote_s: float | None = None
        self._shown: list[Callable[[], None]] = []
        self._worker = Worker("publisher", self._run, clock)

    def subscribe(self, shown: Callable[[], None]) -> None:
        """Have `shown` called whenever the watch has shown a change of our slices; it must not block. Subscribe
        everybody before the watch begins.
        """
        self._shown.append(shown)

    def set_pages(self, pages: Sequence[Page]) -> None:
        """Publish these pages from now on. From any thread; never blocks."""
        self._pages = list(pages)
        self._worker.notice()

    def kubelet_registered(self) -> None:
        """Publish from now on: kubelet has registered this process as the plugin. From any thread; never blocks."""
        self._registered = True
        self._worker.notice()

    def slice_changed(self, _old: ResourceSlice | None, _new: ResourceSlice | None) -> None:
        """Handle a change that the watch reported. Never blocks."""
        self._worker.notice()
        for shown in self._shown:
            shown()

    def ready(self) -> str | None:
        """Return what is missing before the first publication, None after it."""
        if self._published:
            return None
        if not self._registered:
            return "kubelet has not registered this plugin yet"
        return "the ResourceSlices of this node are not published yet"

    def sync(self) -> bool:
        """Compare and write once; return whether anything was written. Raises KubeError; then call it again."""
        pages = self._wanted_pages()
        if pages is None:
            return False
        if self._published and self._cache.synced and not plan_pool(self._pool, pages, self._cache.values()):
            return False
        with self._writers.hold() as turn:
            if turn is None:
                if not self._published:
                    log.info("a newer instance of this plugin publishes", pool=self._pool.name)
                self._published = True
                return False
            wrote = self._publish_or_refuse(pages, turn)
            turn.is_settled()
        return wrote

    def _publish_or_refuse(self, pages: list[Page], turn: WriteTurn) -> bool:
        may_land = turn.may_land
        while True:
            try:
                wrote = self._publish(pages, turn, may_land)
                break
            except FieldDroppedError as error:
                # At most once for each field: the next attempt has no device that needs it.
                self._refuse(error)
                pages, may_land = _without(pages, self._withheld), None
        count = sum(len(devices_of(page)) for page in pages)
        if not self._published:
            log.info("published", pool=self._pool.name, devices=count)
        self._published = True
        self._metrics.publishing.devices.set(count)
        return wrote

    def _wanted_pages(self) -> list[Page] | None:
        """Return what to publish, None while nothing may be. The list is only replaced, never modified."""
        if not self._registered:
            return None
        if self._refused_until_s is not None:
            if self._clock.monotonic() < self._refused_until_s:
                return _without(self._pages or (), self._withheld)
            self._refused_until_s, self._withheld = None, frozenset()
        return self._pages

    def _publish(self, pages: list[Page], turn: WriteTurn, may_land: int | None) -> bool:
        published = self._access.list_slices()
        wrote = False
        devices = [device for page in pages for device in devices_of(page)]
        taint_unsure = any(device.taints for device in devices) and not self._taint_is_kept(published)
        counters_unsure = any(d.consumes_counters for d in devices) and not self._counters_are_kept(published)
        if taint_unsure or counters_unsure:
            # Nobody may allocate from an incomplete pool, so the pool stays incomplete until the responses show that
            # the server keeps the taints and the counters of its devices.
            wrote = self._write(plan_pool(self._pool, pages, published, missing=1, may_land=may_land), pages, turn)
            self._taint_kept = self._taint_kept or taint_unsure
            self._counters_kept = self._counters_kept or counters_unsure
            may_land = None
            published = self._access.list_slices()
        return self._write(plan_pool(self._pool, pages, published, may_land=may_land), pages, turn) or wrote

    def _taint_is_kept(self, published: Sequence[ResourceSlice]) -> bool:
        """Whether this server is known to keep taints: it did so for this process, or still stores some of ours."""
        self._taint_kept = self._taint_kept or any(d.taints for s in published for d in s.spec.devices)
        return self._taint_kept

    def _counters_are_kept(self, published: Sequence[ResourceSlice]) -> bool:
        """Like _taint_is_kept, for counters (feature gate DRAPartitionableDevices)."""
        shown = any(d.consumes_counters for s in published for d in s.spec.devices)
        self._counters_kept = self._counters_kept or shown
        return self._counters_kept

    def _write(self, writes: PoolWrites, pages: list[Page], turn: WriteTurn) -> bool:
        for published in writes.delete:
            turn.sends(writes.generation)
            self._access.delete_slice(published)
            self._metrics.publishing.slice_writes.labels("delete").inc()
        for update in writes.update:
            turn.sends(writes.generation)
            stored = self._access.update_slice(update.published, update.spec)
            self._metrics.publishing.slice_writes.labels("update").inc()
            self._judge(update.index, pages, stored)
        if writes.create:
            owner = _owner(self._access.read_node())
            for creation in writes.create:
                metadata = {"generateName": creation.generate_name, "ownerReferences": [owner]}
                turn.sends(writes.generation)
                stored = self._access.create_slice({"metadata": metadata, "spec": creation.spec})
                self._metrics.publishing.slice_writes.labels("create").inc()
                self._judge(creation.index, pages, stored)
        if writes:
            log.info(
                "slices written",
                generation=writes.generation,
                deleted=len(writes.delete),
                updated=len(writes.update),
                created=len(writes.create),
            )
        return bool(writes)

    def _judge(self, index: int, pages: list[Page], stored: ResourceSlice) -> None:
        """Compare what the server stored with what was sent: it silently drops fields whose feature gate is off."""
        wanted: Page = pages[index] if index < len(pages) else ()
        bare = untainted(wanted, stored.spec.devices)
        if bare:
            raise FieldDroppedError(
                GatedField.TAINTS,
                f"the API server dropped the taint of {len(bare)} devices (first: {bare[0]}): the feature gate "
                "DRADeviceTaints is off. Turn it on, or run this node with allocator=kube-scheduler; until then "
                "this node publishes no device that should have a taint",
            )
        if uncounted(wanted, stored):
            raise FieldDroppedError(
                GatedField.COUNTERS,
                "the API server dropped the counters of devices: the feature gate DRAPartitionableDevices is off, and "
                "a GPU would be given whole and in parts at once. Turn it on, or leave `as: mig` out on this node; "
                "until then this node publishes nothing that needs them",
            )
        if not same_page(wanted, stored):
            log.warning("the server stored devices that differ from those sent, accepted", slice=stored.metadata.name)
            if index < len(pages):
                pages[index] = page_of(stored)

    def _refuse(self, error: FieldDroppedError) -> None:
        reason = str(error)
        log.error("devices not published", reason=reason)
        self._withheld |= {error.field}
        self._taint_kept = False
        self._counters_kept = False
        self._refused_until_s = self._clock.monotonic() + REFUSED_RETRY_S
        self._metrics.publishing.taint_refused.set(1)
        if self._on_refused is not None:
            self._on_refused(self._access.read_node(), reason)

    def _run(self) -> None:
        while self._worker.wait(self._due, within_s=RESYNC_S):
            try:
                wrote = self.sync()
                self._backoff.reset()
            except DracaenaError as error:
                self._metrics.publishing.errors.inc()
                log.warning("not published, trying again", error=str(error))
                self._worker.again(self._backoff.next_s())
            except Exception:
                # The thread's outermost loop: a bug must not end publishing for the life of the process.
                self._metrics.publishing.errors.inc()
                log.exception("publishing failed")
                self._worker.again(self._backoff.next_s())
            else:
                self._metrics.publishing.taint_refused.set(self._refused_until_s is not None)
                self._worker.pause(self._next_debounce_s(wrote=wrote))

    def _next_debounce_s(self, *, wrote: bool) -> float:
        now_s = self._clock.monotonic()
        if wrote:
            soon = self._wrote_s is not None and now_s - self._wrote_s < CALM_S
            self._debounce_s = min(self._debounce_s * 2, LONGEST_DEBOUNCE_S) if soon else DEBOUNCE_S
            self._wrote_s = now_s
        return self._debounce_s

    def _due(self) -> bool:
        return self._registered and self._pages is not None


def _without(pages: Sequence[Page], withheld: Collection[GatedField]) -> list[Page]:
    """Return the pages without what needs one of these fields; no pages if no device is left."""
    kept: list[Page] = [tuple(each for each in page if not _needs(each) & set(withheld)) for page in pages]
    return kept if any(map(devices_of, kept)) else []


def _needs(item: Device | CounterSet) -> set[GatedField]:
    if isinstance(item, CounterSet):
        return {GatedField.COUNTERS}
    needed = {GatedField.TAINTS} if item.taints else set()
    return needed | {GatedField.COUNTERS} if item.consumes_counters else needed


def _owner(node: Node) -> dict[str, object]:
    """Return the owner of the slices: they are deleted with their node."""
    return {
        "apiVersion": node.API_VERSION,
        "kind": node.KIND,
        "name": node.metadata.name,
        "uid": node.metadata.uid,
        "controller": True,
    }
