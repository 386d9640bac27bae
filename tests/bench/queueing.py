"""Section: days of jobs through clusters of each recorded machine and through a mixed one, all systems side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from bench.machines import BenchMachine, all_machines, recorded
from bench.report import NOT_MEASURED, Floor, Progress, Row, Section, Table
from bench.simulation import Outcome, Place, run, trace
from bench.systems import LEFT_OUT, baseline_systems, our_system
from dracaena.api.config.v1alpha1 import Objective, TopologyPolicy

LOADS: Final = (0.5, 0.7, 0.85)
"""GPU time asked for ÷ GPU time there is: from a cluster with room to one where jobs wait."""
SEEDS: Final = (1,)
"""Days for each cluster and load: 43,600 jobs a system in all."""
LONG_SEEDS: Final = (1, 2, 3)
"""Of the long form, for waiting times: of one kind of node a day differs from the next by half a minute. Bandwidth and
groups of a day are the same to the second digit."""
NODES_OF_A_KIND: Final = 4
SMALLEST: Final = 4
"""GPUs of the machines that are looked at."""
LARGEST: Final = 8
"""Machines of 16 GPUs are left out: some baselines take minutes for a decision there, and every set ties."""
MIXED: Final = ("hgx-h100", "dgx-1v", "h100-pcie-bridged-numa-3-5", "a5000-pix-pxb")
OURS, OURS_PACKING = "ours", "ours, objective Pack"
SHOWN_AGAINST: Final = ("first fit", "go best-effort", "gpu-manager", "HAMi", "koordinator")


def mixed_cluster() -> list[BenchMachine]:
    """Return NVSwitch machines, an NVLink mesh, bridged PCIe and plain PCIe machines."""
    return [recorded(name) for name in MIXED for _ in range(NODES_OF_A_KIND)]


def rows(progress: Progress, *, long: bool = False) -> Section:
    """Run all days and return the tables."""
    seeds = LONG_SEEDS if long else SEEDS
    packing = our_system(TopologyPolicy(objective=Objective.PACK))
    systems = {OURS: our_system(), OURS_PACKING: packing, **baseline_systems()}
    clusters = {
        f"{NODES_OF_A_KIND} x {machine.name}": [machine] * NODES_OF_A_KIND
        for machine in all_machines()
        if SMALLEST <= machine.gpu_count <= LARGEST
    }
    single = {
        f"1 x {machine.name}": [machine]
        for machine in all_machines()
        if SMALLEST <= machine.gpu_count <= LARGEST and not machine.links.switched
    }
    mixed = f"mixed, {len(MIXED) * NODES_OF_A_KIND} nodes"
    clusters[mixed] = mixed_cluster()
    outcomes: dict[str, dict[str, Outcome]] = {}
    for name, machines in {**single, **clusters}.items():
        progress(f"queue: {name}")
        outcomes[name] = {system: days(machines, place, seeds) for system, place in systems.items()}
    shares = [line[OURS].group_share for line in outcomes.values()]
    least = min(share for share in shares if share is not None)
    totals = _totals(outcomes)
    return Section(
        title="Queue: seeded days of jobs, all systems on the same jobs",
        rows=(*_rows("all clusters", totals), *_rows(mixed, outcomes[mixed])),
        tables=(
            _table("Mean bandwidth ÷ ideal of the node's class, jobs of 2 GPUs and more", outcomes, _ratio),
            _table("% in one NVLink group, where the node could have given one", outcomes, _share),
            _table("Mean waiting time, minutes", outcomes, _wait),
            _faults(totals),
        ),
        floors=(
            Floor(
                "pods within one NVLink group although the node could have given one, least of all clusters",
                100 * least,
                99.0,
                "%",
                goal=99.9,
                at_least=True,
            ),
        ),
        notes=(
            f"{totals[OURS].jobs:,} jobs a system; loads {', '.join(map(str, LOADS))}; {len(seeds)} seeded days each.",
            "A baseline takes the node that its system prefers where it has a rule, else the first with room.",
            "Where it refuses or crashes on one node the next is tried, which favours it.",
            "The mean is over jobs that ran, which favours who refuses; of too many GPUs a job uses the best.",
            "objective Pack takes the fullest node; it is for clusters where large jobs must not wait.",
            *(f"{name} is left out: {why}." for name, why in LEFT_OUT.items()),
            *_higher_than_ours(outcomes),
        ),
    )


def _higher_than_ours(outcomes: Mapping[str, Mapping[str, Outcome]]) -> list[str]:
    """Name the clusters where a system that runs every job has a higher mean than ours."""
    return [
        f"{name} has a higher mean bandwidth ÷ ideal than ours on {cluster}: {line[name].mean_ratio:.4f} against "
        f"{line[OURS].mean_ratio:.4f}."
        for cluster, line in outcomes.items()
        for name in SHOWN_AGAINST
        if line[name].mean_ratio > line[OURS].mean_ratio
    ]


def days(machines: Sequence[BenchMachine], place: Place, seeds: Sequence[int]) -> Outcome:
    """Return what a system makes of all seeded days at all loads."""
    whole = Outcome()
    for load in LOADS:
        for seed in seeds:
            whole.add(run(machines, trace(machines, load, seed), place))
    return whole


def _rows(cluster: str, line: Mapping[str, Outcome]) -> tuple[Row, ...]:
    mine = line[OURS]
    found = []
    for name in SHOWN_AGAINST:
        theirs = line[name]
        found.append(
            Row(
                f"{cluster}: mean bandwidth ÷ ideal",
                mine.mean_ratio,
                theirs.mean_ratio,
                more_is_better=True,
                against=name,
            )
        )
        found.append(
            Row(f"{cluster}: mean waiting time", mine.mean_wait_s / 60, theirs.mean_wait_s / 60, "min", against=name)
        )
    return tuple(found)


def _ratio(outcome: Outcome) -> str:
    return f"{outcome.mean_ratio:.3f}" if sum(outcome.ratio_by_size.values()) else NOT_MEASURED


def _share(outcome: Outcome) -> str:
    return NOT_MEASURED if outcome.group_share is None else f"{100 * outcome.group_share:.2f}"


def _wait(outcome: Outcome) -> str:
    return f"{outcome.mean_wait_s / 60:.1f}"


def _table(title: str, outcomes: Mapping[str, Mapping[str, Outcome]], cell: object) -> Table:
    assert callable(cell)
    systems = next(iter(outcomes.values()))
    return Table(
        title,
        ("cluster", *systems),
        tuple((cluster, *(cell(outcome) for outcome in line.values())) for cluster, line in outcomes.items()),
    )


def _totals(outcomes: Mapping[str, Mapping[str, Outcome]]) -> dict[str, Outcome]:
    totals: dict[str, Outcome] = {}
    for line in outcomes.values():
        for name, outcome in line.items():
            totals.setdefault(name, Outcome()).add(outcome)
    return totals


def _faults(totals: Mapping[str, Outcome]) -> Table:
    return Table(
        "All clusters: answers that are no placement, and jobs that never started",
        ("system", "jobs", "never started", "faults"),
        tuple(
            (name, f"{total.jobs:,}", f"{total.never_placed:,}", _fault_words(total) or NOT_MEASURED)
            for name, total in totals.items()
        ),
    )


def _fault_words(outcome: Outcome) -> str:
    counts = sorted((fault.value, count) for fault, count in outcome.faults.items())
    return ", ".join(f"{count:,} {word}" for word, count in counts)
