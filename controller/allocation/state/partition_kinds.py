"""Reads from the slices of a pool which GPUs are cut into parts on demand, and how.

A counter set is understood if only places and at most one whole GPU of ours draw on it; places are MIG devices with
profile, placementStart and placementSize. What draws on any other set is left to the API's rules alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from dracaena.api.mig_geometry import COMPUTE_SLICES, MEMORY_SLICE
from dracaena.api.names import taint_key
from dracaena.api.objects import Taint
from dracaena.api.partitions import (
    PROFILE,
    SIZE,
    START,
    PartitionedGpu,
    PartitionGeometry,
    PartitionPlace,
    Partitions,
    partitioned_sets,
)
from dracaena.api.quantity import NANO, parse_quantity
from dracaena.api.resource_objects import Device, ResourceSlice
from dracaena.controller.allocation.legal.read.slices import PublishedDevice
from dracaena.controller.allocation.legal.read.taints import timeless
from dracaena.controller.allocation.state.device_kind import device_kinds
from dracaena.controller.allocation.state.node_state import NodeKind, NodePool


def with_partitions(driver: str, pool: NodePool, slices: Iterable[ResourceSlice]) -> NodeKind:
    """Return the kind of a node with its GPUs that are cut on demand; equal nodes get equal kinds. `slices` are those
    of its pool. Cost: some 20 µs for each part."""
    every = tuple(slices)
    newest = max(page.spec.pool.generation for page in every)
    pages = [page for page in every if page.spec.pool.generation == newest]
    by_name = {device.name: device for page in pages for device in page.spec.devices}
    sets = partitioned_sets(by_name.values(), frozenset(filter(None, pool.devices)), _allocatable(pool))
    if not sets:
        return pool.kind
    declared = {one.name: one for page in pages for one in page.spec.shared_counters}
    reader = _PartReader(driver, pool, [by_name[name] for name in pool.order])
    found = (
        reader.gpu(name, {counter: _nano(one.value) for counter, one in declared[name].counters.items()})
        for name in sorted(sets & declared.keys(), key=reader.first)
    )
    try:
        gpus = tuple(found)
        # A counter below 0 makes the whole pool invalid: only the rules say so.
        is_invalid = any(_nano(counter.value) < 0 for one in declared.values() for counter in one.counters.values())
    except ValueError:  # no GPU's amounts; those that do not parse, the rules cannot use either
        return pool.kind
    parts = {pool.order[number] for one in gpus for number in one.numbers}
    return replace(pool.kind, partitions=Partitions(gpus, is_invalid or bool(set(pool.others) - parts)))


def _allocatable(pool: NodePool) -> frozenset[str]:
    offered = (name for ordinal, name in enumerate(pool.devices) if name is not None and pool.offered >> ordinal & 1)
    return frozenset((*offered, *pool.others))


class _PartReader:
    def __init__(self, driver: str, pool: NodePool, devices: Sequence[Device]) -> None:
        self._pool, self._devices, self._key = pool, devices, taint_key(driver)
        self._kinds = device_kinds(driver, devices)
        self._of_set: dict[str, list[int]] = {}
        for number, device in enumerate(devices):
            for consumption in device.consumes_counters:
                self._of_set.setdefault(consumption.counter_set, []).append(number)

    def first(self, counter_set: str) -> int:
        """Return the number of the first part that draws on a set."""
        numbers = self._of_set[counter_set]
        return next(number for number in numbers if self._devices[number].name not in self._pool.devices)

    def gpu(self, counter_set: str, declared: Mapping[str, int]) -> PartitionedGpu[PublishedDevice]:
        """Return the GPU of a counter set. Raises ValueError for what cannot be read."""
        slices = sorted((name for name in declared if _slice_number(name) is not None), key=_slice_number_or_0)
        if any(declared[name] > NANO for name in slices):
            raise ValueError(f"counter set {counter_set} has a memory slice more than once")
        counters = (*slices, *sorted(declared.keys() - set(slices)))
        numbers = self._of_set[counter_set]
        parts = tuple(number for number in numbers if self._devices[number].name not in self._pool.devices)
        whole = next((number for number in numbers if number not in parts), -1)
        kinds = [kind for number in parts if (kind := self._kinds[number]) is not None]
        if len(kinds) < len(parts):
            raise ValueError(f"an amount of a device of counter set {counter_set} cannot be read")
        geometry = PartitionGeometry(
            len(slices),
            tuple(declared[name] for name in counters),
            tuple(_place(self._devices[number], counters) for number in parts),
        )
        return PartitionedGpu(
            geometry,
            parts,
            tuple(one.device for one in kinds),
            tuple(tuple(self._foreign(self._devices[number])) for number in parts),
            None if whole < 0 else self._pool.devices.index(self._devices[whole].name),
            whole,
            () if whole < 0 else _takes(self._devices[whole], counters),
        )

    def _foreign(self, device: Device) -> Iterator[Taint]:
        yield from (timeless(taint) for taint in device.taints if taint.key != self._key)


def _place(device: Device, counters: Sequence[str]) -> PartitionPlace:
    profile, start, size = (device.attributes[name] for name in (PROFILE, START, SIZE))
    takes = _takes(device, counters)
    compute = takes[counters.index(COMPUTE_SLICES)] if COMPUTE_SLICES in counters else 0
    assert profile.string is not None
    assert start.int_value is not None
    assert size.int_value is not None
    return PartitionPlace(profile.string, start.int_value, size.int_value, compute, takes)


def _takes(device: Device, counters: Sequence[str]) -> tuple[int, ...]:
    """Return what a device takes of each counter. Raises ValueError if a counter is not declared."""
    taken = {name: _nano(one.value) for name, one in device.consumes_counters[0].counters.items()}
    if not taken.keys() <= set(counters):
        raise ValueError(f"device {device.name} draws on counters that are not declared")
    return tuple(taken.get(name, 0) for name in counters)


def _nano(text: str) -> int:
    return parse_quantity(text).nano


def _slice_number(counter: str) -> int | None:
    number = counter.removeprefix(MEMORY_SLICE)
    return int(number) if number != counter and number.isascii() and number.isdigit() else None


def _slice_number_or_0(counter: str) -> int:
    return _slice_number(counter) or 0
