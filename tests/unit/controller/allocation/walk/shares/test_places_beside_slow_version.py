"""Where shares go, decided by the allocator over many nodes, against a slow version that writes every way down."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from dracaena.api.quantity import parse_quantity
from dracaena.controller.allocation.allocator import Allocator, NoFit
from dracaena.controller.allocation.legal.problem import Problem
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.state.size_demand import SizeDemand
from dracaena.controller.allocation.walk.places import NodePlaces, Places
from dracaena.controller.allocation.walk.shares.assignments import ShareAssignments
from support.allocation import (
    pod,
)
from support.random_shares import RandomShares
from support.seeds import in_tiers
from support.slow_shares import best_place, key_on_node, ways_on

CLUSTERS = 150
"""Among which each planted fault is found."""


def check_results(case: RandomShares, found: Allocation, parts: Sequence[Sequence[int]]) -> None:
    """Every share says all that it takes, under an id of its own; who has a GPU whole takes all of it."""
    gpus = case.node(found.node).gpus
    results = [result for entry in found.claims for result in entry.results]
    ids = [result.share_id for result in results if result.share_id is not None]
    assert len(ids) == len(set(ids))
    by_request: dict[str, list[Any]] = defaultdict(list)
    for result in results:
        by_request[result.request].append(result)
    for place, wanted in enumerate(case.pod):
        in_order = sorted(by_request[f"r{place}"], key=lambda result: result.device)
        for ordinal, result in zip(sorted(parts[place]), in_order, strict=True):
            gpu = gpus[ordinal]
            if not gpu.is_shared:
                assert result.share_id is None
                assert result.consumed_capacity == {}
                continue
            taken = {name: parse_quantity(text).whole() for name, text in result.consumed_capacity.items()}
            assert result.share_id is not None
            assert taken == {"memory": wanted.memory or gpu.memory, "cores": wanted.cores}


def compare(seed: int) -> str:
    """Compare one random case; return what was found."""
    case = RandomShares(seed)
    inventory, allocator = case.inventory(), Allocator()
    inventory.check()
    if seed % 2:
        allocator.reprice(inventory, SizeDemand().shares(inventory.holdings.by_size, now_s=0.0))
    claims = case.waiting_claims()
    user = pod("pod", *(one.metadata.name for one in claims))
    expected = best_place(allocator.engine, case.nodes, case.pod)
    for _ in range(2):  # the second time everything is remembered
        found = allocator.allocate(inventory, user, claims)
        if expected is None:
            assert isinstance(found, NoFit), f"seed {seed}: {found}"
            assert allocator.explain(inventory, user, claims) is not None
        else:
            assert isinstance(found, Allocation), f"seed {seed}: {found}, {expected}, {case.pod}"
            told = case.told(found)
            assert told[0] == expected[0], f"seed {seed}: {case.pod}"
            if case.has_one_division(told[0]):
                assert told == expected, f"seed {seed}: {case.pod}"
            else:
                keys = [key_on_node(allocator.engine, case.node(told[0]), case.pod, way[1]) for way in (told, expected)]
                assert keys[0][:-1] == keys[1][:-1], f"seed {seed}: {case.pod}"
                assert told[1] in ways_on(case.node(told[0]), case.pod)
            check_results(case, found, told[1])
    return "none" if expected is None else "found"


def compare_many(seeds: Iterable[int]) -> list[str]:
    return [compare(seed) for seed in seeds]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", in_tiers(range(40), range(40, 300), range(300, 6_000)))
def test_a_pod_with_shares_gets_what_the_slow_version_finds(seeds: range) -> None:
    found = compare_many(seeds)
    assert min(found.count(one) for one in ("none", "found")) > len(seeds) // 20


def _roomiest_first(ways: ShareAssignments, ordinal: int, taken: Any) -> tuple[int, int]:
    memory, cores = LEFT_OF(ways, ordinal, taken)
    return -memory, -cores


def _any_mode(ways: ShareAssignments, free: int, demand: Any, ordinal: int, now: Any) -> Any:
    before = now.get(ordinal) or ways._in_use.get(ordinal)
    return FILLED(ways, free, demand if before is None else replace(demand, mode=before.mode), ordinal, now)


def _no_room(ways: ShareAssignments, free: int) -> bool:
    return ROOM(ways, free) and len(ways._demands) < 2


def _no_damage(places: NodePlaces[Any], deal: Any) -> tuple[int, ...]:
    return ()


def _nodes_by_links_alone(
    places: Places[Any], asked: Any, nodes: Any, free: int, broken: Any = (0, 0), left: Any = (0, 0)
) -> int:
    wasted = sum(places.requests.counts[at] for at in places.elsewhere if at not in asked.fractions)
    return RANK(places, asked, nodes, free, (-wasted, -asked.wasted), left)


def _no_place_without_the_capacity(ways: ShareAssignments, name: str, free: int, ordinal: int) -> Any:
    one = ways._question.kind.devices[ordinal]
    has = one is not None and any(held.name == name for held in one.device.capacities)
    return LEFT(ways, name, free, ordinal) if has else iter(())


LEFT = ShareAssignments._left_nano
LEFT_OF, FILLED, ROOM = ShareAssignments.left_of, ShareAssignments._filled, ShareAssignments._has_room
RANK = Places.rank_of


@pytest.mark.search
@pytest.mark.parametrize(
    ("owner", "name", "planted"),
    [
        (ShareAssignments, "left_of", _roomiest_first),
        (ShareAssignments, "_has_room", _no_room),
        (ShareAssignments, "_left_nano", _no_place_without_the_capacity),
        (NodePlaces, "_damage", _no_damage),
        (Places, "rank_of", _nodes_by_links_alone),
    ],
)
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, planted: Any) -> None:
    monkeypatch.setattr(owner, name, planted)
    with pytest.raises(AssertionError):
        compare_many(range(CLUSTERS))


@pytest.mark.search
def test_modes_that_neither_places_nor_rules_keep_apart_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Either alone is enough: places come in an order, and the rules refuse what places overlook."""
    monkeypatch.setattr(ShareAssignments, "_filled", _any_mode)
    monkeypatch.setattr(Problem, "mode", lambda *_: None)
    with pytest.raises(AssertionError):
        compare_many(range(CLUSTERS))
