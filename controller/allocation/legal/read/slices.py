"""ResourceSlices of any driver as values, and the pools that they form, with parsed quantities and node selections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from dracaena.api import resource_objects
from dracaena.api.device_id import DeviceId, PoolId
from dracaena.api.objects import Taint
from dracaena.api.quantity import Quantity, parse_quantity
from dracaena.api.reasons import unknown_fields
from dracaena.api.resource_objects import DeviceAttribute


@dataclass(frozen=True, slots=True)
class NodeSelection:
    """Which nodes a slice or a device is for. All unset: a kind of selection that we do not know."""

    node_name: str = ""
    selector: Mapping[str, Any] | None = None
    """A raw core/v1 NodeSelector."""
    all_nodes: bool = False


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """What a request for a part of a capacity is rounded to, and which amounts are valid."""

    default: Quantity | None = None
    ranged: bool = False
    """Whether validRange is set; the three that follow are its parts."""
    minimum: Quantity | None = None
    maximum: Quantity | None = None
    step: Quantity | None = None
    valid_values: tuple[Quantity, ...] = ()
    """Ascending, as the API demands."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """One capacity of a device."""

    name: str
    value: Quantity
    policy: RequestPolicy | None = None

    @property
    def least_nano(self) -> int:
        """The least that any request can take of it, in billionths."""
        policy = self.policy
        if policy is None:
            return 0
        if policy.ranged:
            return 0 if policy.minimum is None else policy.minimum.nano
        return policy.valid_values[0].nano if policy.valid_values else 0


class CounterId(NamedTuple):
    """A counter of a pool."""

    counter_set: str
    counter: str

    def __str__(self) -> str:
        return f"{self.counter_set}/{self.counter}"


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """A device that a driver publishes."""

    id: DeviceId
    attributes: Mapping[str, DeviceAttribute]
    capacities: tuple[Capacity, ...] = ()
    """By name."""
    consumes: tuple[tuple[CounterId, int], ...] = ()
    """What it takes from the counters of its pool, in billionths, as listed."""
    counter_sets: tuple[str, ...] = ()
    """The counter sets that it names, even if it takes nothing from them."""
    compatibility_groups: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By counter set, for those that it names groups for."""
    taints: tuple[Taint, ...] = ()
    allow_multiple_allocations: bool = False
    nodes: NodeSelection = NodeSelection()
    """Only used if the slice leaves the nodes to its devices."""
    binds_to_node: bool = False
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    unknown: str = ""
    """Fields that this version does not know: the device is never given out, but what it consumes counts."""

    @property
    def shares_by_unknown_rules(self) -> bool:
        """Whether an unknown field says how it consumes counters: we then understand no device that shares them."""
        return _shares_by_unknown_rules(self.unknown)


@dataclass(frozen=True, slots=True)
class Slice:
    """One page of a pool."""

    name: str
    pool: PoolId
    generation: int
    slice_count: int
    """Slices that the pool has in this generation, according to this slice."""
    nodes: NodeSelection
    per_device: bool = False
    """Whether each device itself says which nodes it is for."""
    devices: tuple[PublishedDevice, ...] = ()
    counters: tuple[tuple[CounterId, int], ...] = ()
    """Declared counters in billionths, as listed."""
    counter_sets: tuple[str, ...] = ()
    """Names of the declared sets, as listed."""
    skip_node_operations: tuple[str, ...] = ()
    """Calls of the driver that kubelet leaves out for its devices."""
    problem: str = ""
    """What cannot be read in it; nothing is allocated from the pool of such a slice."""

    @property
    def declares_counters(self) -> bool:
        """Whether it is for counters; the API forbids devices next to them."""
        return bool(self.counter_sets)


class PoolState(Enum):
    """Whether devices of a pool may be allocated."""

    USABLE = "usable"
    INCOMPLETE = "incomplete"
    """Not all slices of the generation are there (the driver is publishing), or not all that can be understood."""
    INVALID = "invalid"
    """The slices contradict each other or themselves: the driver's author must act."""


@dataclass(frozen=True, slots=True)
class ReachableDevice:
    """A device in a slice that targets the node."""

    device: PublishedDevice
    slice: Slice
    is_for_node: bool = True
    """False where the slice leaves that to its devices, and this one is for other nodes."""
    is_operable: bool = True
    """False where kubelet is to leave out calls of the driver and the one of this node cannot."""
    problem: str = ""
    """What is wrong with its own node selector, so that nothing is known; empty when nothing is."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool as one node sees it."""

    id: PoolId
    state: PoolState
    problem: str = ""
    """Why it is not usable."""
    devices: tuple[ReachableDevice, ...] = ()
    """Of slices that target the node: slices by name, devices as listed. Empty unless usable."""
    elsewhere: tuple[PublishedDevice, ...] = ()
    """Devices of the other slices, and such with unknown fields: they are never given out here, but what they consume
    counts."""
    counters: tuple[tuple[CounterId, int], ...] = ()
    """Declared counters, in billionths."""

    @property
    def has_binding_conditions(self) -> bool:
        """Whether any device that can be given out here needs a confirmation before its pod runs."""
        return any(reachable.device.binding_conditions for reachable in self.devices)


def read_slice(published: resource_objects.ResourceSlice) -> Slice:
    """Read a slice. Never raises: a quantity that does not parse or is below 0 is named in `problem`."""
    spec = published.spec
    pool = PoolId(spec.driver, spec.pool.name)
    nodes = NodeSelection(spec.node_name, spec.node_selector, spec.all_nodes)
    devices: tuple[PublishedDevice, ...] = ()
    counters: tuple[tuple[CounterId, int], ...] = ()
    problem = unknown_fields(spec.unknown, "the pool") if spec.unknown else ""
    try:
        devices = tuple(_device(pool, device) for device in spec.devices)
        counters = tuple(_counters(spec.shared_counters, "sharedCounters"))
    except _UnreadableSliceError as error:
        problem = str(error)
    return Slice(
        name=published.metadata.name,
        pool=pool,
        generation=spec.pool.generation,
        slice_count=spec.pool.resource_slice_count,
        nodes=nodes,
        per_device=spec.per_device_node_selection,
        devices=devices,
        counters=counters,
        counter_sets=tuple(counter_set.name for counter_set in spec.shared_counters),
        skip_node_operations=tuple(spec.skip_node_operations),
        problem=problem,
    )


def read_device(driver: str, device: resource_objects.Device) -> PublishedDevice | None:
    """Read a device apart from its slice; None when a quantity in it cannot be read."""
    try:
        return _device(PoolId(driver, ""), device)
    except _UnreadableSliceError:
        return None


def not_understood(spec: resource_objects.ResourceSliceSpec) -> str:
    """Say which fields of a slice are not known, and what is left alone for them; empty when all are known.

    Slices with the same such fields get the same text, whatever their devices are called. Cost: O(devices).
    """
    if spec.unknown:
        return unknown_fields(spec.unknown[:LONGEST_NAMES], "the pool")
    names = sorted({device.unknown for device in spec.devices if device.unknown})
    if not names:
        return ""
    is_pool = any(_shares_by_unknown_rules(name) for name in names)
    return unknown_fields("; ".join(names)[:LONGEST_NAMES], "the pool" if is_pool else "each such device")


LONGEST_NAMES: Final = 500
"""Characters of names of unknown fields in a text: an Event has room for 1,024 bytes."""


def _shares_by_unknown_rules(unknown: str) -> bool:
    return "consumesCounters" in unknown


class _UnreadableSliceError(Exception):
    pass


def _device(pool: PoolId, device: resource_objects.Device) -> PublishedDevice:
    try:
        return PublishedDevice(
            id=DeviceId(*pool, device.name),
            attributes=device.attributes,
            capacities=tuple(_capacity(name, capacity) for name, capacity in sorted(device.capacity.items())),
            consumes=tuple(_consumed(device)),
            counter_sets=tuple(consumption.counter_set for consumption in device.consumes_counters),
            compatibility_groups={
                one.counter_set: frozenset(one.compatibility_groups)
                for one in device.consumes_counters
                if one.compatibility_groups
            },
            taints=tuple(device.taints),
            allow_multiple_allocations=device.allow_multiple_allocations,
            nodes=NodeSelection(device.node_name, device.node_selector, device.all_nodes),
            binds_to_node=device.binds_to_node,
            binding_conditions=tuple(device.binding_conditions),
            binding_failure_conditions=tuple(device.binding_failure_conditions),
            unknown=device.unknown,
        )
    except _UnreadableSliceError as error:
        raise _UnreadableSliceError(f"device {device.name}: {error}") from None


def _capacity(name: str, capacity: resource_objects.DeviceCapacity) -> Capacity:
    policy = capacity.request_policy
    return Capacity(
        name=name,
        value=_quantity(capacity.value, f"capacity {name}"),
        policy=_policy(policy, f"requestPolicy of capacity {name}") if policy is not None else None,
    )


def _policy(policy: resource_objects.CapacityRequestPolicy, where: str) -> RequestPolicy:
    bounds = policy.valid_range or resource_objects.CapacityRange()
    return RequestPolicy(
        default=_optional(policy.default, where),
        ranged=policy.valid_range is not None,
        minimum=_optional(bounds.min, where),
        maximum=_optional(bounds.max, where),
        step=_optional(bounds.step, where),
        valid_values=tuple(_quantity(value, where) for value in policy.valid_values or ()),
    )


def _consumed(device: resource_objects.Device) -> Iterator[tuple[CounterId, int]]:
    for consumption in device.consumes_counters:
        for name, counter in consumption.counters.items():
            amount = _quantity(counter.value, f"counter {name} of {consumption.counter_set}")
            yield CounterId(consumption.counter_set, name), amount.nano


def _counters(sets: list[resource_objects.CounterSet], where: str) -> Iterator[tuple[CounterId, int]]:
    for counter_set in sets:
        for name, counter in counter_set.counters.items():
            yield CounterId(counter_set.name, name), _quantity(counter.value, f"{where} {counter_set.name}").nano


def _optional(text: str | None, where: str) -> Quantity | None:
    return None if text is None else _quantity(text, where)


def _quantity(text: str, where: str) -> Quantity:
    try:
        quantity = parse_quantity(text)
    except ValueError as error:
        raise _UnreadableSliceError(f"{where}: {error}") from None
    if quantity.nano < 0:
        raise _UnreadableSliceError(f"{where}: {text} is below 0")
    return quantity
