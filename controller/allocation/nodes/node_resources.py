"""How much of each node is left: CPU, memory, disk, extended resources, host ports, places for pods.

The rules are those of kube-scheduler 1.36 (plugins NodeResourcesFit and NodePorts).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from dracaena.api.objects import Pod
from dracaena.controller.allocation.nodes.pod_resources import (
    CPU,
    PODS,
    Amounts,
    HostPort,
    PodResources,
    UnreadableQuantityError,
    pod_resources,
)

_Left = tuple[str, int | None]
"""A resource, and the least priority of the pods that count against what is left of it; None: all pods count."""

FULL: Final = "that already run as many pods as they may"

MAX_INDEXED: Final = 12
"""Resources by which nodes are kept sorted: those that pods asked for lately, once more for each priority of pods that
preempt. Each takes about 0.7 MB at 5,000 nodes."""

WORTH_NARROWING: Final = 8
"""Nodes with too little are only left out beforehand when they are more than one in this many: naming all others costs
0.3 ms at 5,000 nodes, refusing a visited node 2 µs."""

_UNKNOWN: Final = 1 << 80
"""Room of a node that says nothing: more than any pod asks for."""

_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


class NodeResources:
    """What nodes have, and which pods count on which node. One owner, one thread at a time.

    Pods may be reported before their node, and the node may go and come back meanwhile. All amounts are whole numbers
    in the units of pod_resources.
    """

    def __init__(self) -> None:
        self._has: dict[str, Mapping[str, int] | None] = {}
        self._used: dict[str, dict[str, int]] = {}
        self._used_by: dict[str, dict[int, dict[str, int]]] = {}  # the same by priority; most nodes have two or three
        self._priorities: Counter[int] = Counter()  # of the pods that count somewhere
        self._ports: dict[str, Counter[HostPort]] = {}
        self._pods: dict[str, tuple[str, PodResources]] = {}
        self._expected: dict[str, tuple[Pod, PodResources]] = {}  # by name
        self._sorted: OrderedDict[_Left, list[tuple[int, str]]] = OrderedDict()

    # Asking

    def node_of(self, pod: str) -> str | None:
        """Return the node that a pod counts on."""
        return self._pods[pod][0] if pod in self._pods else None

    def counted(self, pod: str) -> tuple[str, PodResources] | None:
        """Return the node that a pod counts on, and what it takes there."""
        return self._pods.get(pod)

    def known(self, pod: Pod) -> PodResources | None:
        """Return what an expected pod takes, if it has not changed since; None for any other pod."""
        found = self._expected.get(pod_name(pod))
        return found[1] if found is not None and found[0] is pod else None

    def has_lower(self, priority: int) -> bool:
        """Return whether some pod of a lower priority counts somewhere. Cost: a step for each priority."""
        return any(one < priority for one in self._priorities)

    def shortage(
        self,
        node: str,
        wanted: PodResources,
        *,
        by_class: Collection[str] = (),
        but: str | None = None,
        preempting: bool = False,
    ) -> str | None:
        """Return what a node lacks for a pod, in words that follow a count of nodes; None when nothing.

        `by_class` are resources that DeviceClasses stand for: if a node has none of them, kube-scheduler takes them
        from DRA. `but` is a pod that does not count. `preempting`: nor does what pods of lower priority take, except
        for their ports. Cost: one step per resource; with `preempting` one for each that pods of each priority take.
        """
        has = self._has[node]
        used: Mapping[str, int] = self._used.get(node, _NOTHING)
        taken: Iterable[HostPort] = self._ports.get(node, ()) if wanted.ports else ()
        if but is not None and self.node_of(but) == node:
            used, taken = self._without(node, but)
        if preempting:
            used = self._without_lower(node, wanted.priority, but)
        if has is not None:
            for resource, amount in wanted.amounts:
                if has.get(resource, 0) - used.get(resource, 0) < amount:
                    lacking = _lacking(has, used, wanted, by_class)
                    if lacking:
                        return _in_words(lacking, has, wanted)
                    break
        for port in wanted.ports:
            if any(port.conflicts(other) for other in taken):
                return f"whose port {port.port}/{port.protocol} is in use"
        return None

    def left(self, node: str) -> Mapping[str, int] | None:
        """Return what an existing node has left of each resource that it has; None: it does not say."""
        has, used = self._has[node], self._used.get(node, _NOTHING)
        return None if has is None else {resource: amount - used.get(resource, 0) for resource, amount in has.items()}

    def with_room(
        self, wanted: PodResources, *, by_class: Collection[str] = (), preempting: bool = False
    ) -> list[frozenset[str]]:
        """Return sets of nodes, each with all nodes that have enough of one resource; none for a resource of which
        nearly all nodes have enough. `preempting`: without pods of lower priority. Cost: a look-up per resource, and
        the nodes that are named.
        """
        sets = []
        for resource, amount in wanted.amounts:
            if resource in by_class:
                continue
            left = resource, wanted.priority if preempting else None
            order = self._sorted.get(left)
            if order is None:
                order = self._sorted[left] = self._sort(left)
                if len(self._sorted) > MAX_INDEXED:
                    self._sorted.popitem(last=False)
            self._sorted.move_to_end(left)
            short = bisect_left(order, (amount, ""))
            if short * WORTH_NARROWING > len(order):
                sets.append(frozenset(name for _, name in order[short:]))
        return sets

    # Taking in

    def set_node(self, name: str, allocatable: Mapping[str, int] | None) -> bool:
        """Take in what a node has, None if unknown; return whether it has more of something than before."""
        if name in self._has and self._has[name] == allocatable:
            return False
        before = self._has.get(name, _NOTHING)
        self._unsort(name)
        self._has[name] = allocatable
        self._resort(name)
        if allocatable is None or before is None:
            return allocatable is None
        return any(amount > before.get(resource, 0) for resource, amount in allocatable.items())

    def remove_node(self, name: str) -> None:
        """Forget a node, if it is there. Its pods stay until they are reported elsewhere or gone."""
        self._unsort(name)
        self._has.pop(name, None)

    def expect(self, pod: Pod) -> None:
        """Read what a pod takes before the decision about it, so that the decision need not. Kept until forget()."""
        with suppress(UnreadableQuantityError):  # the decision about it finds out, and says so
            self._expected[pod_name(pod)] = pod, pod_resources(pod)

    def forget(self, pod: str) -> None:
        """Forget an expected pod, if it was one."""
        self._expected.pop(pod, None)

    def place_pod(self, pod: str, node: str | None, resources: PodResources) -> str | None:
        """Count a pod on a node, None: on none; return the node that has more left than before, if there is one.

        Cost: a step per resource.
        """
        before = self._pods.get(pod)
        if before == (None if node is None else (node, resources)):
            return None
        gaining = None
        if before is not None:
            was_on, was = self._pods.pop(pod)
            self._count(was_on, was, -1)
            self._priorities[was.priority] -= 1
            if not self._priorities[was.priority]:
                del self._priorities[was.priority]
            if was_on != node or _frees(was, resources):
                gaining = was_on
        if node is not None:
            self._pods[pod] = node, resources
            self._count(node, resources, 1)
            self._priorities[resources.priority] += 1
        return gaining

    def check(self, allocatable: Mapping[str, Mapping[str, int] | None]) -> None:
        """State what must always hold, by counting all pods again. `allocatable` is of all nodes. For tests: slow."""
        assert self._has == allocatable, "nodes have what they say"
        used: dict[str, Counter[str]] = {}
        used_by: dict[str, dict[int, Counter[str]]] = {}
        ports: dict[str, Counter[HostPort]] = {}
        for node, resources in self._pods.values():
            used.setdefault(node, Counter()).update(dict(resources.amounts))
            of_node = used_by.setdefault(node, {})
            of_node.setdefault(resources.priority, Counter()).update(dict(resources.amounts))
            if resources.ports:
                ports.setdefault(node, Counter()).update(resources.ports)
        assert self._used == used, "what pods take is summed up"
        assert self._used_by == used_by, "what pods take is summed up by priority"
        priorities = Counter(resources.priority for _, resources in self._pods.values())
        assert self._priorities == priorities, "priorities are counted"
        assert self._ports == ports, "host ports are counted"
        for left, order in self._sorted.items():
            assert order == self._sort(left), f"nodes are sorted by their room of {left}"

    # Inside

    def _count(self, node: str, resources: PodResources, sign: int) -> None:
        self._unsort(node)
        if not _add(self._used.setdefault(node, {}), resources, sign):
            del self._used[node]
        by_priority = self._used_by.setdefault(node, {})
        if not _add(by_priority.setdefault(resources.priority, {}), resources, sign):
            del by_priority[resources.priority]
        if not by_priority:
            del self._used_by[node]
        self._resort(node)
        if resources.ports:
            taken = self._ports.setdefault(node, Counter())
            for port in resources.ports:
                taken[port] += sign
                if not taken[port]:
                    del taken[port]
            if not taken:
                del self._ports[node]

    def _without(self, node: str, pod: str) -> tuple[Mapping[str, int], Iterable[HostPort]]:
        used = Counter(self._used.get(node, {}))
        used.subtract(dict(self._pods[pod][1].amounts))
        taken = self._ports.get(node, Counter[HostPort]()) - Counter(self._pods[pod][1].ports)
        return used, taken

    def _without_lower(self, node: str, priority: int, but: str | None) -> Mapping[str, int]:
        """Return what pods of at least a priority take on a node, except for the pod `but`."""
        used: Counter[str] = Counter()
        for one, amounts in self._used_by.get(node, {}).items():
            if one >= priority:
                used.update(amounts)
        if but is not None and self.node_of(but) == node and self._pods[but][1].priority >= priority:
            used.subtract(dict(self._pods[but][1].amounts))
        return used

    def _room(self, node: str, left: _Left) -> int:
        has = self._has[node]
        if has is None:
            return _UNKNOWN
        resource, least = left
        if least is None:
            used = self._used.get(node, _NOTHING).get(resource, 0)
        else:
            by_priority = self._used_by.get(node, {}).items()
            used = sum(amounts.get(resource, 0) for one, amounts in by_priority if one >= least)
        return has.get(resource, 0) - used

    def _sort(self, left: _Left) -> list[tuple[int, str]]:
        return sorted((self._room(name, left), name) for name in self._has)

    def _unsort(self, node: str) -> None:
        if node in self._has:
            for left, order in self._sorted.items():
                del order[bisect_left(order, (self._room(node, left), node))]

    def _resort(self, node: str) -> None:
        if node in self._has:
            for left, order in self._sorted.items():
                insort(order, (self._room(node, left), node))


class ResourceDemand:
    """What one pod wants of nodes, checked against the books as they are. What it already takes does not count."""

    def __init__(
        self,
        resources: NodeResources,
        wanted: PodResources,
        *,
        pod: str,
        by_class: Collection[str] = (),
        preempting: bool = False,
    ) -> None:
        """`pod` is its name in the books; `by_class` are resources that DeviceClasses stand for; `preempting`: pods of
        lower priority count as evicted (kube-scheduler's plugin DefaultPreemption)."""
        self._preempting = preempting
        self._resources = resources
        self._wanted = wanted
        self._by_class = by_class
        self._pod = pod
        self._own_node = resources.node_of(pod)

    def shortage(self, node: str) -> str | None:
        """Return what a node lacks, in words that follow a count of nodes; None when nothing."""
        but = self._pod if node == self._own_node else None
        lack = self._resources.shortage(node, self._wanted, by_class=self._by_class, but=but)
        if lack is None or not self._preempting or not self._resources.has_lower(self._wanted.priority):
            return lack
        return self._resources.shortage(node, self._wanted, by_class=self._by_class, but=but, preempting=True)

    @property
    def amounts(self) -> Amounts:
        """What the pod takes of each resource that no DeviceClass stands for."""
        return tuple((resource, amount) for resource, amount in self._wanted.amounts if resource not in self._by_class)

    def most(self, node: str) -> int:
        """Return how many such pods a node without the pod has room for, at least one being known to have some."""
        left = self._resources.left(node)
        if self._wanted.ports:
            return 1
        amounts = [] if left is None else [left.get(resource, 0) // amount for resource, amount in self.amounts]
        return min(amounts, default=_UNKNOWN)

    def with_room(self) -> list[frozenset[str]]:
        """Return sets of nodes, each with all nodes that lack nothing, like NodeResources.with_room()."""
        sets = self._resources.with_room(self._wanted, by_class=self._by_class, preempting=self._preempting)
        own = frozenset(() if self._own_node is None else (self._own_node,))
        return [names | own for names in sets] if own else sets


def _add(used: dict[str, int], resources: PodResources, sign: int) -> dict[str, int]:
    """Add or subtract what a pod takes; no entry is left at zero."""
    for resource, amount in resources.amounts:
        left = used.get(resource, 0) + sign * amount
        if left:
            used[resource] = left
        else:
            del used[resource]
    return used


def _frees(before: PodResources, after: PodResources) -> bool:
    wanted = dict(after.amounts)
    return any(amount > wanted.get(resource, 0) for resource, amount in before.amounts) or not (
        set(before.ports) <= set(after.ports)
    )


def _lacking(
    has: Mapping[str, int], used: Mapping[str, int], wanted: PodResources, by_class: Collection[str]
) -> list[str]:
    return [
        resource
        for resource, amount in wanted.amounts
        if has.get(resource, 0) - used.get(resource, 0) < amount
        and not (resource in by_class and not has.get(resource))
    ]


def _in_words(lacking: list[str], has: Mapping[str, int], wanted: PodResources) -> str:
    if lacking == [PODS]:
        return FULL
    amounts = dict(wanted.amounts)
    never = [resource for resource in lacking if resource != PODS and has.get(resource, 0) < amounts[resource]]
    if never:
        return f"that have less {_listed(never)} than the pod needs, even when nothing else runs there"
    return f"with too little free {_listed([resource for resource in lacking if resource != PODS])}"


def _listed(resources: list[str]) -> str:
    # CPU and memory first, as everywhere in Kubernetes; the others by name.
    names = sorted(resources, key=lambda name: (name not in (CPU, "memory"), name))
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def may_preempt(pod: Pod) -> bool:
    """Return whether kube-scheduler may evict pods of lower priority for a pod (spec.preemptionPolicy). A pod that
    names its node has bypassed kube-scheduler."""
    return pod.spec.preemption_policy != "Never" and not pod.spec.node_name


def pod_name(pod: Pod) -> str:
    """Return the name under which a pod counts on its node: another pod of the same name is another pod."""
    return pod.metadata.uid or pod.key
