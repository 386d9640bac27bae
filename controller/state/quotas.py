"""Makes pods wait that ask for more GPUs than their namespace may hold (docs/design/quota.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from dracaena.api.errors import BadInputError
from dracaena.api.gpu_quota import (
    GPUS,
    GPUS_BY_PRODUCT,
    MIG_DEVICES,
    MIG_SLICES,
    SHARE_CORES,
    SHARE_MEMORY,
    Amounts,
    Excess,
    QuotaItem,
    amount_in_words,
    find_excess,
    held_of,
    read_quota,
    what_in_words,
)
from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import Allocator, NoFit, Settled
from dracaena.controller.allocation.earmarks import node_to_keep
from dracaena.controller.allocation.nodes.node_resources import pod_name
from dracaena.controller.allocation.request import RefusalKind, Refused
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.state.emptied import emptied
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import claim_holder
from dracaena.controller.allocation.state.quota_usage import QuotaUsage, facts_in, product_of


@dataclass(frozen=True, slots=True)
class LacksRoomToo(Refused):
    """The refusal of a pod that is beyond its quota and that has no room within it either: nothing is free for it, or
    only a product that its namespace has used up. It waits for others to end, like NoFit, and may starve."""

    used_up: frozenset[str] = frozenset()
    """The nodes with a product that is used up for the pod."""


Answer = Allocation | NoFit | Refused | Settled

PodsOf = Callable[[str], Iterable[str]]
"""Returns the pods that leave their node when a holder releases its devices."""

_MOST_OF_ONE: Final = {GPUS: 1, GPUS_BY_PRODUCT: 1, SHARE_CORES: 100, MIG_SLICES: 7, MIG_DEVICES: 1}
"""The most that one device counts. For the memory of shares no bound holds for all GPUs."""

Ask = Callable[[Mapping[str, str]], Answer]
"""Asks the allocator about one pod. The argument is the nodes that the pod must not use, with the reason."""


@dataclass(frozen=True, slots=True)
class _Quota:
    limits: Amounts | None
    """The limits in force; None: no text could ever be read, so no pod gets anything more."""
    text: str
    """The quota as written in the Namespace."""
    problem: str = ""
    """Why the text cannot be read."""


@dataclass(frozen=True, slots=True)
class QuotaState:
    """A namespace with a quota, as shown to people."""

    namespace: str
    limits: Mapping[QuotaItem, tuple[int, int]]
    """For each limited item its limit, and how much of it is held."""
    problem: str = ""
    """Why the quota as written cannot be read; the limits are those of the last one that could be."""


class Quotas:
    """The quotas of all namespaces, and what is held of each. Part of its owner, and used under the owner's lock.

    What counts is what is held when a decision is made, and the decision holds what it gives before the lock is
    released: no two decisions can both get the last of a quota. A new leader counts what the API shows before its first
    decision.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self.by_namespace: dict[str, _Quota] = {}
        """Namespaces that have a quota. Read only."""
        self._usage = QuotaUsage(
            inventory.driver, lambda device: facts_in(inventory.pool_named(device.pool), device.device)
        )

    def change(self, namespace: str, text: str | None) -> bool:
        """Take in the quota of a namespace, None when it has none; return whether the limits in force changed.

        If the text cannot be read, the last readable one stays in force. Cost: O(holders) for a namespace that had
        none.
        """
        before = self.by_namespace.get(namespace)
        if text is None:
            self.by_namespace.pop(namespace, None)
            self._usage.end(namespace)
            self._inventory.holdings.follow = None if self._usage.is_empty else self._usage.hold
            return before is not None
        if before is not None and before.text == text:
            return False
        try:
            changed = _Quota(read_quota(text), text)
        except BadInputError as error:
            changed = _Quota(None if before is None else before.limits, text, str(error))
        self.by_namespace[namespace] = changed
        if before is None:
            self._usage.begin(namespace, self._inventory.holdings.every())
            self._inventory.holdings.follow = self._usage.hold
        return before is None or changed.limits != before.limits

    def pools_changed(self, nodes: Iterable[str] | None) -> frozenset[str]:
        """Take in that the pools of these nodes may describe what is held there differently; None: other drivers'
        devices changed, which do not count. Return the namespaces whose held amounts are now different. A pool also
        becomes usable again when another pool of its node goes."""
        return self._usage.count_again(pool.pool for node in nodes or () if (pool := self._inventory.pool(node)))

    def states(self) -> tuple[QuotaState, ...]:
        """Return all namespaces with a quota, by name."""
        return tuple(self._state(name, quota) for name, quota in sorted(self.by_namespace.items()))

    def ask(self, namespace: str, ask: Ask, held: Amounts | None = None) -> Answer:
        """Ask the allocator about a pod of a namespace, and refuse what is beyond its quota. `held`: what the namespace
        counts as holding, by default all that it holds now.

        If a limit on a product is exceeded, the allocator is asked again without the nodes that have this product, at
        most once for each product. Cost: nothing for a namespace without a quota, else O(devices that the pod gets),
        and a step for each node where a product is used up.
        """
        quota = self.by_namespace.get(namespace)
        found = ask({})
        if quota is None or not isinstance(found, Allocation):
            return found
        barred: dict[str, str] = {}
        first: Excess | None = None
        tried: set[str] = set()
        while isinstance(found, Allocation):
            wanted = self._wanted(found)
            if not wanted:
                return found
            if quota.limits is None:
                return _refused(f"the quota of namespace {namespace} cannot be read: {quota.problem}")
            holds = self._usage.held(namespace) if held is None else held
            excess = find_excess(namespace, quota.limits, holds, wanted)
            if excess is None:
                return found
            first = first or excess
            product = excess.counted.name
            if excess.counted.key != GPUS_BY_PRODUCT or product in tried:
                return _refused(str(first))
            tried.add(product)
            barred |= dict.fromkeys(self._nodes_with(product), _used_up(excess))
            found = ask(barred)
        if not isinstance(found, NoFit):
            return found
        text = f"{first}; other GPUs do not suit it now"
        return LacksRoomToo(RefusalKind.QUOTA, text, concerns_us=True, used_up=frozenset(barred))

    def refusal(
        self,
        allocator: Allocator,
        pod: Pod,
        claims: Sequence[ResourceClaim],
        node: str,
        pods_of: PodsOf,
        *,
        own_stay: bool = False,
    ) -> Refused | None:
        """Return the refusal of a pod that would be beyond its quota on a node if all others had left it; None: it
        would be within its quota. `pods_of` returns the pods that go with a holder; with `own_stay`, what its namespace
        holds there still counts as held. The cost is charged to the allocator's effort.

        Cost: nothing for a namespace without a quota, else O(what is held of that node) and a decision about it.
        """
        namespace, pool = pod.metadata.namespace, self._inventory.pool(node)
        if namespace not in self.by_namespace or pool is None:
            return None
        own = {claim_holder(claim) for claim in claims}
        leaving = [one for one in self._inventory.holdings.of_pool(pool.pool) if one not in own]
        pods = sorted({key for holder in leaving for key in pods_of(holder)} - {pod_name(pod)})
        is_over = allocator.effort.is_over
        only = partial(allocator.allocate, self._inventory, pod, claims, within=frozenset((node,)), is_over=is_over)
        held = dict(self._usage.held(namespace)) if own_stay else None
        with emptied(self._inventory, pool.pool, leaving, pods):
            found = self.ask(namespace, lambda barred: only(barred=barred), held)
        return found if isinstance(found, Refused) and found.kind is RefusalKind.QUOTA else None

    def node_to_keep(
        self,
        allocator: Allocator,
        pod: Pod,
        claims: Sequence[ResourceClaim],
        barred: Mapping[str, str],
        pods_of: PodsOf,
        *,
        only: str | None = None,
        own_stay: bool = False,
    ) -> str | Refused | None:
        """Return the node on which a pod would fit, within its quota, if all others had left it
        (earmarks.node_to_keep); its refusal, if it would be beyond its quota there; None: it would fit on none.

        If a product is used up for the pod, nodes without that product are tried next. Cost: that of
        earmarks.node_to_keep() and of refusal(), once for each such product.
        """
        refused: Refused | None = None
        while True:
            questions = allocator.questions(self._inventory, pod, claims, barred=barred)
            if questions is None:
                return refused
            node = node_to_keep(self._inventory, pod, claims, *questions, pods_of=pods_of, only=only)
            if node is None:
                return refused
            refused = self.refusal(allocator, pod, claims, node, pods_of, own_stay=own_stay)
            if refused is None:
                return node
            used_up = refused.used_up if isinstance(refused, LacksRoomToo) else frozenset()
            if barred.keys() >= used_up:
                return refused
            barred = {**barred, **dict.fromkeys(used_up, refused.text)}

    def has_left(self, namespace: str, devices: int, *, shares: bool = True) -> bool:
        """Return whether a namespace with a quota may have this many more devices, whatever they are. `shares`: whether
        they may be shares of a GPU; if no amounts are asked for, they are whole GPUs or MIG devices."""
        limits, held = self.by_namespace[namespace].limits, self._usage.held(namespace)
        if limits is None:
            return False
        return all(
            one.key in _MOST_OF_ONE and held_of(held, one) + devices * _MOST_OF_ONE[one.key] <= limit
            for one, limit in limits.items()
            if shares or one.key not in (SHARE_MEMORY, SHARE_CORES)
        )

    def _wanted(self, allocation: Allocation) -> Amounts:
        every = [self._usage.wanted(allocation.devices(entry), allocation.others(entry)) for entry in allocation.claims]
        if len(every) == 1:
            return every[0]
        amounts: Counter[QuotaItem] = Counter()
        for one in every:
            amounts.update(one)
        return amounts

    def _nodes_with(self, product: str) -> list[str]:
        names: list[str] = []
        for by_state in self._inventory.buckets.values():
            pools = (self._inventory.pool(nodes[0]) for nodes in by_state.values())
            pool = next(pool for pool in pools if pool is not None)
            if any(one is not None and product_of(one) == product for one in pool.published):
                names += [name for nodes in by_state.values() for name in nodes]
        return names

    def _state(self, namespace: str, quota: _Quota) -> QuotaState:
        held = self._usage.held(namespace)
        limits = {one: (limit, held_of(held, one)) for one, limit in sorted((quota.limits or {}).items())}
        return QuotaState(namespace, limits, quota.problem)


def _used_up(excess: Excess) -> str:
    may = f"{amount_in_words(excess.counted, excess.limit)} {what_in_words(excess.counted)}"
    return f"with GPUs that are used up for its namespace, which may have {may}"


def _refused(text: str) -> Refused:
    return Refused(RefusalKind.QUOTA, text, concerns_us=True)
