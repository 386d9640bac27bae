"""A node in one line: what is free there and how it is connected, at a cost that 5,000 nodes allow.

It reads a few attributes of each device. For the links and names of one node use dracaena.api.node_status, which
decodes everything and costs a hundred times as much; where all devices decode, both count the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dracaena.api import attributes as table
from dracaena.api.attributes import AttributeSpec
from dracaena.api.availability import why_not_given, why_nothing_given
from dracaena.api.device_taints import keeping_off
from dracaena.api.names import taint_key
from dracaena.api.node_status import DeviceStatus, Held, Holder, few, handed_devices, remarks_of, shown_pages
from dracaena.api.objects import Node
from dracaena.api.resource_objects import Device, ResourceSlice

FREE: Final = "."
SHARED: Final = "+"
"""A GPU of which a claim has a part or a share."""
TAKEN: Final = "#"
UNAVAILABLE: Final = "!"
"""Nobody has it, and no claim without tolerations gets it."""
NOT_PUBLISHED: Final = "x"


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """A whole GPU that is published."""

    name: str
    uuid: str
    ordinal: int
    nvlink_group: int | None
    """The same number for GPUs that NVLinks connect; None: unknown."""
    is_open: bool
    """Whether the controller gives it to pods that ask for GPUs: it has our taint, and is not for virtual machines."""
    is_available: bool
    """Whether a claim without tolerations may get it (api.availability)."""
    capacity: Mapping[str, str] = field(default_factory=dict)
    """Of a GPU that is given in shares."""


@dataclass(frozen=True, slots=True)
class PoolLine:
    """What a node publishes. It depends only on slices and the Node, so it is made again only when these change."""

    pool: str
    product: str
    gpus: tuple[GpuPlace, ...]
    """By ordinal."""
    migs: tuple[str, ...]
    """Names of the MIG devices that exist, then those of vGPUs."""
    unavailable: frozenset[str]
    """Those of them that no claim without tolerations gets."""
    parts: Mapping[str, str]
    """Device that a GPU is cut into on demand → UUID of that GPU."""
    remarks: tuple[str, ...]
    gives: bool
    """Whether claims may get anything of the node now (why_nothing_given)."""
    handed: Mapping[str, str] = field(default_factory=dict)
    """Device for virtual machines → the device of `gpus` that is the same GPU."""


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A node in one line."""

    name: str
    product: str
    devices: int
    """Whole GPUs, MIG devices and vGPUs that can be had, as PublishedNode.devices has them."""
    free: int
    cells: str
    """One sign per GPU, by ordinal: FREE, SHARED, TAKEN, UNAVAILABLE or NOT_PUBLISHED."""
    mig_cells: str
    """The same for MIG devices, then vGPUs, by name."""
    open_gpus: tuple[int, ...]
    """Free GPUs that a pod without tolerations could get, counted by NVLink group; those without a group one by one."""
    remarks: tuple[str, ...]


def pool_line(driver: str, pages: Sequence[ResourceSlice], node: Node | None) -> PoolLine:
    """Read the slices of one node, at least one. Cost: O(devices)."""
    current = shown_pages(pages)
    gpus: list[GpuPlace] = []
    migs: list[str] = []
    vgpus: list[str] = []
    parts: dict[str, str] = {}
    gives = not any(why_nothing_given(pages, node))
    unavailable = set()
    products: Counter[str] = Counter()
    handed = handed_devices(current)
    for device in (device for page in current for device in page.spec.devices if device.name not in handed):
        kind = _text(device, table.TYPE)
        is_available = gives and not why_not_given(driver, device)
        if not is_available:
            unavailable.add(device.name)
        if kind == table.VGPU_TYPE:
            vgpus.append(device.name)
        elif kind != table.MIG_TYPE:
            ordinal = _number(device, table.ORDINAL)
            if ordinal is None:
                continue
            gpus.append(_gpu(device, ordinal, taint_key(driver), is_available=is_available))
            products[_text(device, table.PRODUCT_NAME) or "unknown product"] += 1
        elif _number(device, table.PLACEMENT_START) is None:
            migs.append(device.name)
        else:
            parts[device.name] = _text(device, table.PARENT_UUID) or ""
    return PoolLine(
        current[0].spec.pool.name,
        _product(products, "MIG devices only" if migs or parts else "vGPUs only" if vgpus else "no GPU"),
        tuple(sorted(gpus, key=lambda gpu: (gpu.ordinal, gpu.name))),
        (*sorted(migs), *sorted(vgpus)),
        frozenset(unavailable.intersection((*migs, *vgpus))),
        parts,
        few(tuple(remarks_of(driver, pages, node))),
        gives=gives,
        handed=handed,
    )


def node_line(name: str, pool: PoolLine, held: Held) -> NodeLine:
    """Put together what a node publishes and who has what. Cost: O(devices)."""
    had_parts = {device: uuid for device, uuid in pool.parts.items() if (pool.pool, device) in held}
    cut = set(had_parts.values())
    given = {whole for device, whole in pool.handed.items() if (pool.pool, device) in held}
    signs = {
        gpu.ordinal: TAKEN if gpu.name in given else _sign(gpu, held.get((pool.pool, gpu.name), ()), cut)
        for gpu in pool.gpus
    }
    whole = sum(gpu.uuid not in cut or bool(held.get((pool.pool, gpu.name))) for gpu in pool.gpus)
    mig_cells = "".join(
        TAKEN if (pool.pool, device) in held else UNAVAILABLE if device in pool.unavailable else FREE
        for device in pool.migs
    )
    return NodeLine(
        name,
        pool.product,
        devices=whole + len(pool.migs) + len(had_parts),
        free=[*signs.values()].count(FREE) + mig_cells.count(FREE),
        cells="".join(signs.get(ordinal, NOT_PUBLISHED) for ordinal in range(max(signs, default=-1) + 1)),
        mig_cells=mig_cells,
        open_gpus=_open_gpus(pool, signs) if pool.gives else (),
        remarks=pool.remarks,
    )


def _sign(gpu: GpuPlace, holders: Sequence[Holder], cut: set[str]) -> str:
    if gpu.uuid in cut:
        return SHARED
    if not holders:
        return FREE if gpu.is_available else UNAVAILABLE
    return SHARED if DeviceStatus(gpu.name, tuple(holders), capacity=gpu.capacity).shares else TAKEN


def _open_gpus(pool: PoolLine, signs: Mapping[int, str]) -> tuple[int, ...]:
    # A GPU of no known group is a group of its own, with a number below zero, which no real group has.
    groups = Counter(
        -1 - gpu.ordinal if gpu.nvlink_group is None else gpu.nvlink_group
        for gpu in pool.gpus
        if gpu.is_open and signs[gpu.ordinal] == FREE
    )
    return tuple(sorted(groups.values(), reverse=True))


def _gpu(device: Device, ordinal: int, own_taint: str, *, is_available: bool) -> GpuPlace:
    is_ours = any(taint.key == own_taint for taint in keeping_off(device.taints))
    shared = device.allow_multiple_allocations
    return GpuPlace(
        device.name,
        _text(device, table.UUID) or "",
        ordinal,
        _number(device, table.NVLINK_GROUP),
        is_open=is_ours and _text(device, table.TYPE) != table.VFIO_TYPE,
        is_available=is_available,
        capacity={name: capacity.value for name, capacity in device.capacity.items()} if shared else {},
    )


def _product(products: Mapping[str, int], without_gpus: str) -> str:
    if len(products) < 2:
        return next(iter(products), without_gpus)
    return ", ".join(f"{count} × {name}" for name, count in sorted(products.items()))


def _text(device: Device, spec: AttributeSpec) -> str | None:
    attribute = device.attributes.get(spec.name)
    return None if attribute is None else attribute.string


def _number(device: Device, spec: AttributeSpec) -> int | None:
    attribute = device.attributes.get(spec.name)
    number = None if attribute is None else attribute.int_value
    return number if number is not None and spec.holds(number) else None
