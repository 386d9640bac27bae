"""What became of a gang, in words for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from dracaena.controller.allocation.gang.domains import Domains
from dracaena.controller.allocation.gang.gang_allocator import GangAllocation
from dracaena.controller.allocation.gang.question import CLUSTER, NODE

NODES_SHOWN: Final = 4
"""Names of nodes that are shown; of more, the first and the last."""


def members_in_words(gpus: Sequence[int]) -> str:
    """Return how many pods have how many GPUs each: `8 pods × 8 GPUs`. `gpus`: of each member."""
    counts = Counter(gpus)
    return " + ".join(
        f"{_counted(pods, 'pod')} × {_counted(size, 'GPU')}" for size, pods in sorted(counts.items(), reverse=True)
    )


def place_in_words(found: GangAllocation, domains: Domains) -> str:
    """Return where a gang goes: `rack b1/r3 (tightest of 12 that hold it; 16 free GPUs left), rails 0-7, n1, n2`."""
    plan = found.plan
    name = domains.names[plan.height]
    names = [seat.node for seat in plan.seats]
    if name == NODE:
        where = f"node {plan.domain}"
    elif name == CLUSTER:
        where = f"{len(names)} nodes of the cluster, since no smaller domain holds it"
    else:
        left = f"{_counted(plan.left_gpus, 'free GPU')} left"
        where = f"{name} {plan.domain} ({_among(plan.holding)}; {left})"
    inside = [
        f"{parts} {_plural(domains.names[height])}"
        for height, parts in zip(domains.below(plan.height), plan.parts, strict=True)
        if parts > 1
    ]
    parts = [where, *inside]
    if plan.rails is not None:
        parts.append(f"rails {_ranges(plan.rails)}")
    if name != NODE:
        parts.append(", ".join(names) if len(names) <= NODES_SHOWN else f"{names[0]}…{names[-1]}")
    if plan.cut_off:
        parts.append("the search was cut off")
    return ", ".join(parts)


def _among(holding: int) -> str:
    return "the only one that holds it" if holding == 1 else f"best of {holding} that hold it"


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _plural(level: str) -> str:
    return f"{level}s"


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers, runs of them as `0-7`."""
    runs: list[list[int]] = []
    for number in dict.fromkeys(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
