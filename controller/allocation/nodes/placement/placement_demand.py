"""What one pod needs of nodes because of other pods and of its storage: all rules of this room together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dracaena.api.objects import Pod
from dracaena.controller.allocation.effort import Effort
from dracaena.controller.allocation.nodes.node_filter import IndexedNode, Names, NodeIndex, in_all
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
    """The pod's labels that the answers depend on, None for one that it lacks; and what else is specific to the pod."""

    @property
    def waits_for(self) -> Mapping[Change, PodCount | None]:
        """What has to change before a refused node may suit the pod, each with the count to hold on to till then."""
        rules = (self.volumes, self.spread, self.affinity)
        return {change: count for one in rules if one is not None for change, count in one.waits_for.items()}

    def narrowed(self, nodes: NodeIndex) -> Names | None:
        """Return a set of all nodes that reason() does not refuse, and maybe others; None when nothing narrows them
        down. Cost: a look-up for each volume, and for each domain that affinity allows.
        """
        near = None if self.affinity is None else self.affinity.narrowed(nodes)
        return in_all((near, None if self.volumes is None else self.volumes.narrowed(nodes)))

    def reason(self, indexed: IndexedNode) -> str | None:
        """Return why a node is unfit for the pod, in words that follow a count of nodes; None when it may suit it."""
        found = None if self.volumes is None else self.volumes.reason(indexed)
        if found is None and self.spread is not None:
            found = self.spread.reason(indexed.labels)
        if found is None and self.affinity is not None:
            found = self.affinity.reason(indexed.labels)
        return found


def placement_demand(
    placed: PlacedPods, reaches: SpreadScopes, storage: Storage, pod: Pod, name: str, effort: Effort
) -> PlacementDemand | None:
    """Read the rules about a pod; None when there are none.

    `name` is that of the pod in the books. Raises UnreadableSelectorError. Cost for a pod without rules: a look-up for
    each of its labels if any pod on a node has anti-affinity.
    """
    spec = pod.spec
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
