"""The cases of the folder `allocator`: one file a case, with what Kubernetes allocates.

Asked in two modes: reference mode must answer as Kubernetes does, scoring mode (the best by links that are drawn) must
have a legal answer wherever Kubernetes has one. support.allocator_cases says what stands in a case.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from conformance.case import Case, UnreadableCasesError
from conformance.kube_scheduler import answer_of, written
from dracaena.controller.allocation.legal.books import holdings_of
from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from dracaena.controller.allocation.legal.outcome import DoesNotFit, NeedsPerson, Outcome, Plan
from dracaena.controller.allocation.legal.problem import Problem
from dracaena.controller.allocation.legal.read.features import Features, KubernetesVersion
from dracaena.controller.allocation.legal.results import allocation_results
from dracaena.controller.allocation.legal.search import RequestKey, Restriction, solve
from dracaena.controller.allocation.score.choices import Engine
from dracaena.controller.allocation.walk.node_choice import Chosen
from support.allocator_cases import features_of, holdings_of_case, problem_of
from support.overdrawn import overdrawn
from support.slow_node_choice import best_of, drawn_gpus

FOLDER = "allocator"

Document = Mapping[str, Any]

SEED: Final = 1
"""Of the links that are drawn between the devices of a case."""

STEPS: Final = 5_000_000
"""The cases are about the answer, not about how long it takes."""


def cases(folder: Path, version: KubernetesVersion) -> list[Case]:
    """The cases of the folder's folder `allocator`, by name; none if it has none. `version`: of their answers."""
    return [_read(path, version) for path in sorted((folder / FOLDER).glob("*.json"))]


def _read(path: Path, version: KubernetesVersion) -> Case:
    try:
        document = json.loads(path.read_text(encoding="utf-8")) | {"version": version}
        return Case(f"{FOLDER}/{document['name']}", partial(_differences, document))
    except (ValueError, TypeError, KeyError) as error:
        raise UnreadableCasesError(f"{path}: wanted a JSON object with a name: {error}") from error


def _differences(document: dict[str, Any]) -> list[str]:
    selectors = CelSelectors(features_of_case(document))
    found = difference(document, answer_of(posed_case(document, selectors)))
    lines = [f"reference mode: {found}"] if found else []
    if document.get("results"):
        # Where Kubernetes has no answer, or an error, ours may have one: scoring mode looks at that.
        found = difference(document, first_legal(document, selectors))
        lines += [f"reference mode, the first legal answer: {found}"] if found else []
    return [*lines, *_scored_differences(document, selectors)]


def features_of_case(document: Document) -> Features:
    """Return what the gates of a case switch on in its version."""
    return features_of(document["features"] or (), document["version"])


def posed_case(document: Document, selectors: CelSelectors) -> Problem | DoesNotFit | NeedsPerson:
    """Pose the question of a case."""
    return problem_of(document, selectors, features=features_of_case(document))


def first_legal(document: Document, selectors: CelSelectors) -> Document:
    """Return the answer of the product's own search."""
    problem = posed_case(document, selectors)
    outcome = solve(problem, max_steps=STEPS) if isinstance(problem, Problem) else problem
    if not isinstance(outcome, Plan):
        return {"error": str(outcome)}
    assert isinstance(problem, Problem)
    return written(problem, outcome)


def _scored_differences(document: dict[str, Any], selectors: CelSelectors) -> Iterator[str]:
    """Yield what is wrong with the answer that topology chose: it must be there where Kubernetes has one, and legal.

    Where Kubernetes has none, ours may have one (docs/design/allocator.md), which must be legal too.
    """
    problem = posed_case(document, selectors)
    answered = best_of(problem, drawn_gpus(problem, SEED), Engine()) if isinstance(problem, Problem) else problem
    if not isinstance(answered, tuple):
        if document.get("results"):
            yield f"scoring mode: there is none, Kubernetes has one: {answered}"
        return
    assert isinstance(problem, Problem)
    chosen, answer = answered
    held = holdings_of_case(document)
    before = set(overdrawn(held, problem.pools))
    allocations = allocation_results(problem, answer.plan, (f"new-{number}" for number in count(1)))
    if isinstance(allocations, NeedsPerson):
        yield f"scoring mode: {allocations}"
        return
    for claim, allocation in zip(answer.plan.claims, allocations, strict=True):
        held += holdings_of(claim.claim.key, allocation.devices.results)
    yield from (f"scoring mode: {line}" for line in sorted(set(overdrawn(held, problem.pools)) - before))
    again = _confirmed(document, selectors, chosen, answer)
    if not isinstance(again, Plan):
        yield f"scoring mode: the rules do not allow what was chosen: {again}"


def _confirmed(
    document: dict[str, Any], selectors: CelSelectors, chosen: dict[RequestKey, int], answer: Chosen
) -> Outcome:
    """Ask the rules, on books that know nothing of the answer, about just its devices, request by request."""
    problem = posed_case(document, selectors)
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


def difference(case: Document, given: Document) -> str:
    """Return how an answer differs from the case's own, empty where they are equal. Of an error only its being counts.

    Claims, devices and configs are compared in order, the requirements of a node selector as a set.
    """
    expected_error, given_error = case.get("error") or "", given.get("error") or ""
    if bool(expected_error) != bool(given_error):
        return f"expected error {expected_error!r}, got {given_error!r}"
    if expected_error:
        return ""
    expected, found = _comparable(case.get("results")), _comparable(given.get("results"))
    return "" if expected == found else f"expected {expected}, got {found}"


def _comparable(results: list[Document] | None) -> Any:
    """Return results without what means the same when left out, and without the order that means nothing."""
    if results is None:
        return None
    return [_without_defaults(result) for result in results]


def _without_defaults(value: Any, key: str = "") -> Any:
    if isinstance(value, Mapping):
        if key == "parameters":
            return value
        items = {name: _without_defaults(entry, name) for name, entry in value.items()}
        # The API fills in Equal where a toleration names no operator.
        kept = {name: entry for name, entry in items.items() if entry not in (None, [], {})}
        return {name: entry for name, entry in kept.items() if (name, entry) != ("operator", "Equal")}
    if isinstance(value, list):
        entries = [_without_defaults(entry) for entry in value]
        return sorted(entries, key=repr) if key in ("matchExpressions", "matchFields") else entries
    return value
