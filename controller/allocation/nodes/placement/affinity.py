"""Required pod affinity and anti-affinity, as kube-scheduler 1.36 judges them (plugin InterPodAffinity)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dracaena.controller.allocation.effort import Effort
from dracaena.controller.allocation.nodes.node_filter import Names, NodeIndex, in_all
from dracaena.controller.allocation.nodes.placement.placed_pods import (
    Change,
    Counted,
    Labels,
    PlacedPods,
    PodCount,
    PodFacts,
    without_one,
)
from dracaena.controller.allocation.nodes.placement.pod_terms import PodTerm

NOT_NEAR: Final = "not matching the pod's podAffinity"
NEAR_OTHERS: Final = "not matching the pod's podAntiAffinity"
KEPT_OFF: Final = "where another pod's podAntiAffinity keeps this one away"


class AffinityRules:
    """The rules of one pod, over the other pods as they count now."""

    def __init__(self, placed: PlacedPods, pod: str, facts: PodFacts, near: Sequence[PodTerm], effort: Effort) -> None:
        """`pod` is its name in the books; `near` is its required affinity; its anti-affinity is in `facts`."""
        self._placed = placed
        self._own = placed.placed(facts.namespace, pod)
        self._facts = facts
        self.waits_for: dict[Change, PodCount] = {}
        """What has to change somewhere before a refused node may suit the pod."""
        sets = tuple(term.pods for term in near)
        self._near = self._domains(Counted(sets), near, effort, is_more=True) if near else []
        # The first pod of a series that wants to be near its like: there is none yet, and the pod itself would match.
        self._is_first = not any(domains for _, domains in self._near) and all(
            placed.is_in(pods, facts.namespace, facts.labels) for pods in sets
        )
        self._apart = [
            found
            for term in facts.keeps_off
            for found in self._domains(Counted((term.pods,)), (term,), effort, is_more=False)
        ]
        self._kept_off: list[tuple[str, Mapping[str, int]]] = []
        self.keys: set[str] = {rule.key for pods in sets if pods.selector for rule in pods.selector.rules}
        """The labels of the pod that its answer depends on."""
        for term, count in placed.keeping_off(facts.namespace, facts.labels):
            self._kept_off.append((term.topology_key, self._but_own(count, term.topology_key, own=self._has(term))))
            self.waits_for[Change(term, is_more=False)] = count
            if term.pods.selector is not None:
                self.keys.update(rule.key for rule in term.pods.selector.rules)

    def __bool__(self) -> bool:
        return bool(self._near or self._apart or self._kept_off)

    def reason(self, labels: Labels) -> str | None:
        """Return why a node with these labels is unfit for the pod, in words that follow a count of nodes.

        Cost: a look-up for each term.
        """
        for key, _ in self._near:
            if key not in labels:
                return NOT_NEAR
        if not self._is_first and any(labels[key] not in domains for key, domains in self._near):
            return NOT_NEAR
        if any(labels.get(key) in domains for key, domains in self._apart):
            return NEAR_OTHERS
        if any(labels.get(key) in domains for key, domains in self._kept_off):
            return KEPT_OFF
        return None

    def narrowed(self, nodes: NodeIndex) -> Names | None:
        """Return the nodes of the domains in which the pod's affinity finds matching pods; None: all may suit it."""
        if self._is_first:
            return None
        return in_all(nodes.with_label(key, domains) for key, domains in self._near)

    def _domains(
        self, counted: Counted, terms: Sequence[PodTerm], effort: Effort, *, is_more: bool
    ) -> list[tuple[str, Mapping[str, int]]]:
        count = self._placed.count(counted, effort)
        self.waits_for[Change(counted, is_more)] = count
        own = self._own is not None and all(
            self._placed.is_in(pods, self._own[1].namespace, self._own[1].labels) for pods in counted.sets
        )
        return [(term.topology_key, self._but_own(count, term.topology_key, own=own)) for term in terms]

    def _has(self, term: PodTerm) -> bool:
        return self._own is not None and term in self._own[1].keeps_off

    def _but_own(self, count: PodCount, topology_key: str, *, own: bool) -> Mapping[str, int]:
        domains = self._placed.domains(count, topology_key)
        if not own or self._own is None:
            return domains
        return without_one(domains, self._placed.labels(self._own[0]).get(topology_key))
