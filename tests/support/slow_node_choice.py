"""Cases of the structured allocator answered with topology: their devices become the GPUs of a drawn machine."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random
from typing import Any

from dracaena.api.config.v1alpha1 import NO_POLICY
from dracaena.controller.allocation.legal.outcome import DoesNotFit, NeedsPerson
from dracaena.controller.allocation.legal.problem import Problem
from dracaena.controller.allocation.legal.search import MAX_STEPS, RequestKey
from dracaena.controller.allocation.score.choices import Engine
from dracaena.controller.allocation.score.nominal_rates import make_box
from dracaena.controller.allocation.walk.node_choice import Chosen, NodeGpus, NodeQuestion, choose
from support.allocation import machine, matrix

LEVELS = ("NV2", "PIX", "PXB", "PHB", "NODE", "SYS")
MOST_GPUS = 12
"""Devices that get a place in the drawn machine; those behind them are left to the rules alone."""
MOST_WAYS = 200


def drawn_gpus(problem: Problem, seed: int) -> NodeGpus | None:
    """The first devices of a problem that are given whole, as GPUs with random links; None when there is none."""
    rng = Random(seed)
    whole = [candidate for candidate in problem.candidates if not problem.is_shareable(candidate.place)][:MOST_GPUS]
    if not whole:
        return None
    count = len(whole)
    rows = [["X"] * count for _ in range(count)]
    for a in range(count):
        for b in range(a):
            rows[a][b] = rows[b][a] = rng.choice(LEVELS)
    made = machine("drawn", matrix("\n".join(" ".join(row) for row in rows)), nvlink_generation=3, pcie_generation=4)
    free = sum(1 << place for place, candidate in enumerate(whole) if not problem.held(candidate.place))
    box = make_box(made.topology, dict(enumerate(made.gpus)))
    return NodeGpus(box, tuple(candidate.id for candidate in whole), free)


def ways_of(problem: Problem) -> Iterator[dict[RequestKey, int]]:
    """The ways to choose alternatives, the most preferred first."""
    keys = [(claim, index) for claim, requests in enumerate(problem.requests) for index in range(len(requests))]
    for places in product(*(range(len(problem.requests[claim][index])) for claim, index in keys)):
        yield dict(zip(keys, places, strict=True))


def best_of(
    problem: Problem, gpus: NodeGpus | None, engine: Engine, *, max_steps: int = MAX_STEPS, **asked: Any
) -> tuple[dict[RequestKey, int], Chosen] | DoesNotFit | NeedsPerson:
    """The answer of the first way that has one, with that way."""
    found: DoesNotFit | NeedsPerson = DoesNotFit(note="no way was tried")
    for number, chosen in enumerate(ways_of(problem)):
        if number >= MOST_WAYS:
            return DoesNotFit(note="too many ways", cut_off=True)
        answer = choose(
            problem, gpus, engine, NodeQuestion(chosen, dict.fromkeys(chosen, NO_POLICY), max_steps=max_steps, **asked)
        )
        if isinstance(answer, Chosen):
            return chosen, answer
        if isinstance(answer, NeedsPerson):
            return answer
        if number == 0 or answer.cut_off:
            found = answer
    return found
