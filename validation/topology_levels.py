"""The setting that lists the levels of a cluster."""

from __future__ import annotations

from typing import Any, Final

from dracaena.api.errors import BadInputError
from dracaena.api.topology_levels import MOST_LEVELS, PRESETS, TopologyLevels
from dracaena.validation.syntax import LABEL_KEY

HOSTNAME: Final = "kubernetes.io/hostname"

_SHOWN: Final = 80
"""Characters of a wrong text that a message shows: enough to find it."""

_EXPECTED: Final = f"expected a list of node labels, top first, or of {', '.join(sorted(PRESETS))}"


def read_topology_levels(document: Any) -> TopologyLevels:
    """Read a list of labels and names of presets, each of which stands for its labels. Raises BadInputError in words
    that follow the place of the list."""
    if not isinstance(document, list) or not all(isinstance(entry, str) for entry in document):
        raise BadInputError(f"is not a list of texts: {_EXPECTED}")
    keys = tuple(key for entry in document for key in PRESETS.get(entry, (entry,)))
    for key in keys:
        if not LABEL_KEY.holds(key):
            raise BadInputError(f"names {key[:_SHOWN]!r}, which is not {LABEL_KEY.what}: {_EXPECTED}")
        if key == HOSTNAME:
            raise BadInputError(f"names {HOSTNAME}: the node is the lowest level already, leave it out")
        if keys.count(key) > 1:
            raise BadInputError(f"names {key} twice: leave out one of them")
    if len(keys) > MOST_LEVELS:
        raise BadInputError(f"has {len(keys)} levels, expected at most {MOST_LEVELS}")
    return TopologyLevels(keys)
