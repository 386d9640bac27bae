"""Where nodes are: the nodes of each rack, block and NVLink clique, within which GPUs of different pods talk to each
other faster than beyond it (docs/design/choice-of-node.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dracaena.controller.allocation.state.node_state import Buckets, NodeBuckets, NodeKind, NodeState

Location = tuple[str | None, ...]
"""The domains of a node, largest first: one for each of TopologyLevels, and last its NVLink clique; None: it is in none
of that level. Has at least one domain."""


class LocationIndex:
    """The nodes of each location, in buckets. Part of its owner.

    Nodes that are in no domain are left out: each is a domain of its own. One index serves all levels, since a domain
    is some of the locations: a change of a node costs the same for any number of them.
    """

    def __init__(self) -> None:
        self.of_node: dict[str, tuple[Location, NodeState]] = {}
        """Node with a location → the location and the node's state. Read only."""
        self._locations: dict[Location, NodeBuckets] = {}
        self._of_kind: Counter[NodeKind] = Counter()

    def put(self, node: str, location: Location | None, state: NodeState | str | None) -> None:
        """Take in the location of a node, None: it is in no domain; and its state or why it has none, None: the node is
        gone. Cost: a search among the nodes of the location in this state."""
        before = self.of_node.pop(node, None)
        if before is not None:
            self._take_out(node, *before)
        if location is not None and isinstance(state, NodeState):
            self.of_node[node] = location, state
            self._of_kind[state.kind] += 1
            self._locations.setdefault(location, NodeBuckets()).add(node, state)

    def location(self, node: str) -> Location | None:
        """Return the location of a node that offers devices; None if it is in no domain."""
        found = self.of_node.get(node)
        return None if found is None else found[0]

    @property
    def is_empty(self) -> bool:
        """Whether no node has a location."""
        return not self._locations

    def locations(self) -> Iterator[tuple[Location, Buckets]]:
        """Yield each location with the buckets of its nodes, which are read only."""
        for location, buckets in self._locations.items():
            yield location, buckets.by_kind

    def count_of(self, kind: NodeKind) -> int:
        """Return how many nodes of a kind have a location."""
        return self._of_kind[kind]

    def _take_out(self, node: str, location: Location, state: NodeState) -> None:
        self._of_kind[state.kind] -= 1
        if not self._of_kind[state.kind]:
            del self._of_kind[state.kind]
        buckets = self._locations[location]
        buckets.take_out(node, state)
        if not buckets.by_kind:
            del self._locations[location]
