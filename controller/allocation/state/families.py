"""The nodes of the pods of each family (gangs, docs/design/choice-of-node.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from dracaena.api.objects import Pod
from dracaena.controller.allocation.nodes.node_resources import pod_name
from dracaena.controller.allocation.state.gangs import Family, Sizes, family_of

_NOWHERE: Final[Mapping[str, int]] = MappingProxyType({})


class Kin(NamedTuple):
    """What a decision about a pod knows of its family."""

    siblings: Mapping[str, int]
    """Node → other pods of the family there; only nodes with some."""
    left: int | None
    """Pods of the family still to be placed, including this one, at least 1; None: unknown."""


class Families:
    """The nodes of each family's pods, including those where a decision says they will be. Part of its owner. Cost: a
    few look-ups for each call."""

    def __init__(self) -> None:
        self.placed: dict[str, tuple[Family, str]] = {}
        """Name of a pod on a node → its family and the node. Read only."""
        self.sizes = Sizes()
        """What objects say. Its owner changes it."""
        self._nodes: dict[Family, Counter[str]] = {}

    def place(self, pod: Pod, node: str | None) -> None:
        """Note that a pod that names claims is on a node from now on; None: on none, or gone."""
        name = pod_name(pod)
        family = family_of(pod) if node is not None and pod.spec.resource_claims else None
        after = None if family is None or node is None else (family, node)
        before = self.placed.get(name)
        if before == after:
            return
        if before is not None:
            self._leave(name, *before)
        if after is not None:
            self.placed[name] = after
            self._nodes.setdefault(after[0], Counter())[after[1]] += 1

    def of(self, pod: Pod) -> Kin | None:
        """Return what we know of a pod's family; None: it has none. Cost: a step for each node of the family."""
        gang = self.sizes.gang_of(pod)
        if gang is None:
            return None
        family = gang.family
        siblings: Mapping[str, int] = self._nodes.get(family, _NOWHERE)
        own = self.placed.get(pod_name(pod))
        if own is not None and own[0] == family:
            siblings = Counter(siblings)
            siblings[own[1]] -= 1
            siblings = +siblings
        left = None if gang.size is None else max(1, gang.size - sum(siblings.values()))
        return Kin(dict(siblings), left)

    def _leave(self, name: str, family: Family, node: str) -> None:
        del self.placed[name]
        nodes = self._nodes[family]
        nodes[node] -= 1
        if not nodes[node]:
            del nodes[node]
            if not nodes:
                del self._nodes[family]
