"""Reads the devices of one node's pool back into GPUs and links: the inverse of dracaena.api.resourceslice.

What does not decode is reported and left out, device by device; the rest of the pool stays usable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, TypeVar

from dracaena.api import attributes as table
from dracaena.api import compact
from dracaena.api.attributes import AttributeSpec, AttributeType
from dracaena.api.links import Link, LinkLevel
from dracaena.api.machine import Gpu
from dracaena.api.names import DeviceName, gpu_device_name
from dracaena.api.passthrough import passthrough_device_name
from dracaena.api.quantity import parse_bytes
from dracaena.api.resource_objects import Device
from dracaena.api.topology import Nic, Topology
from dracaena.api.vgpu import vgpu_identity_in

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DecodedGpu:
    """One GPU of a pool, or one that is passed through to virtual machines (`gpu.uuid` is then its PCI address, because
    its UUID is unknown, and `gpu.index` its ordinal)."""

    name: DeviceName
    ordinal: int
    gpu: Gpu
    driver_version: str | None = None
    """As the driver reports it."""
    cuda_driver_version: str | None = None


@dataclass(frozen=True, slots=True)
class DecodedMig:
    """One MIG device of a pool."""

    name: DeviceName
    uuid: str
    """Empty: the device is made when a claim gets it, and has no UUID before."""
    parent_uuid: str
    """Of a GPU of the same node."""
    profile: str
    memory_bytes: int | None = None
    start: int | None = None
    """Of a device that is made when a claim gets it: the first memory slice of its GPU that it takes, ..."""
    size: int | None = None
    """... and how many."""


@dataclass(frozen=True, slots=True)
class DecodedVgpu:
    """One vGPU of a pool."""

    name: DeviceName
    type_name: str
    """Without the maker's name: `A100-40C`."""
    parent: str
    """PCI address of its GPU."""


@dataclass(frozen=True, slots=True)
class DeviceProblem:
    """A device whose attributes are not those of a device of ours."""

    device: DeviceName
    attribute: str
    seen: str
    expected: str
    skipped: bool = True
    """False: the device stays, and only the named attribute counts as unknown."""

    @property
    def text(self) -> str:
        """The whole problem in one line."""
        return f"device {self.device}, {self.attribute}: {self.seen}, expected {self.expected}"


@dataclass(frozen=True, slots=True)
class DecodedPool:
    """The GPUs and MIG devices of one node, as far as its published devices show them."""

    gpus: tuple[DecodedGpu, ...]
    """In ordinal order."""
    topology: Topology
    """Addressed by ordinal. GPUs whose device is missing count too; what only they could say is unknown. NICs are
    called `nic0`, `nic1`, …: their names are not published."""
    problems: tuple[DeviceProblem, ...]
    mig_devices: tuple[DecodedMig, ...] = ()
    """By name."""
    vgpus: tuple[DecodedVgpu, ...] = ()
    """By name."""
    partitions: tuple[frozenset[int], ...] = ()
    """The sets of GPUs, by ordinal, that Fabric Manager links if one claim has all of a set and nothing else there; in
    the order of their ids, including sets of one GPU. Empty: links do not depend on who has the GPUs."""


def decode_pool(devices: Iterable[Device]) -> DecodedPool:
    """Read all devices of one pool; their order does not matter.

    A device with a missing, mistyped or unknown value is skipped, and so is the later (by name) of two that claim one
    ordinal. If the rows of two devices contradict each other, their pair is unknown and both stay: choosing one of them
    would be a guess, and losing a GPU over it would cost too much. Never raises; cost: O(GPUs²).
    """
    problems: list[DeviceProblem] = []
    rows: list[_Row] = []
    migs: dict[DeviceName, DecodedMig] = {}
    vgpus: dict[DeviceName, DecodedVgpu] = {}
    for device in sorted(devices, key=lambda device: device.name):
        problem = _read(device, rows, migs, vgpus)
        problems += () if problem is None else (problem,)
    rows = _agreeing(rows, problems)
    topology = _topology(rows, problems)
    decoded = tuple(row.decoded for row in rows)
    partitions = _partitions(rows)
    return DecodedPool(decoded, topology, tuple(problems), tuple(migs.values()), tuple(vgpus.values()), partitions)


def device_problem(device: Device) -> DeviceProblem | None:
    """Return why decode_pool() skips a device, whatever else the pool has; None if it does not."""
    return _read(device, [], {}, {})


def _read(
    device: Device,
    rows: list[_Row],
    migs: dict[DeviceName, DecodedMig],
    vgpus: dict[DeviceName, DecodedVgpu],
) -> DeviceProblem | None:
    """Add a device to those of its kind, or return why it cannot be read."""
    try:
        if _value(device, table.TYPE) == table.MIG_TYPE:
            mig = _read_mig(device, migs)
            migs[mig.name] = mig
        elif _value(device, table.TYPE) == table.VGPU_TYPE:
            vgpu = _read_vgpu(device, vgpus)
            vgpus[vgpu.name] = vgpu
        else:
            rows.append(_read_row(device))
    except _UnreadableDeviceError as error:
        return DeviceProblem(DeviceName(device.name), error.attribute, error.seen, error.expected)
    return None


@dataclass(frozen=True, slots=True)
class _Row:
    decoded: DecodedGpu
    numa_node: int | None
    levels: tuple[LinkLevel | None, ...] | None
    """One per GPU of the node, None at its own place; None instead of the tuple: not published."""
    nvlinks: tuple[int | None, ...] | None
    nics: tuple[LinkLevel | None, ...] | None
    partitions: tuple[tuple[int, int], ...] = ()
    """GPUs and Fabric Manager's id of each partition that it is in."""

    @property
    def gpu_count(self) -> int | None:
        row = self.levels if self.levels is not None else self.nvlinks
        return None if row is None else len(row)


MOST_SEEN: Final = 100
"""Letters of a value that a problem repeats."""


class _UnreadableDeviceError(Exception):
    def __init__(self, attribute: str, seen: str, expected: str) -> None:
        self.attribute, self.seen, self.expected = attribute, seen[:MOST_SEEN], expected
        super().__init__(attribute)


def _read_row(device: Device) -> _Row:
    kind = _value(device, table.TYPE)
    if kind not in (table.GPU_TYPE, table.VFIO_TYPE):
        known = f"{table.GPU_TYPE!r}, {table.MIG_TYPE!r}, {table.VFIO_TYPE!r} or {table.VGPU_TYPE!r}"
        raise _UnreadableDeviceError(table.TYPE.name, repr(kind), known)
    is_vfio = kind == table.VFIO_TYPE
    fields: dict[str, Any] = {
        spec.gpu_field: _value(device, spec)
        for spec in (table.VFIO_ATTRIBUTES if is_vfio else table.GPU_ATTRIBUTES)
        if spec.gpu_field is not None
    }
    if is_vfio:
        fields |= _vfio_fields(device)
    elif gpu_device_name(fields["uuid"]) != device.name:
        raise _UnreadableDeviceError(table.UUID.name, repr(fields["uuid"]), "the UUID in the device's name")
    ordinal = _integer(device, table.ORDINAL) or 0
    levels, nvlinks = _compact(device, table.PCIE_LEVELS, ordinal), _compact(device, table.NVLINKS, ordinal)
    if levels is not None and nvlinks is not None and len(levels) != len(nvlinks):
        raise _UnreadableDeviceError(table.NVLINKS.name, f"{len(nvlinks)} entries", f"{len(levels)} as in pcieLevels")
    return _Row(
        decoded=DecodedGpu(
            name=DeviceName(device.name),
            ordinal=ordinal,
            gpu=Gpu(**fields, memory_bytes=_memory_bytes(device)),
            driver_version=_text(device, table.DRIVER_VERSION_TEXT),
            cuda_driver_version=_text(device, table.CUDA_DRIVER_VERSION_TEXT),
        ),
        numa_node=_integer(device, table.NUMA_NODE),
        levels=_levels(table.PCIE_LEVELS, levels),
        nvlinks=nvlinks,
        nics=_levels(table.NIC_LEVELS, _compact(device, table.NIC_LEVELS, None)),
        partitions=tuple(
            (size, found)
            for size, spec in table.PARTITION_SIZES.items()
            for found in [_integer(device, spec)]
            if found is not None
        ),
    )


def _vfio_fields(device: Device) -> dict[str, Any]:
    """Return what stands in for the fields of a GPU that only the NVIDIA driver knows."""
    address = _text(device, table.PCI_BUS_ID) or ""
    if passthrough_device_name(address) != device.name:
        raise _UnreadableDeviceError(table.PCI_BUS_ID.name, repr(address), "the PCI address in the device's name")
    return {"uuid": address, "index": _integer(device, table.ORDINAL) or 0}


def _read_mig(device: Device, taken: Mapping[DeviceName, DecodedMig]) -> DecodedMig:
    name = DeviceName(device.name)
    if name in taken:
        raise _UnreadableDeviceError("name", "a second device of this name", "each name once in a pool")
    start, size = _integer(device, table.PLACEMENT_START), _integer(device, table.PLACEMENT_SIZE)
    if start is None:
        return DecodedMig(
            name=name,
            uuid=_text(device, table.UUID) or "",
            parent_uuid=_text(device, table.PARENT_UUID) or "",
            profile=_text(device, table.PROFILE) or "",
            memory_bytes=_memory_bytes(device),
        )
    left = table.MAX_MEMORY_SLICES - start
    if not size or size > left:
        raise _UnreadableDeviceError(table.PLACEMENT_SIZE.name, repr(size), f"1 to {left} from placementStart {start}")
    return DecodedMig(
        name=name,
        uuid="",
        parent_uuid=_text(device, table.PARENT_UUID) or "",
        profile=_text(device, table.PROFILE) or "",
        memory_bytes=_memory_bytes(device),
        start=start,
        size=size,
    )


def _read_vgpu(device: Device, taken: Mapping[DeviceName, DecodedVgpu]) -> DecodedVgpu:
    name = DeviceName(device.name)
    if name in taken:
        raise _UnreadableDeviceError("name", "a second device of this name", "each name once in a pool")
    spec = table.PCI_BUS_ID if _value(device, table.MDEV_UUID) is None else table.MDEV_UUID
    identity = _text(device, spec)
    if identity is None or identity != vgpu_identity_in(name):
        raise _UnreadableDeviceError(spec.name, repr(identity), "the UUID or PCI address in the device's name")
    return DecodedVgpu(name, _text(device, table.VGPU_TYPE_NAME) or "", _text(device, table.PARENT_PCI_BUS_ID) or "")


def _value(device: Device, spec: AttributeSpec) -> int | str | None:
    attribute = device.attributes.get(spec.name)
    if attribute is None:
        if spec.optional:
            return None
        raise _UnreadableDeviceError(spec.name, "nothing", f"a value of type {spec.type.value}")
    if spec.type is AttributeType.BOOL:
        value: int | str | None = attribute.bool_value
    else:
        value = attribute.int_value if spec.type is AttributeType.INT else attribute.string
    if value is None:
        raise _UnreadableDeviceError(spec.name, "another type", f"a value of type {spec.type.value}")
    if spec.type is AttributeType.INT and isinstance(value, int) and not spec.holds(value):
        raise _UnreadableDeviceError(spec.name, str(value), f"0 to {spec.most}")
    return value


def _integer(device: Device, spec: AttributeSpec) -> int | None:
    value = _value(device, spec)
    return value if isinstance(value, int) else None


def _text(device: Device, spec: AttributeSpec) -> str | None:
    value = _value(device, spec)
    return value if isinstance(value, str) else None


def _memory_bytes(device: Device) -> int | None:
    capacity = device.capacity.get(table.MEMORY_CAPACITY)
    if capacity is None:
        return None
    try:
        count = parse_bytes(capacity.value)
    except ValueError as error:
        raise _UnreadableDeviceError(table.MEMORY_CAPACITY, repr(capacity.value), "a whole number of bytes") from error
    if count > table.MAX_BYTES:
        raise _UnreadableDeviceError(table.MEMORY_CAPACITY, capacity.value, f"at most {table.MAX_BYTES} bytes")
    return count


def _compact(device: Device, spec: AttributeSpec, own: int | None) -> tuple[int | None, ...] | None:
    """Read a compact string; `own` is the place that must hold the device itself, None: no place may."""
    text = _text(device, spec)
    if text is None:
        return None
    try:
        entries = compact.decode(text)
    except compact.CompactError as error:
        raise _UnreadableDeviceError(spec.name, error.seen, error.expected) from error
    places = [place for place, entry in enumerate(entries) if entry == compact.SELF]
    if places != ([] if own is None else [own]):
        expected = f"the device itself at place {own} only" if own is not None else "no entry of the device itself"
        raise _UnreadableDeviceError(spec.name, repr(text), expected)
    return tuple(None if entry == compact.SELF else entry for entry in entries)


def _levels(spec: AttributeSpec, entries: Sequence[int | None] | None) -> tuple[LinkLevel | None, ...] | None:
    if entries is None:
        return None
    try:
        return tuple(compact.level_of_number(entry) for entry in entries)
    except compact.CompactError as error:
        raise _UnreadableDeviceError(spec.name, error.seen, error.expected) from error


def _agreeing(rows: Sequence[_Row], problems: list[DeviceProblem]) -> list[_Row]:
    """Return, in ordinal order, the rows that can be in one pool; report the others."""
    gpu_count = _most_common(row.gpu_count for row in rows)
    nic_count = _most_common(None if row.nics is None else len(row.nics) for row in rows)
    taken: dict[int, _Row] = {}
    for row in rows:
        problem = _misfit(row, gpu_count, nic_count, taken)
        if problem is None:
            taken[row.decoded.ordinal] = row
        else:
            problems.append(problem)
    return [taken[ordinal] for ordinal in sorted(taken)]


def _most_common(lengths: Iterable[int | None]) -> int | None:
    """Return the length that most rows have; of equally common ones the larger, so that no GPU is lost."""
    counts = Counter(length for length in lengths if length is not None)
    return max(counts, key=lambda length: (counts[length], length), default=None)


def _misfit(row: _Row, gpu_count: int | None, nic_count: int | None, taken: dict[int, _Row]) -> DeviceProblem | None:
    device, ordinal = row.decoded.name, row.decoded.ordinal
    if any(other.decoded.name == device for other in taken.values()):
        return DeviceProblem(device, "name", "a second device of this name", "each name once in a pool")
    if row.gpu_count not in (None, gpu_count):
        return DeviceProblem(
            device, table.PCIE_LEVELS.name, f"a row of {row.gpu_count} GPUs", f"{gpu_count} as most devices"
        )
    if gpu_count is not None and ordinal >= gpu_count:
        return DeviceProblem(device, table.ORDINAL.name, str(ordinal), f"below {gpu_count}, the number of GPUs")
    if row.nics is not None and len(row.nics) != nic_count:
        return DeviceProblem(
            device, table.NIC_LEVELS.name, f"a row of {len(row.nics)} NICs", f"{nic_count} as most devices"
        )
    if ordinal in taken:
        other = taken[ordinal].decoded.name
        return DeviceProblem(device, table.ORDINAL.name, str(ordinal), f"another: device {other} has it")
    return None


def _topology(rows: Sequence[_Row], problems: list[DeviceProblem]) -> Topology:
    by_ordinal = {row.decoded.ordinal: row for row in rows}
    count = _most_common(row.gpu_count for row in rows)
    if count is None:
        count = max(by_ordinal, default=-1) + 1
    nics = max((len(row.nics) for row in rows if row.nics is not None), default=0)
    return Topology(
        gpu_count=count,
        pairs=tuple(_pair(by_ordinal, a, b, problems) for a, b in combinations(range(count), 2)),
        numa_nodes=tuple(by_ordinal[n].numa_node if n in by_ordinal else None for n in range(count)),
        nics=tuple(Nic(f"nic{place}", tuple(_nic_column(by_ordinal, count, place))) for place in range(nics)),
    )


def _pair(rows: dict[int, _Row], a: int, b: int, problems: list[DeviceProblem]) -> Link:
    """Join what both sides say about a pair; one side is enough."""
    forth, back = rows.get(a), rows.get(b)
    level = _told(forth.levels if forth else None, b), _told(back.levels if back else None, a)
    nvlinks = _told(forth.nvlinks if forth else None, b), _told(back.nvlinks if back else None, a)
    for spec, (first, second) in ((table.PCIE_LEVELS, level), (table.NVLINKS, nvlinks)):
        if back is not None and None not in (first, second) and first != second:
            seen, expected = f"{_shown(second)} to ordinal {a}", f"{_shown(first)} as ordinal {a} says"
            problems.append(DeviceProblem(back.decoded.name, spec.name, seen, expected, skipped=False))
    return Link(_agreed(*level), _agreed(*nvlinks))


def _shown(value: LinkLevel | int | None) -> str:
    return value.name if isinstance(value, LinkLevel) else f"{value} NVLinks"


def _told(row: Sequence[T | None] | None, place: int) -> T | None:
    return None if row is None else row[place]


def _agreed(first: T | None, second: T | None) -> T | None:
    """Return what either side says; None if they differ."""
    if first is None or second is None:
        return second if first is None else first
    return first if first == second else None


def _partitions(rows: Sequence[_Row]) -> tuple[frozenset[int], ...]:
    """Return the partitions whose GPUs are all published. A GPU that may go to a virtual machine is published twice,
    and no claim has it both ways: those for virtual machines have partitions of their own."""
    found: dict[tuple[int, int, bool], set[int]] = {}
    for row in rows:
        is_vfio = passthrough_device_name(row.decoded.gpu.uuid) == row.decoded.name
        for size, number in row.partitions:
            found.setdefault((number, size, is_vfio), set()).add(row.decoded.ordinal)
    return tuple(frozenset(gpus) for (_, size, _), gpus in sorted(found.items()) if len(gpus) == size)


def _nic_column(rows: dict[int, _Row], count: int, place: int) -> Iterator[LinkLevel | None]:
    for ordinal in range(count):
        row = rows.get(ordinal)
        yield _told(row.nics, place) if row is not None else None
