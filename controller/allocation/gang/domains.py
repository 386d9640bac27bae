"""Where nodes are, as a gang sees it: the domains of each height."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dracaena.controller.allocation.gang.question import CLIQUE, CLUSTER, NODE
from dracaena.controller.allocation.state.locations import Location


class Domains:
    """The domains of each node. A level that no node names does not exist. A node that does not name one that others
    name is a domain of its own there: nobody knows how far it is from the others."""

    def __init__(self, levels: Sequence[str], of_node: Mapping[str, Location]) -> None:
        """`levels`: what people call the levels, top first. `of_node`: the location of each node that has one."""
        self._of_node = of_node
        names = (*levels, CLIQUE)
        named = {place for location in of_node.values() for place, domain in enumerate(location) if domain is not None}
        self._places = tuple(sorted(named, reverse=True))
        self.has_cliques = len(levels) in named
        self.names = (NODE, *(names[place] for place in self._places), CLUSTER)
        """Of each height."""

    @property
    def cluster(self) -> int:
        """The height of the whole cluster."""
        return len(self.names) - 1

    def height_of(self, level: str) -> int | None:
        """Return the height of a level by its name; None: no node names it."""
        return self.names.index(level) if level in self.names else None

    def domain(self, node: str, height: int) -> str:
        """Return the domain of a node; its own name where it is in none."""
        if height == self.cluster:
            return CLUSTER
        location = self._of_node.get(node) if height else None
        return node if location is None else location[self._places[height - 1]] or node

    def below(self, height: int) -> tuple[int, ...]:
        """Return the heights at which fewer domains are better for a gang in one of this height, in the order in which
        they count: the border of a clique costs the most, then the largest domains."""
        lowest = 2 if self.has_cliques else 1
        levels = tuple(range(height - 1, lowest - 1, -1))
        return (1, *levels) if self.has_cliques and height > 1 else levels
