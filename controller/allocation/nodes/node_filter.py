"""Why nodes do not do for one pod, asked node by node, and worked out once for nodes that are alike.

PlacementDemand is what the pod asks because of other pods and of its storage, NodeFilter all that it asks of a node.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from dracaena.api.objects import Pod
from dracaena.controller.allocation.effort import NODE_STEPS, TERM_STEPS, Effort, Work
from dracaena.controller.allocation.nodes.matching import (
    IndexedNode,
    Names,
    NodeIndex,
    in_all,
    read_node_selector,
    required_affinity,
    tolerations_of,
    unfit_for,
)
from dracaena.controller.allocation.nodes.node_resources import ResourceDemand
from dracaena.controller.allocation.nodes.placement.affinity import AffinityRules
from dracaena.controller.allocation.nodes.placement.placed_pods import (
    Change,
    PlacedPods,
    PodCount,
    PodFacts,
    pod_facts,
)
from dracaena.controller.allocation.nodes.placement.pod_terms import AFFINITY, read_terms
from dracaena.controller.allocation.nodes.placement.spread import SpreadRules, SpreadScopes, read_constraints
from dracaena.controller.allocation.nodes.placement.volumes import Storage, VolumeRules


@dataclass(frozen=True, slots=True)
class PlacementDemand:
    """The rules of one pod, asked node by node in the order of kube-scheduler's plugins."""

    volumes: VolumeRules | None
    spread: SpreadRules | None
    affinity: AffinityRules | None
    labels: Mapping[str, str | None]
    """The labels of the pod that the answers depend on, None where it has none; and what else is its own."""

    @property
    def waits_for(self) -> Mapping[Change, PodCount | None]:
        """What has to change before a node that is refused may do, each with the count to hold on to till then."""
        rules = (self.volumes, self.spread, self.affinity)
        return {change: count for one in rules if one is not None for change, count in one.waits_for.items()}

    def narrowed(self, nodes: NodeIndex) -> Names | None:
        """Return a set that holds all nodes which reason() does not refuse, and maybe others; None when nothing narrows
        them down. Cost: a look-up for each volume, and for each domain that affinity allows.
        """
        near = None if self.affinity is None else self.affinity.narrowed(nodes)
        return in_all((near, None if self.volumes is None else self.volumes.narrowed(nodes)))

    def reason(self, indexed: IndexedNode) -> str | None:
        """Return why a node is none for the pod, in words that follow a count of nodes; None when it may do."""
        found = None if self.volumes is None else self.volumes.reason(indexed)
        if found is None and self.spread is not None:
            found = self.spread.reason(indexed.labels)
        if found is None and self.affinity is not None:
            found = self.affinity.reason(indexed.labels)
        return found


def placement_demand(
    placed: PlacedPods, reaches: SpreadScopes, storage: Storage, pod: Pod, name: str, effort: Effort
) -> PlacementDemand | None:
    """Read the rules about a pod; None where there is none, or the pod names its node and has passed them by.

    `name` is that of the pod in the books. Raises UnreadableSelectorError. Cost for a pod without rules: a look-up for
    each of its labels where pods on nodes have anti-affinity at all.
    """
    spec = pod.spec
    if spec.node_name or not (
        spec.affinity or spec.topology_spread_constraints or spec.volumes or placed.keeps_anybody_off
    ):
        return None
    facts = pod_facts(pod)
    keys: set[str] = set()
    spread = _spread(placed, reaches, pod, name, facts, keys, effort) if spec.topology_spread_constraints else None
    near = read_terms(spec.affinity, AFFINITY, facts.namespace) if AFFINITY in spec.affinity else ()
    affinity = AffinityRules(placed, name, facts, near, effort)
    volumes = None
    if spec.volumes and storage.is_known:
        volumes = VolumeRules(storage, placed, reaches.nodes, pod, name, effort)
    if spread is None and volumes is None and not affinity:
        return None
    labels = {key: facts.labels.get(key) for key in sorted(keys | affinity.keys)}
    if any(volume.ephemeral is not None for volume in spec.volumes):
        labels["(pod)"] = pod.metadata.name  # its claims have names of their own
    return PlacementDemand(volumes, spread, affinity or None, labels)


def _spread(
    placed: PlacedPods, reaches: SpreadScopes, pod: Pod, name: str, facts: PodFacts, keys: set[str], effort: Effort
) -> SpreadRules | None:
    constraints = read_constraints(pod)
    if not constraints:
        return None
    keys.update(rule.key for one in constraints if one.selector is not None for rule in one.selector.rules)
    return SpreadRules(placed, name, facts, constraints, reaches.of(pod, constraints, effort), effort)


PINNED_ELSEWHERE: Final = "other than the node of a claim that is already allocated"
NOT_ASKED: Final = "that were not asked again"


class NodeFilter:
    """Answers for one pod. Of equal labels (those that the pod asks for), taints and cordon the answer is the same.

    `pins` are the raw node selectors of claims that the pod has and that are allocated; `barred` are the nodes that it
    must not use for other reasons, with these; `resources` is what it needs of a node besides devices, `placement` what
    it needs because of other pods. No node is asked but those `within`; None: all are. Looks at nodes are charged to
    `effort`.
    """

    def __init__(
        self,
        pod: Pod,
        pins: Sequence[Mapping[str, Any]],
        barred: Mapping[str, str] = MappingProxyType({}),
        resources: ResourceDemand | None = None,
        placement: PlacementDemand | None = None,
        effort: Effort | None = None,
        within: Names | None = None,
    ) -> None:
        self._effort = effort or Effort()
        self._pod = pod
        self._within = within
        self._pins = tuple(map(read_node_selector, pins))
        self._affinity = required_affinity(pod, self._effort)
        self._tolerations = tolerations_of(pod)
        self._selectors = (*self._pins, *(() if self._affinity is None else (self._affinity,)))
        self._barred = barred
        # Who names its node has passed the scheduler by: kubelet alone looks at what is left there.
        self._resources = None if pod.spec.node_name else resources
        self._placement = placement
        terms = [term for selector in self._selectors for term in selector.terms]
        self._keys = tuple(sorted({*pod.spec.node_selector, *(rule.key for term in terms for rule in term.labels)}))
        self._by_name = bool(pod.spec.node_name) or any(term.fields for term in terms)  # then a node is like no other
        rules = sum(len(term.labels) + len(term.fields) for term in terms)
        self._steps = TERM_STEPS * (len(terms) + rules + len(self._tolerations) + len(pod.spec.node_selector))
        self._effort.charge(self._steps, Work.NODES)
        self._known: dict[Hashable, str | None] = {}
        self.is_short = False
        """Whether some node lacked something until now, or was left out because it may."""

    def reason(self, indexed: IndexedNode) -> str | None:
        """Return why the pod cannot run on the node, in words that follow a count of nodes; None when it can.

        What it lacks now comes before what makes it none for the pod: a walk that meets many nodes without room leaves
        the others out unseen (with_room), and a node is to have one reason either way.
        Cost: one look-up, a step for each resource, and unfit_for()'s cost for the first node of its kind.
        """
        unfit = self.unfit(indexed)
        if unfit is None:
            return self.shortage(indexed)
        lack = None if self._resources is None else self._resources.shortage(indexed.node.metadata.name)
        return lack or unfit

    def unfit(self, indexed: IndexedNode) -> str | None:
        """Return why the node is none for the pod, whatever is left of it: it is not the node of a claim that the pod
        has, it is barred, or else unfit_for()'s first reason, or what the placement of pods speaks against."""
        if self._within is not None and indexed.node.metadata.name not in self._within:
            return NOT_ASKED
        reason = self._unfit_as_others(indexed)
        if self._barred and reason != PINNED_ELSEWHERE:
            reason = self._barred.get(indexed.node.metadata.name, reason)
        if reason is None and self._placement is not None:
            self._effort.charge(NODE_STEPS, Work.NODES)
            return self._placement.reason(indexed)
        return reason

    def _unfit_as_others(self, indexed: IndexedNode) -> str | None:
        self._effort.charge(NODE_STEPS, Work.NODES)
        key: Hashable = (indexed.barriers, *map(indexed.labels.get, self._keys))
        if self._keys:
            self._effort.charge(len(self._keys), Work.NODES)
        if self._by_name:
            key = indexed.node.metadata.name
        try:
            return self._known[key]
        except KeyError:
            self._effort.charge(self._steps, Work.NODES)
            reason = self._known[key] = self._unfit(indexed)
            return reason

    def shortage(self, indexed: IndexedNode) -> str | None:
        """Return what the node lacks now."""
        if self._resources is None:
            return None
        reason = self._resources.shortage(indexed.node.metadata.name)
        self.is_short = self.is_short or reason is not None
        return reason

    def narrowed(self, nodes: NodeIndex) -> Names | None:
        """Return a set that holds all nodes which unfit() does not refuse, and maybe others; None when nothing narrows
        them down.
        """
        named = self._pod.spec.node_name
        labels = () if named else self._pod.spec.node_selector.items()
        return in_all(
            [
                nodes.selected(self._pins if named else self._selectors, self._effort),
                nodes.named(named) if named else None,
                self._within,
                None if self._placement is None else self._placement.narrowed(nodes),
                *(nodes.with_label(key, (value,)) for key, value in labels),
            ]
        )

    def with_room(self) -> Names | None:
        """Return a set that holds all nodes which shortage() does not refuse, and maybe others; None when that would
        leave out few.
        """
        names = None if self._resources is None else in_all(self._resources.with_room())
        self.is_short = self.is_short or names is not None
        return names

    def _unfit(self, indexed: IndexedNode) -> str | None:
        if not all(selector.matches(indexed.node) for selector in self._pins):
            return PINNED_ELSEWHERE
        return unfit_for(self._pod, self._affinity, self._tolerations, indexed.node)
