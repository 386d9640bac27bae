"""The GPUs of a cluster node by node, and who has them, from the lists of the API: for `dracaena status` and for the
controller's page, so that both use the same words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dracaena.api.availability import current_pages, why_not_given, why_nothing_given
from dracaena.api.device_taints import in_words, keeping_off, with_taint_rules
from dracaena.api.devicepool import decode_pool
from dracaena.api.machine import Gpu, Machine
from dracaena.api.mig_layout import MigLayoutStatus, mig_layout_document, mig_layout_status
from dracaena.api.names import taint_key
from dracaena.api.objects import Node, Taint
from dracaena.api.passthrough import pci_bus_id_in
from dracaena.api.resource_objects import Device, DeviceTaintRule, ResourceClaim, ResourceSlice
from dracaena.api.sharing import NO_MODE, UNREADABLE_MODE, is_all_memory, mode_of, taken_in_words
from dracaena.api.slice_drawing import DrawnGpu, cut_gpus
from dracaena.api.tree import render_tree

HIDDEN: Final = "somebody of a namespace that you may not see"

MOST_PAGES: Final = 32
"""Slices of one node that are read to show it, 2,048 devices: 16 GPUs with all the places of a divided one have 500. A
node can publish as many as the API server stores, and must not hold up who looks at it."""

MOST_REMARKS: Final = 20
"""About one node: a screen."""

Held = Mapping[tuple[str, str], Sequence["Holder"]]
"""Pool and device → who has it."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A claim that has a device."""

    claim: str
    """`namespace/name`."""
    pods: tuple[str, ...]
    """Names of the pods that it is reserved for, in its namespace."""
    consumed: Mapping[str, str] | None = None
    """What a share takes of each capacity; None: the device is given whole or not at all."""
    mode: str | None = None
    """How a share's GPU is shared (api.sharing)."""
    hidden: bool = False
    """Whether its names are left out, because the reader may not see them."""

    def __str__(self) -> str:
        if self.hidden:
            return HIDDEN
        return f"{self.claim} for {', '.join(self.pods)}" if self.pods else f"{self.claim}, no pod"


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """A published device."""

    name: str
    holders: tuple[Holder, ...]
    profile: str | None = None
    """Of a MIG device, and the type of a vGPU; None for a whole GPU."""
    capacity: Mapping[str, str] = field(default_factory=dict)
    """The total of each capacity of a device that is given in shares; empty for others."""
    parent_uuid: str = ""
    """Of a MIG device."""
    unavailable: str = ""
    """Why no claim without tolerations gets it although no claim has it (api.availability); empty if one may."""
    taints: tuple[Taint, ...] = ()
    """All but ours."""
    start: int | None = None
    """For a part that a GPU is cut into on demand: its first memory slice, ..."""
    size: int = 0
    """... and how many."""

    @property
    def is_free(self) -> bool:
        """Whether no claim has it, and a claim without tolerations could get it."""
        return not self.holders and not self.unavailable

    @property
    def shares(self) -> tuple[Holder, ...]:
        """The claims that have a part of it and leave some to others."""
        shares = tuple(holder for holder in self.holders if holder.consumed is not None)
        takes_all = len(shares) == 1 and shares[0].consumed is not None and self._leaves_nothing(shares[0].consumed)
        return () if takes_all else shares

    def _leaves_nothing(self, consumed: Mapping[str, str]) -> bool:
        return is_all_memory(consumed, self.capacity)


@dataclass(frozen=True, slots=True)
class PublishedNode:
    """A node that publishes devices of ours."""

    name: str
    machine: Machine
    """A GPU that is not published has no UUID here."""
    gpus: Mapping[int, DeviceStatus]
    """By ordinal; a GPU that is not published is left out."""
    migs: tuple[DeviceStatus, ...]
    """Existing MIG devices, and the parts that claims have of GPUs that are cut on demand."""
    cut: tuple[DrawnGpu, ...]
    """GPUs that are cut on demand, with the parts that claims have."""
    remarks: tuple[str, ...]
    """Why its free GPUs may not be given, in words."""
    vgpus: tuple[DeviceStatus, ...] = ()
    """By name; `profile` is the type."""
    layout: MigLayoutStatus | None = None
    """The state of its static MIG layout; None: there is none, or the Node was read without its conditions."""
    handed: Mapping[int, int] = field(default_factory=dict)
    """For GPUs that may go to virtual machines when claims ask: ordinal of the device for those → of the GPU."""
    partitions: tuple[frozenset[int], ...] = ()
    """The sets of GPUs that are linked if one claim has exactly them (DecodedPool.partitions)."""

    @property
    def linked_sets(self) -> list[list[int]]:
        """The partitions of several GPUs, each by its ordinals."""
        return [sorted(gpus) for gpus in self.partitions if len(gpus) > 1]

    @property
    def devices(self) -> tuple[DeviceStatus, ...]:
        """What claims can have: GPUs in ordinal order, then MIG devices, then vGPUs. A GPU of which a claim has a part
        is left out. For a GPU that is two devices, the held one, or the GPU itself while neither is held."""
        had = {vfio: whole for vfio, whole in self.handed.items() if self.gpus[vfio].holders}
        left_out = {*self.handed, *had.values()} - had.keys()
        cut = {part.parent_uuid for part in self.migs if part.start is not None}
        parted = {ordinal for ordinal, gpu in enumerate(self.machine.gpus) if gpu.uuid in cut}
        left_out |= {each for each in parted if each in self.gpus and not self.gpus[each].holders}
        return (*(self.gpus[each] for each in sorted(self.gpus) if each not in left_out), *self.migs, *self.vgpus)

    @property
    def parts_of(self) -> Counter[str]:
        """How many parts claims have of each GPU that is cut on demand, by its UUID."""
        return Counter(part.parent_uuid for part in self.migs if part.start is not None)

    @property
    def free(self) -> int:
        """Devices that are free."""
        return sum(device.is_free for device in self.devices)

    @property
    def product(self) -> str:
        """The product of its GPUs, or each product with its count if there are several."""
        counts = Counter(
            gpu.product_name or "unknown product"
            for ordinal, gpu in enumerate(self.machine.gpus)
            if gpu.uuid and ordinal not in self.handed
        )
        if len(counts) < 2:
            return next(iter(counts), "MIG devices only" if self.migs else "vGPUs only" if self.vgpus else "no GPU")
        return ", ".join(f"{count} × {name}" for name, count in sorted(counts.items()))


def node_statuses(
    driver: str,
    nodes: Iterable[Node],
    slices: Iterable[ResourceSlice],
    claims: Iterable[ResourceClaim],
    rules: Sequence[DeviceTaintRule] = (),
) -> tuple[PublishedNode, ...]:
    """Put the lists together: one entry for each node with slices of the driver, by name. Pure."""
    pages: dict[str, list[ResourceSlice]] = {}
    for item in slices:
        if item.spec.driver == driver and item.spec.node_name:
            pages.setdefault(item.spec.node_name, []).append(with_taint_rules(item, rules))
    by_name = {node.metadata.name: node for node in nodes}
    held = holders_of(driver, claims)
    return tuple(node_status(driver, name, pages[name], by_name.get(name), held) for name in sorted(pages))


def holders_of(driver: str, claims: Iterable[ResourceClaim]) -> dict[tuple[str, str], list[Holder]]:
    """Return who has which device, by pool and device, by claim. Admin access takes nothing from others."""
    *_, held = holders_in_turns(driver, claims)
    assert held is not None
    return held


def holders_in_turns(
    driver: str, claims: Iterable[ResourceClaim], *, claims_a_turn: int = 1 << 30
) -> Iterator[dict[tuple[str, str], list[Holder]] | None]:
    """Yield None after each turn, and finally what holders_of() returns."""
    held: dict[tuple[str, str], list[Holder]] = {}
    shared = set()
    for count, claim in enumerate(claims, start=1):
        for device, holder in _devices_of(driver, claim):
            holders = held.setdefault(device, [])
            holders.append(holder)
            if len(holders) > 1:
                shared.add(device)
        if count % claims_a_turn == 0:
            yield None
    for device in shared:
        held[device].sort(key=lambda holder: holder.claim)
    yield held


def _devices_of(driver: str, claim: ResourceClaim) -> Iterator[tuple[tuple[str, str], Holder]]:
    allocation = claim.status.allocation
    if allocation is None:
        return
    pods = tuple(sorted(user.name for user in claim.status.reserved_for if user.resource == "pods"))
    for result in allocation.devices.results:
        if result.driver == driver and not result.admin_access:
            holder = Holder(claim.key, pods)
            if result.share_id is not None:
                holder = replace(holder, consumed=result.consumed_capacity, mode=_mode(driver, claim, result.request))
            yield (result.pool, result.device), holder


def _mode(driver: str, claim: ResourceClaim, request: str) -> str:
    allocation = claim.status.allocation
    if allocation is None or claim.problem:
        return UNREADABLE_MODE
    configs = [(one.requests, one.opaque) for one in allocation.devices.config]
    return mode_of(
        request,
        [(names, opaque.parameters) for names, opaque in configs if opaque is not None and opaque.driver == driver],
    )


def node_status(
    driver: str,
    name: str,
    pages: Sequence[ResourceSlice],
    node: Node | None,
    held: Held,
) -> PublishedNode:
    """Return what a node publishes. `pages` are all its slices, at least one, with the taints of DeviceTaintRules.
    Cost: O(GPUs²)."""
    current = shown_pages(pages)
    pool_name = current[0].spec.pool.name
    decoded = decode_pool(device for page in current for device in page.spec.devices)
    published = {item.ordinal: item for item in decoded.gpus}
    shared = {
        device.name: {name: capacity.value for name, capacity in device.capacity.items()}
        for page in current
        for device in page.spec.devices
        if device.allow_multiple_allocations
    }
    ordinals = {str(item.name): item.ordinal for item in decoded.gpus}
    nothing_given = next(why_nothing_given(pages, node), "")
    by_name = {device.name: device for page in current for device in page.spec.devices}

    def status_of(device: str) -> DeviceStatus:
        taints = tuple(taint for taint in by_name[device].taints if taint.key != taint_key(driver))
        unavailable = nothing_given or why_not_given(driver, by_name[device])
        holders = tuple(held.get((pool_name, device), ()))
        return DeviceStatus(device, holders, capacity=shared.get(device, {}), unavailable=unavailable, taints=taints)

    missing = Gpu(uuid="", index=0)
    gpus = tuple(
        published[ordinal].gpu if ordinal in published else replace(missing, index=ordinal)
        for ordinal in range(decoded.topology.gpu_count)
    )
    return PublishedNode(
        name,
        Machine(name, gpus, decoded.topology),
        {ordinal: status_of(item.name) for ordinal, item in published.items()},
        tuple(
            replace(
                status_of(item.name),
                profile=item.profile,
                capacity={},
                parent_uuid=item.parent_uuid,
                start=item.start,
                size=item.size or 0,
            )
            for item in decoded.mig_devices
            if item.start is None or (pool_name, item.name) in held
        ),
        cut_gpus(decoded.mig_devices, {mig.name for mig in decoded.mig_devices if (pool_name, mig.name) in held}),
        few((*remarks_of(driver, pages, node), *(problem.text for problem in decoded.problems))),
        tuple(replace(status_of(item.name), profile=item.type_name, capacity={}) for item in decoded.vgpus),
        None if node is None else mig_layout_status(driver, node),
        {
            ordinals[device]: ordinals[whole]
            for device, whole in handed_devices(current).items()
            if device in ordinals and whole in ordinals
        },
        decoded.partitions,
    )


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


def shown_pages(pages: Sequence[ResourceSlice]) -> list[ResourceSlice]:
    """Return the slices of the newest generation, the first MOST_PAGES by name. There is at least one if `pages` has
    one."""
    return sorted(current_pages(pages), key=lambda page: page.metadata.name)[:MOST_PAGES]


MOST_TAINTS: Final = 8
"""Different taints named in a node's remarks: a node of 8 GPUs rarely has two."""


def remarks_of(driver: str, pages: Sequence[ResourceSlice], node: Node | None) -> Iterator[str]:
    """Yield why devices of a node that no claim has may not be given, and what else their taints say, in words.
    `pages`: see node_status()."""
    yield from why_nothing_given(pages, node)
    if (more := len(current_pages(pages)) - MOST_PAGES) > 0:
        yield f"the devices of {more} more slices of its pool are not shown"
    ours = taint_key(driver)
    devices = [device for page in shown_pages(pages) for device in page.spec.devices]
    if devices and not any(taint.key == ours for device in devices for taint in device.taints):
        yield "kube-scheduler allocates here"
    yield from _taint_remarks(Counter(each for device in devices for each in _taints(device, ours)))


def _taints(device: Device, ours: str) -> set[tuple[str, bool]]:
    """Return the taints of a device but ours, in words, each with whether it keeps claims off."""
    blocking = set(keeping_off(device.taints))
    return {(in_words(taint), taint in blocking) for taint in device.taints if taint.key != ours}


def _taint_remarks(others: Mapping[tuple[str, bool], int]) -> Iterator[str]:
    for (words, keeps_off), count in sorted(others.items())[:MOST_TAINTS]:
        yield f"taint {words} on {count} of its devices{'' if keeps_off else ', which keeps no pod off'}"
    if len(others) > MOST_TAINTS:
        yield f"{len(others) - MOST_TAINTS} more taints on its devices"


def few(remarks: Sequence[str]) -> tuple[str, ...]:
    """Return the first MOST_REMARKS, and how many more there are."""
    more = len(remarks) - MOST_REMARKS
    return tuple(remarks) if more <= 0 else (*remarks[:MOST_REMARKS], f"and {more} more remarks")


def tree_lines(node: PublishedNode) -> Iterator[str]:
    """Yield the tree of a node with who has what, as text."""
    yield f"{node.name}: {node.free} of {counted(len(node.devices), 'device')} free, {node.product}"
    yield from (f"  {line}" for line in (*node.remarks, *([] if node.layout is None else [node.layout])))
    labels = dict(enumerate(_labels_of_gpus(node)))
    if labels:
        yield from (f"  {line}" for line in render_tree(node.machine, labels, node.partitions))
    parts = (*(mig for mig in node.migs if mig.start is None), *node.vgpus)
    yield from (f"  {part.name}  {part.profile}  [{label_of(part)}]" for part in parts)
    labels_of_parts = {mig.name: label_of(mig) for mig in node.migs}
    for gpu in node.cut:
        yield f"  {gpu}"
        yield from (f"    {part.profile} at {part.start}  [{labels_of_parts[part.name]}]" for part in gpu.parts)


def _labels_of_gpus(node: PublishedNode) -> Iterator[str]:
    """Yield who has each GPU, in words, in ordinal order."""
    parts, named = node.parts_of, {each.name for each in node.devices}
    given = {whole for vfio, whole in node.handed.items() if node.gpus[vfio].holders}
    for ordinal, gpu in enumerate(node.machine.gpus):
        if ordinal not in node.gpus:
            yield "not published"
            continue
        device = node.gpus[ordinal]
        address = pci_bus_id_in(device.name)
        if count := parts[gpu.uuid]:
            yield f"cut into {counted(count, 'part')}"
        elif address is not None:
            words = label_of(device) if device.name in named else "the same GPU as above"
            yield f"for virtual machines, {address}: {words}"
        else:
            yield "given to a virtual machine" if ordinal in given else label_of(device)


def label_of(device: DeviceStatus) -> str:
    """Return who has a device, in words."""
    shares = device.shares
    if not shares:
        unused = f"unused: {device.unavailable}" if device.unavailable else "free"
        return "; ".join(map(str, device.holders)) or unused
    taken = taken_in_words([one.consumed or {} for one in shares], device.capacity)
    modes = ", ".join(sorted({one.mode or "" for one in shares} - {NO_MODE}))
    count = f"{counted(len(shares), 'share')}{f' by {modes}' if modes else ''}: {taken}"
    return "; ".join((count, *map(str, device.holders)))


def node_document(node: PublishedNode) -> dict[str, Any]:
    """Return the JSON form; docs/explain.md promises it."""
    gpus = [
        {
            "device": device.name,
            "index": node.machine.gpus[ordinal].index,
            "uuid": node.machine.gpus[ordinal].uuid,
            "product": node.machine.gpus[ordinal].product_name,
            **({"capacity": dict(device.capacity)} if device.capacity else {}),
            **_state(device),
        }
        for ordinal, device in sorted(node.gpus.items())
    ]
    migs = [
        {
            "device": mig.name,
            "profile": mig.profile,
            **({} if mig.start is None else {"parentUUID": mig.parent_uuid, "start": mig.start, "size": mig.size}),
            **_state(mig),
        }
        for mig in node.migs
    ]
    vgpus = [{"device": one.name, "type": one.profile, **_state(one)} for one in node.vgpus]
    return {
        "name": node.name,
        "free": node.free,
        "gpus": gpus,
        "migDevices": migs,
        **({"vgpus": vgpus} if vgpus else {}),
        **({"partitions": node.linked_sets} if node.partitions else {}),
        "remarks": list(node.remarks),
        **({} if node.layout is None else {"migLayout": mig_layout_document(node.layout)}),
    }


def _state(device: DeviceStatus) -> dict[str, Any]:
    taints = [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in device.taints]
    return {
        "heldBy": _held_by(device),
        **({"taints": taints} if taints else {}),
        **({"unavailable": device.unavailable} if device.unavailable else {}),
    }


def _held_by(device: DeviceStatus) -> list[dict[str, Any]]:
    return [
        {
            **({"hidden": True} if holder.hidden else {"claim": holder.claim, "pods": list(holder.pods)}),
            **({} if holder.consumed is None else {"consumedCapacity": dict(holder.consumed), "sharing": holder.mode}),
        }
        for holder in device.holders
    ]


def counted(count: int, what: str) -> str:
    """Return a count of something in words: `1 node`, `2 nodes`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
