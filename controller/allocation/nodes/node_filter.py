"""Why nodes do not do for one pod, asked node by node, and worked out once for nodes that are alike."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from dracaena.api.objects import Pod
from dracaena.controller.allocation.effort import NODE_STEPS, TERM_STEPS, Effort, Work
from dracaena.controller.allocation.nodes.node_fit import required_affinity, tolerations_of, unfit_for
from dracaena.controller.allocation.nodes.node_index import IndexedNode, Names, NodeIndex, in_all
from dracaena.controller.allocation.nodes.node_resources import ResourceDemand
from dracaena.controller.allocation.nodes.node_selector import read_node_selector
from dracaena.controller.allocation.nodes.placement.demand import PlacementDemand

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
        Cost: one look-up, a step for each resource, and node_fit's cost for the first node of its kind.
        """
        unfit = self.unfit(indexed)
        if unfit is None:
            return self.shortage(indexed)
        lack = None if self._resources is None else self._resources.shortage(indexed.node.metadata.name)
        return lack or unfit

    def unfit(self, indexed: IndexedNode) -> str | None:
        """Return why the node is none for the pod, whatever is left of it: it is not the node of a claim that the pod
        has, it is barred, or else node_fit's first reason, or what the placement of pods speaks against."""
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
