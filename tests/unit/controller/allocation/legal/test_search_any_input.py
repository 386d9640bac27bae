"""Claims, classes and slices that nobody would write: no crash, no hang, and never an illegal allocation.

Each document of a random snapshot is damaged in a few places: fields are dropped, renamed, doubled, or replaced by
values of other types. INPUTS damaged snapshots are read, asked about, and where something fits, committed and checked.
"""

from __future__ import annotations

import copy
from random import Random
from typing import Any

import msgspec
import pytest

from dracaena.api import objects, resource_objects
from dracaena.controller.allocation.legal.books import Books, Holding, holdings_of
from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from dracaena.controller.allocation.legal.outcome import NeedsPerson, Plan
from dracaena.controller.allocation.legal.problem import Problem, Snapshot
from dracaena.controller.allocation.legal.read.claims import Unsupported, read_claim, read_class
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.legal.read.slices import read_slice
from dracaena.controller.allocation.legal.results import allocation_results
from dracaena.controller.allocation.legal.search import solve
from support.allocator_cases import features_of, holdings_of_case, posed
from support.overdrawn import overdrawn
from support.random_snapshots import Document, random_snapshot
from support.seeds import in_tiers

STEPS = 5_000

ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**63,
    1.5,
    "",
    "x" * 300,
    "1e999999999",
    "-1Gi",
    "Exists",
    "All",
    "a/b/c",
    "ⅷ",
    [],
    {},
    [None],
    [[]],
    {"": {}},
    {"cel": {"expression": "device"}},
    {"cel": {"expression": "1/0 == 1"}},
)


def damage(random: Random, document: Any) -> Any:
    """Damage a copy of the document in one to three places."""
    damaged = copy.deepcopy(document)
    for _ in range(random.randint(1, 3)):
        places = list(walk(damaged))
        if not places:
            break
        holder, key = random.choice(places)
        kind = random.randrange(5)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[f"{key}X"] = holder.pop(key)
        elif kind == 2 and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        elif kind == 3:
            holder[key] = copy.deepcopy(random.choice([value[inner] for value, inner in places]))
        else:
            holder[key] = copy.deepcopy(random.choice(ODD_VALUES))
    return damaged


def walk(document: Any) -> Any:
    if isinstance(document, dict):
        for key, value in document.items():
            yield document, key
            yield from walk(value)
    elif isinstance(document, list):
        for index, value in enumerate(document):
            yield document, index
            yield from walk(value)


def converted(documents: list[Document], kind: Any) -> list[Any]:
    """What decodes, as the cache of the API's objects would hold it; the rest never gets in."""
    found = []
    for document in documents:
        try:
            found.append(msgspec.convert(document, kind))
        except msgspec.ValidationError:
            continue
    return found


def survive(seed: int, selectors: dict[Features, CelSelectors]) -> str:
    random = Random(seed)
    case = random_snapshot(seed)
    for part in ("slices", "claims", "classes"):
        if random.random() < 0.6:
            case[part] = [damage(random, entry) for entry in case[part]]
    claims = [read_claim(claim) for claim in converted(case["claims"], resource_objects.ResourceClaim)]
    if any(isinstance(claim, Unsupported) for claim in claims):
        return "left alone"
    features = features_of(case["features"])
    classes = converted(case["classes"], resource_objects.DeviceClass)
    cluster = Snapshot(
        classes={entry.metadata.name: read_class(entry) for entry in classes},
        books=Books(holdings_of_case(case)),
        selectors=selectors.setdefault(features, CelSelectors(features)),
        features=features,
    )
    node = msgspec.convert(case["node"], objects.Node)
    known = [claim for claim in claims if not isinstance(claim, Unsupported)]
    problem = posed(cluster, map(read_slice, converted(case["slices"], resource_objects.ResourceSlice)), node, known)
    outcome = solve(problem, max_steps=STEPS) if isinstance(problem, Problem) else problem
    assert str(outcome)
    if not isinstance(outcome, Plan):
        return type(outcome).__name__
    assert isinstance(problem, Problem)
    return "committed" if is_legal(problem, outcome, holdings_of_case(case)) else "not written"


def is_legal(problem: Problem, plan: Plan, held: list[Holding]) -> bool:
    allocations = allocation_results(problem, plan, (f"new-{number}" for number in range(1000)))
    if isinstance(allocations, NeedsPerson):
        return False
    wrong_before = set(overdrawn(held, problem.pools))
    for claim, allocation in zip(plan.claims, allocations, strict=True):
        assert len(allocation.devices.results) <= 32
        held += holdings_of(claim.claim.key, allocation.devices.results)
    assert set(overdrawn(held, problem.pools)) <= wrong_before
    return True


def run(seeds: range) -> set[str]:
    selectors: dict[Features, CelSelectors] = {}
    return {survive(seed, selectors) for seed in seeds}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", in_tiers(range(500), range(500, 4_000), range(4_000, 50_000)))
def test_damaged_documents_do_no_damage(seeds: range) -> None:
    assert run(seeds) >= {"left alone", "DoesNotFit", "NeedsPerson", "committed"}
