"""What tests and benches ask a table of partitions: every state, and the one best place of a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from dracaena.api.partitions import Left
from dracaena.controller.allocation.effort import Effort
from dracaena.controller.allocation.score.cuts import CutGpu, Cuts
from dracaena.controller.allocation.score.partitions import FOOTPRINT_WEIGHT, PartitionMove, PartitionTable


def cut_states(table: PartitionTable) -> Sequence[Left]:
    """Every state that cutting leads to from a GPU that nobody uses, that one first."""
    seen = {table.geometry.there: None}
    todo = [table.geometry.there]
    while todo:
        for move in table.moves(todo.pop()):
            if move.left not in seen:
                seen[move.left] = None
                todo.append(move.left)
    return tuple(seen)


def best_move(table: PartitionTable, left: Left, allowed: int) -> PartitionMove | None:
    """The place, of those allowed (a mask of their numbers), that the allocator cuts out of a GPU; None where none
    fits."""
    cut = Cuts(Effort()).best((CutGpu(table, left, (allowed,)),), (1,)).cut
    if cut is None:
        return None
    ((_, _, place),) = cut.picks
    (move,) = (one for one in table.moves(left) if one.place == place)
    return move


def footprint_slices(loss: int) -> int:
    """The memory slices of footprints in a loss or worth."""
    return loss // FOOTPRINT_WEIGHT
