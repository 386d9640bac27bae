"""The setting that lists the levels of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from dracaena.api.errors import BadInputError
from dracaena.api.kueue_topology import KueueTopology
from dracaena.api.topology_levels import KUEUE, MOST_LEVELS, PRESETS, TopologyLevels
from dracaena.validation.syntax import LABEL_KEY

HOSTNAME: Final = "kubernetes.io/hostname"

_SHOWN: Final = 80
"""Characters of a wrong text that a message shows: enough to find it."""

_EXPECTED: Final = f"expected a list of node labels, top first, or of {', '.join(sorted(PRESETS))}, or {KUEUE} alone"


def read_topology_levels(document: Any) -> TopologyLevels:
    """Read a list of labels and names of presets, each of which stands for its labels. Raises BadInputError in words
    that follow the place of the list."""
    if not isinstance(document, list) or not all(isinstance(entry, str) for entry in document):
        raise BadInputError(f"is not a list of texts: {_EXPECTED}")
    if document == [KUEUE]:
        return TopologyLevels(is_kueues=True)
    if KUEUE in document:
        raise BadInputError(f"names {KUEUE} and others: its Topology names all levels, leave out one or the other")
    return TopologyLevels(_checked([key for entry in document for key in PRESETS.get(entry, (entry,))]))


def levels_of_topologies(topologies: Iterable[KueueTopology]) -> tuple[TopologyLevels, str]:
    """Return the levels of the first Topology by name that can be used, and what people should know of that."""
    ignored: list[str] = []
    for item in sorted(topologies, key=lambda one: one.metadata.name):
        try:
            keys = _checked([each.node_label for each in item.spec.levels if each.node_label != HOSTNAME])
        except BadInputError as error:
            ignored.append(f"Topology {item.metadata.name} {error}")
            continue
        if keys:
            return TopologyLevels(keys, is_kueues=True), "; ".join((f"Topology {item.metadata.name} is used", *ignored))
    return TopologyLevels(is_kueues=True), "; ".join(ignored) or "there is no Topology with levels above the node"


def _checked(keys: Sequence[str]) -> tuple[str, ...]:
    for key in keys:
        if not LABEL_KEY.holds(key):
            raise BadInputError(f"names {key[:_SHOWN]!r}, which is not {LABEL_KEY.what}: {_EXPECTED}")
        if key == HOSTNAME:
            raise BadInputError(f"names {HOSTNAME}: the node is the lowest level already, leave it out")
        if keys.count(key) > 1:
            raise BadInputError(f"names {key} twice: leave out one of them")
    if len(keys) > MOST_LEVELS:
        raise BadInputError(f"has {len(keys)} levels, expected at most {MOST_LEVELS}")
    return tuple(keys)
