"""Links and reasons in words that a user of GPUs knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from dracaena.api.links import Link
from dracaena.controller.allocation.box import Box, links_among

NAMES_SHOWN = 3
"""Nodes named for each reason in a text; the count tells the rest."""


def links_in_words(box: Box, mask: int) -> str:
    """Return how a set is linked, best links first: `6 pairs NV12`, `1 pair PIX, 2 pairs PHB`, `one GPU`."""
    links = links_among(box, mask)
    if not links:
        return "one GPU" if mask else "no GPU"
    counted = Counter(link.token for link in sorted(links, key=_best_first))
    return ", ".join(f"{count} pair{'s' if count > 1 else ''} {token}" for token, count in counted.items())


@dataclass(frozen=True, slots=True)
class Reason:
    """Why some nodes do not fit. `text` follows a count: `2 with fewer than 8 free GPUs`."""

    text: str
    nodes: tuple[str, ...]
    """In the order of their names."""


@dataclass(frozen=True, slots=True)
class Unsatisfied:
    """The pod fits on no node now. It may fit later with nobody acting."""

    nodes: int
    """How many nodes there are."""
    reasons: tuple[Reason, ...]
    """Each node under its first reason; the reason of most nodes first."""

    def __str__(self) -> str:
        if not self.reasons:
            return f"0/{self.nodes} nodes fit"
        return f"0/{self.nodes} nodes fit: " + "; ".join(_counted(reason) for reason in self.reasons)


def unsatisfied(nodes: int, reason_by_node: Mapping[str, str]) -> Unsatisfied:
    """Group nodes by their reason."""
    grouped: dict[str, list[str]] = {}
    for node in sorted(reason_by_node):
        grouped.setdefault(reason_by_node[node], []).append(node)
    reasons = (Reason(text, tuple(names)) for text, names in grouped.items())
    return Unsatisfied(nodes, tuple(sorted(reasons, key=lambda reason: (-len(reason.nodes), reason.text))))


def _counted(reason: Reason) -> str:
    names = ", ".join(reason.nodes[:NAMES_SHOWN]) + (", …" if len(reason.nodes) > NAMES_SHOWN else "")
    return f"{len(reason.nodes)} {reason.text} ({names})"


def _best_first(link: Link) -> tuple[int, int]:
    unknown = 1_000  # after every level
    return (-(link.nvlinks or 0), unknown if link.level is None else link.level)
