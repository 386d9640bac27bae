from __future__ import annotations

from bench.machines import recorded
from bench.siblings_allocated import FOLLOW, JOB, NONE, Found, Work, _Day, _floors, built, domain, rooms, works
from bench.siblings_work import Racks

TRAYS = Racks("2 racks of 4 gb200-tray", recorded("gb200-tray"), nodes=8, nodes_of_a_domain=4, sizes=(4,))


def test_the_nodes_of_a_rack_are_in_one_clique_and_have_room_until_it_is_taken() -> None:
    inventory = built(TRAYS)
    assert {inventory.cliques.clique(f"n{place:03}") for place in range(4)} == {"fabric.0"}
    assert [domain(TRAYS, f"n{place:03}") for place in (0, 3, 4, 7)] == [0, 0, 1, 1]
    assert rooms(inventory, TRAYS, 4) == {0: 4, 1: 4}


def test_others_come_between_the_pods_of_a_family() -> None:
    coming = list(works(TRAYS, 0.7, 1))
    assert [at_s for at_s, _ in coming] == sorted(at_s for at_s, _ in coming)
    numbers = [work.number for _, work in coming]
    triples = zip(numbers, numbers[1:], numbers[2:], strict=False)
    assert any(before == after != between for before, between, after in triples)
    of_families = sum(work.gpus * work.duration_s for _, work in coming if work.pods > 1)
    alone = sum(work.gpus * work.duration_s for _, work in coming if work.pods == 1)
    assert 0.6 < of_families / alone < 1.7


def test_a_second_family_is_together_only_where_it_is_preferred() -> None:
    def came(rule: str) -> Found:
        first, second = Work(0, 2, 4, 900), Work(1, 3, 4, 900)
        return _Day(TRAYS, rule).run([(0.0, first), (1.0, first), (2.0, second), (3.0, second), (4.0, second)])

    assert [(came(rule).had_room, came(rule).together) for rule in (NONE, JOB)] == [(2, 1), (2, 2)]


def test_what_does_not_fit_waits_until_something_ends() -> None:
    found = _Day(TRAYS, JOB).run([(0.0, Work(number, 1, 4, 60.0)) for number in range(12)])
    assert (found.alone, found.alone_wait_s) == (12, 4 * 60.0)


def test_the_floors_can_break() -> None:
    found = Found(families=10, had_room=10, together=3, alone=1)
    floors = list(_floors(TRAYS, 0.7, dict.fromkeys((NONE, FOLLOW, JOB, "built, size known"), found)))
    assert [floor.holds for floor in floors] == [False, False, True] * 2
