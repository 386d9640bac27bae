"""What a quota costs a decision: the same jobs in a namespace with all limits and without any, at 5,000 nodes × 8 GPUs.

Run alone with `make bench BENCH=quotas`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final

from bench.decision import FILL, NODES, World, churn, percentile
from bench.report import Floor, Progress, Row, Section
from dracaena.api.names import quota_annotation
from dracaena.api.objects import Namespace, ObjectMeta
from dracaena.controller.garbage import freeze_what_stays
from support.allocation import DRIVER

TURNS: Final = 20
"""With quotas and without by turns, so that what else the machine does meets both."""

JOBS: Final = 100
"""Of one turn: 2,000 decisions of each kind in all, as the section on decisions has."""

WARM: Final = 2_000
"""Decisions before it is measured, until the answers to common questions are known."""

FLOOR: Final = 1.15
GOAL: Final = 1.05
"""CPU time of a decision with quotas, divided by that without: to be told apart from the noise of two cores, and no
more."""

MORE_THAN_ALL: Final = 1_000_000


@dataclass
class Figures:
    """Milliseconds of CPU time of each decision, and by the clock of what else changed for it."""

    decisions: list[float] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)


def rows(progress: Progress) -> Section:
    """Measure it: a minute."""
    progress(f"quotas: {NODES:,} nodes are filled by {FILL:.0%}")
    world = World()
    world.fill()
    world.cluster.reprice(now_s=0.0)
    freeze_what_stays()
    churn(world, WARM, world.job)
    progress(f"quotas: {TURNS} turns of {JOBS} decisions with quotas and without")
    without, with_quotas = Figures(), Figures()
    text = everything(world)
    for turn in range(TURNS):
        drawn = world.rng.getstate()
        for figures in (without, with_quotas) if turn % 2 else (with_quotas, without):
            world.rng.setstate(drawn)  # the same jobs
            set_quota(world, text if figures is with_quotas else None)
            measure(world, figures)
    set_quota(world, text)
    (state,) = world.cluster.quotas()
    counted = state.limits.values()
    assert any(held for _, held in counted), "the quota counts"
    assert all(held < limit for limit, held in counted), "nobody is refused"
    world.cluster.check()
    return section(without, with_quotas)


def everything(world: World) -> str:
    """Return a quota that limits everything that can be limited, all products by name, to more than there is."""
    products = {str(gpu.product_name) for made in world.machines.values() for gpu in made.gpus}
    limits = {
        "gpus": MORE_THAN_ALL,
        "gpusByProduct": dict.fromkeys(sorted(products), MORE_THAN_ALL),
        "shareMemory": f"{MORE_THAN_ALL}Gi",
        "shareCores": MORE_THAN_ALL,
        "migSlices": MORE_THAN_ALL,
        "migDevicesByProfile": {"1g.10gb": MORE_THAN_ALL},
    }
    return json.dumps(limits)


def set_quota(world: World, text: str | None) -> None:
    """Let the watch show the namespace of all jobs with this quota."""
    annotations = {} if text is None else {quota_annotation(DRIVER): text}
    world.cluster.intake.namespace_changed(None, Namespace(ObjectMeta("default", annotations=annotations)))


def measure(world: World, figures: Figures) -> None:
    """Let jobs come and go for one turn."""
    world.cpu.clear()
    times = churn(world, JOBS, world.job)
    figures.decisions += world.cpu
    figures.changes += times.changes


def section(without: Figures, with_quotas: Figures) -> Section:
    """Return what is printed."""
    half, most = ((percentile(with_quotas.decisions, part), percentile(without.decisions, part)) for part in (50, 99))
    changed = percentile(with_quotas.changes, 50), percentile(without.changes, 50)
    against = "the same jobs without a quota"
    ratio = half[0] / half[1]
    return Section(
        title="Quotas",
        rows=(
            Row("one decision in a namespace with all limits, CPU time, p50", *half, "ms", against=against),
            Row("the same, p99", *most, "ms", against=against),
            Row("claims that come and go, by the clock, p50", *changed, "ms", against=against),
        ),
        floors=(Floor("a decision with quotas ÷ one without, CPU time, p50", ratio, FLOOR, "x", goal=GOAL),),
        notes=(
            f"{len(without.decisions):,} decisions of each kind, by turns of {JOBS}, the same jobs in both.",
            "The quota limits everything, every product by name, and never refuses: what is measured is the counting.",
        ),
    )
