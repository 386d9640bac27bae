"""Short ways to write claims, classes and slices as documents, and to ask the allocator about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec

from dracaena.api.resource_objects import DeviceTaintRule
from dracaena.controller.allocation.legal.books import Books, Holding
from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from dracaena.controller.allocation.legal.outcome import DoesNotFit, NeedsPerson, Outcome, Plan
from dracaena.controller.allocation.legal.problem import Problem
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.legal.results import allocation_results
from dracaena.controller.allocation.legal.search import MAX_STEPS, Restriction, solve
from support.allocator_cases import problem_of

Document = dict[str, Any]
DRIVER = "driver-a"


def device(name: str, *, capacity: Mapping[str, Any] | None = None, **fields: Any) -> Document:
    """A device. Attributes are given as plain values, `attributes={"numa": 1, "tags": ["a"]}`, or as documents."""
    document: Document = {"name": name, **{_camel(key): value for key, value in fields.items()}}
    if "attributes" in document:
        document["attributes"] = {key: attribute(value) for key, value in document["attributes"].items()}
    if capacity is not None:
        document["capacity"] = {
            key: value if isinstance(value, dict) else {"value": value} for key, value in capacity.items()
        }
    return document


def attribute(value: Any) -> Document:
    """An attribute from a plain value; a dict stands for itself."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list):
        return {{bool: "bools", int: "ints", str: "strings"}[type(value[0])]: value}
    return {{bool: "bool", int: "int", str: "string"}[type(value)]: value}


def consumes(counter_set: str, **counters: str) -> list[Document]:
    """What a device takes from one counter set."""
    return [{"counterSet": counter_set, "counters": {name: {"value": value} for name, value in counters.items()}}]


def published(
    name: str,
    *devices: Document,
    pool: str = "pool-1",
    driver: str = DRIVER,
    count: int = 1,
    generation: int = 1,
    **fields: Any,
) -> Document:
    """A slice; of node-1 when nothing else is said. `counters={"set": {"counter": "4"}}` makes one of counters."""
    counters = fields.pop("counters", None)
    spec: Document = {
        "driver": driver,
        "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
        **{_camel(key): value for key, value in fields.items()},
    }
    if not {"nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"} & spec.keys():
        spec["nodeName"] = "node-1"
    if devices:
        spec["devices"] = list(devices)
    if counters is not None:
        spec["sharedCounters"] = [
            {"name": one, "counters": {key: {"value": value} for key, value in values.items()}}
            for one, values in counters.items()
        ]
    return {"metadata": {"name": name}, "spec": spec}


def exactly(name: str = "req-0", count: int = 1, device_class: str = "class-a", **fields: Any) -> Document:
    """An exact request."""
    return {"name": name, "exactly": _body(count, device_class, fields)}


def everything(name: str = "req-0", device_class: str = "class-a", **fields: Any) -> Document:
    """A request in mode All."""
    return {"name": name, "exactly": _body(0, device_class, {"allocation_mode": "All", **fields})}


def subrequest(name: str, count: int = 1, device_class: str = "class-a", **fields: Any) -> Document:
    """One alternative."""
    return {"name": name, **_body(count, device_class, fields)}


def first_available(name: str, *subrequests: Document) -> Document:
    """A request with alternatives in order of preference."""
    return {"name": name, "firstAvailable": list(subrequests)}


def claim(*requests: Document, name: str = "claim-0", constraints: Sequence[Document] = (), **fields: Any) -> Document:
    """A claim in namespace default."""
    devices: Document = {"requests": list(requests), **fields}
    if constraints:
        devices["constraints"] = list(constraints)
    return {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"}, "spec": {"devices": devices}}


def device_class(name: str, *expressions: str, config: Sequence[Document] = ()) -> Document:
    """A device class."""
    spec: Document = {"selectors": selectors(*expressions)} if expressions else {}
    if config:
        spec["config"] = list(config)
    return {"metadata": {"name": name}, "spec": spec}


def selectors(*expressions: str) -> list[Document]:
    """CEL selectors."""
    return [{"cel": {"expression": expression}} for expression in expressions]


CLASSES = (device_class("class-a", f'device.driver == "{DRIVER}"'), device_class("any"))


@dataclass
class World:
    """A cluster with one node to ask about."""

    slices: Sequence[Document] = ()
    classes: Sequence[Document] = CLASSES
    holdings: Sequence[Holding] = ()
    features: Features = field(default_factory=Features)
    labels: Mapping[str, str] = field(default_factory=dict)
    declared_features: Sequence[str] = ()
    taint_rules: Sequence[DeviceTaintRule] = ()

    def problem(self, *claims: Document) -> Problem | DoesNotFit | NeedsPerson:
        """The question, or its answer where that is plain."""
        case = {
            "slices": self.slices,
            "classes": self.classes,
            "claims": claims,
            "node": {
                "metadata": {"name": "node-1", "labels": self.labels},
                "status": {"declaredFeatures": list(self.declared_features)},
            },
        }
        selectors = CelSelectors(self.features)
        return problem_of(
            case,
            selectors,
            features=self.features,
            books=Books(self.holdings),
            taint_rules=self.taint_rules,
        )

    def ask(
        self,
        *claims: Document,
        restrictions: Sequence[Restriction] = (),
        chosen: Mapping[tuple[int, int], int] | None = None,
        max_steps: int = MAX_STEPS,
    ) -> Outcome:
        """The answer."""
        problem = self.problem(*claims)
        if not isinstance(problem, Problem):
            return problem
        return solve(problem, restrictions=restrictions, chosen=chosen, max_steps=max_steps)

    def devices(self, *claims: Document, **options: Any) -> list[str]:
        """`request: device` for each device of the plan, claim by claim; empty when there is none."""
        outcome = self.ask(*claims, **options)
        if not isinstance(outcome, Plan):
            return []
        return [f"{pick.request.name}: {pick.device.id.device}" for claim in outcome.claims for pick in claim.picks]

    def documents(self, *claims: Document) -> list[Document]:
        """The allocations as they are written to the claims."""
        problem = self.problem(*claims)
        assert isinstance(problem, Problem)
        plan = solve(problem)
        assert isinstance(plan, Plan), plan
        results = allocation_results(problem, plan, (f"share-{number}" for number in count(1)))
        assert not isinstance(results, NeedsPerson), results
        return [msgspec.json.decode(msgspec.json.encode(result)) for result in results]


def _body(count: int, device_class: str, fields: Mapping[str, Any]) -> Document:
    body: Document = {"deviceClassName": device_class, **{_camel(key): value for key, value in fields.items()}}
    if count:
        body["count"] = count
    if "selectors" in body:
        body["selectors"] = selectors(*body["selectors"])
    return body


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
