"""Section: the sets of GPUs that we and the systems before us choose, in every state of the recorded machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from bench.baselines import BASELINES
from bench.baselines.answer import Fault
from bench.dominance import MOST_FREE_FOR_DAMAGE, Verdict, all_states, compare, random_states
from bench.machines import BenchMachine, all_machines
from bench.report import NOT_MEASURED, Floor, Progress, Row, Section, Table

LARGEST_WHOLE: Final = 8
"""GPUs up to which all states are walked: 1,024 of 8 GPUs, half a million of 16."""
RANDOM_STATES: Final = 100
"""Of each larger machine; ten seconds."""
SEED: Final = 20_260_101
SMALL: Final = 3
"""Machines of up to so many GPUs share one line of the tables."""

COMPETENT: Final = ("go best-effort", "gpu-manager", "HAMi", "koordinator")
"""Systems that look at the hardware and hand out a set in every state, or nearly."""

Verdicts = Mapping[str, Verdict]


def rows(progress: Progress) -> Section:
    """Walk all machines and return the tables. Raises AssertionError as dominance.compare does."""
    by_machine: dict[str, dict[str, Verdict]] = {}
    totals = {name: Verdict() for name in BASELINES}
    machines = all_machines()
    for place, machine in enumerate(machines, start=1):
        if machine.gpu_count > SMALL:
            progress(f"quality: {machine.name}, machine {place} of {len(machines)}")
        verdicts = compare(machine, BASELINES, states_of(machine))
        line = by_machine.setdefault(_line_of(machine), {name: Verdict() for name in BASELINES})
        for name, verdict in verdicts.items():
            line[name].add(verdict)
            totals[name].add(verdict)
    beaten = [text for verdict in totals.values() for text in verdict.beaten]
    return Section(
        title="Quality: every state of every recorded machine, ours against the systems before us",
        rows=_rows(totals),
        tables=(
            _matrix("Lower bandwidth than ours, % of states of 2 GPUs and more", by_machine, _lower),
            _matrix("Mean bandwidth ÷ ours, where it hands out a set", by_machine, _mean),
            _matrix("More damage than ours at equal bandwidth and ring, % of states", by_machine, _damage),
            _faults(totals),
        ),
        floors=(Floor("states in which any baseline beats ours", len(beaten), 0, "states", goal=0),),
        notes=(*_notes(machines, by_machine), *beaten[:10]),
    )


def states_of(machine: BenchMachine) -> list[tuple[tuple[int, ...], int]]:
    """Return all states of a machine of up to 8 GPUs, seeded random ones of a larger."""
    if machine.gpu_count <= LARGEST_WHOLE:
        return list(all_states(machine.gpu_count))
    return random_states(machine.gpu_count, RANDOM_STATES, SEED)


def _line_of(machine: BenchMachine) -> str:
    return machine.name if machine.gpu_count > SMALL else f"of 2 or {SMALL} GPUs"


def _rows(totals: Verdicts) -> tuple[Row, ...]:
    return tuple(
        Row(
            "mean bandwidth ÷ best, states where it hands out a set",
            ours=1.0,
            theirs=verdict.mean_ratio,
            more_is_better=True,
            against=name,
            note=f"of {verdict.compared} of {verdict.states} states",
        )
        for name, verdict in totals.items()
    )


def _lower(verdict: Verdict) -> str:
    return f"{100 * verdict.lower_share:.1f}" if verdict.compared else NOT_MEASURED


def _mean(verdict: Verdict) -> str:
    return NOT_MEASURED if verdict.mean_ratio is None else f"{verdict.mean_ratio:.3f}"


def _damage(verdict: Verdict) -> str:
    return f"{100 * verdict.more_damage / verdict.states:.1f}" if verdict.compared else NOT_MEASURED


def _matrix(title: str, by_machine: Mapping[str, Verdicts], cell: object) -> Table:
    assert callable(cell)
    return Table(
        title,
        ("machine", *BASELINES),
        tuple((machine, *(cell(verdict) for verdict in line.values())) for machine, line in by_machine.items()),
    )


def _faults(totals: Verdicts) -> Table:
    return Table(
        "All machines, number of states",
        (
            "system",
            "states",
            "lower bandwidth",
            "slower ring",
            "more damage",
            "larger sum for it",
            "more NUMA nodes",
            *(fault.value for fault in Fault),
        ),
        tuple(
            (
                name,
                *(
                    f"{count:,}"
                    for count in (
                        verdict.states,
                        verdict.lower_bandwidth,
                        verdict.slower_ring,
                        verdict.more_damage,
                        verdict.larger_sum,
                        verdict.more_numa_nodes,
                    )
                ),
                *(f"{verdict.faults[fault]:,}" for fault in Fault),
            )
            for name, verdict in totals.items()
        ),
    )


def _notes(machines: Sequence[BenchMachine], by_machine: Mapping[str, Verdicts]) -> list[str]:
    ties = [
        name
        for name, line in by_machine.items()
        if not any(verdict.lower_bandwidth or verdict.slower_ring or verdict.more_damage for verdict in line.values())
    ]
    level = [
        name
        for name, line in by_machine.items()
        if name not in ties and not any(line[system].lower_bandwidth for system in COMPETENT)
    ]
    larger = [machine.name for machine in machines if machine.gpu_count > LARGEST_WHOLE]
    notes = [
        f"Everyone ties in bandwidth, ring and damage on {', '.join(ties)}.",
        "Behind NVSwitches, or with all pairs alike, every set of a size is worth the same; only NUMA nodes differ.",
        f"{', '.join(COMPETENT)} tie with ours in bandwidth on {', '.join(level)}.",
        "On pure PCIe trees the nearest set is easy to find; what differs there is the damage to what stays free.",
        "A second, slow program computed bandwidth, ring and damage of every choice of ours: no figure differed.",
    ]
    if larger:
        notes.append(
            f"{', '.join(larger)}: {RANDOM_STATES} seeded states; damage only up to {MOST_FREE_FOR_DAMAGE} free."
        )
        notes.append("'not run' are states in which a copy of a baseline would walk too many partitions or rings.")
    return notes
