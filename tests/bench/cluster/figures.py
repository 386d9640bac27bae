"""From what the sides did to rows, tables and floors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

from bench.cluster.world import COUNTS, QPS, Calm, Outcome, Side
from bench.report import Floor, Row, Section, Table

ALONE: Final = "kube-scheduler alone"

FLOORS: Final = {100: (1.1, 1.5), 1_000: (2.0, 3.0), 5_000: (2.5, 5.0)}
"""Floor and goal of pods bound per second against kube-scheduler alone, by number of nodes, without gates."""

GATED_FLOORS: Final = {100: (1.1, 1.5), 1_000: (3.0, 8.0), 5_000: (3.0, 8.0)}
"""The same with gates. Each pod costs one more write, and saves kube-scheduler a first try that fails: the more nodes
such a try has to look at, the more that is worth."""

ALONE_FLOORS: Final = {100: (2.0, 1.3), 1_000: (1.0, 0.7), 5_000: (1.0, 0.4)}
"""Floor and goal of the time from created to bound of pods that come one by one, with gates, p50: below 1 a pod that
comes alone is bound sooner than by kube-scheduler alone."""

MEMORY_NODES: Final = 5_000
MEMORY_FLOOR_MIB, MEMORY_GOAL_MIB = 500.0, 350.0


@dataclass(frozen=True, slots=True)
class Run:
    """All sides once, in the order in which they ran; a side may have taken several rounds."""

    outcomes: tuple[Outcome, ...]

    def of(self, side: str) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.side == side]

    def pods_per_s(self, side: str) -> float:
        mine = self.of(side)
        return sum(outcome.pods for outcome in mine) / sum(outcome.seconds for outcome in mine)


def section(nodes: int, sides: Sequence[Side], runs: Sequence[Run]) -> Section:
    """Return what was measured at one number of nodes."""
    rows: list[Row] = []
    floors: list[Floor] = []
    for side in sides:
        if side.flags is None:
            continue
        rows += _rows(side, runs)
    ours = next((side for side in sides if side.flags is not None), None)
    gated = next((side for side in sides if side.gated), None)
    has_alone = any(side.flags is None for side in sides)
    if has_alone:
        floors += _rate_floor(nodes, gated, GATED_FLOORS, " with gates", runs)
        floors += _calm_floor(nodes, gated, runs)
        floors += _rate_floor(nodes, ours, FLOORS, "", runs)
    if ours is not None and nodes == MEMORY_NODES:
        name = f"controller memory, {nodes:,} nodes x 8 GPUs, most while pods were bound"
        floors.append(Floor(name, _peak_mib(ours.name, runs), MEMORY_FLOOR_MIB, "MiB", MEMORY_GOAL_MIB))
    return Section(
        title=f"{nodes:,} nodes x 8 GPUs",
        rows=tuple(rows),
        tables=(_rates(sides, runs), _cpu(sides, runs), _calm_cpu(sides, runs)),
        floors=tuple(floors),
        notes=_notes(runs),
    )


def _rate_floor(
    nodes: int, side: Side | None, floors: Mapping[int, tuple[float, float]], what: str, runs: Sequence[Run]
) -> Iterator[Floor]:
    if side is None or nodes not in floors:
        return
    floor, goal = floors[nodes]
    ratio = _mean_rate(side.name, runs) / _mean_rate(ALONE, runs)
    name = f"pods bound per second{what}, {nodes:,} nodes, against {ALONE}"
    yield Floor(name, ratio, floor, "x", goal, at_least=True)


def _calm_floor(nodes: int, side: Side | None, runs: Sequence[Run]) -> Iterator[Floor]:
    if side is None or nodes not in ALONE_FLOORS:
        return
    mine, theirs = (_at(_merged(_calm(name, runs), "binds_s"), 50) for name in (side.name, ALONE))
    if mine is None or not theirs:
        return
    floor, goal = ALONE_FLOORS[nodes]
    name = f"created to bound with gates, one by one, p50, {nodes:,} nodes, against {ALONE}"
    yield Floor(name, mine / theirs, floor, "x", goal)


def _rows(side: Side, runs: Sequence[Run]) -> list[Row]:
    has_alone = any(run.of(ALONE) for run in runs)

    def row(name: str, ours: float | None, theirs: float | None = None, unit: str = "", **fields: object) -> Row:
        against = {"against": ALONE} if has_alone and theirs is not None else {}
        return Row(f"{side.name}: {name}", ours, theirs, unit, **against, **fields)  # type: ignore[arg-type]

    ratios = [run.pods_per_s(side.name) / run.pods_per_s(ALONE) for run in runs if has_alone]
    spread = f"ratio of each run: {', '.join(f'{ratio:.2f}' for ratio in ratios)}" if ratios else ""
    theirs = _mean_rate(ALONE, runs) if has_alone else None
    mine = _latencies(side.name, runs)
    other = _latencies(ALONE, runs)
    calm, other_calm = (_merged(_calm(name, runs), "latencies_s") for name in (side.name, ALONE))
    binds, other_binds = (_merged(_calm(name, runs), "binds_s") for name in (side.name, ALONE))
    return [
        row("pods bound", _mean_rate(side.name, runs), theirs, "pods/s", more_is_better=True, note=spread),
        row("start to allocated, all at once, p50", _at(mine, 50), _at(other, 50), "s"),
        row("start to allocated, all at once, p99", _at(mine, 99), _at(other, 99), "s"),
        row("claim created to allocated, one by one, p50", _at(calm, 50), _at(other_calm, 50), "s"),
        row("claim created to allocated, one by one, p99", _at(calm, 99), _at(other_calm, 99), "s"),
        row("pod created to bound, one by one, p50", _at(binds, 50), _at(other_binds, 50), "s"),
        row("pod created to bound, one by one, p99", _at(binds, 99), _at(other_binds, 99), "s"),
        row("refusals by kube-scheduler for one pod", _refused(side.name, runs), _refused(ALONE, runs)),
        row(
            "mean B/ideal of claims of 2 and 4 GPUs",
            _quality(side.name, runs),
            _quality(ALONE, runs),
            more_is_better=True,
        ),
        row("nodes with a GPU in use", _nodes(side.name, runs), _nodes(ALONE, runs) if has_alone else None, "nodes"),
        row("controller memory, most", _peak_mib(side.name, runs), unit="MiB"),
        row("controller memory, at the end", _end_mib(side.name, runs), unit="MiB"),
        row("controller CPU at rest", _idle_percent(side.name, runs), unit="% of a core"),
        row("controller CPU for one pod", _controller_ms(side.name, runs), unit="ms"),
    ]


def _rates(sides: Sequence[Side], runs: Sequence[Run]) -> Table:
    lines = [
        (str(place), outcome.side, str(outcome.pods), f"{outcome.seconds:.1f}",
         f"{outcome.pods / outcome.seconds:.1f}")
        for place, run in enumerate(runs, start=1)
        for outcome in run.outcomes
    ]  # fmt: skip
    return Table("Rounds, in their order", ("run", "side", "pods", "bound in s", "pods/s"), tuple(lines))


def _cpu(sides: Sequence[Side], runs: Sequence[Run]) -> Table:
    """Tell what bounds the result: the CPU seconds of each program, and how much of the machine that is."""
    cores = os.cpu_count() or 1
    names = sorted({name for run in runs for outcome in run.outcomes for name in outcome.cpu_s})
    lines = []
    for side in sides:
        mine = [outcome for run in runs for outcome in run.of(side.name)]
        pods, seconds = sum(outcome.pods for outcome in mine), sum(outcome.seconds for outcome in mine)
        spent = {name: sum(outcome.cpu_s.get(name, 0.0) for outcome in mine) for name in names}
        share = sum(spent.values()) / seconds / cores
        lines.append((side.name, *_per_pod(spent, pods), f"{share:.0%}"))
    return Table("CPU milliseconds for one pod, all at once", ("side", *names, "all", "of the machine"), tuple(lines))


def _calm_cpu(sides: Sequence[Side], runs: Sequence[Run]) -> Table:
    """Tell what a pod that comes alone costs each program, from the first one's creation to the last one's bind."""
    names = sorted({name for run in runs for outcome in run.outcomes for name in outcome.calm.cpu_s})
    lines = []
    for side in sides:
        mine = _calm(side.name, runs)
        spent = {name: sum(one.cpu_s.get(name, 0.0) for one in mine) for name in names}
        lines.append((side.name, *_per_pod(spent, sum(len(one.binds_s) for one in mine))))
    return Table("CPU milliseconds for one pod, one by one", ("side", *names, "all"), tuple(lines))


def _per_pod(spent_s: Mapping[str, float], pods: int) -> tuple[str, ...]:
    """Return the milliseconds of each program for one pod, and those of all."""
    total = sum(spent_s.values())
    return tuple(f"{spent / pods * 1_000:.1f}" if spent and pods else "-" for spent in (*spent_s.values(), total))


def _notes(runs: Sequence[Run]) -> tuple[str, ...]:
    pods = ", ".join(map(str, sorted({outcome.pods for run in runs for outcome in run.outcomes})))
    counts = ", ".join(map(str, COUNTS))
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    return (
        f"Pods of {counts} GPUs from claim templates, as many of each: {pods} a round, there before it begins.",
        "All pods fitted and were bound; no device was given twice.",
        f"Same flags for both sides: clients of kube-scheduler and kube-controller-manager may send {QPS} requests/s.",
        f"Machine: {_processor()}, {os.cpu_count()} CPUs, load average {load} at the end; the bench runs on it too.",
    )


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")


def _mean_rate(side: str, runs: Sequence[Run]) -> float:
    return fmean(run.pods_per_s(side) for run in runs)


def _latencies(side: str, runs: Sequence[Run]) -> list[float]:
    return sorted(value for run in runs for outcome in run.of(side) for value in outcome.latencies_s)


def _calm(side: str, runs: Sequence[Run]) -> list[Calm]:
    return [outcome.calm for run in runs for outcome in run.of(side)]


def _merged(calm: Sequence[Calm], name: str) -> list[float]:
    return sorted(value for one in calm for value in getattr(one, name))


def _refused(side: str, runs: Sequence[Run]) -> float | None:
    mine = [outcome for run in runs for outcome in run.of(side)]
    return (
        sum(outcome.refused for outcome in mine) / sum(outcome.allocated.claims for outcome in mine) if mine else None
    )


def _at(values: Sequence[float], percent: float) -> float | None:
    return values[min(len(values) - 1, int(len(values) * percent / 100))] if values else None


def _quality(side: str, runs: Sequence[Run]) -> float | None:
    shares = [outcome.allocated.share_of_ideal for run in runs for outcome in run.of(side)]
    known = [share for share in shares if share is not None]
    return fmean(known) if known else None


def _nodes(side: str, runs: Sequence[Run]) -> float:
    return fmean(outcome.allocated.nodes for run in runs for outcome in run.of(side))


def _peak_mib(side: str, runs: Sequence[Run]) -> float:
    return max(outcome.memory.peak for run in runs for outcome in run.of(side) if outcome.memory)


def _end_mib(side: str, runs: Sequence[Run]) -> float:
    return max(outcome.memory.now for run in runs for outcome in run.of(side) if outcome.memory)


def _idle_percent(side: str, runs: Sequence[Run]) -> float | None:
    shares = [outcome.idle_cpu_share for run in runs for outcome in run.of(side)]
    known = [share for share in shares if share is not None]
    return 100 * fmean(known) if known else None


def _controller_ms(side: str, runs: Sequence[Run]) -> float:
    mine = [outcome for run in runs for outcome in run.of(side)]
    return 1_000 * sum(outcome.cpu_s["dracaena-controller"] for outcome in mine) / sum(outcome.pods for outcome in mine)
