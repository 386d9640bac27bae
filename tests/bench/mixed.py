"""Section: how nodes of different classes should be ranked (docs/design/0006-mixed-clusters.md)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from bench import ours
from bench.machines import BenchMachine
from bench.queueing import mixed_cluster
from bench.report import Progress, Row, Section, Table
from bench.simulation import Outcome, Place, run, trace
from bench.systems import our_system
from bench.worth import GpuSet, ideal_gb_s
from dracaena.api.config.v1alpha1 import NO_POLICY, TopologyPolicy
from dracaena.controller.allocation.allocator import RELATIVE_UP_TO_GPUS
from dracaena.controller.allocation.score.choices import Engine

LOADS: Final = (0.3, 0.5, 0.7, 0.85, 0.95)
SEEDS: Final = range(4)
LARGE: Final = (4, 8)
"""GPUs of a large job: its time is mostly communication."""
MIN_BANDWIDTH_GB_S: Final = 100
"""What large jobs demand in the runs with minBandwidth: more than any PCIe machine gives."""

ABSOLUTE, RELATIVE, DEFAULT = "absolute", "relative", f"relative up to {RELATIVE_UP_TO_GPUS}"


def rankings() -> dict[str, Place]:
    """Return the ways to rank nodes that are compared."""
    absolute, relative = partial(ours.choose, engine=ours.ABSOLUTE), partial(ours.choose, engine=ours.RELATIVE)
    default = partial(ours.choose, engine=ours.DEFAULT)
    return {
        ABSOLUTE: our_system(ask=absolute),
        RELATIVE: our_system(ask=relative),
        DEFAULT: our_system(ask=default),
        f"{DEFAULT}, slower class first": our_system(_slower_class_first, default),
        "absolute, large jobs demand": our_system(ask=partial(_demanding, engine=ours.ABSOLUTE)),
        f"{DEFAULT}, large jobs demand": our_system(ask=partial(_demanding, engine=ours.DEFAULT)),
    }


def rows(progress: Progress) -> Section:
    """Run all days and return the table."""
    machines = mixed_cluster()
    best = {size: max(ideal_gb_s(machine, size) for machine in machines) for size in (2, *LARGE)}
    lines = []
    found: dict[tuple[float, str], Outcome] = {}
    for load in LOADS:
        progress(f"mixed cluster: load {load}")
        for name, place in rankings().items():
            outcome = found[load, name] = Outcome()
            for seed in SEEDS:
                outcome.add(run(machines, trace(machines, load, seed), place))
            lines.append((f"{load}", name, *_cells(outcome, best)))
    return Section(
        title=f"Mixed cluster: {len(machines)} nodes with NVSwitches, an NVLink mesh, bridges and plain PCIe",
        rows=tuple(
            Row(
                f"jobs of 4 and 8 GPUs at load {load}: B ÷ cluster's best",
                _large_share(found[load, DEFAULT], best),
                _large_share(found[load, ABSOLUTE], best),
                "",
                more_is_better=True,
                against="absolute B",
            )
            for load in LOADS
        ),
        tables=(Table("Rankings of nodes", HEADER, tuple(lines)),),
        notes=(
            "relative: B ÷ the best that the node's class has for this size. absolute: B.",
            f"{DEFAULT}, the default: relative for jobs of at most {RELATIVE_UP_TO_GPUS} GPUs, absolute for larger.",
            f"'large jobs demand': jobs of 4 and 8 GPUs say minBandwidth {MIN_BANDWIDTH_GB_S}.",
            "B ÷ cluster's best weighs each job of 4 or 8 GPUs by its GPUs.",
        ),
    )


HEADER: Final = (
    "load",
    "ranking",
    "B ÷ class ideal",
    "4 and 8 GPUs: B ÷ cluster's best",
    "2 GPUs GB/s",
    "4 GPUs GB/s",
    "8 GPUs GB/s",
    "2 GPUs on NVSwitch while PCIe has room %",
    "wait min",
    "8 GPUs wait min",
    "never started",
)


def _cells(outcome: Outcome, best: Mapping[int, int]) -> tuple[str, ...]:
    pairs = outcome.placed_by_size[2]
    return (
        f"{outcome.mean_ratio:.3f}",
        f"{_large_share(outcome, best):.3f}",
        *(f"{_gb_s(outcome, size):.0f}" for size in (2, *LARGE)),
        f"{100 * outcome.on_fast_while_slow_idle[2] / pairs:.1f}",
        f"{outcome.mean_wait_s / 60:.2f}",
        f"{outcome.wait_s_by_size[8] / outcome.jobs_by_size[8] / 60:.1f}",
        f"{outcome.never_placed}",
    )


def _large_share(outcome: Outcome, best: Mapping[int, int]) -> float:
    asked = sum(outcome.placed_by_size[size] * size * best[size] for size in LARGE)
    return sum(outcome.gb_s_by_size[size] * size for size in LARGE) / asked


def _gb_s(outcome: Outcome, size: int) -> float:
    return outcome.gb_s_by_size[size] / outcome.placed_by_size[size]


def _slower_class_first(choice: ours.OurChoice) -> tuple[float, ...]:
    share, *rest = choice.rank()
    return (share, choice.score.ideal_gb_s, *rest)


def _demanding(machine: BenchMachine, free: GpuSet, count: int, engine: Engine) -> ours.OurChoice | None:
    policy = TopologyPolicy(min_bandwidth_gb_s=MIN_BANDWIDTH_GB_S) if count in LARGE else NO_POLICY
    return ours.choose(machine, free, count, engine, policy)
