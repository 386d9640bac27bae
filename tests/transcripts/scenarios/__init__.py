"""The scenarios, by subject. A function is one scenario: its name is the file's, its docstring the file's title."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType

from transcripts.scenarios import (
    allocation,
    claims,
    classes,
    deleting,
    leases_and_events,
    nodes,
    pods,
    reading,
    slices,
    tables,
    watching,
    workloads,
    writing,
)
from transcripts.session import Session


@dataclass(frozen=True, slots=True)
class Scenario:
    """A run of requests and what it shows."""

    name: str
    title: str
    run: Callable[[Session], None]


def _scenarios(modules: Iterable[ModuleType]) -> tuple[Scenario, ...]:
    return tuple(
        Scenario(name, " ".join((inspect.getdoc(function) or "").split()), function)
        for module in modules
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
    )


SCENARIOS = _scenarios(
    (
        reading,
        watching,
        writing,
        deleting,
        claims,
        allocation,
        classes,
        slices,
        pods,
        nodes,
        leases_and_events,
        tables,
        workloads,
    )
)
"""All of them, in the order of the modules."""
