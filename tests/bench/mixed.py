"""Section: how nodes compare for pods of different sizes, in a mixed cluster and in clusters of one kind
(docs/design/choice-of-node.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from bench.baselines import BASELINES
from bench.machines import BenchMachine, recorded
from bench.report import Floor, Progress, Section, Table
from bench.simulation import FEW_FREE, SIZE_SHARES, Outcome, Place, run, trace
from bench.systems import baseline_system, fullest_likes, our_system, topology_tree_likes
from dracaena.api.config.v1alpha1 import Objective, TopologyPolicy

LOADS: Final = (0.85, 0.9, 0.95)
"""Clusters of one kind run under the last of them alone, at which most pods wait and most GPUs are stranded. In the
long form they run under all: ours has as many times the bandwidth of the fullest node at each, to 2 %."""
SEEDS: Final = range(4)
"""Fewer do not do: of the 600 pods of 8 of one seed so few get a node with NVSwitches that their bandwidth, divided by
what the fullest node gives, moves from 1.15 to 0.95."""
JOBS: Final = 12_000
NODES: Final = 120
KINDS: Final = ("hgx-h100", "dgx-1v", "h100-pcie-bridged-numa-3-5", "a5000-pix-pxb")
"""NVSwitches, an NVLink mesh, bridged pairs and plain PCIe; of each as many nodes."""
SIZES: Final = tuple(size for size, _ in SIZE_SHARES)
LINKED: Final = tuple(size for size in SIZES if size > 1)

OURS, PACK, FULLEST = "ours", "ours, objective Pack", "go, fullest node"
MIXED: Final = f"{NODES} nodes of {len(KINDS)} kinds"

WAITED_SLACK_POINTS: Final = 5.0
"""Percentage points by which the share of pods that waited may be higher than under FULLEST. At load 0.95 it is three
for pods of 8 with 16 seeds (docs/design/choice-of-node.md), and four seeds differ from others by one or two."""


def systems() -> dict[str, Place]:
    """Return ours and six baselines. All but first fit, which is how a kube-scheduler without a topology driver takes
    devices, get the node that suits their clusters best: the fullest, or the one that the system's own rule likes."""
    return {
        OURS: our_system(),
        PACK: our_system(TopologyPolicy(objective=Objective.PACK)),
        FULLEST: baseline_system(BASELINES["go best-effort"], fullest_likes),
        "first fit": baseline_system(BASELINES["first fit"]),
        "gpu-manager": baseline_system(BASELINES["gpu-manager"], fullest_likes),
        "HAMi": baseline_system(BASELINES["HAMi"], fullest_likes),
        "koordinator": baseline_system(BASELINES["koordinator"], fullest_likes),
        "topology tree": baseline_system(BASELINES["topology tree"], topology_tree_likes),
    }


def clusters() -> dict[str, list[BenchMachine]]:
    """Return the mixed cluster, its kinds taking turns, and one cluster of each kind."""
    mixed = [recorded(KINDS[place % len(KINDS)]) for place in range(NODES)]
    return {MIXED: mixed, **{f"{NODES} x {kind}": [recorded(kind)] * NODES for kind in KINDS}}


def outcome_of(machines: Sequence[BenchMachine], load: float, place: Place) -> Outcome:
    """Return what a system makes of the jobs of all seeds."""
    whole = Outcome()
    for seed in SEEDS:
        whole.add(run(machines, trace(machines, load, seed, JOBS), place))
    return whole


def rows(progress: Progress, *, long: bool = False) -> Section:
    """Run all jobs through all clusters and return tables and floors."""
    found: dict[tuple[str, float], dict[str, Outcome]] = {}
    for name, machines in clusters().items():
        for load in LOADS if long or name == MIXED else LOADS[-1:]:
            progress(f"mixed: {name}, load {load}")
            found[name, load] = {system: outcome_of(machines, load, place) for system, place in systems().items()}
    names = dict.fromkeys(name for name, _ in found)
    return Section(
        title=f"Mixed clusters and clusters of one kind: {len(SEEDS)} x {JOBS:,} pods a load",
        tables=tuple(_table(name, {load: line for (of, load), line in found.items() if of == name}) for name in names),
        floors=(*_floors_of_ours(found), *_floors_of_pack(found)),
        notes=(
            "GB/s: mean bandwidth of pods of 2 GPUs and more, each weighed by its GPUs; then by size.",
            f"stranded: free GPUs on nodes with fewer than {FEW_FREE} free ones, in the mean over the time.",
            "Pods run for a quarter of an hour in the mean. Who came first is served first, smaller pods may overtake.",
            "A baseline that refuses on its node is asked on the next, which favours it.",
            "Ours has prices that follow what is asked for, as the controller's do.",
        ),
    )


def _table(name: str, by_load: Mapping[float, Mapping[str, Outcome]]) -> Table:
    header = (
        "load",
        "system",
        "GB/s",
        "B ÷ ideal",
        *(f"{size} GPUs GB/s" for size in LINKED),
        *(f"{size} waited %" for size in SIZES),
        *(f"{size} wait min" for size in SIZES),
        "stranded GPUs",
    )
    lines = tuple(
        (f"{load}", system, *_cells(outcome)) for load, line in by_load.items() for system, outcome in line.items()
    )
    return Table(name, header, lines)


def _cells(outcome: Outcome) -> tuple[str, ...]:
    return (
        f"{outcome.mean_gb_s:.1f}",
        f"{outcome.mean_ratio:.3f}",
        *(f"{_gb_s(outcome, size):.0f}" for size in LINKED),
        *(f"{_waited_percent(outcome, size):.2f}" for size in SIZES),
        *(f"{outcome.wait_s_by_size[size] / outcome.jobs_by_size[size] / 60:.2f}" for size in SIZES),
        f"{outcome.mean_stranded_gpus:.1f}",
    )


def _floors_of_ours(found: Mapping[tuple[str, float], Mapping[str, Outcome]]) -> list[Floor]:
    mixed = [line for (name, _), line in found.items() if name == MIXED]
    faster = min(line[OURS].mean_gb_s / line[FULLEST].mean_gb_s for line in mixed)
    least = min(_gb_s(line[OURS], size) / _gb_s(line[FULLEST], size) for line in mixed for size in LINKED)
    in_mixed = min(line[OURS].mean_ratio for line in mixed)
    in_all = min(line[OURS].mean_ratio for line in found.values())
    return [
        Floor(f"{MIXED}: GB/s of all pods, ours ÷ {FULLEST}, least", faster, 1.15, at_least=True),
        Floor(f"{MIXED}: GB/s of one size, ours ÷ {FULLEST}, least", least, 1.0, at_least=True),
        _waits(f"{MIXED}: pods of one size that waited, ours - {FULLEST}, most", mixed, OURS),
        Floor(f"{MIXED}: B ÷ ideal, ours, least", in_mixed, 0.98, goal=0.99, at_least=True),
        Floor("all clusters: B ÷ ideal, ours, least", in_all, 0.96, at_least=True),
    ]


def _floors_of_pack(found: Mapping[tuple[str, float], Mapping[str, Outcome]]) -> list[Floor]:
    lines = list(found.values())
    least = min(
        _gb_s(line[PACK], size) / _gb_s(line[FULLEST], size)
        for line in lines
        for size in LINKED
        if _gb_s(line[FULLEST], size)
    )
    stranded = max(line[PACK].mean_stranded_gpus / line[FULLEST].mean_stranded_gpus for line in lines)
    return [
        Floor(f"all clusters: GB/s of one size, {PACK} ÷ {FULLEST}, least", least, 1.0, at_least=True),
        Floor(f"all clusters: stranded GPUs, {PACK} ÷ {FULLEST}, most", stranded, 1.05, goal=1.0),
        _waits(f"all clusters: pods of one size that waited, {PACK} - {FULLEST}, most", lines, PACK),
    ]


def _waits(name: str, lines: Sequence[Mapping[str, Outcome]], system: str) -> Floor:
    most = max(
        _waited_percent(line[system], size) - _waited_percent(line[FULLEST], size) for line in lines for size in SIZES
    )
    return Floor(name, most, WAITED_SLACK_POINTS, "points", goal=0.0)


def _gb_s(outcome: Outcome, size: int) -> float:
    return outcome.gb_s_by_size[size] / outcome.placed_by_size[size]


def _waited_percent(outcome: Outcome, size: int) -> float:
    return 100 * outcome.waited_by_size[size] / outcome.jobs_by_size[size]
