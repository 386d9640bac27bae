"""A node in one line: what is free there and how it is connected, at a cost that 5,000 nodes allow.

It reads a few attributes of each device. For the links and names of one node use dracaena.api.node_status, which
decodes everything and costs a hundred times as much; where all devices decode, both count the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dracaena.api import attributes as table
from dracaena.api.attributes import MEMORY_CAPACITY, AttributeSpec
from dracaena.api.availability import why_not_given, why_nothing_given
from dracaena.api.device_taints import keeping_off
from dracaena.api.mig import slices_in
from dracaena.api.names import taint_key
from dracaena.api.node_status import DeviceStatus, Held, Holder, few, handed_devices, remarks_of, shown_pages
from dracaena.api.objects import Node, Taint
from dracaena.api.quantity import NANO, parse_quantity
from dracaena.api.resource_objects import Device, ResourceSlice

FREE: Final = "."
"""A pod without tolerations could get it now."""
TAKEN: Final = "#"
"""A claim has all of it."""
PARTS: Final = "+"
"""Claims have parts or shares of it, or it is divided for good, and there is room left."""
FULL: Final = "*"
"""The same without room."""
FAILED: Final = "!"
"""A taint of the driver's own domain keeps new pods off, and no claim has it."""
FAILED_HELD: Final = "%"
"""The same, and a claim still has it."""
CLOSED: Final = "-"
"""No claim has it and none without tolerations gets it, for another reason: a cordoned node, an admin's taint."""
NOT_PUBLISHED: Final = "x"

RACK_LABEL: Final = "topology.kubernetes.io/rack"
"""Label of a Node that names its rack, as cluster managers and kind write it."""

GIB: Final = 1 << 30


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
    fault: str = ""
    """The first taint of the driver's domain that keeps pods off, without that domain: `xid=79`; empty: none does."""
    told: str = ""
    """The same of a taint that only informs."""


class Divided(NamedTuple):
    """A GPU that an admin divided: in most cases only its MIG devices or vGPUs are published."""

    parent: str
    """Its UUID, or its PCI address if it has vGPUs."""
    devices: tuple[str, ...]
    fault: str
    """Of all of them; empty if one has none."""


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
    divided: tuple[Divided, ...] = ()
    slices: Mapping[str, int] = field(default_factory=dict)
    """MIG device or part → its slices, sevenths of a GPU's processors."""
    rack: str = ""
    closed: bool = False
    """Whether the node itself, not a GPU, keeps pods off."""


class Amounts(NamedTuple):
    """How much of a node's GPUs a namespace has, counted as quotas count it."""

    gpus: int = 0
    mig_slices: int = 0
    share_bytes: int = 0


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
    devices: int
    """Whole GPUs, MIG devices and vGPUs that can be had, as PublishedNode.devices has them."""
    free: int
    cells: str
    """One sign per GPU that was bought, by ordinal."""
    open_gpus: tuple[int, ...]
    """Free GPUs that a pod without tolerations could get, counted by NVLink group; those without a group one by one."""
    remarks: tuple[str, ...]
    rack: str = ""
    closed: bool = False
    held: tuple[tuple[str, ...], ...] = ()
    """For each cell the namespaces that have the GPU or parts of it, by name."""
    sick: Mapping[int, str] = field(default_factory=dict)
    """Cell → the fault that keeps pods off, `xid=79`."""
    told: Mapping[int, str] = field(default_factory=dict)
    """Cell → what is reported of a GPU that pods still get."""
    holds: Mapping[str, Amounts] = field(default_factory=dict)
    """By namespace."""
    mig_slices: Room = NO_ROOM
    """Of GPUs that are divided now."""
    share_gib: Room = NO_ROOM
    """Memory of GPUs of which claims have shares."""


def pool_line(driver: str, pages: Sequence[ResourceSlice], node: Node | None) -> PoolLine:
    """Read the slices of one node, at least one. Cost: O(devices)."""
    current = shown_pages(pages)
    gpus: list[GpuPlace] = []
    migs: list[str] = []
    vgpus: list[str] = []
    parts: dict[str, str] = {}
    slices: dict[str, int] = {}
    divided: dict[str, list[Device]] = {}
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
            divided.setdefault(_text(device, table.PARENT_PCI_BUS_ID) or device.name, []).append(device)
        elif kind != table.MIG_TYPE:
            ordinal = _number(device, table.ORDINAL)
            if ordinal is None:
                continue
            gpus.append(_gpu(device, ordinal, driver, is_available=is_available))
            products[_text(device, table.PRODUCT_NAME) or "unknown product"] += 1
        else:
            slices[device.name] = slices_in(_text(device, table.PROFILE) or "")
            parent = _text(device, table.PARENT_UUID) or ""
            if _number(device, table.PLACEMENT_START) is None:
                migs.append(device.name)
                divided.setdefault(parent, []).append(device)
            else:
                parts[device.name] = parent
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
        divided=tuple(_divided(driver, parent, devices) for parent, devices in divided.items()),
        slices=slices,
        rack="" if node is None else node.metadata.labels.get(RACK_LABEL, ""),
        closed=not gives,
    )


def node_line(name: str, pool: PoolLine, held: Held) -> NodeLine:
    """Put together what a node publishes and who has what. Cost: O(devices)."""
    by_gpu = _holders_by_gpu(pool, held)
    cut: dict[str, list[str]] = {}
    for device, uuid in pool.parts.items():
        if (pool.pool, device) in held:
            cut.setdefault(uuid, []).append(device)
    published = {gpu.ordinal: _cell(gpu, by_gpu[gpu.name], _room_of(pool, gpu, cut)) for gpu in pool.gpus}
    cells = _with_divided(published, pool, held)
    whole = sum(gpu.uuid not in cut or bool(held.get((pool.pool, gpu.name))) for gpu in pool.gpus)
    free_migs = sum((pool.pool, one) not in held and one not in pool.unavailable for one in pool.migs)
    signs = {ordinal: cell.sign for ordinal, cell in published.items()}
    missing = _Cell(NOT_PUBLISHED)
    every = [cells.get(ordinal, missing) for ordinal in range(max(cells, default=-1) + 1)]
    return NodeLine(
        name,
        pool.product,
        devices=whole + len(pool.migs) + sum(map(len, cut.values())),
        free=sum(signs[gpu.ordinal] == FREE for gpu in pool.gpus) + free_migs,
        cells="".join(cell.sign for cell in every),
        open_gpus=_open_gpus(pool, signs) if pool.gives else (),
        remarks=pool.remarks,
        rack=pool.rack,
        closed=pool.closed,
        held=tuple(cell.namespaces for cell in every),
        sick={place: cell.fault for place, cell in enumerate(every) if cell.fault},
        told={place: cell.told for place, cell in enumerate(every) if cell.told},
        holds=_holds(pool, held),
        mig_slices=_mig_slices(pool, held, cut),
        share_gib=_share_gib(pool, held),
    )


@dataclass(frozen=True, slots=True)
class _Cell:
    """A GPU that was bought."""

    sign: str
    namespaces: tuple[str, ...] = ()
    fault: str = ""
    told: str = ""


def _holders_by_gpu(pool: PoolLine, held: Held) -> Mapping[str, list[Holder]]:
    """Return who has each published GPU, or a part of it, or the device for virtual machines that it also is."""
    names = {gpu.uuid: gpu.name for gpu in pool.gpus}
    found: dict[str, list[Holder]] = {gpu.name: list(held.get((pool.pool, gpu.name), ())) for gpu in pool.gpus}
    others = [*pool.handed.items(), *((part, names.get(uuid, "")) for part, uuid in pool.parts.items())]
    for device, gpu in others:
        if gpu in found:
            found[gpu] += held.get((pool.pool, device), ())
    return found


def _room_of(pool: PoolLine, gpu: GpuPlace, cut: Mapping[str, Sequence[str]]) -> int | None:
    """Return the slices that are left of a GPU that is cut into parts; None: it is not cut."""
    if gpu.uuid not in cut:
        return None
    return _largest(pool, gpu.uuid) - sum(pool.slices.get(part, 0) for part in cut[gpu.uuid])


def _largest(pool: PoolLine, uuid: str) -> int:
    """Return how many slices a GPU has that is cut on demand: those of its largest profile."""
    return max((pool.slices.get(part, 0) for part, parent in pool.parts.items() if parent == uuid), default=0)


def _cell(gpu: GpuPlace, holders: Sequence[Holder], room: int | None) -> _Cell:
    return _Cell(_sign(gpu, holders, room), _namespaces(holders), gpu.fault, gpu.told)


def _sign(gpu: GpuPlace, holders: Sequence[Holder], room: int | None) -> str:
    if gpu.fault:
        return FAILED_HELD if holders else FAILED
    if room is not None:
        return PARTS if room > 0 else FULL
    if not holders:
        return FREE if gpu.is_available else CLOSED
    shares = DeviceStatus(gpu.name, tuple(holders), capacity=gpu.capacity).shares
    if not shares:
        return TAKEN
    taken = sum(_bytes(one.consumed) for one in shares)
    return FULL if taken >= _bytes(gpu.capacity) > 0 else PARTS


def _namespaces(holders: Iterable[Holder]) -> tuple[str, ...]:
    return tuple(sorted({holder.claim.partition("/")[0] for holder in holders}))


def _with_divided(cells: Mapping[int, _Cell], pool: PoolLine, held: Held) -> Mapping[int, _Cell]:
    """Add the GPUs that are published as MIG devices or vGPUs. Where the GPU itself is not published, no slice says
    which ordinal it has: it takes one that no other GPU has, or the next one."""
    found = dict(cells)
    ordinals = {gpu.uuid: gpu.ordinal for gpu in pool.gpus}
    spare = (place for place in range(len(cells) + len(pool.divided)) if place not in cells)
    for gpu in pool.divided:
        place = ordinals[gpu.parent] if gpu.parent in ordinals else next(spare)
        holders = [holder for device in gpu.devices for holder in held.get((pool.pool, device), ())]
        has_room = any((pool.pool, one) not in held and one not in pool.unavailable for one in gpu.devices)
        failed = FAILED_HELD if holders else FAILED
        sign = failed if gpu.fault else PARTS if has_room else FULL if holders else CLOSED
        found[place] = _Cell(sign, _namespaces(holders), gpu.fault)
    return found


def _holds(pool: PoolLine, held: Held) -> Mapping[str, Amounts]:
    found: dict[str, list[int]] = {}
    shared = {gpu.name: gpu for gpu in pool.gpus if gpu.capacity}
    devices = (*(gpu.name for gpu in pool.gpus), *pool.handed, *pool.migs, *pool.parts)
    for device in devices:
        holders = held.get((pool.pool, device), ())
        parts = (
            DeviceStatus(device, tuple(holders), capacity=shared[device].capacity).shares if device in shared else ()
        )
        for holder in holders:
            sums = found.setdefault(holder.claim.partition("/")[0], [0, 0, 0])
            if device in pool.slices:
                sums[1] += pool.slices[device]
            elif holder in parts:
                sums[2] += _bytes(holder.consumed)
            else:
                sums[0] += 1
    return {namespace: Amounts(*sums) for namespace, sums in sorted(found.items())}


def _mig_slices(pool: PoolLine, held: Held, cut: Mapping[str, Sequence[str]]) -> Room:
    total = sum(pool.slices.get(device, 0) for device in pool.migs) + sum(_largest(pool, uuid) for uuid in cut)
    had = sum(count for device, count in pool.slices.items() if (pool.pool, device) in held)
    closed = sum(pool.slices.get(one, 0) for one in pool.unavailable if (pool.pool, one) not in held)
    return Room(max(total - had - closed, 0), total)


def _share_gib(pool: PoolLine, held: Held) -> Room:
    total = had = 0
    for gpu in pool.gpus:
        holders = tuple(held.get((pool.pool, gpu.name), ()))
        shares = DeviceStatus(gpu.name, holders, capacity=gpu.capacity).shares if gpu.capacity else ()
        if shares:
            total += _bytes(gpu.capacity)
            had += _bytes(gpu.capacity) if gpu.fault else sum(_bytes(one.consumed) for one in shares)
    return Room(max(total - had, 0) // GIB, total // GIB)


def _bytes(amounts: Mapping[str, str] | None) -> int:
    try:
        return parse_quantity((amounts or {}).get(MEMORY_CAPACITY, "0")).nano // NANO
    except ValueError:
        return 0


def _open_gpus(pool: PoolLine, signs: Mapping[int, str]) -> tuple[int, ...]:
    # A GPU of no known group is a group of its own, with a number below zero, which no real group has.
    groups = Counter(
        -1 - gpu.ordinal if gpu.nvlink_group is None else gpu.nvlink_group
        for gpu in pool.gpus
        if gpu.is_open and signs[gpu.ordinal] == FREE
    )
    return tuple(sorted(groups.values(), reverse=True))


def _gpu(device: Device, ordinal: int, driver: str, *, is_available: bool) -> GpuPlace:
    is_ours = any(taint.key == taint_key(driver) for taint in keeping_off(device.taints))
    shared = device.allow_multiple_allocations
    return GpuPlace(
        device.name,
        _text(device, table.UUID) or "",
        ordinal,
        _number(device, table.NVLINK_GROUP),
        is_open=is_ours and _text(device, table.TYPE) != table.VFIO_TYPE,
        is_available=is_available,
        capacity={name: capacity.value for name, capacity in device.capacity.items()} if shared else {},
        fault=next(_own(driver, keeping_off(device.taints)), ""),
        told=next(_own(driver, (taint for taint in device.taints if taint not in [*keeping_off(device.taints)])), ""),
    )


def _divided(driver: str, parent: str, devices: Sequence[Device]) -> Divided:
    faults = [next(_own(driver, keeping_off(device.taints)), "") for device in devices]
    return Divided(parent, tuple(device.name for device in devices), faults[0] if all(faults) else "")


def _own(driver: str, taints: Iterable[Taint]) -> Iterator[str]:
    """Yield the taints of the driver's domain but the controller's, without the domain: `xid=79`, `gpu-lost`."""
    domain = f"{driver}/"
    for taint in taints:
        if taint.key.startswith(domain) and taint.key != taint_key(driver):
            name = taint.key.removeprefix(domain)
            yield f"{name}={taint.value}" if taint.value and taint.value != "true" else name


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
