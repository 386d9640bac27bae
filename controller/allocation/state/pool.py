"""The devices of one node, as the slices of its pool describe them.

Rules of pools: the structured allocator of Kubernetes (resource.k8s.io/v1). Only the highest generation of a pool
counts; it must be complete; two devices of one name make it invalid. Our pools belong to one node each.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dracaena.api import availability
from dracaena.api.attributes import FABRIC_CLIQUE
from dracaena.api.availability import current_pages, unfinished, why_pool_unusable
from dracaena.api.device_taints import keeping_off
from dracaena.api.names import TAINT_EFFECT, taint_key
from dracaena.api.objects import Taint
from dracaena.api.partitions import partitioned_sets
from dracaena.api.reasons import unknown_fields
from dracaena.api.resource_objects import Counter, Device, ResourceSlice
from dracaena.api.resourceslice import decode_pool
from dracaena.controller.allocation.legal.capacity import is_whole_by_default
from dracaena.controller.allocation.legal.pools import SliceIndex
from dracaena.controller.allocation.legal.read.slices import Slice
from dracaena.controller.allocation.legal.read.taints import timeless
from dracaena.controller.allocation.score.box import mask_of
from dracaena.controller.allocation.score.nominal_rates import make_box
from dracaena.controller.allocation.state.device_kind import device_kinds, digest_of
from dracaena.controller.allocation.state.node_state import NodeKind, NodePool


@dataclass(frozen=True, slots=True, order=True)
class PoolDefect:
    """Something published that cannot be used: it is left out of the choice and reported."""

    pool: str
    device: str
    """Empty when the defect is about the whole pool."""
    text: str
    passing: bool = False
    """Whether it ends by itself: slices of a pool are written one by one, so a pool is incomplete for a moment."""


@dataclass(frozen=True, slots=True)
class PoolContents:
    """What the slices of one pool say."""

    pool: NodePool | None
    """None when nothing may be allocated from it."""
    problems: tuple[PoolDefect, ...] = ()


def several_pools(node: str, pool: str, count: int) -> PoolDefect:
    """Return what to say about each of several pools of one node."""
    return PoolDefect(pool, "", availability.several_pools(node, count))


def read_pool(driver: str, slices: Iterable[ResourceSlice]) -> PoolContents:
    """Read all slices of one pool of ours, in any order."""
    pages = current_pages(sorted(slices, key=lambda item: item.metadata.name))
    pool = pages[0].spec.pool
    missing = unfinished(pages)
    if missing:
        return PoolContents(None, (PoolDefect(pool.name, "", missing, passing=True),))
    problem = why_pool_unusable(pages)
    if problem:
        return PoolContents(None, (PoolDefect(pool.name, "", problem),))
    return _decode(driver, pool.name, pages)


def _decode(driver: str, pool: str, pages: Sequence[ResourceSlice]) -> PoolContents:
    every = devices = [device for page in pages for device in page.spec.devices]
    newer = [device for device in devices if device.unknown]
    devices = [device for device in devices if not device.unknown]
    decoded = decode_pool(devices)
    problems = (
        *(PoolDefect(pool, problem.device, problem.text) for problem in decoded.problems),
        *(PoolDefect(pool, one.name, unknown_fields(one.unknown, "the device")) for one in newer),
    )
    names: list[str | None] = [None] * decoded.topology.gpu_count
    for gpu in decoded.gpus:
        names[gpu.ordinal] = gpu.name
    by_name = {device.name: device for device in devices}
    key = taint_key(driver)
    ours = frozenset(d.name for d in devices if any(_keeps_scheduler_off(taint, key) for taint in d.taints))
    taints = {device.name: [timeless(taint) for taint in device.taints if taint.key != key] for device in devices}
    foreign = ((gpu.ordinal, tuple(taints[gpu.name])) for gpu in decoded.gpus)
    box = make_box(decoded.topology, {gpu.ordinal: gpu.gpu for gpu in decoded.gpus}, decoded.partitions)
    published = tuple(None if name is None else by_name[name] for name in names)
    kinds = device_kinds(driver, published)
    in_shares = frozenset(
        gpu.ordinal
        for gpu in decoded.gpus
        if (one := kinds[gpu.ordinal]) is not None and is_whole_by_default(one.device)
    )
    gpus = {str(gpu.name): gpu.ordinal for gpu in decoded.gpus}
    once = _sets_of_one_gpu(pages, devices, gpus)
    cut = partitioned_sets(devices, gpus, ours) | once.keys()
    whole = {
        gpu.name: gpu.ordinal
        for gpu in decoded.gpus
        if gpu.name in ours and _is_given_whole(by_name[gpu.name], cut, in_shares=gpu.ordinal in in_shares)
    }
    is_plain = len(whole) == len(every) and not any(page.spec.shared_counters for page in pages)
    others = tuple(sorted(ours - whole.keys() - {problem.device for problem in decoded.problems}))
    twins = tuple(sorted(mask_of(found) for found in once.values() if len(found) > 1))
    kind = NodeKind(
        box,
        tuple((ordinal, found) for ordinal, found in foreign if found),
        kinds,
        b"" if is_plain else digest_of(pages),
        bool(others or twins),
        mask_of(in_shares & set(whole.values())),
        twins=twins,
    )
    node_pool = NodePool(
        node=pages[0].spec.node_name,
        pool=pool,
        kind=kind,
        devices=tuple(names),
        published=published,
        offered=mask_of(whole.values()),
        others=others,
        order=() if is_plain else tuple(device.name for device in every),
        clique=_clique(published),
        is_left_to_scheduler=bool(every)
        and not any(taint.key == key for one in every for taint in keeping_off(one.taints)),
    )
    return PoolContents(node_pool, problems)


def _sets_of_one_gpu(
    pages: Sequence[ResourceSlice], devices: Sequence[Device], gpus: Mapping[str, int]
) -> dict[str, list[int]]:
    """Return the counter sets that keep a GPU from being given in two ways at once, to the host and to a virtual
    machine, with the ordinals of the GPU's devices. Only GPUs draw on such a set, and each takes all of it."""
    declared = {one.name: one.counters for page in pages for one in page.spec.shared_counters}
    users: dict[str, list[Device]] = {}
    for device in devices:
        for consumption in device.consumes_counters:
            users.setdefault(consumption.counter_set, []).append(device)
    return {
        name: [gpus[device.name] for device in every]
        for name, every in users.items()
        if all(device.name in gpus and _takes_all_of(device, declared.get(name)) for device in every)
    }


def _takes_all_of(device: Device, counters: Mapping[str, Counter] | None) -> bool:
    """Whether a device takes all of one counter set, and of no other."""
    (taken, *others) = device.consumes_counters
    return not others and not taken.compatibility_groups and bool(counters) and taken.counters == counters


def _clique(devices: Sequence[Device | None]) -> str | None:
    values = {device.attributes.get(FABRIC_CLIQUE.name) for device in devices if device is not None}
    value = values.pop() if len(values) == 1 else None
    return None if value is None else value.string or None


def _is_given_whole(device: Device, cut: Collection[str], *, in_shares: bool) -> bool:
    """Whether a free device can be given whole, and only its holders and those of its parts decide that. `cut`: counter
    sets of GPUs that are cut on demand; `in_shares`: it can also be given in shares, and is given whole to requests for
    none."""
    if device.binding_conditions or any(one.counter_set not in cut for one in device.consumes_counters):
        return False
    return in_shares or not device.allow_multiple_allocations


def _keeps_scheduler_off(taint: Taint, key: str) -> bool:
    return taint.key == key and taint.effect == TAINT_EFFECT


MOST_DEVICES: Final = 40_000
"""Devices kept in memory after reading, about 3 KiB each with their form for CEL: 700 nodes of 56 MIG devices. Nodes
that have only whole GPUs to give are never read like this."""


class ReadPools:
    """Remembers pools by name; the least recently used is dropped first. One thread at a time."""

    def __init__(self, most_devices: int) -> None:
        self._most_devices = most_devices
        self._known: OrderedDict[str, tuple[SliceIndex, int]] = OrderedDict()
        self._devices = 0

    def get(self, name: str, read: Callable[[], tuple[Slice, ...]]) -> SliceIndex:
        """Return the slices of a pool, read at the first call and after forget()."""
        known = self._known.get(name)
        if known is not None:
            self._known.move_to_end(name)
            return known[0]
        slices = read()
        index, count = SliceIndex(slices), sum(len(one.devices) for one in slices)
        self._known[name] = index, count
        self._devices += count
        while self._devices > self._most_devices and len(self._known) > 1:
            self._devices -= self._known.popitem(last=False)[1][1]
        return index

    def forget_all(self) -> None:
        """Note that something about all pools has changed."""
        self._known.clear()
        self._devices = 0

    def forget(self, name: str) -> None:
        """Note that the pool has changed."""
        known = self._known.pop(name, None)
        self._devices -= 0 if known is None else known[1]
