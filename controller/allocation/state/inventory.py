"""What there is and what is taken, in the order in which decisions look at it.

Nodes are in buckets by (kind, free devices): decisions look at buckets, and thousands of equal nodes cost one look.
Every change moves only the nodes that it touches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final
from weakref import WeakValueDictionary

from dracaena.api.device_id import DeviceId, PoolId
from dracaena.api.device_taints import with_taint_rules
from dracaena.api.names import taint_key
from dracaena.api.objects import Node, Pod, Taint
from dracaena.api.partitions import broken
from dracaena.api.resource_objects import DeviceClass, DeviceTaintRule, ResourceSlice
from dracaena.api.topology_levels import CLIQUE_LABEL, NO_LEVELS, TopologyLevels
from dracaena.controller.allocation.legal.books import Books, Holding
from dracaena.controller.allocation.legal.pools import CombinedSlices, SliceIndex, SliceSource
from dracaena.controller.allocation.legal.read.slices import PublishedDevice, read_slice
from dracaena.controller.allocation.legal.read.taints import (
    selects_all,
    selects_any,
    without_taint,
)
from dracaena.controller.allocation.nodes.node_filter import NodeIndex
from dracaena.controller.allocation.nodes.node_resources import NodeResources, ResourceDemand, pod_name
from dracaena.controller.allocation.nodes.placement.placed_pods import PlacedPods, pod_facts
from dracaena.controller.allocation.nodes.placement.spread import SpreadScopes
from dracaena.controller.allocation.nodes.placement.volumes import Storage
from dracaena.controller.allocation.nodes.pod_resources import (
    node_allocatable,
    pod_resources,
    readable_resources,
    shared_resources,
)
from dracaena.controller.allocation.request import RequestReader
from dracaena.controller.allocation.score.box import Box
from dracaena.controller.allocation.state.families import Families, Kin
from dracaena.controller.allocation.state.gangs import may_have_a_family
from dracaena.controller.allocation.state.locations import Location, LocationIndex
from dracaena.controller.allocation.state.node_state import (
    Buckets,
    Holdings,
    NodeBuckets,
    NodeKind,
    NodePool,
    NodeState,
    held_by_place,
    shared_gpus,
)
from dracaena.controller.allocation.state.other_devices import OtherDevices
from dracaena.controller.allocation.state.partition_kinds import with_partitions
from dracaena.controller.allocation.state.pool import (
    MOST_DEVICES,
    PoolContents,
    PoolDefect,
    ReadPools,
    read_pool,
    several_pools,
)
from dracaena.controller.allocation.state.taint_rules import TaintRules

_NO_POOL: Final = PoolContents(None)
_NOTHING: Final = shared_resources((), ())

CLASS_RESOURCE: Final = "deviceclass.resource.kubernetes.io/"
"""Prefix of a DeviceClass's name: the extended resource that each class stands for (KEP-5004)."""


@dataclass(frozen=True, slots=True)
class PoolChange:
    """What changed when slices of a pool were taken in."""

    offer_changed: bool
    """Whether the offered devices, or their links or taints, changed; if there are more than whole GPUs, whether they
    may have."""
    new_problems: tuple[PoolDefect, ...]
    nodes: frozenset[str] | None
    """The nodes that the change may matter to; None: any."""


class Inventory:
    """Nodes, pools, classes, and who holds which devices. One owner, one thread at a time.

    The owner chooses the names of holders; a device is free when it has no holder. Everything follows from the last
    report about each object, whatever the order of the reports: check() verifies that.
    """

    def __init__(self, driver: str, allowed_drivers: Iterable[str] = (), levels: TopologyLevels = NO_LEVELS) -> None:
        """`allowed_drivers`: other drivers whose devices may be allocated with ours, in claims that ask for both.
        `levels`: what nodes are in above NVLink cliques."""
        self.driver, self.levels = driver, levels
        self.allowed_drivers = frozenset(allowed_drivers) - {driver}
        self.nodes = NodeIndex()
        self.resources = NodeResources()
        self.requests = RequestReader(driver)  # for reading; set_class() and remove_class() change it
        self.placed = PlacedPods()
        self.families = Families()
        self.locations = LocationIndex()  # for reading
        self._domains: dict[str, tuple[str | None, ...]] = {}
        self.storage = Storage()
        self.spread_scopes = SpreadScopes(self.nodes)
        self._slices: dict[str, dict[str, ResourceSlice]] = {}
        self._contents: dict[str, PoolContents] = {}
        self._pools_of_node: dict[str, set[str]] = {}
        self._kinds: WeakValueDictionary[tuple[Box, object, object, bytes, bool, int], NodeKind] = WeakValueDictionary()
        self.holdings = Holdings(driver, self.allowed_drivers)  # for reading; hold() changes it
        self._states: dict[str, NodeState | str] = {}
        self._outside: Counter[str] = Counter()
        self.node_buckets = NodeBuckets(remembers_empty=True)  # for reading
        self._problems: Counter[bool] = Counter()  # by PoolDefect.passing
        self._rules = TaintRules(driver)
        self.others = OtherDevices(driver, self._rules.every)
        self._foreign: dict[str, ResourceSlice] = {}
        self._foreign_index: SliceIndex | None = None
        self._read_pools = ReadPools(MOST_DEVICES)

    # Asking

    @property
    def classes(self) -> Mapping[str, DeviceClass]:
        """All device classes by name."""
        return self.requests.classes

    @property
    def taints_of_all(self) -> tuple[Taint, ...]:
        """The taints that DeviceTaintRules put on every device of ours. They are not part of a kind, so that such a
        rule, which may come in an emergency, costs the same however many nodes there are."""
        return self._rules.taints_of_all

    @property
    def buckets(self) -> Buckets:
        """All nodes that offer devices of ours, by what they are and what is free. Read only."""
        return self.node_buckets.by_kind

    @property
    def outside(self) -> Mapping[str, int]:
        """Why nodes are in no bucket, in words that follow a count of nodes → how many."""
        return MappingProxyType(self._outside)

    def state(self, node: str) -> NodeState | str:
        """Return the state of an existing node, or why it has none, in words that follow a count of nodes."""
        return self._states[node]

    def domains(self, node: str) -> tuple[str | None, ...]:
        """Return the domain of an existing node at each of the levels (TopologyLevels.domains)."""
        return self._domains[node]

    def unused_levels(self) -> tuple[str, ...]:
        """Return the labels of levels at which no node has a domain. Cost: a step for each node."""
        known = tuple(self._domains.values())
        return tuple(
            key for place, key in enumerate(self.levels.labels) if all(domains[place] is None for domains in known)
        )

    def offers(self, node: str) -> bool:
        """Return whether a node exists and offers devices of ours."""
        return isinstance(self._states.get(node), NodeState)

    def pool(self, node: str) -> NodePool | None:
        """Return the usable pool of a node."""
        pools = self._pools_of_node.get(node, ())
        return self._contents[next(iter(pools))].pool if len(pools) == 1 else None

    def pool_named(self, name: str) -> NodePool | None:
        """Return a usable pool by its own name."""
        pool = self._contents.get(name, _NO_POOL).pool
        return pool if pool is not None and len(self._pools_of_node[pool.node]) == 1 else None

    def is_mixed(self, kind: NodeKind) -> bool:
        """Return whether nodes of this kind have more to give than whole GPUs of ours."""
        return kind.is_mixed or bool(self.allowed_drivers)

    def kinds_of_devices(self) -> Iterator[PublishedDevice]:
        """Yield a device, without identity, of each kind that our driver publishes; equal ones may come again."""
        return (device for kind in self.buckets for device in self.devices_of(kind))

    def devices_of(self, kind: NodeKind) -> Iterator[PublishedDevice]:
        """Yield the devices of an existing kind of node, as kinds_of_devices() does."""
        yield from (one.device for one in kind.devices if one is not None)
        pool = self.pool(next(iter(self.buckets[kind].values()))[0]) if kind.rest else None
        others = frozenset(() if pool is None else pool.others)
        for item in () if pool is None else self._own(pool.pool).on_node(pool.node):
            yield from (device for device in item.devices if device.id.device in others)

    def reach(self, node: str) -> tuple[SliceSource, Books]:
        """Return what a node can reach and who holds it, as the rules read it.

        Our own taint is left out: it keeps other schedulers off our devices. Cost: O(devices that the node can reach).
        """
        pool = self.pool(node)
        own = SliceIndex(()) if pool is None else self._own(pool.pool)
        if self._foreign_index is None:
            self._foreign_index = SliceIndex(
                read_slice(with_taint_rules(item, self._rules.every())) for item in self._foreign.values()
            )
        source = CombinedSlices(own, self._foreign_index)
        ids = {one.pool for one in (*source.on_node(node), *source.of_no_node())}
        return source, Books(holding for pool_id in sorted(ids) for holding in self.holdings.in_pool(pool_id))

    def device_count(self, node: str) -> int:
        """Return how many devices of ours are published for a node."""
        pool = self.pool(node)
        return 0 if pool is None else sum(len(item.spec.devices) for item in self._slices[pool.pool].values())

    def held_count(self, node: str) -> int:
        """Return how many of our devices on a node are held; 0 when it has no usable pool."""
        pool = self.pool(node)
        return 0 if pool is None else len(self.holdings.taken(pool.pool))

    def resource_demand(self, pod: Pod, *, preempting: bool = False) -> ResourceDemand:
        """Return what a pod needs of nodes besides devices; `preempting`: once pods of lower priority are evicted.

        Raises UnreadableQuantityError.
        """
        wanted = self.resources.known(pod) or pod_resources(pod)
        extended = {name for name, _ in wanted.amounts if "/" in name}
        if extended:
            mapped = {str(item.spec.get("extendedResourceName")) for item in self.classes.values()}
            extended &= mapped | {f"{CLASS_RESOURCE}{name}" for name in self.classes}
        return ResourceDemand(self.resources, wanted, pod=pod_name(pod), by_class=extended, preempting=preempting)

    def kin(self, pod: Pod) -> Kin | None:
        """Return what we know of a pod's family (Families.of); None: it has none."""
        return self.families.of(pod) if may_have_a_family(pod) else None

    def problems(self) -> tuple[PoolDefect, ...]:
        """Return all that is published and cannot be used, sorted."""
        found = [problem for contents in self._contents.values() for problem in contents.problems]
        for node, pools in self._pools_of_node.items():
            if len(pools) > 1:
                found.extend(several_pools(node, name, len(pools)) for name in pools)
        return tuple(sorted(found))

    def problem_counts(self) -> tuple[int, int]:
        """Return how many problems of devices and pools are lasting, and how many will pass by themselves."""
        return self._problems[False], self._problems[True]

    # Taking in

    def set_class(self, item: DeviceClass) -> None:
        """Take in a device class, new or changed."""
        self.requests.set_class(item)

    def remove_class(self, name: str) -> None:
        """Forget a device class, if it is there."""
        self.requests.remove_class(name)

    def set_levels(self, levels: TopologyLevels) -> None:
        """Let other labels say what nodes are in. Cost: that of a change of every node."""
        self.levels = levels
        for name in self.nodes.names:
            self._domains[name] = levels.domains(self.nodes.get(name).labels)
            self._put(name)

    def set_node(self, node: Node) -> bool:
        """Take in a node, new or changed; return whether it has more of some resource than before."""
        self.nodes.put(node)
        self._domains[node.metadata.name] = self.levels.domains(node.metadata.labels)
        self.placed.set_node(node.metadata.name, node.metadata.labels)
        self._put(node.metadata.name)
        return self.resources.set_node(node.metadata.name, node_allocatable(node))

    def remove_node(self, name: str) -> None:
        """Forget a node, if it is there; its pool may stay and is then of no use."""
        self.nodes.remove(name)
        self._domains.pop(name, None)
        self.resources.remove_node(name)
        self.placed.remove_node(name)
        self._put(name)

    def change_slice(self, old: ResourceSlice | None, new: ResourceSlice | None) -> PoolChange:
        """Take in a change of a slice. Only its pool is read again; for slices of other drivers see `others`."""
        foreign = self._change_foreign(old, new)
        self.others.change_slice(old, new)
        ours = [item for item in (old, new) if item is not None and item.spec.driver == self.driver]
        if old is not None and old in ours:
            self._slices.get(old.spec.pool.name, {}).pop(old.key, None)
        if new is not None and new in ours:
            self._slices.setdefault(new.spec.pool.name, {})[new.key] = new
        changes = [self._read_again(name) for name in sorted({item.spec.pool.name for item in ours})]
        return self._joined(changes, foreign=foreign)

    def set_taint_rule(self, rule: DeviceTaintRule) -> PoolChange:
        """Take in a DeviceTaintRule, new or changed. Our own taint in a rule does not count: only the slice says who
        allocates a device.

        Cost: nothing if its spec is unchanged, as when its status is written, and hardly more if it taints every device
        of ours. Otherwise the pools with a device that it taints, or tainted, are read again.
        """
        taints = self.taints_of_all
        before = self._rules.put(rule)
        if before is not None and before.spec == rule.spec:
            return PoolChange(False, (), frozenset())
        return self._retainted([one for one in (before, rule) if one is not None], taints)

    def remove_taint_rule(self, name: str) -> PoolChange:
        """Forget a DeviceTaintRule, if it is there. Cost: that of set_taint_rule()."""
        taints = self.taints_of_all
        before = self._rules.remove(name)
        return self._retainted([] if before is None else [before], taints)

    def hold(
        self, holder: str, devices: frozenset[DeviceId], others: frozenset[Holding] = frozenset()
    ) -> frozenset[DeviceId | Holding]:
        """Let `holder` hold exactly these devices from now on; return those that it released.

        `others` are shares, and devices of other drivers; those of drivers that are not allowed do not count. Devices
        need not be known. Cost: O(devices), and the GPUs of each of their nodes.
        """
        change = self.holdings.hold(holder, devices, others)
        if others or holder in self.others.held_by:
            self.others.hold(holder, others)
        for name in change.pools:
            pool = self._contents.get(name, _NO_POOL).pool
            if pool is not None:
                self._put(pool.node)
        return change.let_go

    def release(self, holder: str) -> frozenset[DeviceId | Holding]:
        """Release everything that a holder has; return what it held."""
        return self.hold(holder, frozenset())

    def place(self, pod: Pod, node: str | None) -> str | None:
        """Count a pod on a node, None: on none; return the node that has more left than before, if there is one."""
        name = pod_name(pod)
        self.placed.place(name, pod.metadata.namespace, node, None if node is None else pod_facts(pod))
        if name in self.families.placed or may_have_a_family(pod):
            self.families.place(pod, node)
        taken = _NOTHING if node is None else self.resources.known(pod) or readable_resources(pod)
        return self.resources.place_pod(name, node, taken)

    def check(self) -> None:
        """State what must always hold, by working everything out again from the reports. For tests: slow."""
        self.nodes.check()
        self.resources.check({name: node_allocatable(self.nodes.get(name).node) for name in self.nodes.names})
        self.placed.check({name: self.nodes.get(name).labels for name in self.nodes.names})
        self.holdings.check()
        self.others.check()
        assert set(self._slices) == set(self._contents), "each pool was read"
        pools: dict[str, set[str]] = {}
        for name, contents in self._contents.items():
            again = read_pool(self.driver, self._pages(name))
            assert again == contents, f"pool {name} was read as its slices are"
            if contents.pool is not None:
                pools.setdefault(contents.pool.node, set()).add(name)
                assert self._kinds.get(_key(contents.pool.kind)) is contents.pool.kind, "equal kinds are one object"
        assert pools == {node: names for node, names in self._pools_of_node.items() if names}, "pools are found by node"
        assert set(self._states) == set(self.nodes.names), "each node has a state, and nothing else has"
        buckets, locations = NodeBuckets(), LocationIndex()
        outside: Counter[str] = Counter()
        for name in self.nodes.names:
            state = self._state_now(name)
            assert state == self._states[name], f"the state of node {name} is that of its pool"
            if isinstance(state, str):
                outside[state] += 1
            else:
                buckets.add(name, state)
            assert self.domains(name) == self.levels.domains(self.nodes.get(name).labels), "domains follow labels"
            locations.put(name, self._location(name), state)
        assert buckets.by_kind == self.buckets, "buckets hold the nodes by their state, in the order of names"
        assert buckets.by_free_gpus == self.node_buckets.by_free_gpus, "whole GPUs are found by what is free"
        self.node_buckets.check()
        assert outside == self._outside, "nodes outside are counted"
        assert dict(locations.locations()) == dict(self.locations.locations()), "locations hold nodes by their state"
        assert self._domains.keys() == set(self.nodes.names), "nodes that are there have domains, and no others"
        problems = Counter(problem.passing for contents in self._contents.values() for problem in contents.problems)
        assert problems == +self._problems, "problems are counted"

    # Inside

    def _change_foreign(self, old: ResourceSlice | None, new: ResourceSlice | None) -> bool:
        items = [item for item in (old, new) if item is not None and item.spec.driver in self.allowed_drivers]
        if not items:
            return False
        self._foreign.pop(items[0].key, None)
        if new is not None and new in items:
            self._foreign[new.key] = new
        self._foreign_index = None
        return True

    def _retainted(self, rules: Sequence[DeviceTaintRule], taints_of_all_before: tuple[Taint, ...]) -> PoolChange:
        """Apply a change of some rules, from what they said before to what they say now."""
        self.others.retainted()
        names = {name for rule in rules if not selects_all(rule, self.driver) for name in self._tainted_pools(rule)}
        changes = [self._read_again(name) for name in sorted(names)]
        if taints_of_all_before != self.taints_of_all:
            self._read_pools.forget_all()
        # A taint that is added to all devices helps no pod; one that is removed may help any.
        if not set(taints_of_all_before) <= set(self.taints_of_all):
            changes.append(PoolChange(True, (), None))
        foreign = any(selects_any(rule, (one,)) for rule in rules for one in self._foreign.values())
        if foreign:
            self._foreign_index = None
        return self._joined(changes, foreign=foreign)

    def _tainted_pools(self, rule: DeviceTaintRule) -> Iterator[str]:
        """Yield the pools with a device that a rule taints. Cost: all pools, or the one that it names."""
        selector = rule.spec.device_selector
        named = None if selector is None else selector.pool
        for name in self._slices if named is None else (named,):
            if selects_any(rule, self._slices.get(name, {}).values()):
                yield name

    @staticmethod
    def _joined(changes: Sequence[PoolChange], *, foreign: bool) -> PoolChange:
        """Return several changes as one; `foreign`: devices of other drivers changed too."""
        problems = tuple(problem for change in changes for problem in change.new_problems)
        is_anywhere = foreign or any(change.nodes is None for change in changes)
        nodes = None if is_anywhere else frozenset().union(*(change.nodes or () for change in changes))
        return PoolChange(foreign or any(change.offer_changed for change in changes), problems, nodes)

    def _pages(self, pool: str) -> Iterator[ResourceSlice]:
        """Yield the slices of a pool, with the taints that only some of our devices have."""
        rules = self._rules.of_pool(pool)
        return (with_taint_rules(item, rules) for item in self._slices[pool].values())

    def _own(self, pool: str) -> SliceIndex:
        key, rules = taint_key(self.driver), self._rules.of_pool_or_all(pool)
        tainted = (with_taint_rules(item, rules) for item in self._slices[pool].values())
        return self._read_pools.get(pool, lambda: tuple(read_slice(without_taint(item, key)) for item in tainted))

    def _read_again(self, name: str) -> PoolChange:
        self._read_pools.forget(name)
        # Read before anything is changed: an exception for one pool must leave all others as they were.
        read = self._shared(name, read_pool(self.driver, self._pages(name))) if self._slices.get(name) else None
        before = self._contents.pop(name, _NO_POOL)
        after = _NO_POOL if read is None else read
        if read is None:
            self._slices.pop(name, None)
        else:
            self._contents[name] = read
        self._problems.subtract(problem.passing for problem in before.problems)
        self._problems.update(problem.passing for problem in after.problems)
        new_problems = tuple(problem for problem in after.problems if problem not in before.problems)
        if before.pool is not None:
            self._pools_of_node[before.pool.node].discard(name)
            if not self._pools_of_node[before.pool.node]:
                del self._pools_of_node[before.pool.node]
        if after.pool is not None:
            siblings = self._pools_of_node.setdefault(after.pool.node, set())
            siblings.add(name)
            if len(siblings) > 1:
                new_problems += (several_pools(after.pool.node, name, len(siblings)),)
        nodes = frozenset(pool.node for pool in (before.pool, after.pool) if pool is not None)
        for node in sorted(nodes):
            self._put(node)
        # For devices that are not whole GPUs, a pool has only the names.
        changed = before.pool != after.pool or (after.pool is not None and bool(after.pool.others))
        return PoolChange(changed, new_problems, nodes)

    def _shared(self, name: str, contents: PoolContents) -> PoolContents:
        """Let equal nodes share one kind, so that it is compared by identity and its links are kept once."""
        if contents.pool is None:
            return contents
        key = _key(contents.pool.kind)
        kind = self._kinds.get(key) or with_partitions(self.driver, contents.pool, self._pages(name))
        kind = self._kinds.setdefault(key, kind)
        return replace(contents, pool=replace(contents.pool, kind=kind))

    def _free(self, pool: NodePool) -> int:
        held = self.holdings.taken(pool.pool)
        if not held:
            return pool.offered
        taken = 0
        for ordinal, name in enumerate(pool.devices):
            if name in held:
                taken |= 1 << ordinal
        for twins in pool.kind.twins:
            if twins & taken:
                taken |= twins
        return pool.offered & ~taken

    def _state_now(self, name: str) -> NodeState | str:
        pool = self.pool(name)
        if pool is not None and pool.is_left_to_scheduler:
            return "whose GPUs kube-scheduler allocates (no taint of ours)"
        if pool is None or not (pool.offered or pool.others):
            return f"without usable GPUs of {self.driver}"
        held = self.holdings.in_pool(PoolId(self.driver, pool.pool)) if pool.order or pool.kind.shareable else ()
        rest = held_by_place(pool, held)
        free = self._free(pool) & ~(broken(pool.kind.partitions.gpus, rest) if pool.kind.partitions.gpus else 0)
        return NodeState(pool.kind, free, rest, shared_gpus(pool, held))

    def _location(self, node: str) -> Location | None:
        pool = self.pool(node)
        clique = None if pool is None else pool.clique
        if clique is None and node in self.nodes:
            clique = self.nodes.get(node).labels.get(CLIQUE_LABEL) or None
        location = (*self._domains.get(node, ()), clique)
        return location if any(location) else None

    def _put(self, name: str) -> None:
        """Move a node into the bucket of its state."""
        before = self._states.get(name)
        after = self._state_now(name) if name in self.nodes else None
        location = self._location(name)
        if location is not None or name in self.locations.of_node:
            self.locations.put(name, location, after)
        if before == after:
            return
        if isinstance(before, NodeState):
            self.node_buckets.take_out(name, before)
        elif before is not None:
            self._outside[before] -= 1
            if not self._outside[before]:
                del self._outside[before]
        if after is None:
            del self._states[name]
            return
        name = self.nodes.get(name).node.metadata.name  # one object everywhere: names are compared by the thousand
        self._states[name] = after
        if isinstance(after, NodeState):
            self.node_buckets.add(name, after)
        else:
            self._outside[after] += 1


def _key(kind: NodeKind) -> tuple[Box, object, object, bytes, bool, int]:
    """Return what distinguishes kinds. Not the kind itself: a table of weak values must not keep its values alive."""
    return kind.box, kind.foreign_taints, kind.devices, kind.rest, kind.is_mixed, kind.shareable
