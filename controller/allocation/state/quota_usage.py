"""What namespaces hold of our devices, counted as quotas limit it (api.gpu_quota)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dracaena.api.attributes import CORES_CAPACITY, MEMORY_CAPACITY, PRODUCT_NAME
from dracaena.api.device_id import DeviceId
from dracaena.api.gpu_quota import (
    GPUS,
    GPUS_BY_PRODUCT,
    MIG_DEVICES,
    MIG_SLICES,
    SHARE_CORES,
    SHARE_MEMORY,
    UNKNOWN_PRODUCT,
    Amounts,
    QuotaItem,
)
from dracaena.api.mig import profile_in, slices_in
from dracaena.api.quantity import NANO, parse_quantity
from dracaena.api.resource_objects import Device
from dracaena.api.vgpu import vgpu_identity_in
from dracaena.controller.allocation.legal.books import Holding
from dracaena.controller.allocation.state.node_state import NodePool


@dataclass(frozen=True, slots=True)
class PublishedGpu:
    """What a slice says about a GPU that matters for quotas."""

    product: str | None = None
    """None: the GPU is published without one."""
    memory: str | None = None
    """All its memory, as published; None: it is not published. Read only if there are shares."""

    @property
    def memory_nano(self) -> int | None:
        """In billionths of a byte; None if unknown."""
        try:
            return None if self.memory is None else parse_quantity(self.memory).nano
        except ValueError:
            return None


FactsOf = Callable[[DeviceId], PublishedGpu | None]
"""Returns what is published about a GPU; None: nothing is."""


def facts_in(pool: NodePool | None, name: str) -> PublishedGpu | None:
    """Return what a pool says about a GPU; None if there is no such pool or GPU. Cost: a step for each of its GPUs."""
    if pool is None or name not in pool.devices:
        return None
    published = pool.published[pool.devices.index(name)]
    return None if published is None else _facts(published)


def product_of(device: Device) -> str | None:
    """Return the product that a device publishes; None if it publishes none."""
    found = device.attributes.get(PRODUCT_NAME.name)
    return None if found is None else found.string or None


def _facts(device: Device) -> PublishedGpu:
    memory = device.capacity.get(MEMORY_CAPACITY)
    return PublishedGpu(product_of(device), None if memory is None else memory.value)


def count_amounts(
    driver: str, devices: Iterable[DeviceId], others: Iterable[Holding], facts_of: FactsOf
) -> tuple[Amounts, frozenset[str]]:
    """Return how much a claim holds, and the unknown pools that some of the answer depends on.

    `devices` are all our devices that it holds; `others` those of them that are shares, with their amounts, and devices
    of other drivers, which do not count. A share of all the memory of a GPU counts as a whole GPU. A share of an
    unknown GPU counts as a share, and a vGPU as a GPU of no product. Cost: O(devices), and facts_of() for each GPU.
    """
    amounts: Counter[QuotaItem] = Counter()
    unknown = set()
    shares: dict[DeviceId, list[Mapping[str, int]]] = {}
    for one in others:
        if one.device.driver == driver and one.share_id is not None:
            shares.setdefault(one.device, []).append(dict(one.consumed))
    for device in devices:
        profile = profile_in(device.device)
        if profile is not None:
            amounts[QuotaItem(MIG_SLICES)] += slices_in(profile)
            amounts[QuotaItem(MIG_DEVICES, profile)] += 1
            continue
        if vgpu_identity_in(device.device) is not None:
            amounts[QuotaItem(GPUS)] += 1
            continue
        facts = facts_of(device)
        if facts is None:
            unknown.add(device.pool)
        parts = [share for share in shares.get(device, ()) if _is_part(share, facts)]
        for share in parts:
            amounts[QuotaItem(SHARE_MEMORY)] += share[MEMORY_CAPACITY] // NANO
            amounts[QuotaItem(SHARE_CORES)] += share.get(CORES_CAPACITY, 0) // NANO
        if not parts:
            amounts[QuotaItem(GPUS)] += 1
            product = UNKNOWN_PRODUCT if facts is None else facts.product
            if product is not None:
                amounts[QuotaItem(GPUS_BY_PRODUCT, product)] += 1
    return amounts, frozenset(unknown)


def _is_part(share: Mapping[str, int], facts: PublishedGpu | None) -> bool:
    if MEMORY_CAPACITY not in share:
        return False
    whole = None if facts is None else facts.memory_nano
    return whole is None or share[MEMORY_CAPACITY] < whole


@dataclass(frozen=True, slots=True)
class _ClaimCount:
    devices: frozenset[DeviceId]
    others: frozenset[Holding]
    amounts: Amounts
    unknown: frozenset[str]
    """The unknown pools that some of the count depends on."""
    facts: Mapping[DeviceId, PublishedGpu]
    """What it was counted by: for each GPU what a slice says, or last said."""

    @property
    def pools(self) -> frozenset[str]:
        """The pools whose slices the count depends on."""
        return self.unknown.union(device.pool for device in self.facts)

    def is_known(self, devices: frozenset[DeviceId], others: frozenset[Holding]) -> bool:
        """Whether this is the count of these holdings, and no slice can say more about them."""
        return not self.unknown and self.devices == devices and self.others == others


class QuotaUsage:
    """What is held by the claims of some namespaces. Part of its owner, and used under the owner's lock.

    It follows everything that is held (Holdings.follow), and so counts what the API shows, what is decided and being
    written, and what rests, each claim once. Namespaces without a quota cost one look-up for each change.
    """

    def __init__(self, driver: str, facts_of: FactsOf) -> None:
        self._driver, self._facts_of = driver, facts_of
        self._claims: dict[str, dict[str, _ClaimCount]] = {}  # namespace → claim → what it holds
        self._sums: dict[str, Counter[QuotaItem]] = {}
        self._by_pool: dict[str, set[str]] = {}  # pool → claims whose count depends on what it publishes
        self._last_count: _ClaimCount | None = None
        """What wanted() last counted: a decision holds it next, and then need not count it again."""

    @property
    def is_empty(self) -> bool:
        """Whether no namespace is counted."""
        return not self._claims

    def begin(self, namespace: str, held: Iterable[tuple[str, frozenset[DeviceId], frozenset[Holding]]]) -> None:
        """Count a namespace from now on; `held` is what all holders have now. Cost: O(holders)."""
        self._claims[namespace], self._sums[namespace] = {}, Counter()
        for holder, devices, others in held:
            if _namespace(holder) == namespace:
                self.hold(holder, devices, others)

    def end(self, namespace: str) -> None:
        """Stop counting a namespace."""
        for holder, entry in self._claims.get(namespace, {}).items():
            self._forget_pools(holder, entry)
        self._claims.pop(namespace, None)
        self._sums.pop(namespace, None)

    def hold(self, holder: str, devices: frozenset[DeviceId], others: frozenset[Holding]) -> None:
        """Note that a claim holds exactly this from now on. Cost: O(devices), or a comparison if it held the same and
        all of it was known."""
        counted, self._last_count = self._last_count, None
        namespace = _namespace(holder)
        claims = self._claims.get(namespace)
        if claims is None:
            return
        before = claims.get(holder)
        if before is not None and before.is_known(devices, others):
            return
        entry = None
        if devices:
            entry = counted if counted is not None and counted.is_known(devices, others) else None
            entry = entry or self._count(devices, others, {} if before is None else before.facts)
        self._replace(holder, before, entry)

    def _replace(self, holder: str, before: _ClaimCount | None, entry: _ClaimCount | None) -> None:
        namespace = _namespace(holder)
        if before is not None:
            del self._claims[namespace][holder]
            self._sums[namespace].subtract(before.amounts)
            self._forget_pools(holder, before)
        if entry is not None:
            self._claims[namespace][holder] = entry
            self._sums[namespace].update(entry.amounts)
            for pool in entry.pools:
                self._by_pool.setdefault(pool, set()).add(holder)

    def count_again(self, pools: Iterable[str]) -> frozenset[str]:
        """Count again what is held of pools whose slices may have changed; return the namespaces whose amounts changed.
        A GPU that no slice has any more is counted as before. Cost: O(pools), and O(devices) of the claims that hold
        something there."""
        self._last_count = None  # it was counted by the earlier slices
        known = self._by_pool.keys() & set(pools)
        changed = set()
        for holder in sorted({holder for pool in known for holder in self._by_pool[pool]}):
            before = self._claims[_namespace(holder)][holder]
            entry = self._count(before.devices, before.others, before.facts)
            if (entry.facts, entry.unknown) != (before.facts, before.unknown):
                self._replace(holder, before, entry)
            if entry.amounts != before.amounts:
                changed.add(_namespace(holder))
        return frozenset(changed)

    def held(self, namespace: str) -> Amounts:
        """Return what a counted namespace holds. Read only."""
        return self._sums.get(namespace, Counter())

    def wanted(self, devices: frozenset[DeviceId], others: frozenset[Holding]) -> Amounts:
        """Return how much these devices, which are not held yet, would count."""
        self._last_count = self._count(devices, others)
        return self._last_count.amounts

    def _count(
        self,
        devices: frozenset[DeviceId],
        others: frozenset[Holding],
        last: Mapping[DeviceId, PublishedGpu] = MappingProxyType({}),
    ) -> _ClaimCount:
        """Count something; `last` is what slices last said about its GPUs, for those that no slice describes now."""
        facts: dict[DeviceId, PublishedGpu] = {}

        def facts_of(device: DeviceId) -> PublishedGpu | None:
            found = self._facts_of(device) or last.get(device)
            if found is not None:
                facts[device] = found
            return found

        return _ClaimCount(devices, others, *count_amounts(self._driver, devices, others, facts_of), facts)

    def _forget_pools(self, holder: str, entry: _ClaimCount) -> None:
        for pool in entry.pools:
            self._by_pool[pool].discard(holder)
            if not self._by_pool[pool]:
                del self._by_pool[pool]


def _namespace(holder: str) -> str:
    return holder.partition("/")[0]
