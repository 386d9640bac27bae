"""What each GPU that was bought is now: free, partly free, used, or not given to any pod, and why.

`dracaena status`, its JSON, the page and the metrics all count these states. A GPU that is cut into parts, divided by
an admin or shared is one GPU with parts. It reads a few attributes of each device, so 5,000 nodes cost little.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

from dracaena.api import attributes as table
from dracaena.api.attributes import MEMORY_CAPACITY, AttributeSpec
from dracaena.api.availability import shown_pages, why_not_given, why_nothing_given
from dracaena.api.confidential import cc_mode_label
from dracaena.api.device_taints import in_words, keeping_off
from dracaena.api.holders import Held, Holder, shares_of
from dracaena.api.mig import slices_in
from dracaena.api.mig_geometry import COMPUTE_SLICES, MEMORY_SLICE
from dracaena.api.names import mig_layout_key, taint_key, vgpu_layout_key
from dracaena.api.objects import Node, Taint
from dracaena.api.passthrough import pci_bus_id_in
from dracaena.api.quantity import NANO, parse_quantity
from dracaena.api.resource_objects import Device, ResourceSlice

FREE: Final = "."
"""A pod that asks for GPUs and has no tolerations could get it now."""
VIRTUAL: Final = "v"
"""The same for a virtual machine; the GPU is published for those alone."""
PARTS: Final = "+"
"""Claims have parts or shares of it, or it is divided for good, and a pod could get more of it now."""
TAKEN: Final = "#"
"""A claim has all of it."""
FULL: Final = "*"
"""Claims have parts or shares of it, and no pod gets more."""
FAILED: Final = "!"
"""A fault keeps new pods off, and no claim has it."""
FAILED_HELD: Final = "%"
"""The same, and a claim still has it or a part of it."""
CLOSED: Final = "-"
"""No claim has it, and no pod without tolerations gets it, for another reason: a cordoned node, an admin's taint, a
layout that is being changed, no taint of ours."""
NOT_PUBLISHED: Final = "x"

STATES: Final[Mapping[str, str]] = {
    "free": FREE,
    "vm": VIRTUAL,
    "partial": PARTS,
    "used": TAKEN + FULL,
    "failed": FAILED + FAILED_HELD,
    "closed": CLOSED,
    "unpublished": NOT_PUBLISHED,
}
"""Name of a state in JSON and metrics → its signs. Each sign is of one state."""

OF_NOBODY: Final = "MIG instances that no claim made have it"
"""Why nothing more of a GPU is given."""

MOST_PLACES: Final = 32
"""Memory slices of a GPU that are looked at; the largest has 8."""

_MIB: Final = 1 << 20


class Parts(NamedTuple):
    """What became of a GPU that is given in parts."""

    kind: str
    """`parts` that claims have of a GPU that is cut on demand, `migDevices` or `vgpus` into which an admin divided it,
    or `shares`."""
    made: int
    """How many of them there are."""
    free: int
    """What pods could still get now, in `unit`."""
    total: int
    unit: str
    """`slices` (sevenths of its processors), `vgpus` or `MiB`."""

    def __str__(self) -> str:
        one, many = _KINDS[self.kind]
        made = f"{self.made} {one if self.made == 1 else many}"
        if self.unit == "MiB":
            return f"{made}, {_gib(self.free)} of {_gib(self.total)} GiB free"
        return f"{made}, {self.free} of {self.total} {_KINDS.get(self.unit, ('', self.unit))[1]} free"


_KINDS: Final = {
    "parts": ("part", "parts"),
    "migDevices": ("MIG device", "MIG devices"),
    "vgpus": ("vGPU", "vGPUs"),
    "shares": ("share", "shares"),
}


def _gib(mib: int) -> str:
    return f"{mib / 1024:.1f}".removesuffix(".0")


@dataclass(frozen=True, slots=True)
class GpuState:
    """A GPU that was bought, as it is now."""

    sign: str
    device: str = ""
    """Name of the device that is all of it; empty if none is published."""
    uuid: str = ""
    """For a GPU that is published as vGPUs alone, its PCI address."""
    holders: tuple[Holder, ...] = ()
    """Who has it, or parts of it."""
    why: str = ""
    """Why no pod without tolerations gets it, or more of it; empty if one may."""
    taints: tuple[Taint, ...] = ()
    """All but ours."""
    fault: str = ""
    """The first taint with a fault that keeps pods off, without the driver's domain: `xid=79`; empty: there is none."""
    told: str = ""
    """The same of a taint that only informs."""
    parts: Parts | None = None

    @property
    def name(self) -> str:
        """Its name in STATES."""
        return _NAMES[self.sign]


_NAMES: Final = {sign: name for name, signs in STATES.items() for sign in signs}


def gpu_sums(signs: Iterable[str]) -> dict[str, int]:
    """Return how many GPUs there are, as `gpus`, and how many of each state."""
    counts = Counter(sign for some in signs for sign in some)
    return {"gpus": counts.total(), **{name: sum(counts[sign] for sign in of) for name, of in STATES.items()}}


def sums_in_words(states: Sequence[GpuState]) -> str:
    """Return what gpu_sums() counts in words, with what is left of those that are partly free and which faults there
    are: `8 GPUs: 4 free, 1 partly free (2 parts, 3 of 7 slices free), 3 used`."""
    sums = gpu_sums(state.sign for state in states)
    more = {
        "partial": ", ".join(map(str, _together(state.parts for state in states if state.sign == PARTS))),
        "failed": ", ".join(f"{count} × {fault}" for fault, count in _faults(states)),
    }
    said = [f"{sums['free']} free"]
    for name, words in _IN_WORDS.items():
        if sums[name]:
            said.append(f"{sums[name]} {words}{f' ({more[name]})' if more.get(name) else ''}")
    return f"{sums['gpus']} GPU{'' if sums['gpus'] == 1 else 's'}: {', '.join(said)}"


_IN_WORDS: Final = {
    "vm": "free for virtual machines",
    "partial": "partly free",
    "used": "used",
    "failed": "failed",
    "closed": "closed to pods",
    "unpublished": "not published",
}


def _together(parts: Iterable[Parts | None]) -> Iterator[Parts]:
    """Yield one sum for each kind, in the order of their first."""
    found: dict[tuple[str, str], list[Parts]] = {}
    for one in parts:
        if one is not None:
            found.setdefault((one.kind, one.unit), []).append(one)
    for (kind, unit), some in found.items():
        made, free, total = (sum(each) for each in zip(*(one[1:4] for one in some), strict=True))
        yield Parts(kind, made, free, total, unit)


def _faults(states: Iterable[GpuState]) -> list[tuple[str, int]]:
    counts = Counter(state.fault for state in states if state.fault)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def state_in_words(state: GpuState) -> str:
    """Return what a GPU is, without who has it: `free`, `failed: taint gpu.dracaena.dev/xid=79:NoSchedule`. Empty if
    there is nothing but that to say."""
    told = [in_words(taint) for taint in state.taints if taint not in [*keeping_off(state.taints)]]
    return "; ".join((*_words(state), *([f"reported: {', '.join(told)}"] if told else [])))


def _words(state: GpuState) -> Iterator[str]:
    if state.sign in FREE + VIRTUAL + NOT_PUBLISHED:
        yield "not published" if state.sign == NOT_PUBLISHED else "free"
    if state.parts is not None and state.parts.kind != "shares":
        yield f"cut into {state.parts}"
    if state.fault:
        off = [in_words(taint) for taint in keeping_off(state.taints)]
        yield f"failed: taint {', '.join(off)}"
    elif state.why and state.sign != TAKEN:
        yield f"closed to pods: {state.why}"
    elif state.why:
        yield f"no other pod gets it: {state.why}"


@dataclass(frozen=True, slots=True)
class PublishedGpu:
    """A GPU that is published as a whole."""

    name: str
    uuid: str
    ordinal: int
    nvlink_group: int | None
    """The same number for GPUs that NVLinks connect; None: unknown."""
    product: str
    is_virtual: bool
    """Whether it is for virtual machines alone."""
    why: str
    """GpuState.why."""
    taints: tuple[Taint, ...] = ()
    fault: str = ""
    told: str = ""
    capacity: Mapping[str, str] = field(default_factory=dict)
    """Of a GPU that is given in shares."""


class _Part(NamedTuple):
    """A device that a GPU is cut into on demand."""

    name: str
    places: int
    """Mask of its memory slices."""
    slices: int


class Divided(NamedTuple):
    """A GPU of which only parts are published: an admin divided it, or it is never given whole."""

    parent: str
    """Its UUID, or its PCI address if it has vGPUs."""
    kind: str
    """As of Parts."""
    devices: tuple[str, ...]
    taints: tuple[Taint, ...]
    """Of any of them."""
    fault: str
    """Of all of them; empty if one has none."""
    told: str


@dataclass(frozen=True, slots=True)
class PoolGpus:
    """The GPUs that a node publishes. It depends only on slices and the Node."""

    pool: str
    gpus: tuple[PublishedGpu, ...]
    """By ordinal."""
    divided: tuple[Divided, ...]
    parts: Mapping[str, tuple[_Part, ...]]
    """UUID of a GPU → what it is cut into on demand."""
    slices: Mapping[str, int]
    """MIG device or part → its slices, sevenths of a GPU's processors."""
    why_not: Mapping[str, str]
    """MIG device, vGPU or part → why no pod without tolerations gets it."""
    handed: Mapping[str, str]
    """Device for virtual machines → the device of `gpus` that is the same GPU."""
    of_nobody: Mapping[str, _Part]
    """UUID of a GPU that is cut on demand → what MIG instances that no claim made have of it, if they have any."""


def pool_gpus(driver: str, pages: Sequence[ResourceSlice], node: Node | None) -> PoolGpus:
    """Read the slices of one node, at least one, with the taints of DeviceTaintRules. Cost: O(devices)."""
    current = shown_pages(pages)
    nothing_given = next(why_nothing_given(pages, node), "")
    gpus: list[PublishedGpu] = []
    parts: dict[str, list[_Part]] = {}
    cut: dict[str, list[Device]] = {}
    slices: dict[str, int] = {}
    why_not: dict[str, str] = {}
    divided: dict[tuple[str, str], list[Device]] = {}
    parents: dict[str, str] = {}
    handed = handed_devices(current)
    for device in (device for page in current for device in page.spec.devices if device.name not in handed):
        kind = _text(device, table.TYPE)
        why = nothing_given or why_not_given(driver, device)
        if kind not in (table.VGPU_TYPE, table.MIG_TYPE):
            ordinal = _number(device, table.ORDINAL)
            if ordinal is not None:
                gpus.append(_gpu(driver, device, ordinal, why))
            continue
        if why:
            why_not[device.name] = why
        if kind == table.VGPU_TYPE:
            divided.setdefault(("vgpus", _text(device, table.PARENT_PCI_BUS_ID) or device.name), []).append(device)
            continue
        slices[device.name] = slices_in(_text(device, table.PROFILE) or "")
        parent, start = _text(device, table.PARENT_UUID) or "", _number(device, table.PLACEMENT_START)
        if start is None:
            divided.setdefault(("migDevices", parent), []).append(device)
        else:
            places = ((1 << (_number(device, table.PLACEMENT_SIZE) or 0)) - 1) << start
            parts.setdefault(parent, []).append(_Part(device.name, places, slices[device.name]))
            parents |= {one.counter_set: parent for one in device.consumes_counters}
            cut.setdefault(parent, []).append(device)
    whole = {gpu.uuid for gpu in gpus}
    divided |= {("parts", parent): devices for parent, devices in cut.items() if parent not in whole}
    return PoolGpus(
        current[0].spec.pool.name,
        tuple(sorted(gpus, key=lambda gpu: (gpu.ordinal, gpu.name))),
        tuple(_divided(driver, *whose, devices) for whose, devices in divided.items()),
        {parent: tuple(some) for parent, some in parts.items()},
        slices,
        why_not,
        handed,
        dict(_of_nobody(current, {name: (parent, parts[parent]) for name, parent in parents.items()})),
    )


def _of_nobody(
    current: Sequence[ResourceSlice], cut: Mapping[str, tuple[str, Sequence[_Part]]]
) -> Iterator[tuple[str, _Part]]:
    """Yield the UUIDs of GPUs with what their counters lack: the plugin deducts from them what MIG instances have that
    no claim made. `cut`: name of a counter set → the UUID of its GPU, and what that is cut into."""
    for one in (one for page in current for one in page.spec.shared_counters if one.name in cut):
        parent, parts = cut[one.name]
        gone = {name.removeprefix(MEMORY_SLICE) for name, counter in one.counters.items() if counter.value == "0"}
        places = sum(1 << place for place in range(MOST_PLACES) if str(place) in gone)
        left = {name: counter.value for name, counter in one.counters.items()}
        slices = (
            max(part.slices for part in parts) - whole_amount(left, COMPUTE_SLICES) if COMPUTE_SLICES in left else 0
        )
        if places or slices > 0:
            yield parent, _Part("", places, slices)


def gpu_states(pool: PoolGpus, held: Held) -> tuple[GpuState, ...]:
    """Return the state of each GPU of a node, by ordinal. Cost: O(devices).

    Where a divided GPU itself is not published, no slice says which ordinal it has: it takes one that no other GPU has,
    or the next one.
    """
    twins: dict[str, list[str]] = {}
    for device, whole in pool.handed.items():
        twins.setdefault(whole, []).append(device)
    found = {gpu.ordinal: _whole(pool, gpu, held, twins.get(gpu.name, ())) for gpu in pool.gpus}
    ordinals = {gpu.uuid: gpu.ordinal for gpu in pool.gpus}
    spare = iter([place for place in range(len(found) + len(pool.divided)) if place not in found])
    for gpu in pool.divided:
        place = ordinals[gpu.parent] if gpu.parent in ordinals else next(spare)
        found[place] = _of_divided(pool, gpu, held)
    missing = GpuState(NOT_PUBLISHED)
    return tuple(found.get(place, missing) for place in range(max(found, default=-1) + 1))


def _whole(pool: PoolGpus, gpu: PublishedGpu, held: Held, twins: Iterable[str]) -> GpuState:
    cut = [part for part in pool.parts.get(gpu.uuid, ()) if (pool.pool, part.name) in held]
    names = (gpu.name, *twins, *(part.name for part in cut))
    holders = tuple(holder for name in names for holder in held.get((pool.pool, name), ()))
    is_cut = cut or (gpu.uuid in pool.of_nobody and not holders)
    parts = _cut(pool, gpu.uuid, cut) if is_cut else _shared(gpu, holders) if gpu.capacity else None
    if gpu.fault:
        sign = FAILED_HELD if holders else FAILED
    elif parts is not None:
        sign = PARTS if parts.free else FULL if holders else CLOSED
    elif holders:
        sign = TAKEN
    else:
        sign = CLOSED if gpu.why else VIRTUAL if gpu.is_virtual else FREE
    why = gpu.why or (OF_NOBODY if sign == CLOSED else "")
    return GpuState(sign, gpu.name, gpu.uuid, holders, why, gpu.taints, gpu.fault, gpu.told, parts)


def _cut(pool: PoolGpus, uuid: str, cut: Sequence[_Part]) -> Parts:
    """Return what is left of a GPU that is cut on demand: nothing if no part fits beside what claims and others have,
    which counts as one part more."""
    every = pool.parts[uuid]
    there = [*cut, *([pool.of_nobody[uuid]] if uuid in pool.of_nobody else [])]
    total = max(part.slices for part in every)
    left = max(total - sum(part.slices for part in there), 0)
    taken = reduce(or_, (part.places for part in there), 0)
    fits = any(part.slices <= left and not part.places & taken and part.name not in pool.why_not for part in every)
    return Parts("parts", len(there), left if fits else 0, total, "slices")


def _shared(gpu: PublishedGpu, holders: Sequence[Holder]) -> Parts | None:
    shares = shares_of(holders, gpu.capacity)
    if not shares:
        return None
    total = whole_amount(gpu.capacity, MEMORY_CAPACITY)
    left = 0 if gpu.why else max(total - sum(whole_amount(one.consumed or {}, MEMORY_CAPACITY) for one in shares), 0)
    return Parts("shares", len(shares), left // _MIB, total // _MIB, "MiB")


def _of_divided(pool: PoolGpus, gpu: Divided, held: Held) -> GpuState:
    holders = tuple(holder for device in gpu.devices for holder in held.get((pool.pool, device), ()))
    if gpu.kind == "parts":
        parts = _cut(pool, gpu.parent, [part for part in pool.parts[gpu.parent] if (pool.pool, part.name) in held])
    else:
        parts = _made(pool, gpu, held)
    of_nobody = OF_NOBODY if gpu.parent in pool.of_nobody and not holders else ""
    why = "" if parts.free else next((pool.why_not[one] for one in gpu.devices if one in pool.why_not), of_nobody)
    failed = FAILED_HELD if holders else FAILED
    sign = failed if gpu.fault else PARTS if parts.free else FULL if holders else CLOSED
    return GpuState(sign, "", gpu.parent, holders, why, gpu.taints, gpu.fault, gpu.told, parts)


def _made(pool: PoolGpus, gpu: Divided, held: Held) -> Parts:
    """Return what is left of the MIG devices or vGPUs into which an admin divided a GPU."""
    is_mig = gpu.kind == "migDevices"
    sizes = {device: pool.slices[device] if is_mig else 1 for device in gpu.devices}
    free = sum(sizes[one] for one in sizes if (pool.pool, one) not in held and one not in pool.why_not)
    return Parts(gpu.kind, len(sizes), free, sum(sizes.values()), "slices" if is_mig else "vgpus")


def handed_devices(current: Sequence[ResourceSlice]) -> Mapping[str, str]:
    """Return the devices for virtual machines that are the same GPU as another device: both draw on the counter set
    with the name of the GPU's device."""
    devices = [device for page in current for device in page.spec.devices]
    sets = {
        device.name: device.consumes_counters[0].counter_set
        for device in devices
        if device.consumes_counters and pci_bus_id_in(device.name) is not None
    }
    names = {device.name for device in devices} if sets else set()
    return {device: counter_set for device, counter_set in sets.items() if counter_set in names}


def _gpu(driver: str, device: Device, ordinal: int, why: str) -> PublishedGpu:
    taints = tuple(taint for taint in device.taints if taint.key != taint_key(driver))
    shared = device.allow_multiple_allocations
    return PublishedGpu(
        device.name,
        _text(device, table.UUID) or "",
        ordinal,
        _number(device, table.NVLINK_GROUP),
        _text(device, table.PRODUCT_NAME) or "unknown product",
        _text(device, table.TYPE) == table.VFIO_TYPE,
        why,
        taints,
        _fault(driver, taints),
        _told(driver, taints),
        {name: capacity.value for name, capacity in device.capacity.items()} if shared else {},
    )


def _divided(driver: str, kind: str, parent: str, devices: Sequence[Device]) -> Divided:
    every = (taint for device in devices for taint in device.taints if taint.key != taint_key(driver))
    taints = tuple({in_words(taint): taint for taint in every}.values())
    faults = [_fault(driver, device.taints) for device in devices]
    names = tuple(device.name for device in devices)
    return Divided(parent, kind, names, taints, faults[0] if all(faults) else "", _told(driver, taints))


_NO_FAULT: Final = frozenset({"confidential", "driver-released", "fabric=in-progress", "fabric-partition"})
"""What the plugin says below the driver's domain about GPUs that are not broken, although no pod gets them now."""


def _fault(driver: str, taints: Iterable[Taint]) -> str:
    """Return the first fault that keeps pods off. A GPU whose layout or mode is being changed is not broken."""
    withheld = {mig_layout_key(driver), vgpu_layout_key(driver), cc_mode_label(driver)}
    own = _own(driver, (taint for taint in keeping_off(taints) if taint.key not in withheld))
    return next((each for each in own if each not in _NO_FAULT and each.partition("=")[0] not in _NO_FAULT), "")


def _told(driver: str, taints: Sequence[Taint]) -> str:
    off = [*keeping_off(taints)]
    return next(_own(driver, (taint for taint in taints if taint not in off)), "")


def _own(driver: str, taints: Iterable[Taint]) -> Iterator[str]:
    """Yield the taints of the driver's domain but the controller's, without the domain: `xid=79`, `gpu-lost`."""
    domain = f"{driver}/"
    for taint in taints:
        if taint.key.startswith(domain) and taint.key != taint_key(driver):
            name = taint.key.removeprefix(domain)
            yield f"{name}={taint.value}" if taint.value and taint.value != "true" else name


def whole_amount(amounts: Mapping[str, str], name: str) -> int:
    """Return one of several amounts of capacities, memory in bytes; 0 if it is not there or cannot be read."""
    try:
        return parse_quantity(amounts.get(name, "0")).nano // NANO
    except ValueError:
        return 0


def _text(device: Device, spec: AttributeSpec) -> str | None:
    attribute = device.attributes.get(spec.name)
    return None if attribute is None else attribute.string


def _number(device: Device, spec: AttributeSpec) -> int | None:
    attribute = device.attributes.get(spec.name)
    number = None if attribute is None else attribute.int_value
    return number if number is not None and spec.holds(number) else None
