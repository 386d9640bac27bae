"""What nodes have, and what of it can be given at a time: worked out from the hardware, never from what is published.

A node's GPUs are whole, or divided on demand, or its last GPU is divided for good and the others are whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import msgspec

from dracaena.api.machine import Machine
from dracaena.api.mig import MigDevice
from dracaena.api.objects import Node
from dracaena.api.resource_objects import ResourceSlice
from support.allocation import blocks, device_name, machine, node, pool_slice
from support.mig_nodes import mig_slices, part_name
from support.mig_tables import A30, MigPart, is_legal

UNDIVIDED: Final = "undivided"
ON_DEMAND: Final = "on demand"
FOR_GOOD: Final = "for good"

PRODUCT: Final = A30
"""The one with the fewest places, so that few claims are enough for GPUs to be short."""

LAYOUT: Final = tuple(MigPart(*which) for which in (("2g.12gb", 0, 2, 2), ("1g.6gb", 2, 1, 1), ("1g.6gb", 3, 1, 1)))
"""Of a GPU that is divided for good."""


@dataclass(frozen=True)
class NodeHardware:
    """One node: what it has, and what its plugin publishes of that."""

    node: Node
    slices: tuple[ResourceSlice, ...]
    devices: Mapping[str, tuple[int, MigPart | None]]
    """Device → ordinal of its GPU, and which part of it; None: all of it. GPUs first."""


def is_possible(parts: Sequence[MigPart | None]) -> bool:
    """Whether these parts of one GPU can be there at a time; None: the whole GPU."""
    if None in parts:
        return len(parts) == 1
    return is_legal(PRODUCT, [part for part in parts if part is not None])


def is_room_for(has: NodeHardware, held: Iterable[str], profiles: Sequence[str]) -> bool:
    """Whether a node can give one device of each of these profiles ("": a whole GPU) beside those that are held."""
    taken: dict[int, list[MigPart | None]] = {}
    for name in held:
        ordinal, part = has.devices[name]
        taken.setdefault(ordinal, []).append(part)
    return _is_room(has, taken, profiles)


def _is_room(has: NodeHardware, taken: dict[int, list[MigPart | None]], profiles: Sequence[str]) -> bool:
    if not profiles:
        return True
    first, *others = profiles
    for ordinal, part in has.devices.values():
        if ("" if part is None else part.profile) != first:
            continue
        beside = [*taken.get(ordinal, ()), part]
        if is_possible(beside) and _is_room(has, {**taken, ordinal: beside}, others):
            return True
    return False


@cache
def node_hardware(name: str, gpus: int, division: str = UNDIVIDED) -> NodeHardware:
    """Return a node with so many GPUs."""
    made = machine(name, blocks(gpus, inside="PIX", outside="PIX"))
    whole = {device_name(made, ordinal): (ordinal, None) for ordinal in range(gpus)}
    if division == ON_DEMAND:
        parts = {part_name(made, ordinal, one): (ordinal, one) for ordinal in range(gpus) for one in PRODUCT.parts()}
        return NodeHardware(node(name), tuple(mig_slices(name, made, [PRODUCT] * gpus)), {**whole, **parts})
    if division == FOR_GOOD:
        return _divided_for_good(name, made)
    return NodeHardware(node(name), (pool_slice(name, made),), dict(whole))


def _divided_for_good(name: str, made: Machine) -> NodeHardware:
    last = len(made.gpus) - 1
    parent = made.gpus[last].uuid
    divided = {
        MigDevice(parent, f"MIG-{parent[4:-2]}{number:02}", number, 0, one.profile, one.start, one.size): one
        for number, one in enumerate(LAYOUT, 1)
    }
    gpus = (*made.gpus[:last], replace(made.gpus[last], mig_enabled=True))
    machine_now = replace(made, gpus=gpus, mig_devices=tuple(divided))
    whole = {device_name(made, ordinal): (ordinal, None) for ordinal in range(last)}
    parts = {str(device.device_name): (last, one) for device, one in divided.items()}
    pool = pool_slice(name, machine_now)
    published = [device for device in pool.spec.devices if device.name in whole or device.name in parts]
    pool = msgspec.structs.replace(pool, spec=msgspec.structs.replace(pool.spec, devices=published))
    return NodeHardware(node(name), (pool,), {**whole, **parts})
