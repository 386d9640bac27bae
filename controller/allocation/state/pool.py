"""The devices of one node, as the slices of its pool tell; nodes that are alike, in buckets; who holds which devices;
and how many of them pods ask for at once.

Rules of pools: the structured allocator of Kubernetes (resource.k8s.io/v1). Of a pool only the highest generation
counts; it must be complete; two devices of one name make it invalid. Our pools belong to one node each.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dracaena.api.attributes import FABRIC_CLIQUE
from dracaena.api.device_id import DeviceId, PoolId
from dracaena.api.names import TAINT_EFFECT, taint_key
from dracaena.api.objects import Taint
from dracaena.api.resource_objects import Device, DeviceResult, ResourceClaim, ResourceSlice
from dracaena.api.resourceslice import decode_pool
from dracaena.controller.allocation.legal.books import Holding, holdings_of
from dracaena.controller.allocation.legal.pools import SliceIndex
from dracaena.controller.allocation.legal.read import slices as legal
from dracaena.controller.allocation.legal.read.slices import Slice
from dracaena.controller.allocation.legal.read.taints import timeless
from dracaena.controller.allocation.score.box import Box, make_box, mask_of
from dracaena.controller.allocation.score.order import GROUP_SIZES, PRICE_UNITS
from dracaena.controller.allocation.state.device_kind import DeviceKind, device_kinds, digest_of


@dataclass(frozen=True, slots=True, order=True)
class PoolDefect:
    """Something published that cannot be used: it is left out of the choice and named."""

    pool: str
    device: str
    """Empty when it is about the whole pool."""
    text: str
    passing: bool = False
    """Whether it ends by itself: slices of a pool are written one by one, so a pool is incomplete for a moment."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class NodeKind:
    """All that a choice among the devices of a node depends on, besides which of them are free.

    Nodes of one kind share one answer. What decides which devices a request may use is part of it; identities of
    devices (device_kind.IDENTITY) are not: who asks for those is answered node by node.
    """

    box: Box
    foreign_taints: tuple[tuple[int, tuple[Taint, ...]], ...] = ()
    """Ordinals that have taints besides ours, with these, ascending. Without the times at which they were added, and
    without what a rule puts on all devices (Inventory.taints_of_all)."""
    devices: tuple[DeviceKind | None, ...] = ()
    """Of each ordinal what selectors and constraints can read of it; None for a GPU that is not published."""
    rest: bytes = b""
    """Digest of all that is published except identities (device_kind.digest_of); empty for a node that has nothing but
    whole GPUs of ours to give, which the fields above describe."""
    is_mixed: bool = False
    """Whether there is more to give than whole GPUs of ours. Such a kind has a `rest`."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.box, self.foreign_taints, self.devices, self.rest, self.is_mixed)))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class NodeState:
    """What a node is and what is free there: nodes of one state stand in one bucket."""

    kind: NodeKind
    free: int
    """Mask of the whole GPUs that can be given."""
    rest: Hashable = None
    """For a kind with a `rest`: who holds how much of each of its devices, by their places in the order in which
    they are tried. A mask of those that are held whole, and what the shares of each take together."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.kind, self.free, self.rest)))

    def __hash__(self) -> int:
        return self._hash


Buckets = Mapping[NodeKind, Mapping[tuple[int, Hashable], Sequence[str]]]
"""Kind → what is free (NodeState.free and .rest) → names of the nodes, ascending."""


class NodeBuckets:
    """Nodes by what they are and what is free. Part of its owner. Cost: a search in one bucket for each call."""

    def __init__(self) -> None:
        self._buckets: dict[NodeKind, dict[tuple[int, Hashable], list[str]]] = {}

    @property
    def by_kind(self) -> Buckets:
        """All of them, none empty. Do not change it."""
        return self._buckets

    def add(self, name: str, state: NodeState) -> None:
        """Put a node in that is not there."""
        insort(self._buckets.setdefault(state.kind, {}).setdefault((state.free, state.rest), []), name)

    def take_out(self, name: str, state: NodeState) -> None:
        """Take a node out that was added with this state."""
        by_state = self._buckets[state.kind]
        names = by_state[state.free, state.rest]
        del names[bisect_left(names, name)]
        if not names:
            del by_state[state.free, state.rest]
            if not by_state:
                del self._buckets[state.kind]


@dataclass(frozen=True, slots=True)
class NodePool:
    """The devices of one node, by ordinal."""

    node: str
    pool: str
    kind: NodeKind
    devices: tuple[str | None, ...]
    """Device name of each ordinal; None for a GPU that is not published or does not decode."""
    published: tuple[Device | None, ...]
    """What is published of each of these."""
    offered: int
    """Mask of the whole GPUs that carry our taint: ours to allocate. Without it the node has opted out."""
    others: tuple[str, ...] = ()
    """Names of the other devices with our taint: MIG devices, and all that is shared or draws on counters. Only the
    rules of legal know what may be done with them."""
    order: tuple[str, ...] = ()
    """Names of all devices, in the order in which they are tried; empty where the kind has no `rest`."""
    clique: str | None = None
    """The fabric clique of all GPUs that are published; None where they have none, or more than one."""

    @property
    def box(self) -> Box:
        """Links and rates."""
        return self.kind.box

    def mask(self, devices: Iterable[DeviceId]) -> int:
        """Return those of `devices` that are in this pool."""
        names = {device.device for device in devices if device.pool == self.pool}
        return mask_of(ordinal for ordinal, name in enumerate(self.devices) if name in names) if names else 0


@dataclass(frozen=True, slots=True)
class PoolContents:
    """What the slices of one pool say."""

    pool: NodePool | None
    """None when nothing may be allocated from it."""
    problems: tuple[PoolDefect, ...] = ()


def several_pools(node: str, pool: str, count: int) -> PoolDefect:
    """Return what to say about each of several pools of one node.

    None of them is used: ordinals of two pools say nothing about each other.
    """
    return PoolDefect(pool, "", f"node {node} has {count} pools of this driver, expected one: none of them is used")


def read_pool(driver: str, slices: Iterable[ResourceSlice]) -> PoolContents:
    """Read all slices of one pool of ours, in any order."""
    every = sorted(slices, key=lambda item: item.metadata.name)
    newest = max(item.spec.pool.generation for item in every)
    pages = [item for item in every if item.spec.pool.generation == newest]
    pool = pages[0].spec.pool
    if len(pages) != pool.resource_slice_count:
        text = f"generation {newest} has {len(pages)} of {pool.resource_slice_count} slices: being updated"
        return PoolContents(None, (PoolDefect(pool.name, "", text, passing=True),))
    problem = _unusable(pages)
    if problem is not None:
        return PoolContents(None, (PoolDefect(pool.name, "", problem),))
    return _decode(driver, pool.name, pages)


_SKIPS: Final = "skipNodeOperations: GPUs are of no use unless the plugin prepares them: the pool is left alone"


def _unusable(pages: list[ResourceSlice]) -> str | None:
    nodes = sorted({page.spec.node_name for page in pages})
    if len(nodes) > 1 or not nodes[0]:
        return f"slices name the nodes {nodes}, expected one node"
    for page in pages:
        if page.spec.unknown:
            return f"slice {page.metadata.name}: {legal.unknown_fields(page.spec.unknown, 'the pool')}"
        if page.spec.skip_node_operations:
            return f"slice {page.metadata.name}: {_SKIPS}"
    names = [device.name for page in pages for device in page.spec.devices]
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"device {twice[0]} is published twice" if twice else None


def _decode(driver: str, pool: str, pages: Sequence[ResourceSlice]) -> PoolContents:
    every = devices = [device for page in pages for device in page.spec.devices]
    newer = [device for device in devices if device.unknown]
    devices = [device for device in devices if not device.unknown]
    decoded = decode_pool(devices)
    problems = (
        *(PoolDefect(pool, problem.device, problem.text) for problem in decoded.problems),
        *(PoolDefect(pool, one.name, legal.unknown_fields(one.unknown, "the device")) for one in newer),
    )
    names: list[str | None] = [None] * decoded.topology.gpu_count
    for gpu in decoded.gpus:
        names[gpu.ordinal] = gpu.name
    by_name = {device.name: device for device in devices}
    key = taint_key(driver)
    ours = frozenset(d.name for d in devices if any(_keeps_scheduler_off(taint, key) for taint in d.taints))
    taints = {device.name: [timeless(taint) for taint in device.taints if taint.key != key] for device in devices}
    foreign = ((gpu.ordinal, tuple(taints[gpu.name])) for gpu in decoded.gpus)
    box = make_box(decoded.topology, {gpu.ordinal: gpu.gpu for gpu in decoded.gpus})
    published = tuple(None if name is None else by_name[name] for name in names)
    kinds = device_kinds(driver, published)
    whole = {gpu.name: gpu.ordinal for gpu in decoded.gpus if gpu.name in ours and _is_plain(by_name[gpu.name])}
    is_plain = len(whole) == len(every) and not any(page.spec.shared_counters for page in pages)
    others = tuple(sorted(ours - whole.keys() - {problem.device for problem in decoded.problems}))
    kind = NodeKind(
        box,
        tuple((ordinal, found) for ordinal, found in foreign if found),
        kinds,
        b"" if is_plain else digest_of(pages),
        bool(others),
    )
    node_pool = NodePool(
        node=pages[0].spec.node_name,
        pool=pool,
        kind=kind,
        devices=tuple(names),
        published=published,
        offered=mask_of(whole.values()),
        others=others,
        order=() if is_plain else tuple(device.name for device in every),
        clique=_clique(published),
    )
    return PoolContents(node_pool, problems)


def _clique(devices: Sequence[Device | None]) -> str | None:
    values = {device.attributes.get(FABRIC_CLIQUE.name) for device in devices if device is not None}
    value = values.pop() if len(values) == 1 else None
    return None if value is None else value.string or None


def _is_plain(device: Device) -> bool:
    """Whether a device is given whole or not at all, and nothing but its holder decides that."""
    return not (device.allow_multiple_allocations or device.consumes_counters or device.binding_conditions)


def _keeps_scheduler_off(taint: Taint, key: str) -> bool:
    return taint.key == key and taint.effect == TAINT_EFFECT


MOST_DEVICES: Final = 40_000
"""Devices that are kept read, about 3 KiB each with their form for CEL: 700 nodes of 56 MIG devices. Nodes of which
whole GPUs are all that there is to give are never read like this."""


class ReadPools:
    """Remembers pools by name; the one not asked for longest goes first. One thread at a time."""

    def __init__(self, most_devices: int) -> None:
        self._most_devices = most_devices
        self._known: OrderedDict[str, tuple[SliceIndex, int]] = OrderedDict()
        self._devices = 0

    def get(self, name: str, read: Callable[[], tuple[Slice, ...]]) -> SliceIndex:
        """Return the slices of a pool, read at the first call and after forget()."""
        known = self._known.get(name)
        if known is not None:
            self._known.move_to_end(name)
            return known[0]
        slices = read()
        index, count = SliceIndex(slices), sum(len(one.devices) for one in slices)
        self._known[name] = index, count
        self._devices += count
        while self._devices > self._most_devices and len(self._known) > 1:
            self._devices -= self._known.popitem(last=False)[1][1]
        return index

    def forget_all(self) -> None:
        """Something about all pools has changed."""
        self._known.clear()
        self._devices = 0

    def forget(self, name: str) -> None:
        """The pool has changed."""
        known = self._known.pop(name, None)
        self._devices -= 0 if known is None else known[1]


def held_devices(claim: ResourceClaim, driver: str) -> frozenset[DeviceId]:
    """Return the devices of ours that a claim keeps from others. Admin access keeps nothing."""
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
    return holdings_beside(claim.metadata.uid, claim.status.allocation.devices.results, driver)


def holdings_beside(holder: str, results: Iterable[DeviceResult], driver: str) -> frozenset[Holding]:
    """Return what the results hold that is no whole device of ours."""
    beside = [result for result in results if result.driver != driver or result.share_id is not None]
    if not beside:
        return frozenset()
    try:
        return frozenset(holdings_of(holder, beside))
    except ValueError:  # an amount that the API server would not store: then nobody else gets anything of the device
        ids = (DeviceId(result.driver, result.pool, result.device) for result in beside)
        return frozenset(Holding(holder, device) for device in ids)


@dataclass(frozen=True, slots=True)
class HoldingChange:
    """What changed when a holder came to hold something else."""

    let_go: frozenset[DeviceId | Holding]
    pools: Sequence[str]
    """Our pools of which it holds something else now, sorted."""


class Holdings:
    """Holders are named by their owner's words; a device is free when nobody holds it. A part of its owner.

    Whole devices of ours are one table, shares of them and devices of other drivers another one.
    """

    def __init__(self, driver: str, others: Collection[str]) -> None:
        """`others`: further drivers whose devices count; those of all else are passed over."""
        self._driver = driver
        self._drivers = frozenset((driver, *others))
        self._held_by: dict[str, frozenset[DeviceId]] = {}
        self._holders: dict[str, dict[str, int]] = {}  # pool → device → number of holders
        self.by_size: Counter[int] = Counter()
        """Whole devices of ours that are held, by how many of them their holder has. Do not change it."""
        self._others_by: dict[str, frozenset[Holding]] = {}
        self._others_of: dict[PoolId, dict[Holding, int]] = {}

    def taken(self, pool: str) -> Collection[str]:
        """Return the names of the devices of one of our pools that somebody holds, whole or a share."""
        return self._holders.get(pool, ())

    def in_pool(self, pool: PoolId) -> list[Holding]:
        """Return all that is held of a pool, whoever holds it: shares and their amounts, and whole devices."""
        beside = self._others_of.get(pool, {})
        found = list(beside)
        if pool.driver == self._driver:
            shared = {holding.device.device for holding in beside}
            whole = (name for name in self._holders.get(pool.pool, ()) if name not in shared)
            found += (Holding("", DeviceId(*pool, name)) for name in whole)
        return found

    def holders(self, device: DeviceId, *, but: Collection[str]) -> tuple[str, ...]:
        """Return who holds a device besides `but`, sorted: whole or a share of it.

        Cost: a look-up when nobody else does, else O(holders).
        """
        if device.driver == self._driver:
            count = self._holders.get(device.pool, {}).get(device.device, 0)
            if count <= sum(device in self._held_by.get(name, ()) for name in but):
                return ()
            return tuple(sorted(name for name, held in self._held_by.items() if device in held and name not in but))
        beside = self._others_of.get(device.pool_id, {})
        mine = [self._others_by.get(name, frozenset()) for name in but]
        if not any(held.device == device and not any(held in one for one in mine) for held in beside):
            return ()
        found = (name for name, held in self._others_by.items() if any(one.device == device for one in held))
        return tuple(sorted(name for name in found if name not in but))

    def held_by(self, holder: str) -> tuple[frozenset[DeviceId], frozenset[Holding]]:
        """Return what a holder holds: devices of ours, and shares and devices of other drivers."""
        return self._held_by.get(holder, frozenset()), self._others_by.get(holder, frozenset())

    def by_pool(self) -> Mapping[str, Sequence[str]]:
        """Return who holds something of each of our pools, sorted. Cost: O(all that is held)."""
        found: dict[str, set[str]] = {}
        for holder, devices in self._held_by.items():
            for device in devices:
                found.setdefault(device.pool, set()).add(holder)
        for holder, others in self._others_by.items():
            for holding in others:
                if holding.device.driver == self._driver:
                    found.setdefault(holding.device.pool, set()).add(holder)
        return {pool: sorted(holders) for pool, holders in found.items()}

    def hold(self, holder: str, devices: frozenset[DeviceId], others: frozenset[Holding]) -> HoldingChange:
        """Let `holder` hold just these devices from now on. Cost: O(devices)."""
        let_go, changed = self._hold_others(holder, others)
        before = self._held_by.pop(holder, frozenset())
        for size, change in ((len(before), -len(before)), (len(devices), len(devices))):
            self.by_size[size] += change
            if not self.by_size[size]:
                del self.by_size[size]
        if devices:
            self._held_by[holder] = devices
        for device in before - devices:
            self._count(device, -1)
        for device in devices - before:
            self._count(device, 1)
        pools = {device.pool for device in before ^ devices}
        pools |= {one.device.pool for one in changed if one.device.driver == self._driver}
        return HoldingChange((before - devices) | let_go, sorted(pools))

    def check(self) -> None:
        """State what must always hold. For tests: slow."""
        counts: Counter[DeviceId] = Counter(device for devices in self._held_by.values() for device in devices)
        known = {
            DeviceId(self._driver, p, d): count for p, devices in self._holders.items() for d, count in devices.items()
        }
        assert known == dict(counts), "holders are counted"
        sizes = Counter(len(devices) for devices in self._held_by.values() for _ in devices)
        assert self.by_size == sizes, "devices are counted by what their holder holds"

    def _hold_others(self, holder: str, others: frozenset[Holding]) -> tuple[frozenset[Holding], frozenset[Holding]]:
        """Return what was let go, and all that changed."""
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
        return before - others, before ^ others

    def _count(self, device: DeviceId, change: int) -> None:
        counts = self._holders.setdefault(device.pool, {})
        counts[device.device] = counts.get(device.device, 0) + change
        if not counts[device.device]:
            del counts[device.device]
            if not counts:
                del self._holders[device.pool]


def claim_holder(claim: ResourceClaim) -> str:
    """Return the name under which a claim holds what nobody else may get: what the API shows, what is decided and being
    written, and what rests."""
    return claim.key


HALF_LIFE_S: Final = 3_600.0
"""After this time what pods asked for counts half. Jobs take hours; what a cluster is used for changes in days."""

NOBODYS_GPUS: Final = 2
"""Added to what is asked for, as if pods of no size asked for them: in an empty cluster nobody loses anything, and who
comes first does not say who comes next. Few, so that a cluster that fills up knows in minutes."""


class AskedSizes:
    """A slowly decaying record of how many GPUs pods of each size have and wait for. Part of its owner.

    A look at the first moment counts as if it had always been so: after a restart it begins with the pods there are.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, int] = {}
        self._asked = dict.fromkeys((*GROUP_SIZES, 1), 0.0)
        self._seen_s: float | None = None

    def wait(self, key: str, gpus: int) -> None:
        """Note that a pod waits for so many GPUs."""
        self._waiting[key] = gpus

    def leave(self, key: str) -> None:
        """Note that a pod waits no more."""
        self._waiting.pop(key, None)

    def shares(self, held: Mapping[int, int], now_s: float) -> tuple[int, int, int]:
        """Return the shares of GPUs that pods of 8, 4 and 2 GPUs ask for (Prices.shares), after a look at those that
        are held now, by the size of their holder. A pod of another size counts as the next greater one, above 8 as 8.
        Cost: O(pods that wait)."""
        now: Counter[int] = Counter()
        for size, gpus in (*held.items(), *((gpus, gpus) for gpus in self._waiting.values())):
            now[min((group for group in self._asked if size <= group), default=GROUP_SIZES[0])] += gpus
        kept = 0.0 if self._seen_s is None else 0.5 ** ((now_s - self._seen_s) / HALF_LIFE_S)
        self._seen_s = now_s
        self._asked = {size: kept * asked + (1 - kept) * now[size] for size, asked in self._asked.items()}
        total = sum(self._asked.values()) + NOBODYS_GPUS
        eights, fours, pairs = (int(PRICE_UNITS * self._asked[size] / total) for size in GROUP_SIZES)
        return eights, fours, pairs
