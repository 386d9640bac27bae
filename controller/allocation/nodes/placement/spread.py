"""Topology spread with DoNotSchedule, as kube-scheduler 1.36 judges it (plugin PodTopologySpread)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import msgspec

from dracaena.api.objects import Pod
from dracaena.api.packed import unpacked
from dracaena.controller.allocation.effort import Effort, Work
from dracaena.controller.allocation.nodes.matching import first_untolerated, required_affinity
from dracaena.controller.allocation.nodes.node_filter import NodeIndex, tolerations_of
from dracaena.controller.allocation.nodes.placement.placed_pods import (
    Change,
    Counted,
    Labels,
    PlacedPods,
    PodCount,
    PodFacts,
)
from dracaena.controller.allocation.nodes.placement.pod_terms import (
    LabelSelector,
    PodSet,
    UnreadableSelectorError,
    read_label_selector,
)
from dracaena.controller.allocation.nodes.selector_requirement import SelectorRequirement

NO_DOMAIN: Final = "without a label that the pod's topologySpreadConstraints name"
TOO_MANY: Final = "not matching the pod's topologySpreadConstraints"

MAX_REACHES: Final = 8
"""How many answers to which nodes count for spreading are kept: pods of one template share theirs. Each takes up to 0.5
MB at 5,000 nodes and is worked out in 5 ms."""


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
    """One constraint that must hold (core/v1, TopologySpreadConstraint)."""

    topology_key: str
    max_skew: int
    min_domains: int
    selector: LabelSelector | None
    honors_affinity: bool
    honors_taints: bool


@dataclass(frozen=True, slots=True)
class SpreadScope:
    """The nodes that count for one constraint of a pod, and the domains that they are in."""

    nodes: frozenset[str]
    domains: frozenset[str]


class SpreadScopes:
    """Which nodes count, remembered until some node changes. One owner, one thread at a time."""

    def __init__(self, nodes: NodeIndex) -> None:
        self.nodes = nodes
        self._known: OrderedDict[bytes, Sequence[SpreadScope]] = OrderedDict()
        self._version = -1

    def of(self, pod: Pod, constraints: Sequence[SpreadConstraint], effort: Effort) -> Sequence[SpreadScope]:
        """Return what counts for each constraint. Cost: a look-up, or one step per node and constraint, charged."""
        if self._version != self.nodes.version:
            self._known.clear()
            self._version = self.nodes.version
        has_taints = any(one.honors_taints for one in constraints)
        key = msgspec.json.encode(
            (
                [(one.topology_key, one.honors_affinity, one.honors_taints) for one in constraints],
                pod.spec.node_selector,
                pod.spec.affinity.get("nodeAffinity"),
                pod.spec.tolerations if has_taints else (),
            )
        )
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._look(pod, constraints, effort)
            if len(self._known) > MAX_REACHES:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return found

    def _look(self, pod: Pod, constraints: Sequence[SpreadConstraint], effort: Effort) -> Sequence[SpreadScope]:
        affinity, tolerations = required_affinity(pod, effort), tolerations_of(pod)
        wanted = pod.spec.node_selector.items()
        names: list[list[str]] = [[] for _ in constraints]
        for name in self.nodes.names:
            effort.charge(len(constraints), Work.NODES)
            indexed = self.nodes.get(name)
            labels = indexed.labels
            if any(one.topology_key not in labels for one in constraints):
                continue
            is_wanted = all(labels.get(key) == value for key, value in wanted) and (
                affinity is None or affinity.matches(indexed.node)
            )
            for place, one in enumerate(constraints):
                if one.honors_affinity and not is_wanted:
                    continue
                if one.honors_taints and first_untolerated(indexed.barriers.taints, tolerations) is not None:
                    continue
                names[place].append(name)
        return [
            SpreadScope(frozenset(some), frozenset(self.nodes.get(name).labels[one.topology_key] for name in some))
            for one, some in zip(constraints, names, strict=True)
        ]


class SpreadRules:
    """The constraints of one pod, over the other pods as they count now."""

    def __init__(
        self,
        placed: PlacedPods,
        name: str,
        facts: PodFacts,
        constraints: Sequence[SpreadConstraint],
        reaches: Sequence[SpreadScope],
        effort: Effort,
    ) -> None:
        """`name` is that of the pod in the books; `reaches` has what counts for each constraint."""
        self._placed = placed
        self._own = placed.placed(facts.namespace, name)
        self.waits_for: dict[Change, PodCount] = {}
        """What has to change somewhere before a refused node may suit the pod: more pods elsewhere help like fewer
        here."""
        self._facts = facts
        self._parts = [
            (one, reach, self._counted(facts, one, effort)) for one, reach in zip(constraints, reaches, strict=True)
        ]
        self._effort = effort

    def reason(self, labels: Labels) -> str | None:
        """Return why a node with these labels is unfit for the pod, in words that follow a count of nodes.

        Cost: a look-up for each constraint.
        """
        for key, most, counts in self._limits:
            value = labels.get(key)
            if value is None:
                return NO_DOMAIN
            if counts.get(value, 0) > most:
                return TOO_MANY
        return None

    @cached_property
    def _limits(self) -> Sequence[tuple[str, int, Mapping[str, int]]]:
        """For each constraint its label, how many pods a domain may have before this one comes, and how many it has.

        Worked out at the first question: most callers that read the rules of a pod never ask about a node.
        """
        return [(one.topology_key, *self._limit(one, reach, counted)) for one, reach, counted in self._parts]

    def _limit(
        self, one: SpreadConstraint, reach: SpreadScope, counted: PodCount | None
    ) -> tuple[int, Mapping[str, int]]:
        counts = dict.fromkeys(reach.domains, 0)
        if counted is not None and counted.nodes.keys() <= reach.nodes:
            counts |= self._placed.domains(counted, one.topology_key)
        elif counted is not None:
            for node, number in counted.nodes.items():
                if node in reach.nodes:
                    counts[self._placed.labels(node)[one.topology_key]] += number
        own = self._own
        if counted is not None and own is not None and own[0] in reach.nodes and self._is_among(one, own[1]):
            counts[self._placed.labels(own[0])[one.topology_key]] -= 1
        self._effort.charge(len(counts) + (0 if counted is None else len(counted.nodes)), Work.NODES)
        fewest = min(counts.values()) if len(counts) >= max(one.min_domains, 1) else 0
        itself = one.selector is not None and one.selector.matches(self._facts.labels)
        return fewest + one.max_skew - itself, counts

    def _is_among(self, one: SpreadConstraint, pod: PodFacts) -> bool:
        return not pod.leaving and one.selector is not None and one.selector.matches(pod.labels)

    def _counted(self, facts: PodFacts, one: SpreadConstraint, effort: Effort) -> PodCount | None:
        if one.selector is None or not one.selector.rules:
            return None  # a selector of everything counts nothing (common.go, countPodsMatchSelector)
        pods = PodSet(frozenset((facts.namespace,)), None, one.selector)
        counted = Counted((pods,), leaving_too=False)
        count = self._placed.count(counted, effort)
        self.waits_for |= {Change(counted, is_more=True): count, Change(counted, is_more=False): count}
        return count


def read_constraints(pod: Pod) -> tuple[SpreadConstraint, ...]:
    """Read the constraints of a pod that must hold, in the order of the document. Raises UnreadableSelectorError."""
    entries = unpacked(pod.spec.topology_spread_constraints)
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise UnreadableSelectorError("topologySpreadConstraints is not a list of objects")
    return tuple(_constraint(entry, pod.metadata.labels) for entry in entries if must_hold(entry))


def must_hold(entry: Mapping[str, Any]) -> bool:
    """Whether a raw constraint keeps a pod from nodes."""
    return entry.get("whenUnsatisfiable") == "DoNotSchedule"


def _constraint(entry: Mapping[str, Any], labels: Labels) -> SpreadConstraint:
    selector = read_label_selector(entry.get("labelSelector"))
    keys = entry.get("matchLabelKeys") or []
    max_skew, min_domains = entry.get("maxSkew", 1), entry.get("minDomains") or 1
    if not isinstance(keys, list) or not isinstance(max_skew, int) or not isinstance(min_domains, int):
        raise UnreadableSelectorError("a topology spread constraint has a wrong maxSkew, minDomains or matchLabelKeys")
    if selector is not None:
        # Since 1.34 the API server itself writes them into the selector: then nothing is added.
        same = {SelectorRequirement(key, "In", (labels[key],)) for key in keys if key in labels}
        rules = {*selector.rules, *same}
        selector = LabelSelector(tuple(sorted(rules, key=lambda rule: (rule.key, rule.operator, rule.values))))
    return SpreadConstraint(
        str(entry.get("topologyKey", "")),
        max_skew,
        min_domains,
        selector,
        honors_affinity=(entry.get("nodeAffinityPolicy") or "Honor") == "Honor",
        honors_taints=(entry.get("nodeTaintsPolicy") or "Ignore") == "Honor",
    )
