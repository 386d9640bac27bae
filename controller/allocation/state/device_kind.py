"""What selectors and constraints can read of a device and what is the same on equal nodes.

Nodes are kept in buckets by kind, so what distinguishes each device from every other must not be part of a kind, or
each node would have a kind of its own. Such identities are left out here. If only equality matters (a PCIe root), the
value is replaced by a number, so that equal nodes stay equal and constraints still hold.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from dracaena import cel
from dracaena.api import attributes as table
from dracaena.api import resource_objects
from dracaena.api.device_id import DeviceId
from dracaena.api.resource_objects import DeviceAttribute
from dracaena.controller.allocation.legal.constraints import find_attribute, scalar
from dracaena.controller.allocation.legal.read.slices import PublishedDevice, read_device
from dracaena.controller.allocation.state.node_state import DeviceKind

IDENTITY: Final = frozenset(
    {
        table.UUID.name,
        table.PCI_BUS_ID.name,
        table.IOMMU_GROUP.name,
        table.MDEV_UUID.name,
        table.MDEV_UUID_FOR_KUBEVIRT.name,
    }
)
"""Attributes that no two devices share; names as they are published."""

GROUPING: Final = frozenset(
    {table.PARENT_UUID.name, table.PARENT_PCI_BUS_ID.name, table.PCIE_ROOT.name, table.FABRIC_CLIQUE.name}
)
"""Attributes that say which devices belong together, under names that differ from node to node."""

_COUNTER_SET: Final = "a counter set"
"""Stands in for an attribute's name; no attribute has a space in its name."""

DIGEST_BYTES: Final = 32
"""256 bits: no collision between two nodes can be found."""

_ENCODER: Final = msgspec.json.Encoder(order="deterministic")

_NOBODY: Final = DeviceId("", "", "")


def device_kinds(driver: str, devices: Sequence[resource_objects.Device | None]) -> tuple[DeviceKind | None, ...]:
    """Return the kinds of the devices of one node; None for None, and for a device whose data cannot be read."""
    numbers: dict[tuple[str, str], int] = {}
    return tuple(None if device is None else _device_kind(driver, device, numbers) for device in devices)


def is_identity(driver: str, attribute: str) -> bool:
    """Return whether a fully qualified attribute is left out of a kind."""
    return attribute.removeprefix(f"{driver}/") in IDENTITY


def reads_identity(driver: str, footprint: cel.Footprint) -> bool:
    """Return whether an expression can read what kinds leave out or replace."""
    paths = []
    for name in IDENTITY | GROUPING:
        domain, slash, identifier = name.partition("/")
        paths.append(("attributes", domain, identifier) if slash else ("attributes", driver, name))
    return any(path[: len(seen)] == seen for seen in footprint.paths for path in paths)


def groups(devices: Sequence[DeviceKind | None], attribute: str) -> tuple[int, ...]:
    """Return a mask of ordinals for each value of an attribute; devices without it are in none. Scalars only."""
    masks: dict[Hashable, int] = {}
    for ordinal, one in enumerate(devices):
        found = None if one is None else find_attribute(one.device, attribute)
        values = None if found is None else scalar(found)
        if values is not None:
            masks[values] = masks.get(values, 0) | 1 << ordinal
    return tuple(masks.values())


def digest_of(pages: Sequence[resource_objects.ResourceSlice]) -> bytes:
    """Return a digest of all that is published for a node, except for what distinguishes equal nodes.

    `pages` are the slices of the node's pool in the order of their names, all of one generation. Names of devices and
    of counter sets do not count, only which of them are the same. If slices or devices select their nodes by more than
    the node's name, no two nodes are equal. Cost: O(devices), some 20 µs for each.
    """
    numbers: dict[tuple[str, str], int] = {}
    parts: list[object] = []
    for page in pages:
        spec = page.spec
        is_for_one_node = not (spec.node_selector or spec.all_nodes or spec.per_device_node_selection)
        if not is_for_one_node or any(one.node_name or one.node_selector or one.all_nodes for one in spec.devices):
            parts.append(spec.node_name)
        parts.append([_unnamed_set(one, numbers) for one in spec.shared_counters])
        parts.append([(_unnamed(one, numbers), one.unknown) for one in spec.devices])
    return blake2b(_ENCODER.encode(parts), digest_size=DIGEST_BYTES).digest()


def _unnamed(device: resource_objects.Device, numbers: dict[tuple[str, str], int]) -> resource_objects.Device:
    replace = msgspec.structs.replace
    return replace(
        device,
        name="",
        attributes=_without_identity(device, numbers),
        taints=[replace(taint, time_added=None) for taint in device.taints],
        consumes_counters=[
            replace(one, counter_set=_number(numbers, _COUNTER_SET, one.counter_set))
            for one in device.consumes_counters
        ],
    )


def _unnamed_set(one: resource_objects.CounterSet, numbers: dict[tuple[str, str], int]) -> resource_objects.CounterSet:
    return msgspec.structs.replace(one, name=_number(numbers, _COUNTER_SET, one.name))


def _without_identity(
    device: resource_objects.Device, numbers: dict[tuple[str, str], int]
) -> dict[str, DeviceAttribute]:
    kept = {name: value for name, value in device.attributes.items() if name not in IDENTITY}
    for name in sorted(GROUPING & kept.keys()):
        text = kept[name].string
        if text is not None:
            kept[name] = DeviceAttribute(string=_number(numbers, name, text))
    return kept


def _number(numbers: dict[tuple[str, str], int], name: str, text: str) -> str:
    return str(numbers.setdefault((name, text), len(numbers)))


def _device_kind(
    driver: str, device: resource_objects.Device, numbers: dict[tuple[str, str], int]
) -> DeviceKind | None:
    kept = _without_identity(device, numbers)
    read = read_device(driver, device)
    if read is None:
        return None
    return DeviceKind(
        _key(kept, device),
        PublishedDevice(
            _NOBODY._replace(driver=driver),
            kept,
            capacities=read.capacities,
            allow_multiple_allocations=read.allow_multiple_allocations,
        ),
    )


def _key(attributes: Mapping[str, DeviceAttribute], device: resource_objects.Device) -> Hashable:
    key = (tuple(attributes.items()), tuple(device.capacity.items()), device.allow_multiple_allocations)
    try:
        hash(key)
    except TypeError:  # an attribute or a policy that contains a list
        return msgspec.json.encode(key)
    return key
