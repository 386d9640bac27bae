"""The order of nodes where a pod breaks free GPUs beside those that it gets whole, for the slow versions of shares and
of parts: stated once, so that both are held to the same order.
"""

from __future__ import annotations

from dataclasses import replace

from dracaena.api.config.v1alpha1 import NO_POLICY
from dracaena.controller.allocation.score.box import Box
from dracaena.controller.allocation.score.choices import Demand, Engine


def no_demands(count: int) -> tuple[Demand, ...]:
    """So many requests that want nothing more."""
    return tuple(Demand(0, NO_POLICY) for _ in range(count))


def node_rank(
    engine: Engine,
    box: Box,
    free: int,
    whole: int,
    fresh: int,
    requests: int,
    whole_wanted: int,
    counts: tuple[int, ...] | None = None,
) -> tuple[int, ...]:
    """What sorts nodes first. `whole`: GPUs that the pod gets whole; `fresh`: free ones that it breaks. Several whole
    GPUs are linked, so they come before what is broken (`counts`; None: the number of `fresh`); one has nothing to be
    linked with.
    """
    nothing = no_demands(requests)
    of_node: tuple[int, ...] = (0,) * len(engine.order(nothing).node_names)
    if whole:
        lost = engine.score(box, free, whole | fresh, nothing)
        of_node = replace(
            engine.score(box, free, whole, nothing),
            damage_gb_s=lost.damage_gb_s,
            damage_ring_gb_s=lost.damage_ring_gb_s,
            damage_levels=lost.damage_levels,
            taken_gpus=lost.taken_gpus,
        ).node_rank()
    elif fresh:
        of_node = engine.score(box, free, fresh, nothing).node_rank()
    broken = (fresh.bit_count(),) if counts is None else counts
    return (*of_node, *broken) if whole_wanted > 1 else (*broken, *of_node)
