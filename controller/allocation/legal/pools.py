"""Which pools a node can reach, and which of them are complete and sound."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from dracaena.api.device_id import PoolId
from dracaena.api.objects import Node
from dracaena.api.reasons import unknown_fields
from dracaena.controller.allocation.legal.outcome import NeedsPerson, bad_slice
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.legal.read.slices import (
    NodeSelection,
    Pool,
    PoolState,
    PublishedDevice,
    ReachableDevice,
    Slice,
)
from dracaena.controller.allocation.nodes.matching import read_node_selector

OPTIONAL_NODE_OPERATIONS: Final = "DRAOptionalNodeOperations"
"""In the declaredFeatures of a node whose kubelet knows skipNodeOperations: others would wait for the driver."""


class SliceSource(Protocol):
    """All slices of a cluster, found by their node, by their pool, or by naming no node."""

    def on_node(self, node: str) -> Sequence[Slice]:
        """Return the slices that name this node."""

    def of_no_node(self) -> Sequence[Slice]:
        """Return the slices that name no node."""

    def of_pool(self, pool: PoolId) -> Sequence[Slice]:
        """Return all slices of a pool."""


class SliceIndex:
    """A SliceSource over a fixed list of slices, whose order it keeps."""

    __slots__ = ("_of_no_node", "_of_pool", "_on_node")

    def __init__(self, slices: Iterable[Slice]) -> None:
        self._on_node: dict[str, list[Slice]] = {}
        self._of_no_node: list[Slice] = []
        self._of_pool: dict[PoolId, list[Slice]] = {}
        for one in slices:
            self._of_pool.setdefault(one.pool, []).append(one)
            if one.nodes.node_name:
                self._on_node.setdefault(one.nodes.node_name, []).append(one)
            else:
                self._of_no_node.append(one)

    def on_node(self, node: str) -> Sequence[Slice]:
        """Return the slices that name this node."""
        return self._on_node.get(node, ())

    def of_no_node(self) -> Sequence[Slice]:
        """Return the slices that name no node."""
        return self._of_no_node

    def of_pool(self, pool: PoolId) -> Sequence[Slice]:
        """Return all slices of a pool."""
        return self._of_pool.get(pool, ())


class CombinedSlices:
    """Two SliceSources as one; no pool is in both."""

    __slots__ = ("_first", "_second")

    def __init__(self, first: SliceSource, second: SliceSource) -> None:
        self._first, self._second = first, second

    def on_node(self, node: str) -> Sequence[Slice]:
        """Return the slices that name this node."""
        return (*self._first.on_node(node), *self._second.on_node(node))

    def of_no_node(self) -> Sequence[Slice]:
        """Return the slices that name no node."""
        return (*self._first.of_no_node(), *self._second.of_no_node())

    def of_pool(self, pool: PoolId) -> Sequence[Slice]:
        """Return all slices of a pool."""
        return self._first.of_pool(pool) or self._second.of_pool(pool)


def gather_pools(slices: SliceSource, node: Node, features: Features) -> tuple[Pool, ...] | NeedsPerson:
    """Return the pools that the node can reach in the order in which devices are tried.

    Usable pools come by (driver, name), those with binding conditions after all others; a pool that is known to be
    outdated is left out. The order of slices matters only if slices of one generation disagree about their number.
    Returns NeedsPerson if it cannot know whether the node reaches a slice. Cost: O(slices without a node + devices of
    the pools that the node reaches).
    """
    try:
        found = _relevant(slices, node, features)
    except _BadNodeSelectorError as error:
        return bad_slice(error.slice_name, error.problem)
    pools = []
    for pool_id, relevant in found.items():
        pool = _pool(pool_id, relevant, slices.of_pool(pool_id), node, features)
        if pool is not None:
            pools.append(pool)
    return tuple(sorted(pools, key=lambda pool: (pool.has_binding_conditions, pool.id)))


def _relevant(slices: SliceSource, node: Node, features: Features) -> Mapping[PoolId, list[Slice]]:
    """Return the slices of each pool's newest generation that the node can see."""
    pools: dict[PoolId, list[Slice]] = {}
    for one in (*slices.on_node(node.metadata.name), *slices.of_no_node()):
        if not features.partitionable_devices and (one.per_device or one.declares_counters):
            continue
        if not _is_relevant(one, node):
            continue
        known = pools.get(one.pool)
        if known is None or one.generation > known[0].generation:
            pools[one.pool] = [one]
        elif one.generation == known[0].generation:
            known.append(one)
    return pools


def _is_relevant(one: Slice, node: Node) -> bool:
    by_slice = _selects(one.nodes, one, node)
    given = one.nodes.node_name or one.nodes.all_nodes or one.nodes.selector is not None
    if given or not one.per_device:
        return by_slice
    return any(_selects(device.nodes, one, node) for device in one.devices)


def _selects(nodes: NodeSelection, one: Slice, node: Node) -> bool:
    """Return whether a selection in the slice includes the node. Raises _BadNodeSelectorError."""
    if nodes.node_name:
        return nodes.node_name == node.metadata.name
    if nodes.all_nodes:
        return True
    if nodes.selector is None:
        return False
    selector = read_node_selector(nodes.selector)
    if selector.problems:
        raise _BadNodeSelectorError(one.name, selector.problems[0])
    return selector.matches(node)


class _BadNodeSelectorError(Exception):
    """A node selector of a slice that the API server would have refused."""

    def __init__(self, slice_name: str, problem: str) -> None:
        super().__init__(slice_name, problem)
        self.slice_name, self.problem = slice_name, problem


def _pool(
    pool_id: PoolId, relevant: Sequence[Slice], everywhere: Sequence[Slice], node: Node, features: Features
) -> Pool | None:
    """Return the pool; None when it is outdated."""
    count, whole = relevant[0].slice_count, relevant
    if len(relevant) != count:
        generation = relevant[0].generation
        if any(one.generation > generation for one in everywhere):
            return None
        whole = [one for one in everywhere if one.generation == generation]
        if len(whole) != count:
            problem = f"{len(whole)} slices of generation {generation} are there, expected {count}"
            return Pool(pool_id, PoolState.INCOMPLETE, problem)
    newer = next((device for one in whole for device in one.devices if device.shares_by_unknown_rules), None)
    if newer is not None:
        problem = f"device {newer.id.device}: {unknown_fields(newer.unknown, 'the pool')}"
        return Pool(pool_id, PoolState.INCOMPLETE, problem)
    if not features.compatibility_groups:
        grouped = next((device for one in whole for device in one.devices if device.compatibility_groups), None)
        if grouped is not None:
            problem = f"device {grouped.id.device} has compatibilityGroups, which the cluster has switched off"
            return Pool(pool_id, PoolState.INCOMPLETE, problem)
    names = {one.name for one in relevant}
    if features.partitionable_devices:
        # Counters are needed wherever a device of the pool is, whatever nodes their slice names.
        names |= {one.name for one in whole if one.declares_counters}
    here = sorted((one for one in whole if one.name in names), key=lambda one: one.name)
    others = [one for one in whole if one.name not in names]
    problem = _problem(here, others, features)
    if problem:
        return Pool(pool_id, PoolState.INVALID, problem)
    there = [(device, one) for one in _device_slices(here, features) for device in one.devices]
    return Pool(
        id=pool_id,
        state=PoolState.USABLE,
        devices=tuple(_reachable(device, one, node) for device, one in there if not device.unknown),
        elsewhere=(
            *(device for one in others for device in one.devices),
            *(device for device, _ in there if device.unknown),
        ),
        counters=tuple(counter for one in here for counter in one.counters) if features.partitionable_devices else (),
    )


def _reachable(device: PublishedDevice, one: Slice, node: Node) -> ReachableDevice:
    is_operable = not one.skip_node_operations or OPTIONAL_NODE_OPERATIONS in node.declared_features
    if not one.per_device:
        return ReachableDevice(device, one, is_operable=is_operable)
    try:
        return ReachableDevice(device, one, _selects(device.nodes, one, node), is_operable)
    except _BadNodeSelectorError as error:
        return ReachableDevice(device, one, is_for_node=False, is_operable=is_operable, problem=error.problem)


def _device_slices(slices: Iterable[Slice], features: Features) -> list[Slice]:
    return [one for one in slices if not (features.partitionable_devices and one.declares_counters)]


def _problem(here: Sequence[Slice], others: Sequence[Slice], features: Features) -> str:
    """Return why nothing may be allocated from the pool, empty when it is sound."""
    for one in (*here, *others):
        if one.problem:
            return f"slice {one.name}: {one.problem}"
    names = [reachable.id.device for one in _device_slices(here, features) for reachable in one.devices]
    twice = _first_twice(names)
    if twice:
        return f"two devices are called {twice}"
    if not features.partitionable_devices:
        return ""
    sets = [name for one in here for name in one.counter_sets]
    twice = _first_twice(sets)
    if twice:
        return f"two counter sets are called {twice}"
    declared = {counter for one in here for counter, _ in one.counters}
    for one in (*here, *others):
        for device in one.devices:
            for name in device.counter_sets:
                if name not in sets:
                    return f"device {device.id.device} consumes counter set {name}, which the pool does not declare"
            for counter, _ in device.consumes:
                if counter not in declared:
                    return f"device {device.id.device} consumes counter {counter}, which the pool does not declare"
    return ""


def _first_twice(names: Iterable[str]) -> str:
    seen = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""
