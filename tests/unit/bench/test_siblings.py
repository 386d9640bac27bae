from __future__ import annotations

import pytest

from bench import siblings, siblings_allocated
from bench.machines import recorded
from bench.siblings import AHEAD, FOLLOW, NONE, ROOMIEST, RULES, FamilyJob, Outlook, created_left, look_ahead
from bench.siblings_work import Racks

TRAYS = Racks("2 racks of 4 gb200-tray", recorded("gb200-tray"), nodes=8, nodes_of_a_domain=4, sizes=(4,))


def family(arrival_s: float, pods: int, duration_s: float = 1_000) -> FamilyJob:
    return FamilyJob(arrival_s, pods, 4, duration_s)


def test_the_next_family_goes_where_all_of_it_has_room_and_nowhere_else() -> None:
    jobs = [family(0, 2), family(1, 3)]
    assert [siblings.run(TRAYS, jobs, rule).together for rule in (NONE, FOLLOW, AHEAD)] == [1, 1, 2]


def test_what_begins_in_the_roomiest_domain_leaves_none_whole() -> None:
    jobs = [family(0, 2), family(1, 2), family(2, 4)]
    found = {rule: siblings.run(TRAYS, jobs, rule) for rule in (ROOMIEST, AHEAD)}
    assert [(shares.had_room, shares.together) for shares in found.values()] == [(2, 2), (3, 3)]
    assert found[ROOMIEST].share_of_all < found[AHEAD].share_of_all


@pytest.mark.parametrize("rule", RULES)
def test_every_family_is_placed_at_last_and_gives_its_gpus_back(rule: str) -> None:
    shares = siblings.run(TRAYS, [family(number, 5, duration_s=10) for number in range(6)], rule)
    assert shares.families == 6
    assert shares.had_room == 0
    assert shares.wait_s > 0


def test_of_a_job_only_the_batches_that_were_created_are_there() -> None:
    assert [created_left(family(0, 8), placed) for placed in range(8)] == [1, 2, 1, 4, 3, 2, 1, 1]


def test_a_domain_with_siblings_comes_first_then_the_tightest_with_room_then_the_roomiest_without() -> None:
    outlooks = [Outlook(0, 2, 3), Outlook(0, 9, 3), Outlook(1, 1, 3), Outlook(0, 1, 3), Outlook(0, 3, 3)]
    assert sorted(outlooks, key=look_ahead) == [outlooks[2], outlooks[4], outlooks[1], outlooks[0], outlooks[3]]


@pytest.mark.search
def test_the_section_shows_each_rule_at_each_load_and_has_floors_for_what_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(siblings, "clusters", lambda: (TRAYS,))
    monkeypatch.setattr(siblings, "FAMILIES", 60)
    monkeypatch.setattr(siblings, "SEEDS", range(3))
    monkeypatch.setattr(siblings_allocated, "FAMILIES", 10)
    told: list[str] = []
    section = siblings.rows(told.append)
    table, allocated = section.tables
    together = {(load, rule): float(share) for _, load, rule, _, share, _, _ in table.rows}
    assert len(together) == len(siblings.LOADS) * len(RULES)
    for load in map(str, siblings.LOADS):
        assert together[load, AHEAD] == together[load, ROOMIEST] == 100 > together[load, NONE]
    assert [row[2] for row in allocated.rows] == [*siblings_allocated.RULES] * len(siblings_allocated.LOADS)
    assert len(section.floors) == 6 * len(siblings_allocated.LOADS)
    assert len(told) == len(siblings.LOADS) + len(siblings_allocated.LOADS)
