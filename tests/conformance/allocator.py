"""The cases of the folder `allocator`: one file a case, with what Kubernetes allocates.

Asked in two modes: reference mode must answer as Kubernetes does, scoring mode (the best by links that are drawn) must
have a legal answer wherever Kubernetes has one. support.allocator_cases says what stands in a case.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from conformance.case import Case, UnreadableCasesError
from dracaena.controller.allocation.legal.books import holdings_of
from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from dracaena.controller.allocation.legal.outcome import NeedsPerson, Outcome, Plan
from dracaena.controller.allocation.legal.problem import Problem
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.legal.results import allocation_results
from dracaena.controller.allocation.legal.search import RequestKey, Restriction, solve
from dracaena.controller.allocation.score.choices import Engine
from dracaena.controller.allocation.walk.node_choice import Chosen
from support.allocator_cases import answer, difference, first_legal, problem_of
from support.kubernetes_answers import kubernetes_outcome
from support.slow_node_choice import best_of, drawn_gpus

FOLDER = "allocator"

SEED: Final = 1
"""Of the links that are drawn between the devices of a case."""


def cases(folder: Path) -> list[Case]:
    """The cases of the folder's folder `allocator`, by name; none if it has none."""
    return [_read(path) for path in sorted((folder / FOLDER).glob("*.json"))]


def _read(path: Path) -> Case:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return Case(f"{FOLDER}/{document['name']}", partial(_differences, document))
    except (ValueError, TypeError, KeyError) as error:
        raise UnreadableCasesError(f"{path}: wanted a JSON object with a name: {error}") from error


def _differences(document: dict[str, Any]) -> list[str]:
    selectors = CelSelectors(Features.of_gates(document["features"]))
    found = difference(document, answer(document, selectors, kubernetes_outcome))
    lines = [f"reference mode: {found}"] if found else []
    if document.get("results"):
        # Where Kubernetes has no answer, or an error, ours may have one: scoring mode looks at that.
        found = difference(document, answer(document, selectors, first_legal))
        lines += [f"reference mode, the first legal answer: {found}"] if found else []
    return [*lines, *_scored_differences(document, selectors)]


def _scored_differences(document: dict[str, Any], selectors: CelSelectors) -> Iterator[str]:
    """Yield what is wrong with the answer that topology chose: it must be there where Kubernetes has one, and legal.

    Where Kubernetes has none, ours may have one (docs/design/0007-allocator.md), which must be legal too.
    """
    problem = problem_of(document, selectors)
    answered = best_of(problem, drawn_gpus(problem, SEED), Engine()) if isinstance(problem, Problem) else problem
    if not isinstance(answered, tuple):
        if document.get("results"):
            yield f"scoring mode: there is none, Kubernetes has one: {answered}"
        return
    assert isinstance(problem, Problem)
    chosen, answer = answered
    books = problem.cluster.books
    before = set(books.check(problem.pools))
    allocations = allocation_results(problem, answer.plan, (f"new-{number}" for number in count(1)))
    if isinstance(allocations, NeedsPerson):
        yield f"scoring mode: {allocations}"
        return
    for claim, allocation in zip(answer.plan.claims, allocations, strict=True):
        books.commit(holdings_of(claim.claim.key, allocation.devices.results))
    yield from (f"scoring mode: {line}" for line in sorted(set(books.check(problem.pools)) - before))
    again = _confirmed(document, selectors, chosen, answer)
    if not isinstance(again, Plan):
        yield f"scoring mode: the rules do not allow what was chosen: {again}"


def _confirmed(
    document: dict[str, Any], selectors: CelSelectors, chosen: dict[RequestKey, int], answer: Chosen
) -> Outcome:
    """Ask the rules, on books that know nothing of the answer, about just its devices, request by request."""
    problem = problem_of(document, selectors)
    assert isinstance(problem, Problem)
    pools = frozenset(pool.id for pool in problem.pools)
    restrictions = [
        Restriction(
            pools,
            frozenset(pick.device.id for pick in plan.picks if pick.request is request),
            frozenset({(claim, index)}),
        )
        for claim, plan in enumerate(answer.plan.claims)
        for index, request in enumerate(plan.chosen)
    ]
    return solve(problem, restrictions=restrictions, chosen=chosen)
