"""What the page knows of the cluster at one moment, made in short turns from what is watched."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dracaena.api.device_taints import with_taint_rules
from dracaena.api.holders import Held, Holder, holders_in_turns
from dracaena.api.node_status import PublishedNode, node_status
from dracaena.api.objects import Namespace, Node
from dracaena.api.resource_objects import DeviceTaintRule, ResourceClaim, ResourceSlice
from dracaena.api.topology_levels import NO_LEVELS, TopologyLevels
from dracaena.controller.allocation.explanation import Reasons
from dracaena.controller.views.node_line import NodeLine, PoolLine, node_line, pool_line

NODES_A_TURN = 25
"""Nodes between two turns: one node of eight GPUs takes some 50 µs, so a turn takes about a millisecond."""

CLAIMS_A_TURN = 250
"""Claims between two turns: one takes some 4 µs."""


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod that waits for devices."""

    namespace: str
    name: str
    reason: str
    """One word, as in the metrics."""
    why: Reasons | None
    """For people; None while it is worked out."""
    since_s: float
    """Steady time at which the pod was first known to wait. How long it has waited is worked out for each answer,
    because a snapshot is kept as long as nothing changes."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What the caches hold at one moment, in any order. Equal if nothing has changed."""

    nodes: Sequence[Node]
    slices: Sequence[ResourceSlice]
    claims: Sequence[ResourceClaim]
    waiting: Sequence[WaitingPod] | None = ()
    """None: unknown to this replica."""
    taint_rules: Sequence[DeviceTaintRule] = ()
    namespaces: Sequence[Namespace] = ()
    """With their quotas."""
    levels: TopologyLevels = NO_LEVELS
    """What nodes are in."""


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """What the page is made of."""

    driver: str
    nodes: Mapping[str, Node] = field(default_factory=dict)
    pages: Mapping[str, Sequence[ResourceSlice]] = field(default_factory=dict)
    """Node → all its slices of our driver."""
    held: Held = field(default_factory=dict)
    claims: Sequence[ResourceClaim] = ()
    lines: tuple[NodeLine, ...] = ()
    """All nodes that publish our devices, by name."""
    waiting: tuple[WaitingPod, ...] | None = ()
    """Longest wait first; None: unknown to this replica."""
    taint_rules: Sequence[DeviceTaintRule] = ()
    namespaces: Sequence[Namespace] = ()

    def line(self, name: str) -> NodeLine | None:
        """Return the line of one node; None if it publishes no devices of ours."""
        place = bisect_left(self.lines, name, key=lambda line: line.name)
        return self.lines[place] if place < len(self.lines) and self.lines[place].name == name else None

    def node(self, name: str) -> PublishedNode | None:
        """Return all that we know about one node; None if it publishes no devices of ours. Cost: O(GPUs²)."""
        pages = self.pages.get(name)
        if pages is None:
            return None
        tainted = [with_taint_rules(page, self.taint_rules) for page in pages]
        return node_status(self.driver, name, tainted, self.nodes.get(name), self.held)


class SnapshotMaker:
    """Makes one snapshot after another, and keeps what has not changed. For one thread."""

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._pools: dict[str, tuple[tuple[ResourceSlice, ...], Node | None, PoolLine]] = {}
        self._lines: dict[str, tuple[PoolLine, Held, NodeLine]] = {}
        self._rules: Sequence[DeviceTaintRule] = ()
        self._levels = NO_LEVELS

    def turns(self, watched: Watched) -> Iterator[ClusterSnapshot | None]:
        """Yield None after each turn, and finally the snapshot."""
        pages: dict[str, list[ResourceSlice]] = {}
        for item in watched.slices:
            if item.spec.node_name:
                pages.setdefault(item.spec.node_name, []).append(item)
        nodes = {node.metadata.name: node for node in watched.nodes}
        if list(watched.taint_rules) != list(self._rules) or watched.levels != self._levels:
            self._pools.clear()
        self._rules, self._levels = watched.taint_rules, watched.levels
        yield None
        held: Held = {}
        for found in holders_in_turns(self._driver, watched.claims, claims_a_turn=CLAIMS_A_TURN):
            held = found or held
            yield None
        by_pool: dict[str, dict[tuple[str, str], Sequence[Holder]]] = {}
        for count, (device, holders) in enumerate(held.items(), start=1):
            by_pool.setdefault(device[0], {})[device] = holders
            if count % CLAIMS_A_TURN == 0:
                yield None
        lines = []
        for count, name in enumerate(sorted(pages), start=1):
            lines.append(self._line(name, self._pool(name, pages[name], nodes.get(name)), by_pool))
            if count % NODES_A_TURN == 0:
                yield None
        for name in self._pools.keys() - pages.keys():
            del self._pools[name], self._lines[name]
        yield None
        waiting = None if watched.waiting is None else tuple(sorted(watched.waiting, key=_longest_first))
        rules = watched.taint_rules
        yield ClusterSnapshot(
            self._driver,
            nodes,
            pages,
            held,
            watched.claims,
            tuple(lines),
            waiting,
            taint_rules=rules,
            namespaces=watched.namespaces,
        )

    def _line(self, name: str, pool: PoolLine, by_pool: Mapping[str, Held]) -> NodeLine:
        """Put a node together again only if its pool or who has what of it is not the same as last time."""
        held = by_pool.get(pool.gpus.pool, {})
        known = self._lines.get(name)
        if known is not None and known[0] is pool and known[1] == held:
            return known[2]
        line = node_line(name, pool, held)
        self._lines[name] = (pool, held, line)
        return line

    def _pool(self, name: str, pages: Sequence[ResourceSlice], node: Node | None) -> PoolLine:
        """Read a node's slices again only if the objects are not the same as last time."""
        found = tuple(sorted(pages, key=lambda page: page.metadata.name))
        known = self._pools.get(name)
        if known is not None and known[1] is node and list(map(id, known[0])) == list(map(id, found)):
            return known[2]
        tainted = [with_taint_rules(page, self._rules) for page in found]
        line = pool_line(self._driver, tainted, node, self._levels)
        self._pools[name] = (found, node, line)
        return line


def _longest_first(pod: WaitingPod) -> tuple[float, str, str]:
    return (pod.since_s, pod.namespace, pod.name)
