"""The best way to cut parts out of several GPUs: what it costs, and what it remembers."""

from __future__ import annotations

import pytest

from dracaena.api.partitions import PartitionGeometry, PartitionPlace
from dracaena.controller.allocation.effort import LOOK_EVERY_STEPS, Effort, OverdueError, Work
from dracaena.controller.allocation.score import cuts
from dracaena.controller.allocation.score.cuts import CutGpu, Cuts
from dracaena.controller.allocation.score.partitions import PartitionTable
from support.mig_tables import A100, geometry


def made_up(count: int) -> PartitionGeometry:
    """A GPU of which each place leaves something else."""
    places = tuple(PartitionPlace("1g", 0, 1, number, (1, number)) for number in range(count))
    return PartitionGeometry(1, (1, 10 * count), places)


def test_what_serves_the_pod_is_not_cut_any_further() -> None:
    """Of a made-up GPU each of these states would be looked at place by place."""
    effort, count = Effort(), 100
    table = PartitionTable(made_up(count), effort)
    found = Cuts(effort).best((CutGpu(table, table.geometry.there, ((1 << count) - 1,)),), (1,))
    assert found.cut is not None
    assert not found.cut_off
    # The worth of the first state and of each that a place leaves; then one look at each way.
    assert effort.spent[Work.SETS, ""] <= count * (count + 2) + 20 * count


def test_working_out_what_stays_possible_is_charged_while_it_is_done() -> None:
    effort, looks, count = Effort(), list[int](), 200
    table = PartitionTable(made_up(count), effort)

    def is_over(steps: int) -> bool:
        looks.append(steps)
        return len(looks) == 10

    effort.begin(is_over)
    with pytest.raises(OverdueError):
        table.moves(table.geometry.there)
    assert max(looks) <= LOOK_EVERY_STEPS + count
    # What was worked out until then stays.
    effort.begin()
    table.moves(table.geometry.there)
    assert effort.spent[Work.SETS, ""] <= count * (count + 2) - 9 * LOOK_EVERY_STEPS + 2 * count


def test_what_is_remembered_is_bounded_by_ways_and_forgetting_changes_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = PartitionTable(geometry(A100))
    every, there = (1 << len(table.geometry.places)) - 1, table.geometry.there
    asked = [(gpus, count) for gpus in (1, 2, 3) for count in (1, 2, 3)]

    def told(cuts: Cuts) -> list[object]:
        gpu = CutGpu(table, there, (every, every & 0b1111))
        return [cuts.best((gpu,) * gpus, (count, 1)) for gpus, count in asked]

    large = Cuts(Effort())
    expected = told(large)
    assert held(large) > 20
    monkeypatch.setattr(cuts, "MOST_KNOWN_CUTS", 20)
    small = Cuts(Effort())
    for _ in range(2):
        assert told(small) == expected
        assert held(small) <= 20


def held(memory: Cuts) -> int:
    """How many ways are remembered."""
    return sum(1 + len(gpus) for gpus, *_ in memory._bests) + sum(
        1 + len(given.offers) for given in memory._known.values()
    )


@pytest.mark.parametrize("gpus", [1, 4])
def test_where_ways_are_left_out_that_none_was_found_is_reported_as_unproved(
    monkeypatch: pytest.MonkeyPatch, gpus: int
) -> None:
    table = PartitionTable(geometry(A100))
    every = (1 << len(table.geometry.places)) - 1
    asked = (CutGpu(table, table.geometry.there, (every, every)),) * gpus
    assert Cuts(Effort()).best(asked, (8 * gpus, 1)) == (None, False)
    assert Cuts(Effort()).best(asked, (2, 2)).cut is not None
    monkeypatch.setattr(cuts, "MAX_CUTS", 3)
    assert Cuts(Effort()).best(asked, (8 * gpus, 1)) == (None, True)
    assert Cuts(Effort()).best(asked, (2, 2)).cut_off
