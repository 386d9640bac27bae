"""What a node is, what is free there, and who holds the rest.

Nodes of one kind and state can give the same devices, and are in one bucket.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from dracaena.api.device_id import DeviceId, PoolId
from dracaena.api.objects import Taint
from dracaena.api.partitions import Partitions
from dracaena.api.resource_objects import Device, DeviceResult, ResourceClaim
from dracaena.api.sharing import UNREADABLE_MODE, GpuConfigs, mode_parameters
from dracaena.controller.allocation.legal.books import Holding, holdings_of
from dracaena.controller.allocation.legal.read.slices import PublishedDevice
from dracaena.controller.allocation.score.box import Box, mask_of


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """One device without its identity. Equal if nothing that is left differs."""

    key: Hashable
    device: PublishedDevice = field(compare=False)
    """With the driver's name, but without the pool's and its own."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class NodeKind:
    """All that a choice among the devices of a node depends on, besides which of them are free.

    Nodes of one kind share one answer. What decides which devices a request may use is part of the kind; identities of
    devices (device_kind.IDENTITY) are not: requests for those are answered node by node.
    """

    box: Box
    foreign_taints: tuple[tuple[int, tuple[Taint, ...]], ...] = ()
    """Ordinals that have taints besides ours, with these taints, ascending. Without the times at which they were added,
    and without what a rule puts on all devices (Inventory.taints_of_all)."""
    devices: tuple[DeviceKind | None, ...] = ()
    """For each ordinal what selectors and constraints can read of it; None for a GPU that is not published."""
    rest: bytes = b""
    """Digest of all that is published except identities (device_kind.digest_of); empty for a node that has only whole
    GPUs of ours to give, which the fields above describe."""
    is_mixed: bool = False
    """Whether there is more to give than GPUs of ours. Such a kind has a `rest`."""
    shareable: int = 0
    """Mask of the GPUs that are given in shares to requests for amounts, and whole to others."""
    partitions: Partitions[PublishedDevice] = field(default=Partitions(), compare=False)
    """GPUs that are cut into parts on demand; `rest` distinguishes them."""
    twins: tuple[int, ...] = field(default=(), compare=False)
    """Masks of devices that are one GPU: a holder of one has both. `rest` distinguishes them."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        compared = (self.box, self.foreign_taints, self.devices, self.rest, self.is_mixed, self.shareable)
        object.__setattr__(self, "_hash", hash(compared))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class SharedGpu:
    """A GPU with shares that has room for another one."""

    ordinal: int
    mode: str
    """The mode of all its shares (api.sharing)."""
    taken: tuple[tuple[str, int], ...]
    """What the shares together take of each capacity, in billionths, by name."""
    count: int = field(default=0, compare=False)
    """Number of its shares."""

    def left_nano(self, device: PublishedDevice) -> dict[str, int]:
        """Return what is left of each capacity of its device."""
        taken = dict(self.taken)
        return {one.name: one.value.nano - taken.get(one.name, 0) for one in device.capacities}


@dataclass(frozen=True, slots=True)
class NodeState:
    """What a node is and what is free there: nodes of one state are in one bucket."""

    kind: NodeKind
    free: int
    """Mask of the whole GPUs that can be given."""
    rest: Hashable = None
    """For a kind with a `rest`: how much of each of its devices is held, by their places in the order in which they are
    tried. A mask of those held whole, and what the shares of each together take."""
    shares: tuple[SharedGpu, ...] = ()
    """GPUs with shares that have room for more, by ordinal."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.kind, self.free, self.rest, self.shares)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def key(self) -> tuple[int, Hashable]:
        """What distinguishes states of one kind: what is free, and all else."""
        return self.free, (self.rest, self.shares) if self.shares else self.rest


Buckets = Mapping[NodeKind, Mapping[tuple[int, Hashable], Sequence[str]]]
"""Kind → what is free (NodeState.key) → names of the nodes, ascending."""

EverBuckets = dict[tuple[NodeKind, tuple[int, Hashable]], tuple[int, list[str]]]
"""Kind and what is free → number of the bucket, and names of the nodes that are in that state now, ascending."""

SPARE_EMPTY: Final = 1_024
"""Empty buckets that are remembered, besides three for each bucket with nodes: 300 bytes each. Four kinds of nodes with
8 GPUs have 1,024 states in total."""


class NodeBuckets:
    """Nodes by what they are and what is free. Part of its owner. Cost: a search in one bucket for each call."""

    def __init__(self, *, remembers_empty: bool = False) -> None:
        self._buckets: dict[NodeKind, dict[tuple[int, Hashable], list[str]]] = {}
        self._whole: dict[NodeKind, dict[tuple[int, Hashable], list[str]]] = {}
        self._remembers_empty, self._most, self._number = remembers_empty, SPARE_EMPTY, 0
        self.ever: EverBuckets = {}
        """With `remembers_empty`: all buckets of by_free_gpus, and those of the same kinds that are empty now, as they
        may fill again. Numbers ascend and are never reused, nor is a bucket once it is forgotten. Read only."""

    @property
    def by_kind(self) -> Buckets:
        """All buckets, none empty. Read only."""
        return self._buckets

    @property
    def by_free_gpus(self) -> Buckets:
        """The same, but nodes that differ only in the shares that their GPUs have left are in one bucket: for requests
        for whole GPUs they are equal. Nodes of mixed kinds are as in by_kind. Read only."""
        return self._whole

    def add(self, name: str, state: NodeState) -> None:
        """Add a node that is not there."""
        by_state, key = self._buckets.setdefault(state.kind, {}), state.key
        if _has_shares_alone(state.kind):
            insort(by_state.setdefault(key, []), name)
            by_state, key = self._whole.setdefault(state.kind, {}), (state.free, None)
        self._whole[state.kind] = by_state
        if key not in by_state:
            by_state[key] = self._bucket(state.kind, key)
        insort(by_state[key], name)

    def take_out(self, name: str, state: NodeState) -> None:
        """Remove a node that was added with this state."""
        _take_out(self._buckets, state.kind, state.key, name)
        if _has_shares_alone(state.kind):
            _take_out(self._whole, state.kind, (state.free, None), name)
        if state.kind not in self._buckets:
            self._whole.pop(state.kind, None)
            self.ever = {place: bucket for place, bucket in self.ever.items() if place[0] is not state.kind}

    def check(self) -> None:
        """State what must always hold. For tests: slow."""
        there = {(kind, key): id(names) for kind, of in self._whole.items() for key, names in of.items()}
        filled = {place: id(names) for place, (_, names) in self.ever.items() if names}
        assert not self._remembers_empty or filled == there, "the buckets with nodes are among those that ever were"

    def _bucket(self, kind: NodeKind, key: tuple[int, Hashable]) -> list[str]:
        """Return an empty bucket: the earlier one, if there was one."""
        if not self._remembers_empty:
            return []
        if (kind, key) not in self.ever:
            if len(self.ever) >= self._most:
                self.ever = {place: bucket for place, bucket in self.ever.items() if bucket[1]}
                self._most = 4 * len(self.ever) + SPARE_EMPTY
            self._number += 1
        return self.ever.setdefault((kind, key), (self._number, []))[1]


def _has_shares_alone(kind: NodeKind) -> bool:
    return bool(kind.shareable) and not kind.is_mixed


def _take_out(
    buckets: dict[NodeKind, dict[tuple[int, Hashable], list[str]]],
    kind: NodeKind,
    key: tuple[int, Hashable],
    name: str,
) -> None:
    names = buckets[kind][key]
    del names[bisect_left(names, name)]
    if not names:
        del buckets[kind][key]
        if not buckets[kind]:
            del buckets[kind]


@dataclass(frozen=True, slots=True)
class NodePool:
    """The devices of one node, by ordinal."""

    node: str
    pool: str
    kind: NodeKind
    devices: tuple[str | None, ...]
    """Device name of each ordinal; None for a GPU that is not published or does not decode."""
    published: tuple[Device | None, ...]
    """What is published about each of these."""
    offered: int
    """Mask of the whole GPUs with our taint, which are ours to allocate. Without it the node has opted out."""
    others: tuple[str, ...] = ()
    """Names of the other devices with our taint, such as MIG devices: only the rules of legal know what may be done."""
    order: tuple[str, ...] = ()
    """Names of all devices, in the order in which they are tried; empty if the kind has no `rest`."""
    clique: str | None = None
    """The fabric clique of all published GPUs; None if they have none, or more than one."""
    is_left_to_scheduler: bool = False
    """Whether something is published, and none of it has a taint of ours."""

    @property
    def box(self) -> Box:
        """Links and rates."""
        return self.kind.box

    def mask(self, devices: Iterable[DeviceId]) -> int:
        """Return those of `devices` that are in this pool."""
        names = {device.device for device in devices if device.pool == self.pool}
        return mask_of(ordinal for ordinal, name in enumerate(self.devices) if name in names) if names else 0


def held_by_place(pool: NodePool, holdings: Iterable[Holding]) -> Hashable:
    """Return the `rest` of the state of a node with this pool, given all holdings of the pool (NodeState.rest)."""
    if not pool.order:
        return None
    places = {name: place for place, name in enumerate(pool.order)}
    whole = 0
    shares: dict[int, Counter[str]] = {}
    for holding in holdings:
        place = places.get(holding.device.device)
        if place is None:
            continue
        if holding.share_id is None:
            whole |= 1 << place
        else:
            shares.setdefault(place, Counter()).update(dict(holding.consumed))
    taken = ((place, tuple(sorted(amounts.items()))) for place, amounts in shares.items())
    return whole, tuple(sorted(taken))


def shared_gpus(pool: NodePool, holdings: Iterable[Holding]) -> tuple[SharedGpu, ...]:
    """Return the GPUs with shares that have room for another one, judged by capacities, by ordinal. `holdings` are all
    holdings of the pool."""
    places = {name: place for place, name in enumerate(pool.devices) if pool.kind.shareable >> place & 1}
    of_gpu: dict[int, list[Holding]] = {}
    for holding in holdings:
        place = places.get(holding.device.device)
        if place is not None:
            of_gpu.setdefault(place, []).append(holding)
    found = (_shared_gpu(place, pool.kind.devices[place], shares) for place, shares in sorted(of_gpu.items()))
    return tuple(one for one in found if one is not None)


def _shared_gpu(place: int, kind: DeviceKind | None, holdings: Sequence[Holding]) -> SharedGpu | None:
    modes = {one.mode for one in holdings}
    mode = modes.pop()
    if kind is None or modes or not mode:
        return None  # a claim has it whole, or two modes already meet on it: no share is added
    taken: Counter[str] = Counter()
    for one in holdings:
        taken.update(dict(one.consumed))
    shared = SharedGpu(place, mode, tuple(sorted(taken.items())), len(holdings))
    left = shared.left_nano(kind.device)
    return shared if all(left[one.name] >= one.least_nano for one in kind.device.capacities) else None


def held_devices(claim: ResourceClaim, driver: str) -> frozenset[DeviceId]:
    """Return our devices that a claim keeps from others. Admin access keeps nothing."""
    if claim.status.allocation is None:
        return frozenset()
    results = claim.status.allocation.devices.results
    return frozenset(
        DeviceId(driver, result.pool, result.device)
        for result in results
        if result.driver == driver and not result.admin_access
    )


def other_holdings(claim: ResourceClaim, driver: str) -> frozenset[Holding]:
    """Return what else a claim keeps from others: devices of other drivers, and shares of ours."""
    if claim.status.allocation is None:
        return frozenset()
    devices = claim.status.allocation.devices
    configs: list[tuple[Sequence[str], msgspec.Raw]] = [
        (one.requests, one.opaque.parameters)
        for one in devices.config
        if one.opaque is not None and one.opaque.driver == driver
    ]
    if claim.problem:  # what it says about modes is unknown
        configs = [((), mode_parameters(UNREADABLE_MODE))]
    return holdings_besides_gpus(claim.metadata.uid, devices.results, driver, configs)


def holdings_besides_gpus(
    holder: str, results: Iterable[DeviceResult], driver: str, configs: GpuConfigs = ()
) -> frozenset[Holding]:
    """Return what the results hold besides our whole devices. `configs` are our driver's in that allocation."""
    others = [result for result in results if result.driver != driver or result.share_id is not None]
    if not others:
        return frozenset()
    try:
        return frozenset(holdings_of(holder, others, configs))
    except ValueError:  # an amount that the API server would not store: no other claim gets anything of the device
        ids = (DeviceId(result.driver, result.pool, result.device) for result in others)
        return frozenset(Holding(holder, device) for device in ids)


@dataclass(frozen=True, slots=True)
class HoldingChange:
    """What changed when a holder's devices changed."""

    let_go: frozenset[DeviceId | Holding]
    pools: Sequence[str]
    """Our pools of which it now holds something different, sorted."""


Follow = Callable[[str, frozenset[DeviceId], frozenset[Holding]], None]


class Holdings:
    """Who holds which devices. The owner chooses the names of holders; a device is free when it has no holder.

    Our whole devices are in one table, shares of them and devices of other drivers in another.
    """

    def __init__(self, driver: str, others: Collection[str]) -> None:
        """`others`: further drivers whose devices count; devices of any other driver are ignored."""
        self._driver = driver
        self._drivers = frozenset((driver, *others))
        self._held_by: dict[str, frozenset[DeviceId]] = {}
        # Pool → device → how many devices each of its holders has, ascending, including holders of shares.
        self._holders: dict[str, dict[str, tuple[int, ...]]] = {}
        self._names_of: dict[str, set[str]] = {}  # pool → holders of its devices and of shares of them
        self._sharers: dict[str, dict[str, int]] = {}  # pool → device → how many of them have shares of it
        self.by_size: Counter[int] = Counter()
        """Our held devices, by how many of them their holder has; a device with several shares counts once, for the
        holder with most. Read only."""
        self._others_by: dict[str, frozenset[Holding]] = {}
        self._others_of: dict[PoolId, dict[Holding, int]] = {}
        self.follow: Follow | None = None
        """Called at each hold(), with the same arguments, once it is done."""

    def taken(self, pool: str) -> Collection[str]:
        """Return the names of the held devices of one of our pools, whole or shared."""
        return self._holders.get(pool, ())

    def in_pool(self, pool: PoolId) -> list[Holding]:
        """Return all that is held of a pool: shares with their amounts, and whole devices. A device that one claim
        holds whole while others hold shares of it is listed for each of them."""
        found = list(self._others_of.get(pool, {}))
        if pool.driver == self._driver:
            sharers = self._sharers.get(pool.pool, {})
            held = self._holders.get(pool.pool, {})
            whole = (name for name, holders in held.items() if len(holders) > sharers.get(name, 0))
            found += (Holding("", DeviceId(*pool, name)) for name in whole)
        return found

    def holders(self, device: DeviceId, *, but: Collection[str]) -> tuple[str, ...]:
        """Return who holds a device, whole or a share of it, besides `but`, sorted.

        Cost: a look-up when there is no other holder, else O(holders).
        """
        if device.driver == self._driver:
            count = len(self._holders.get(device.pool, {}).get(device.device, ()))
            if count <= sum(device in self._held_by.get(name, ()) for name in but):
                return ()
            return tuple(sorted(name for name, held in self._held_by.items() if device in held and name not in but))
        others = self._others_of.get(device.pool_id, {})
        mine = [self._others_by.get(name, frozenset()) for name in but]
        if not any(held.device == device and not any(held in one for one in mine) for held in others):
            return ()
        found = (name for name, held in self._others_by.items() if any(one.device == device for one in held))
        return tuple(sorted(name for name in found if name not in but))

    def held_by(self, holder: str) -> tuple[frozenset[DeviceId], frozenset[Holding]]:
        """Return what a holder has: our devices, and then shares and devices of other drivers."""
        return self._held_by.get(holder, frozenset()), self._others_by.get(holder, frozenset())

    def every(self) -> Iterator[tuple[str, frozenset[DeviceId], frozenset[Holding]]]:
        """Yield each holder with what it has, as held_by() returns it, in no order."""
        for holder in self._held_by.keys() | self._others_by.keys():
            yield (holder, *self.held_by(holder))

    def of_pool(self, pool: str) -> Sequence[str]:
        """Return the holders of one of our pools, sorted. Cost: these holders."""
        return sorted(self._names_of.get(pool, ()))

    def hold(self, holder: str, devices: frozenset[DeviceId], others: frozenset[Holding]) -> HoldingChange:
        """Let `holder` hold exactly these devices from now on. Cost: O(devices)."""
        let_go, changed = self._hold_others(holder, others)
        before = self._held_by.pop(holder, frozenset())
        if devices:
            self._held_by[holder] = devices
        kept = before & devices if len(before) == len(devices) else frozenset()
        for device in before - kept:
            self._change_holders(device, len(before), -1)
        for device in devices - kept:
            self._change_holders(device, len(devices), 1)
        pools = {device.pool for device in before ^ devices}
        pools |= {one.device.pool for one in changed if one.device.driver == self._driver}
        now = {device.pool for device in (*devices, *self._shared_by(others))}
        for pool in pools:
            self._name(holder, pool, holds=pool in now)
        if self.follow is not None:
            self.follow(holder, devices, others)
        return HoldingChange((before - devices) | let_go, sorted(pools))

    def check(self) -> None:
        """State what must always hold. For tests: slow."""
        counts: Counter[DeviceId] = Counter(device for devices in self._held_by.values() for device in devices)
        known = {
            DeviceId(self._driver, p, d): count for p, devices in self._holders.items() for d, count in devices.items()
        }
        assert {device: len(sizes) for device, sizes in known.items()} == counts, "holders are counted"
        named: dict[str, set[str]] = {}
        for holder, devices, others in self.every():
            for device in (*devices, *self._shared_by(others)):
                named.setdefault(device.pool, set()).add(holder)
        assert self._names_of == named, "holders are known by pool"
        sharers: Counter[DeviceId] = Counter(
            device for others in self._others_by.values() for device in self._shared_by(others)
        )
        assert sharers == Counter(
            {
                DeviceId(self._driver, p, d): count
                for p, devices in self._sharers.items()
                for d, count in devices.items()
            }
        ), "who has shares is counted"
        most: dict[DeviceId, int] = {}
        for held in self._held_by.values():
            most |= {device: max(len(held), most.get(device, 0)) for device in held}
        assert self.by_size == Counter(most.values()), "devices are counted by what their holder holds"

    def _hold_others(self, holder: str, others: frozenset[Holding]) -> tuple[frozenset[Holding], frozenset[Holding]]:
        """Return what was released, and all that changed."""
        others = frozenset(holding for holding in others if holding.device.driver in self._drivers)
        before = self._others_by.pop(holder, frozenset())
        if others:
            self._others_by[holder] = others
        for holding, change in (*((old, -1) for old in before - others), *((new, 1) for new in others - before)):
            counts = self._others_of.setdefault(holding.device.pool_id, {})
            counts[holding] = counts.get(holding, 0) + change
            if not counts[holding]:
                del counts[holding]
                if not counts:
                    del self._others_of[holding.device.pool_id]
        if before or others:
            old, new = self._shared_by(before), self._shared_by(others)
            for device in old - new:
                _count(self._sharers, device, -1)
            for device in new - old:
                _count(self._sharers, device, 1)
        return before - others, before ^ others

    def _name(self, holder: str, pool: str, *, holds: bool) -> None:
        names = self._names_of.setdefault(pool, set())
        (names.add if holds else names.discard)(holder)
        if not names:
            del self._names_of[pool]

    def _change_holders(self, device: DeviceId, size: int, change: int) -> None:
        """Count one holder of `size` devices more or less."""
        of_pool = self._holders.setdefault(device.pool, {})
        before = of_pool.pop(device.device, ())
        after = list(before)
        insort(after, size) if change > 0 else after.remove(size)
        if after:
            of_pool[device.device] = tuple(after)
        elif not of_pool:
            del self._holders[device.pool]
        for of_size, sign in ((before[-1:], -1), (after[-1:], 1)):
            for one in of_size:
                self.by_size[one] += sign
                if not self.by_size[one]:
                    del self.by_size[one]

    def _shared_by(self, others: Iterable[Holding]) -> frozenset[DeviceId]:
        """Return our devices of which these holdings are shares."""
        return frozenset(one.device for one in others if one.device.driver == self._driver)


def _count(of_pool: dict[str, dict[str, int]], device: DeviceId, change: int) -> None:
    counts = of_pool.setdefault(device.pool, {})
    counts[device.device] = counts.get(device.device, 0) + change
    if not counts[device.device]:
        del counts[device.device]
        if not counts:
            del of_pool[device.pool]


def claim_holder(claim: ResourceClaim) -> str:
    """Return the name under which a claim holds what no other may get: what the API shows, what is decided and being
    written, and what rests."""
    return claim.key
