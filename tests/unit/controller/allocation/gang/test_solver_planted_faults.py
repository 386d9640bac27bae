"""Faults planted in the choice for a gang are found by the comparison with trying everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from dracaena.controller.allocation.gang import filling, gang_allocator, node_tables, solver
from dracaena.controller.allocation.gang.domains import Domains
from dracaena.controller.allocation.gang.gang_allocator import GangAllocator
from dracaena.controller.allocation.gang.node_tables import NodeTables
from dracaena.controller.allocation.gang.question import Rails
from support.gang_comparison import answers_of
from support.random_gangs import random_gang


@dataclass(frozen=True)
class Fault:
    where: Any
    name: str
    wrong: Callable[[Any], Any]
    """Gets what is right."""
    seeds: tuple[int, ...]
    """Cases that show it, found by trying the first thousand."""


def _negated(bounds: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: (replace(bound, left_gpus=-bound.left_gpus) for bound in bounds(*arguments))


def _too_high(least_cost: Callable[..., int]) -> Callable[..., int]:
    return lambda search, nodes, rails: least_cost(search, nodes, rails) + (2 << search._tables.tail_bits)


def _without_fixed(question_of: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: replace(question_of(*arguments), fixed=())


def _of_the_first_alone(together: Callable[..., Any]) -> Callable[..., Any]:
    return lambda pods, _node: together(pods, pods[0])


def _on_any_rails(_: object) -> Callable[..., Any]:
    return lambda tables, kind, number, free, _rails: tables._usable_sets(kind, number, free)


FAULTS = {
    "members on other rails": Fault(NodeTables, "_on", _on_any_rails, (21, 38)),
    "classes share more cpu than there is": Fault(NodeTables, "_has_room", lambda _: lambda *_: True, (89, 196)),
    "gpus count as alike that a selector tells apart": Fault(
        NodeTables, "_apart_on", lambda _: lambda *_: (), (38, 107)
    ),
    "one way to use up gpus is kept": Fault(node_tables, "BEAM", lambda _: 1, (115, 126)),
    "what others lose counts for one member": Fault(node_tables, "values_together", _of_the_first_alone, (16, 28)),
    "the cheapest member next, always": Fault(filling, "MOST_WAYS", lambda _: -1, (42, 110)),
    "one node may count for each pattern": Fault(
        filling, "_nodes_that_may_count", lambda right: lambda offers, _: right(offers, 1), (23, 42)
    ),
    "domains inside do not count": Fault(Domains, "below", lambda _: lambda *_: (), (1, 10)),
    "racks count before cliques": Fault(
        Domains, "below", lambda right: lambda *arguments: tuple(reversed(right(*arguments))), (157, 185)
    ),
    "only tight sets of domains": Fault(solver, "MOST_SUBSETS", lambda _: -1, (1, 51)),
    "a bound that is too high": Fault(solver._Search, "_least_cost", _too_high, (3, 16)),
    "the loosest domain": Fault(solver._Search, "_bounds", _negated, (10, 25)),
    "members that stay do not count": Fault(GangAllocator, "_question", _without_fixed, (19, 33)),
    "two of a kind on a node": Fault(gang_allocator, "_keeps_off_itself", lambda _: lambda _pod: False, (23, 27)),
    "any level will do": Fault(
        GangAllocator, "_question", lambda right: lambda *arguments: replace(right(*arguments), required=None), (33, 65)
    ),
    "any rails will do": Fault(
        GangAllocator,
        "_question",
        lambda right: lambda *arguments: replace(right(*arguments), rails=Rails.IGNORED),
        (6, 21),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    assert fault.seeds
    monkeypatch.setattr(fault.where, fault.name, fault.wrong(getattr(fault.where, fault.name)))
    for seed in fault.seeds:
        try:
            found, best = answers_of(random_gang(seed), seed)
        except AssertionError:
            continue  # the plan is not even legal
        assert found != best, f"seed {seed} shows it"
