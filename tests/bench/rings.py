"""Section: rings. In every state of the recorded machines: was a set of the same bandwidth with a faster ring free?

A collective of several GPUs that goes around a ring is as fast as its slowest hop (docs/design/choice-on-a-node.md),
so a chain of double NVLinks whose ends meet over PCIe is worth less than its bandwidth B says. The slow judge (worth)
weighs all sets that were free and asks no engine. A baseline's set that is in nothing worse than ours and in something
better, as for equal B and ring by a greater sum of pairs without more damage, breaks a floor too (dominance).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from bench import dominance, ours
from bench.baselines import BASELINES
from bench.baselines.answer import Choose
from bench.dominance import State, Verdict
from bench.machines import BenchMachine, all_machines
from bench.quality import LARGEST_WHOLE, states_of
from bench.report import Floor, Progress, Row, Section, Table
from bench.worth import GpuSet, collective_gb_s, ring_gb_s

OURS: Final = "ours"
FEWEST: Final = 3
"""GPUs with which ring and chain differ."""


@dataclass(slots=True)
class Rings:
    """How one system did over a number of states of three GPUs and more."""

    states: int = 0
    """In which it hands out a set."""
    missed: list[str] = field(default_factory=list)
    """States in which a set of the same bandwidth with a faster ring was free, in words."""
    ratio_sum: float = 0.0
    """Its ring over the fastest of the sets with the greatest bandwidth, over all states."""
    verdict: Verdict = field(default_factory=Verdict)
    """Beside ours, in the same states."""

    def add(self, other: Rings) -> None:
        self.states += other.states
        self.missed += other.missed
        self.ratio_sum += other.ratio_sum
        self.verdict.add(other.verdict)


def rows(progress: Progress) -> Section:
    """Walk all states of three GPUs and more of the machines of up to 8."""
    machines = [machine for machine in all_machines() if FEWEST <= machine.gpu_count <= LARGEST_WHOLE]
    meshes = {machine.name for machine in machines if is_mesh(machine)}
    totals = {name: Rings() for name in (OURS, *BASELINES)}
    on_meshes = {name: Rings() for name in totals}
    for place, machine in enumerate(machines, start=1):
        progress(f"rings: {machine.name}, machine {place} of {len(machines)}")
        for name, found in compare(machine, BASELINES, states_of(machine)).items():
            totals[name].add(found)
            if machine.name in meshes:
                on_meshes[name].add(found)
    missed, beaten = totals[OURS].missed, [text for found in totals.values() for text in found.verdict.beaten]
    return Section(
        title="Rings: sets of the same bandwidth whose best ring has a faster slowest hop",
        rows=tuple(
            Row(
                "best ring \u00f7 the fastest at the greatest bandwidth, meshes",
                ours=_mean(on_meshes[OURS]),
                theirs=_mean(found),
                more_is_better=True,
                against=name,
                note=f"{found.states:,} states",
            )
            for name, found in on_meshes.items()
            if name != OURS and found.states
        ),
        tables=(
            Table(
                "States in which a faster ring of the same bandwidth was free and not taken; a sum of pairs above ours",
                ("system", "states, meshes", "missed, meshes", "states, all", "missed, all", "sum, for more damage"),
                tuple(
                    (name, *map("{:,}".format, (*_counts(on_meshes[name]), *_counts(found), found.verdict.larger_sum)))
                    for name, found in totals.items()
                ),
            ),
        ),
        floors=(
            Floor("states in which ours misses a faster ring of the same bandwidth", len(missed), 0, "states"),
            Floor("states in which a baseline is in nothing worse and in something better", len(beaten), 0, "states"),
        ),
        notes=(f"NVLink meshes: {', '.join(sorted(meshes))}.", *missed[:10], *beaten[:10]),
    )


def is_mesh(machine: BenchMachine) -> bool:
    """Return whether NVLinks without switches join some GPU with several others."""
    return not machine.links.switched and any(sum(map(bool, row)) > 1 for row in machine.links.nvlinks)


def compare(machine: BenchMachine, baselines: Mapping[str, Choose], states: Sequence[State]) -> dict[str, Rings]:
    """Return how ours and each baseline did in those of the states that want three GPUs or more."""
    states = [state for state in states if state[1] >= FEWEST]
    found = {OURS: Rings()}
    found |= {name: Rings(verdict=verdict) for name, verdict in dominance.compare(machine, baselines, states).items()}
    for free, count in states:
        fastest = _fastest_rings(machine, free, count)
        mine = ours.choose(machine, free, count)
        assert mine is not None, f"{machine.name}: free {free}, {count} wanted: ours finds no set"
        taken = {OURS: mine.gpus}
        for name, choose in baselines.items():
            answer = choose(machine.links, free, count)
            if answer.fault is None:
                taken[name] = answer.gpus
        for name, gpus in taken.items():
            best, ring = fastest[collective_gb_s(machine, gpus)], ring_gb_s(machine, gpus)
            found[name].states += 1
            at_best = fastest[max(fastest)]
            found[name].ratio_sum += ring / at_best if at_best else 1.0
            if ring < best:
                found[name].missed.append(f"{machine.name}: free {free}, {gpus} taken: {ring} GB/s around, not {best}")
    return found


def _fastest_rings(machine: BenchMachine, free: GpuSet, count: int) -> dict[int, int]:
    """Return the fastest ring for each bandwidth that a set of free GPUs has."""
    fastest: dict[int, int] = {}
    for gpus in combinations(free, count):
        gb_s = collective_gb_s(machine, gpus)
        fastest[gb_s] = max(fastest.get(gb_s, 0), ring_gb_s(machine, gpus))
    return fastest


def _mean(found: Rings) -> float:
    return found.ratio_sum / found.states if found.states else 1.0


def _counts(found: Rings) -> tuple[int, int]:
    return found.states, len(found.missed)
