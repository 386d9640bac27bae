"""Cases of the structured allocator: what Kubernetes' own answers for a node, claims, classes and slices.

A case is a JSON object: `features` (feature gates), `node`, `classes`, `slices`, `claims`, `allocatedDevices`,
`allocatedShared` and `aggregatedCapacity` (who holds what), and the answer: `results` (one allocation a claim, null
when nothing fits) or `error`. Share ids are all one UUID. Of an error only that there is one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count, repeat
from typing import Any

import msgspec

from dracaena.api import objects
from dracaena.api.device_id import DeviceId
from dracaena.api.quantity import parse_quantity
from dracaena.controller.allocation.legal.books import Books, Holding
from dracaena.controller.allocation.legal.outcome import DoesNotFit, Mistake, NeedsPerson, Outcome
from dracaena.controller.allocation.legal.problem import Problem, Snapshot, pose
from dracaena.controller.allocation.legal.read.claims import Claim, read_claim, read_class
from dracaena.controller.allocation.legal.read.documents import Unsupported
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.legal.read.pools import SliceIndex
from dracaena.controller.allocation.legal.read.slices import read_slice
from dracaena.controller.allocation.legal.read.taints import with_taint_rules
from dracaena.controller.allocation.legal.search import solve
from dracaena.controller.allocation.legal.selectors import Selectors
from support.kubernetes_answers import kubernetes_error, kubernetes_results

SHARE_ID = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
STEPS = 5_000_000
"""The cases are about the answer, not about how long it takes."""

Document = Mapping[str, Any]


def cluster_of(
    case: Document,
    selectors: Selectors,
    *,
    features: Features | None = None,
    books: Books | None = None,
    taint_rules: Sequence[objects.DeviceTaintRule] = (),
) -> Snapshot:
    """Read what a case says of the cluster; what is given besides stands for what the case says of it."""
    classes = [msgspec.convert(entry, objects.DeviceClass) for entry in case.get("classes") or ()]
    slices = [msgspec.convert(entry, objects.ResourceSlice) for entry in case.get("slices") or ()]
    return Snapshot(
        slices=SliceIndex(read_slice(with_taint_rules(entry, taint_rules)) for entry in slices),
        classes={entry.metadata.name: read_class(entry) for entry in classes},
        books=books if books is not None else Books(holdings_of_case(case)),
        selectors=selectors,
        features=features if features is not None else Features.of_gates(case.get("features") or ()),
    )


def holdings_of_case(case: Document) -> list[Holding]:
    """Read who holds what. Consumed capacity comes without share ids, so each entry is a share of its own."""
    numbers = count(1)
    held = [Holding("somebody", _device_id(entry)) for entry in case.get("allocatedDevices") or ()]
    held += [Holding("somebody", _device_id(entry), entry["ShareID"]) for entry in case.get("allocatedShared") or ()]
    for entry in case.get("aggregatedCapacity") or ():
        consumed = tuple((name, parse_quantity(text).nano) for name, text in sorted(entry["Capacity"].items()))
        held.append(Holding("somebody", _device_id(entry), f"share-{next(numbers)}", consumed))
    return held


def claims_of(case: Document) -> list[Claim] | Unsupported:
    """Read the claims of a case, or return the first thing in them that is not understood."""
    claims = []
    for entry in case.get("claims") or ():
        claim = read_claim(msgspec.convert(entry, objects.ResourceClaim))
        if isinstance(claim, Unsupported):
            return claim
        claims.append(claim)
    return claims


def problem_of(case: Document, selectors: Selectors, **beside: Any) -> Problem | DoesNotFit | NeedsPerson:
    """Pose the question of a case, with what `cluster_of` takes besides."""
    claims = claims_of(case)
    if isinstance(claims, Unsupported):
        return NeedsPerson(Mistake.UNSUPPORTED, "claim", str(claims))
    node = msgspec.convert(case["node"], objects.Node)
    return pose(cluster_of(case, selectors, **beside), node, claims)


def first_legal(posed: Problem | DoesNotFit | NeedsPerson, *, max_steps: int) -> Outcome:
    """Return the product's own first answer."""
    return solve(posed, max_steps=max_steps) if isinstance(posed, Problem) else posed


def answer(case: Document, selectors: Selectors, search: Callable[..., Outcome]) -> dict[str, Any]:
    """Answer a case by a search, in the form in which cases hold answers."""
    problem = problem_of(case, selectors)
    outcome = search(problem, max_steps=STEPS)
    if isinstance(outcome, NeedsPerson):
        return {"error": str(outcome)}
    if isinstance(outcome, DoesNotFit):
        error = kubernetes_error(outcome)
        return {"error": error} if error else {"results": None}
    assert isinstance(problem, Problem)
    allocations = kubernetes_results(problem, outcome, repeat(SHARE_ID))
    if isinstance(allocations, NeedsPerson):
        return {"error": str(allocations)}
    return {"results": [msgspec.json.decode(msgspec.json.encode(allocation)) for allocation in allocations]}


def difference(case: Document, given: Document) -> str:
    """Return how an answer differs from the case's own, empty where they are equal.

    Claims, devices and configs are compared in order, the requirements of a node selector as a set.
    """
    expected_error, given_error = case.get("error") or "", given.get("error") or ""
    if bool(expected_error) != bool(given_error):
        return f"expected error {expected_error!r}, got {given_error!r}"
    if expected_error:
        return ""
    expected, found = comparable(case.get("results")), comparable(given.get("results"))
    return "" if expected == found else f"expected {expected}, got {found}"


def comparable(results: list[Document] | None) -> Any:
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


def _device_id(entry: Document) -> DeviceId:
    return DeviceId(entry["Driver"], entry["Pool"], entry["Device"])
