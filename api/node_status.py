"""The GPUs of a cluster node by node, and who has them, from the lists of the API: for `dracaena status` and for the
controller's page, so that both use the same words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dracaena.api.availability import MOST_PAGES, current_pages, shown_pages, why_not_given, why_nothing_given
from dracaena.api.device_taints import in_words, keeping_off, with_taint_rules
from dracaena.api.devicepool import decode_pool
from dracaena.api.gpu_states import (
    NOT_PUBLISHED,
    GpuState,
    gpu_states,
    gpu_sums,
    handed_devices,
    pool_gpus,
    state_in_words,
    sums_in_words,
)
from dracaena.api.holders import Held, Holder, holders_of, shares_of
from dracaena.api.machine import Gpu, Machine
from dracaena.api.mig_layout import MigLayoutStatus, mig_layout_document, mig_layout_status
from dracaena.api.names import taint_key
from dracaena.api.objects import Node, Taint
from dracaena.api.passthrough import pci_bus_id_in
from dracaena.api.rails import rails_of
from dracaena.api.resource_objects import Device, DeviceTaintRule, ResourceClaim, ResourceSlice
from dracaena.api.sharing import NO_MODE, taken_in_words
from dracaena.api.slice_drawing import DrawnGpu, cut_gpus
from dracaena.api.tree import render_tree

MOST_REMARKS: Final = 20
"""About one node: a screen."""


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
    def shares(self) -> tuple[Holder, ...]:
        """The claims that have a part of it and leave some to others."""
        return shares_of(self.holders, self.capacity)


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
    states: tuple[GpuState, ...] = ()
    """Of each GPU that was bought, by ordinal (api.gpu_states)."""

    @property
    def linked_sets(self) -> list[list[int]]:
        """The partitions of several GPUs, each by its ordinals."""
        return [sorted(gpus) for gpus in self.partitions if len(gpus) > 1]

    @property
    def holders(self) -> Iterator[Holder]:
        """Who has what, once for each device."""
        devices = (*self.gpus.values(), *self.migs, *self.vgpus)
        return (holder for device in devices for holder in device.holders)

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
        gpu_states(pool_gpus(driver, pages, node), held),
    )


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
    """Yield the tree of a node with the state of each GPU and who has it, as text."""
    yield f"{node.name}: {node.product}, {sums_in_words(node.states)}"
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
    """Yield who has each GPU and what is wrong with it, in words, in ordinal order."""
    states = dict(enumerate(node.states))
    for ordinal in range(len(node.machine.gpus)):
        device = node.gpus.get(ordinal)
        whole = node.handed.get(ordinal, ordinal)
        address = None if device is None else pci_bus_id_in(device.name)
        if whole != ordinal and device is not None:
            words = holders_in_words(device) or "the same GPU as above"
        else:
            words = gpu_label(states.get(ordinal, GpuState(NOT_PUBLISHED)), device)
        yield words if address is None else f"for virtual machines, {address}: {words}"


def gpu_label(state: GpuState, device: DeviceStatus | None) -> str:
    """Return who has a GPU, and what else there is to say of it, in words. `device`: all of it; None: not published."""
    words = state_in_words(state)
    if device is None or not state.holders or (state.parts is not None and state.parts.kind != "shares"):
        return words
    whose = holders_in_words(device) or "given to a virtual machine"
    return "; ".join(filter(None, (whose, words)))


def label_of(device: DeviceStatus) -> str:
    """Return who has a MIG device, a part or a vGPU, and its taints, in words."""
    if device.unavailable and not device.holders:
        return f"closed to pods: {device.unavailable}"
    taints = [f"taint {in_words(taint)}" for taint in device.taints]
    return "; ".join((holders_in_words(device) or "free", *taints))


def holders_in_words(device: DeviceStatus) -> str:
    """Return who has a device, in words; empty if nobody has."""
    shares = device.shares
    if not shares:
        return "; ".join(map(str, device.holders))
    taken = taken_in_words([one.consumed or {} for one in shares], device.capacity)
    modes = ", ".join(sorted({one.mode or "" for one in shares} - {NO_MODE}))
    count = f"{counted(len(shares), 'share')}{f' by {modes}' if modes else ''}: {taken}"
    return "; ".join((count, *map(str, device.holders)))


def node_document(node: PublishedNode) -> dict[str, Any]:
    """Return the JSON form; docs/reference/json.md promises it."""
    twins = {whole: node.gpus[vfio].name for vfio, whole in node.handed.items() if vfio in node.gpus}
    gpus = [_gpu_document(node, ordinal, state, twins.get(ordinal)) for ordinal, state in enumerate(node.states)]
    migs = [
        {
            "device": mig.name,
            "profile": mig.profile,
            **({} if mig.start is None else {"parentUUID": mig.parent_uuid, "start": mig.start, "size": mig.size}),
            **_state(mig.holders, mig.taints, mig.unavailable),
        }
        for mig in node.migs
    ]
    vgpus = [
        {"device": one.name, "type": one.profile, **_state(one.holders, one.taints, one.unavailable)}
        for one in node.vgpus
    ]
    return {
        "name": node.name,
        "counts": gpu_sums(state.sign for state in node.states),
        "gpus": gpus,
        "migDevices": migs,
        **({"vgpus": vgpus} if vgpus else {}),
        **({"partitions": node.linked_sets} if node.partitions else {}),
        "remarks": list(node.remarks),
        **({} if node.layout is None else {"migLayout": mig_layout_document(node.layout)}),
    }


def _gpu_document(node: PublishedNode, ordinal: int, state: GpuState, twin: str | None) -> dict[str, Any]:
    gpu = node.machine.gpus[ordinal] if ordinal in node.gpus else None
    rail = None if gpu is None else rails_of(node.machine.topology)[ordinal]
    capacity = node.gpus[ordinal].capacity if gpu is not None else {}
    return {
        "device": state.device or None,
        **({} if twin is None else {"passthroughDevice": twin}),
        "index": None if gpu is None else gpu.index,
        "uuid": (state.uuid if gpu is None else gpu.uuid) or None,
        "product": None if gpu is None else gpu.product_name,
        "state": state.name,
        **({} if rail is None else {"rail": rail}),
        **({"fault": state.fault} if state.fault else {}),
        **({"reported": state.told} if state.told else {}),
        **({"parts": state.parts._asdict()} if state.parts is not None else {}),
        **({"capacity": dict(capacity)} if capacity else {}),
        **_state(state.holders, state.taints, state.why),
    }


def _state(holders: Iterable[Holder], taints: Iterable[Taint], why: str) -> dict[str, Any]:
    shown = [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in taints]
    return {
        "heldBy": [_holder(holder) for holder in holders],
        **({"taints": shown} if shown else {}),
        **({"why": why} if why else {}),
    }


def _holder(holder: Holder) -> dict[str, Any]:
    return {
        **({"hidden": True} if holder.hidden else {"claim": holder.claim, "pods": list(holder.pods)}),
        **({} if holder.consumed is None else {"consumedCapacity": dict(holder.consumed), "sharing": holder.mode}),
    }


def counted(count: int, what: str) -> str:
    """Return a count of something in words: `1 node`, `2 nodes`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
