"""This node's pool: the wanted pages and the published ResourceSlices → what to write.

A pool is read by others while it is written. Its generation and slice count show them whether a state is complete
(resource.k8s.io/v1, ResourcePool), so the rules here are those of the Kubernetes publishing library: the generation
stays if one existing slice changes, and grows if more must become visible together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dracaena.api import limits
from dracaena.api.names import NodeName, PoolName
from dracaena.api.objects import Taint
from dracaena.api.resource_objects import CounterSet, Device, ResourcePool, ResourceSlice, ResourceSliceSpec

GENERATED_BASE_BYTES = limits.GENERATED_NAME_BYTES - limits.GENERATED_SUFFIX_BYTES
"""What the API server keeps of metadata.generateName before its random characters."""

_INDEX = re.compile(r"([0-9a-f]{5,})-")

Page = tuple[Device | CounterSet, ...]
"""What one slice holds: devices, or counter sets; the API takes no slice with both."""


@dataclass(frozen=True, slots=True)
class PoolIdentity:
    """Whose pool this is."""

    driver: str
    name: PoolName
    node_name: NodeName


@dataclass(frozen=True, slots=True)
class Creation:
    """A slice that is missing."""

    index: int
    generate_name: str
    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Update:
    """A slice that exists and differs."""

    index: int
    published: ResourceSlice
    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PoolWrites:
    """The writes that turn the published pool into the wanted one, in this order."""

    generation: int
    delete: tuple[ResourceSlice, ...]
    update: tuple[Update, ...]
    create: tuple[Creation, ...]

    def __bool__(self) -> bool:
        return bool(self.delete or self.update or self.create)


def plan_pool(
    pool: PoolIdentity,
    pages: Sequence[Page],
    published: Sequence[ResourceSlice],
    *,
    missing: int = 0,
    may_land: int | None = None,
) -> PoolWrites:
    """Compare and return the writes; none if both are the same.

    Without pages one empty slice is published: the pool exists and is empty. With `missing` the slices announce that
    many more than there are: the pool is incomplete for every reader, so that nothing of it is allocated yet.
    `may_land` is the highest generation of writes that were sent and may still be stored, 0 if it is not known, None if
    there are none. Unless it is None, everything is rewritten beyond it, because readers ignore older generations.
    Slices of another pool of this driver and node, of an older generation or with a foreign name are deleted.
    """
    pages = pages or ((),)
    count = len(pages) + missing
    newest = max((s.spec.pool.generation for s in published if s.spec.pool.name == pool.name), default=0)
    kept: dict[int, ResourceSlice] = {}
    for found in sorted(published, key=lambda s: s.metadata.name):
        index = _index(pool, found.metadata.name)
        current = found.spec.pool.name == pool.name and found.spec.pool.generation == newest
        if current and index is not None and index < len(pages):
            kept.setdefault(index, found)
    keep = {s.metadata.name for s in kept.values()}
    created = [index for index in range(len(pages)) if index not in kept]
    changed = [index for index in sorted(kept) if not _same(kept[index], pages[index], count)]
    one_state = may_land is not None or bool(created) or len(changed) > 1
    generation = newest + 1 if one_state else newest
    if may_land is not None:
        # If it is not known, the writes were planned from these slices.
        generation = max(generation, may_land) + 1
    return PoolWrites(
        generation=generation,
        delete=tuple(s for s in sorted(published, key=lambda s: s.metadata.name) if s.metadata.name not in keep),
        update=tuple(
            Update(
                index,
                kept[index],
                _spec(pool, with_known_times(pages[index], published), generation, count, over=kept[index]),
            )
            for index in (sorted(kept) if one_state else changed)
        ),
        create=tuple(
            Creation(
                index,
                _generate_name(pool, index),
                _spec(pool, with_known_times(pages[index], published), generation, count),
            )
            for index in created
        ),
    )


def devices_of(page: Page) -> tuple[Device, ...]:
    """Return the devices of a page."""
    return tuple(each for each in page if isinstance(each, Device))


def page_of(stored: ResourceSlice) -> Page:
    """Return the content of a slice."""
    return (*stored.spec.devices, *stored.spec.shared_counters)


def same_page(wanted: Page, stored: ResourceSlice) -> bool:
    """Whether a slice equals a page. The order counts; the times of taints do not: the server sets them."""
    found = page_of(stored)
    return len(wanted) == len(found) and all(
        _without_times(a) == _without_times(b) for a, b in zip(wanted, found, strict=True)
    )


def untainted(wanted: Page, stored: Sequence[Device]) -> tuple[str, ...]:
    """Return the names of stored devices that lack a taint which was asked for (feature gate DRADeviceTaints off)."""
    asked = {device.name: {_taint_key(taint) for taint in device.taints} for device in devices_of(wanted)}
    return tuple(
        device.name
        for device in stored
        if asked.get(device.name, set()) - {_taint_key(taint) for taint in device.taints}
    )


def uncounted(wanted: Page, stored: ResourceSlice) -> bool:
    """Whether a server dropped counters that were asked for (feature gate DRAPartitionableDevices off)."""
    counted = {device.name for device in devices_of(wanted) if device.consumes_counters}
    bare = any(device.name in counted and not device.consumes_counters for device in stored.spec.devices)
    return bare or (len(devices_of(wanted)) < len(wanted) and not stored.spec.shared_counters)


def with_known_times(wanted: Page, published: Sequence[ResourceSlice]) -> Page:
    """Return the page with the times of those taints that are published already: they were not added just now.

    All published pages count: a device moves to another page when devices before it come or go.
    """
    times = {
        (device.name, _taint_key(taint)): taint.time_added
        for found in published
        for device in found.spec.devices
        for taint in device.taints
    }

    def with_times(device: Device) -> Device:
        return msgspec.structs.replace(
            device,
            taints=[
                msgspec.structs.replace(t, time_added=times.get((device.name, _taint_key(t)), t.time_added))
                for t in device.taints
            ],
        )

    return tuple(with_times(each) if isinstance(each, Device) else each for each in wanted)


def _same(published: ResourceSlice, page: Page, count: int) -> bool:
    return published.spec.pool.resource_slice_count == count and same_page(page, published)


def _without_times(device: Device | CounterSet) -> Device | CounterSet:
    if isinstance(device, CounterSet):
        return device
    return msgspec.structs.replace(
        device, taints=[msgspec.structs.replace(taint, time_added=None) for taint in device.taints]
    )


def _taint_key(taint: Taint) -> tuple[str, str, str]:
    return (taint.key, taint.value, taint.effect)


def _generate_name(pool: PoolIdentity, index: int) -> str:
    """Return the name without its random suffix. The index leads, so that truncation by the server spares it."""
    return f"{index:05x}-{pool.driver}-{pool.node_name}-"


def _index(pool: PoolIdentity, name: str) -> int | None:
    """Return which page a name is for, None for a name that we did not generate."""
    match = _INDEX.match(name)
    if match is None:
        return None
    index = int(match[1], 16)
    return index if name.startswith(_generate_name(pool, index)[:GENERATED_BASE_BYTES]) else None


def _spec(
    pool: PoolIdentity, page: Page, generation: int, count: int, *, over: ResourceSlice | None = None
) -> dict[str, Any]:
    """Return the spec of a page; for an existing slice `over`, as a patch that also clears what that held."""
    spec = ResourceSliceSpec(
        driver=pool.driver,
        pool=ResourcePool(pool.name, generation, count),
        node_name=pool.node_name,
        devices=list(devices_of(page)),
        shared_counters=[each for each in page if isinstance(each, CounterSet)],
    )
    document: dict[str, Any] = msgspec.to_builtins(spec)
    if not spec.shared_counters or (over is not None and over.spec.devices):
        document["devices"] = document.get("devices", [])
    if over is not None and over.spec.shared_counters:
        document["sharedCounters"] = document.get("sharedCounters", [])
    return document
