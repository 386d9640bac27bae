"""Which sets of GPUs one claim may have where Fabric Manager links only whole partitions, and what its requests get.

docs/design/fabric-partitions.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from dracaena.controller.allocation.effort import Effort
from dracaena.controller.allocation.score.box import Bandwidths
from dracaena.controller.allocation.score.order import Order, Score
from dracaena.controller.allocation.score.shares import RequestShare, Splitter, Worths


class LinkedWorths(Worths, Bandwidths, Protocol):
    """What sets are worth, each as if one claim had it (class_table.PartitionedTable)."""

    comparable: bool
    many_unlike: bool

    def linked(self, mask: int) -> LinkedWorths: ...  # noqa: D102
    def rate(self, mask: int) -> int: ...  # noqa: D102
    def ring_kb_s(self, mask: int) -> int: ...  # noqa: D102
    def ideal_gb_s(self, count: int) -> int: ...  # noqa: D102
    def pair_rank(self, mask: int) -> tuple[int, int, int]: ...  # noqa: D102
    def numa_nodes(self, mask: int) -> int: ...  # noqa: D102
    def nic_distance(self, mask: int) -> int: ...  # noqa: D102
    def left_rank(self, free: int) -> tuple[int, int, int, int]: ...  # noqa: D102
    def left_steps(self, free: int) -> int: ...  # noqa: D102
    def free_worths(self, sets: Sequence[int], size: int) -> Iterator[tuple[int, list[int]]]: ...  # noqa: D102
    def score(self, free: int, chosen: int, held: int, order: Order) -> Score: ...  # noqa: D102


SharesOf = Callable[[Bandwidths], tuple[RequestShare, ...]]
"""Returns the shares of a claim's requests under the links of a table."""


class ClaimGpus:
    """Which sets of GPUs one claim may have, and what each of its requests gets of them. One thread at a time."""

    def __init__(self, table: LinkedWorths, shares_of: SharesOf, base: int, effort: Effort) -> None:
        """`base`: the GPUs that the claim has whatever is chosen. Parts that are looked at are charged to `effort`."""
        self.base = base
        self.shares = shares_of(table.linked(0))
        self.count = sum(share.count for share in self.shares)
        self.eligible = 0
        for share in self.shares:
            self.eligible |= share.rule.eligible
        self._table, self._shares_of, self._effort = table, shares_of, effort
        self._splitters: dict[int, Splitter] = {}

    @property
    def weight(self) -> int:
        """Number of all GPUs that the claim then has."""
        return self.count + self.base.bit_count()

    def worth(self, mask: int) -> int:
        """Return what the claim's GPUs are worth together (ClassTable.worth)."""
        return self._table.worth(mask | self.base)

    def split(self, mask: int) -> tuple[int, ...] | None:
        """Return the part of each request, or None when the claim may not have the set (Splitter.split)."""
        splitter = self._splitter(mask)
        return None if splitter is None else splitter.split(mask)

    def splits(self, mask: int) -> Iterator[tuple[int, ...]]:
        """Yield every way to divide the set, best first (Splitter.splits)."""
        splitter = self._splitter(mask)
        return iter(()) if splitter is None else splitter.splits(mask)

    def _splitter(self, mask: int) -> Splitter | None:
        together = mask | self.base
        if not self._table.box.can_have(together):
            return None
        linked = self._table.linked(together)
        known = self._splitters.get(id(linked))
        if known is None:
            known = self._splitters[id(linked)] = Splitter(linked, self._shares_of(linked), self._effort)
        return known
