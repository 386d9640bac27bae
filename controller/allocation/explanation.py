"""Why a pod fits on no node, in words that a user of GPUs knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

NAMES_SHOWN: Final = 3
"""Nodes named for each reason; the count tells the rest."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why some nodes do not fit. `text` follows a count: `2 with fewer than 8 free GPUs`."""

    text: str
    count: int
    """Nodes."""
    nodes: tuple[str, ...]
    """The first of them in the order of their names, at most NAMES_SHOWN."""

    def __str__(self) -> str:
        names = ", ".join(self.nodes) + (", …" if self.count > len(self.nodes) else "")
        return f"{self.count} {self.text} ({names})"


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
        return f"0/{self.nodes} nodes fit: " + "; ".join(map(str, self.reasons))

    def document(self) -> dict[str, Any]:
        """Return the same for programs: `nodes`, and `reasons` as a list of `count`, `text` and first `nodes`."""
        reasons = [{"count": item.count, "text": item.text, "nodes": list(item.nodes)} for item in self.reasons]
        return {"nodes": self.nodes, "reasons": reasons}


def unsatisfied(reasons_by_node: Iterable[tuple[str, str]]) -> Unsatisfied:
    """Count (node, reason) pairs, which come in the order of the nodes' names."""
    counts: Counter[str] = Counter()
    names: dict[str, list[str]] = {}
    for node, reason in reasons_by_node:
        counts[reason] += 1
        if counts[reason] <= NAMES_SHOWN:
            names.setdefault(reason, []).append(node)
    reasons = (Reason(text, count, tuple(names[text])) for text, count in counts.items())
    ordered = sorted(reasons, key=lambda reason: (-reason.count, reason.text))
    return Unsatisfied(counts.total(), tuple(ordered))
