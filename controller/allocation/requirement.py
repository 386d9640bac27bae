"""Whether a set of GPUs meets a hard requirement of a TopologyPolicy (meanings: api.config.v1alpha1.Requirement)."""

from __future__ import annotations

from itertools import combinations
from typing import Final

from dracaena.api.config.v1alpha1 import Requirement
from dracaena.api.groups import lowest_in_group
from dracaena.api.links import Link, LinkLevel
from dracaena.controller.allocation.box import Box, links_among, ordinals_of

_WORST_ALLOWED: Final = {
    Requirement.PIX: LinkLevel.PIX,
    Requirement.PXB: LinkLevel.PXB,
    Requirement.PHB: LinkLevel.PHB,
    Requirement.NODE: LinkLevel.NODE,
}


def meets(box: Box, mask: int, requirement: Requirement) -> bool:
    """Return whether the set holds what is required; one GPU alone always does. Cost: O(k²)."""
    if requirement is Requirement.BEST_EFFORT:
        return True
    if requirement is Requirement.NVLINK:
        return _nvlink_connected(box, mask)
    worst = _WORST_ALLOWED[requirement]
    return all(_no_worse(link, worst) for link in links_among(box, mask))


def _no_worse(link: Link, worst: LinkLevel) -> bool:
    return bool(link.nvlinks) or (link.level is not None and link.level <= worst)


def _nvlink_connected(box: Box, mask: int) -> bool:
    ordinals = ordinals_of(mask)
    joins = (
        (low, high) for (low, a), (high, b) in combinations(enumerate(ordinals), 2) if box.topology.link(a, b).nvlinks
    )
    return len(set(lowest_in_group(len(ordinals), joins))) <= 1
