"""What a quota costs a decision: the same jobs in a namespace with all limits and in one without, at 5,000 nodes.

Run alone with `make bench BENCH=quotas`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from bench.decision import FILL, NODES, World, churn, filled, percentile
from bench.report import Floor, Progress, Row, Section
from dracaena.api.names import quota_annotation
from dracaena.api.objects import Namespace, ObjectMeta, Pod
from dracaena.api.resource_objects import ResourceClaim
from support.allocation import DRIVER
from support.quota_world import moved

WITH_QUOTA: Final = "research"
WITHOUT: Final = "teaching"

JOBS: Final = 2_000
"""Of each namespace, as in the section on decisions. Each comes twice, one after the other, so that what else the
machine does meets both."""

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
    """Measure it: half a minute."""
    progress(f"quotas: {NODES:,} nodes are filled by {FILL:.0%}")
    world = filled()
    set_quota(world)
    for namespace in (WITH_QUOTA, WITHOUT):
        churn(world, WARM, partial(job, world, namespace))
    progress(f"quotas: {JOBS:,} jobs with quotas and without")
    figures = {WITH_QUOTA: Figures(), WITHOUT: Figures()}
    for number in range(JOBS):
        drawn = world.rng.getstate()
        for namespace in sorted(figures, reverse=number % 2 == 0):
            world.rng.setstate(drawn)  # the same job
            measure(world, namespace, figures[namespace])
    (state,) = world.cluster.quotas()
    counted = state.limits.values()
    assert any(held for _, held in counted), "the quota counts"
    assert all(held < limit for limit, held in counted), "nobody is refused"
    world.cluster.check()
    return section(figures[WITHOUT], figures[WITH_QUOTA])


def job(world: World, namespace: str) -> tuple[Pod, ResourceClaim]:
    """Return a new job of a namespace."""
    waiting, asked = world.job()
    return moved(waiting, namespace), moved(asked, namespace)


def set_quota(world: World) -> None:
    """Let the watch show a namespace whose quota limits everything that can be limited, all products by name, to more
    than there is."""
    products = {str(gpu.product_name) for made in world.machines.values() for gpu in made.gpus}
    limits = {
        "gpus": MORE_THAN_ALL,
        "gpusByProduct": dict.fromkeys(sorted(products), MORE_THAN_ALL),
        "shareMemory": f"{MORE_THAN_ALL}Gi",
        "shareCores": MORE_THAN_ALL,
        "migSlices": MORE_THAN_ALL,
        "migDevicesByProfile": {"1g.10gb": MORE_THAN_ALL},
    }
    annotations = {quota_annotation(DRIVER): json.dumps(limits)}
    world.cluster.intake.namespace_changed(None, Namespace(ObjectMeta(WITH_QUOTA, annotations=annotations)))


def measure(world: World, namespace: str, figures: Figures) -> None:
    """Let a job of a namespace come, and others go."""
    world.cpu.clear()
    times = churn(world, 1, partial(job, world, namespace))
    figures.decisions += world.cpu
    figures.changes += times.changes


def section(without: Figures, with_quotas: Figures) -> Section:
    """Return what is printed."""
    half, most = ((percentile(with_quotas.decisions, part), percentile(without.decisions, part)) for part in (50, 99))
    changed = percentile(with_quotas.changes, 50), percentile(without.changes, 50)
    against = "the same in a namespace without a quota"
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
            f"{len(without.decisions):,} decisions of each kind, each job in both namespaces by turns.",
            "The quota limits everything, every product by name, and never refuses: what is measured is the counting.",
        ),
    )
