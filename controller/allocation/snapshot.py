"""What there is at one moment: newest complete pools of ours, which of their devices are taken, nodes and classes.

Rules of pools: the structured allocator of Kubernetes (resource.k8s.io/v1). Of a pool only the highest generation
counts; it must be complete; two devices of one name make it invalid. Our pools belong to one node each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dracaena.api.names import TAINT_EFFECT, taint_key
from dracaena.api.objects import Device, DeviceClass, Node, ResourceClaim, ResourceSlice, Taint
from dracaena.api.resourceslice import decode_pool
from dracaena.controller.allocation.box import Box, make_box, mask_of


@dataclass(frozen=True, slots=True, order=True)
class DeviceId:
    """A device of our driver."""

    pool: str
    device: str


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """Something published that cannot be used: it is left out of the choice and named."""

    pool: str
    device: str
    """Empty when it is about the whole pool."""
    text: str
    passing: bool = False
    """Whether it ends by itself: slices of a pool are written one by one, so a pool is incomplete for a moment."""


@dataclass(frozen=True, slots=True)
class NodePool:
    """The devices of one node, by ordinal."""

    node: str
    pool: str
    box: Box
    devices: tuple[str | None, ...]
    """Device name of each ordinal; None for a GPU that is not published or does not decode."""
    offered: int
    """Mask of the devices that carry our taint: ours to allocate. Without it the node has opted out."""
    foreign_taints: Mapping[int, tuple[Taint, ...]]
    """Ordinal → taints besides ours; only ordinals that have some."""


@dataclass(frozen=True, slots=True)
class PoolReading:
    """What the slices of one pool say."""

    pool: NodePool | None
    """None when nothing may be allocated from it."""
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """One moment of the cluster. Maps are never changed after they were handed over."""

    driver: str
    nodes: tuple[Node, ...]
    """In the order of their names."""
    pools: Mapping[str, NodePool]
    """Node name → its pool."""
    used: Mapping[str, frozenset[str]]
    """Pool → devices that are allocated, or assumed to be."""
    classes: Mapping[str, DeviceClass]
    problems: tuple[Problem, ...] = ()

    def free(self, pool: NodePool) -> int:
        """Return the mask of the devices of a pool that are ours to allocate and not taken."""
        taken = self.used.get(pool.pool)
        if not taken:
            return pool.offered
        return pool.offered & ~mask_of(ordinal for ordinal, name in enumerate(pool.devices) if name in taken)


def make_snapshot(
    driver: str,
    *,
    nodes: Iterable[Node],
    slices: Iterable[ResourceSlice],
    claims: Iterable[ResourceClaim] = (),
    classes: Iterable[DeviceClass] = (),
    assumed: Iterable[DeviceId] = (),
) -> ClusterSnapshot:
    """Read everything afresh. `assumed` are devices of allocations that `claims` may not show yet."""
    by_pool: dict[str, list[ResourceSlice]] = {}
    for item in slices:
        if item.spec.driver == driver:
            by_pool.setdefault(item.spec.pool.name, []).append(item)
    pools, problems = one_pool_a_node(read_pool(driver, by_pool[name]) for name in sorted(by_pool))
    held = [device for claim in claims for device in held_devices(claim, driver)]
    return ClusterSnapshot(
        driver=driver,
        nodes=tuple(sorted(nodes, key=lambda node: node.metadata.name)),
        pools=pools,
        used=used_by_pool([*held, *assumed]),
        classes=MappingProxyType({item.metadata.name: item for item in classes}),
        problems=problems,
    )


def used_by_pool(devices: Iterable[DeviceId]) -> Mapping[str, frozenset[str]]:
    """Group device names by pool."""
    used: dict[str, set[str]] = {}
    for device in devices:
        used.setdefault(device.pool, set()).add(device.device)
    return MappingProxyType({pool: frozenset(names) for pool, names in used.items()})


def held_devices(claim: ResourceClaim, driver: str) -> frozenset[DeviceId]:
    """Return the devices of ours that a claim keeps from others. Admin access keeps nothing."""
    if claim.status.allocation is None:
        return frozenset()
    results = claim.status.allocation.devices.results
    return frozenset(
        DeviceId(result.pool, result.device)
        for result in results
        if result.driver == driver and not result.admin_access
    )


def one_pool_a_node(readings: Iterable[PoolReading]) -> tuple[Mapping[str, NodePool], tuple[Problem, ...]]:
    """Index pools by node. A node with several is left out: ordinals of two pools say nothing about each other."""
    by_node: dict[str, list[NodePool]] = {}
    problems: list[Problem] = []
    for reading in readings:
        problems.extend(reading.problems)
        if reading.pool is not None:
            by_node.setdefault(reading.pool.node, []).append(reading.pool)
    for node, pools in by_node.items():
        if len(pools) > 1:
            problems.extend(several_pools(node, pool.pool, len(pools)) for pool in pools)
    single = {node: pools[0] for node, pools in by_node.items() if len(pools) == 1}
    return MappingProxyType(single), tuple(sorted(problems))


def several_pools(node: str, pool: str, count: int) -> Problem:
    """Return what to say about each of several pools of one node."""
    return Problem(pool, "", f"node {node} has {count} pools of this driver, expected one: none of them is used")


def read_pool(driver: str, slices: Iterable[ResourceSlice]) -> PoolReading:
    """Read all slices of one pool of ours, in any order."""
    every = sorted(slices, key=lambda item: item.metadata.name)
    newest = max(item.spec.pool.generation for item in every)
    pages = [item for item in every if item.spec.pool.generation == newest]
    pool = pages[0].spec.pool
    if len(pages) != pool.resource_slice_count:
        text = f"generation {newest} has {len(pages)} of {pool.resource_slice_count} slices: being updated"
        return PoolReading(None, (Problem(pool.name, "", text, passing=True),))
    problem = _unusable(pages)
    if problem is not None:
        return PoolReading(None, (Problem(pool.name, "", problem),))
    return _decode(driver, pool.name, pages[0].spec.node_name, [d for page in pages for d in page.spec.devices])


def _unusable(pages: list[ResourceSlice]) -> str | None:
    nodes = sorted({page.spec.node_name for page in pages})
    if len(nodes) > 1 or not nodes[0]:
        return f"slices name the nodes {nodes}, expected one node"
    names = [device.name for page in pages for device in page.spec.devices]
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"device {twice[0]} is published twice" if twice else None


def _decode(driver: str, pool: str, node: str, devices: list[Device]) -> PoolReading:
    decoded = decode_pool(devices)
    problems = tuple(Problem(pool, problem.device, problem.text) for problem in decoded.problems)
    names: list[str | None] = [None] * decoded.topology.gpu_count
    for gpu in decoded.gpus:
        names[gpu.ordinal] = gpu.name
    taints = {device.name: device.taints for device in devices}
    key = taint_key(driver)
    offered = [gpu.ordinal for gpu in decoded.gpus if any(_keeps_scheduler_off(t, key) for t in taints[gpu.name])]
    foreign = {gpu.ordinal: tuple(t for t in taints[gpu.name] if t.key != key) for gpu in decoded.gpus}
    node_pool = NodePool(
        node=node,
        pool=pool,
        box=make_box(decoded.topology, {gpu.ordinal: gpu.gpu for gpu in decoded.gpus}),
        devices=tuple(names),
        offered=mask_of(offered),
        foreign_taints=MappingProxyType({ordinal: found for ordinal, found in foreign.items() if found}),
    )
    return PoolReading(node_pool, problems)


def _keeps_scheduler_off(taint: Taint, key: str) -> bool:
    return taint.key == key and taint.effect == TAINT_EFFECT
