"""A node in one line: what is free there and how it is connected, at a cost that 5,000 nodes allow.

It reads a few attributes of each device. For the links and names of one node use dracaena.api.node_status, which
decodes everything and costs a hundred times as much; both have the same states of GPUs (api.gpu_states).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dracaena.api.attributes import CORES_CAPACITY, MEMORY_CAPACITY
from dracaena.api.availability import why_nothing_given
from dracaena.api.gpu_quota import (
    GPUS,
    GPUS_BY_PRODUCT,
    MIG_DEVICES,
    MIG_SLICES,
    SHARE_CORES,
    SHARE_MEMORY,
    Amounts,
    QuotaItem,
)
from dracaena.api.gpu_states import FREE, GpuState, PoolGpus, gpu_states, pool_gpus, whole_amount
from dracaena.api.holders import Held, Holder, shares_of
from dracaena.api.mig import profile_in
from dracaena.api.node_status import few, remarks_of
from dracaena.api.objects import Node
from dracaena.api.resource_objects import ResourceSlice
from dracaena.api.topology_levels import NO_LEVELS, TopologyLevels

GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class PoolLine:
    """What a node publishes. It depends only on slices and the Node, so it is made again only when these change."""

    gpus: PoolGpus
    product: str
    remarks: tuple[str, ...]
    levels: tuple[tuple[str, str], ...] = ()
    closed: bool = False
    """Whether the node itself, not a GPU, keeps pods off (why_nothing_given)."""


class Room(NamedTuple):
    """How much is free of something that is given in parts, and how much there is."""

    free: int = 0
    all: int = 0


NO_ROOM: Final = Room()


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A node in one line."""

    name: str
    product: str
    cells: str
    """The sign of each GPU that was bought (api.gpu_states), by ordinal."""
    open_gpus: tuple[int, ...]
    """Free GPUs, counted by NVLink group; those without a group one by one."""
    remarks: tuple[str, ...]
    levels: tuple[tuple[str, str], ...] = ()
    """The racks, blocks and the like that it is in, largest first: what the level is called, and its name."""
    closed: bool = False
    held: tuple[tuple[str, ...], ...] = ()
    """For each cell the namespaces that have the GPU or parts of it, by name."""
    sick: Mapping[int, str] = field(default_factory=dict)
    """Cell → the fault that keeps pods off, `xid=79`."""
    told: Mapping[int, str] = field(default_factory=dict)
    """Cell → what is reported of a GPU that pods still get."""
    holds: Mapping[str, Amounts] = field(default_factory=dict)
    """Namespace → how much of the node's GPUs it has, counted as quotas count it."""
    mig_slices: Room = NO_ROOM
    """Of GPUs that are divided now."""
    share_gib: Room = NO_ROOM
    """Memory of GPUs of which claims have shares."""

    @property
    def rack(self) -> str:
        """The smallest of the `levels` with what it is in, `block-3/rack-07`; empty: there is none."""
        return "/".join(name for _, name in self.levels)


def pool_line(
    driver: str, pages: Sequence[ResourceSlice], node: Node | None, levels: TopologyLevels = NO_LEVELS
) -> PoolLine:
    """Read the slices of one node, at least one, with the taints of DeviceTaintRules. Cost: O(devices)."""
    gpus = pool_gpus(driver, pages, node)
    return PoolLine(
        gpus,
        _product(gpus),
        few(tuple(remarks_of(driver, pages, node))),
        levels=() if node is None else tuple(levels.named(levels.domains(node.metadata.labels))),
        closed=any(why_nothing_given(pages, node)),
    )


def node_line(name: str, pool: PoolLine, held: Held) -> NodeLine:
    """Put together what a node publishes and who has what. Cost: O(devices)."""
    states = gpu_states(pool.gpus, held)
    return NodeLine(
        name,
        pool.product,
        cells="".join(state.sign for state in states),
        open_gpus=_open_gpus(pool.gpus, states),
        remarks=pool.remarks,
        levels=pool.levels,
        closed=pool.closed,
        held=tuple(_namespaces(state.holders) for state in states),
        sick={place: state.fault for place, state in enumerate(states) if state.fault},
        told={place: state.told for place, state in enumerate(states) if state.told},
        holds=_holds(pool.gpus, held),
        mig_slices=_room(states, "slices", 1),
        share_gib=_room(states, "MiB", 1024),
    )


def _namespaces(holders: Iterable[Holder]) -> tuple[str, ...]:
    return tuple(sorted({holder.claim.partition("/")[0] for holder in holders}))


def _room(states: Iterable[GpuState], unit: str, per: int) -> Room:
    """Add up what is left of GPUs that are given in parts. `per`: how many of the unit count as one."""
    parts = [state.parts for state in states if state.parts is not None and state.parts.unit == unit]
    return Room(sum(one.free for one in parts) // per, sum(one.total for one in parts) // per)


def _holds(pool: PoolGpus, held: Held) -> Mapping[str, Amounts]:
    found: dict[str, Counter[QuotaItem]] = {}
    whole = {gpu.name: gpu for gpu in pool.gpus}
    divided = (device for gpu in pool.divided for device in gpu.devices)
    parts = (part.name for some in pool.parts.values() for part in some)
    for device in (*whole, *pool.handed, *divided, *parts):
        holders = held.get((pool.pool, device), ())
        gpu = whole.get(pool.handed.get(device, device))
        shares = shares_of(holders, gpu.capacity) if gpu and gpu.name == device and gpu.capacity else ()
        for holder in holders:
            sums = found.setdefault(holder.claim.partition("/")[0], Counter())
            if device in pool.slices:
                sums[QuotaItem(MIG_SLICES)] += pool.slices[device]
                sums[QuotaItem(MIG_DEVICES, profile_in(device) or "")] += 1
            elif holder in shares:
                sums[QuotaItem(SHARE_MEMORY)] += whole_amount(holder.consumed or {}, MEMORY_CAPACITY)
                sums[QuotaItem(SHARE_CORES)] += whole_amount(holder.consumed or {}, CORES_CAPACITY)
            else:
                sums[QuotaItem(GPUS)] += 1
                if gpu is not None:
                    sums[QuotaItem(GPUS_BY_PRODUCT, gpu.product)] += 1
    return dict(sorted(found.items()))


def _open_gpus(pool: PoolGpus, states: Sequence[GpuState]) -> tuple[int, ...]:
    # A GPU of no known group is a group of its own, with a number below zero, which no real group has.
    groups = Counter(
        -1 - gpu.ordinal if gpu.nvlink_group is None else gpu.nvlink_group
        for gpu in pool.gpus
        if states[gpu.ordinal].sign == FREE
    )
    return tuple(sorted(groups.values(), reverse=True))


def _product(pool: PoolGpus) -> str:
    counts = Counter(gpu.product for gpu in pool.gpus)
    if len(counts) < 2:
        kinds = {gpu.kind for gpu in pool.divided}
        without = "MIG devices only" if pool.slices else "vGPUs only" if "vgpus" in kinds else "no GPU"
        return next(iter(counts), without)
    return ", ".join(f"{count} × {name}" for name, count in sorted(counts.items()))
