"""Every state of every machine of up to 8 GPUs beside go-gpuallocator itself: `make bench-go`. Needs Go.

The program in tests/bench/go is built with the published module, whose version and checksum stand in its go.mod and
go.sum, and asked for all states at once. `bench.run` measures against our own statement of its rules
(baselines.go_gpuallocator) instead; here it is also told in how many states that one answers alike.
Exit status 1 when a set of ours is beaten, 2 when the program cannot be built.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.baselines.answer import REFUSED, Answer, Choose, Fault, Links, granted
from bench.baselines.go_gpuallocator import choose_best_effort
from bench.dominance import State, Verdict, compare
from bench.machines import BenchMachine, all_machines
from bench.quality import LARGEST_WHOLE
from bench.report import Floor, Progress, Row, Section, Table, as_text, floors_as_text
from bench.worth import GpuSet
from dracaena.api.links import LinkLevel
from dracaena.controller.allocation.score.box import ordinals_of
from support.go_programs import GoError, build, run

NAME: Final = "go-gpuallocator"
FOLDER: Final = Path(__file__).parent / "go"
CRASHED: Final = -1

LEVEL_NUMBERS: Final = {
    LinkLevel.SYS: 1,
    LinkLevel.NODE: 2,
    LinkLevel.PHB: 3,
    LinkLevel.PXB: 4,
    LinkLevel.PIX: 5,
    LinkLevel.PSB: 6,
}

Answers = Mapping[tuple[GpuSet, int], Answer]


def rows(progress: Progress) -> Section:
    """Build, ask, compare. Raises GoError."""
    machines = [machine for machine in all_machines() if machine.gpu_count <= LARGEST_WHOLE]
    progress("go-gpuallocator: build")
    answers = asked(machines)
    total, by_machine, alike = Verdict(), [], 0
    for place, (machine, found) in enumerate(zip(machines, answers, strict=True), start=1):
        progress(f"go-gpuallocator: {machine.name}, machine {place} of {len(machines)}")
        verdict = compare(machine, {NAME: _chooser(found)}, list(found))[NAME]
        total.add(verdict)
        by_machine.append((machine.name, verdict))
        alike += sum(_alike(choose_best_effort(machine.links, *state), answer) for state, answer in found.items())
    return Section(
        title="Beside go-gpuallocator itself: every state of every machine of up to 8 GPUs",
        rows=(
            Row("mean bandwidth \u00f7 best", 1.0, total.mean_ratio, more_is_better=True, against=NAME),
            Row(
                "states in which our statement of its rules answers alike",
                alike,
                total.states,
                more_is_better=True,
                against="all states",
            ),
        ),
        tables=(
            Table(
                "Number of states in which its set is worse than ours",
                ("machine", "states", "lower bandwidth", "slower ring", "more damage", "larger sum for it", "crashed"),
                tuple((name, *_cells(verdict)) for name, verdict in (*by_machine, ("all", total))),
            ),
        ),
        floors=(Floor("states in which go-gpuallocator beats ours", len(total.beaten), 0, "states", goal=0),),
        notes=tuple(total.beaten),
    )


def asked(machines: Sequence[BenchMachine]) -> list[Answers]:
    """Return the answers to all states of some machines. Raises GoError."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "ask"
        build(FOLDER, program)
        told = json.dumps([{"levels": _levels(m.links), "nvlinks": _nvlinks(m.links)} for m in machines])
        found = json.loads(run([str(program)], FOLDER, told))
    return [read(answers, machine.gpu_count) for answers, machine in zip(found, machines, strict=True)]


def read(answers: Sequence[int], gpu_count: int) -> Answers:
    """Return what the program answered for one machine."""
    return {state: _answer(found) for state, found in zip(states(gpu_count), answers, strict=True)}


def states(gpu_count: int) -> list[State]:
    """Return all states in the order in which the program answers: by masks of free GPUs, then by counts."""
    every = map(ordinals_of, range(1, 1 << gpu_count))
    return [(free, count) for free in every for count in range(1, len(free) + 1)]


def _answer(found: int) -> Answer:
    if found == CRASHED:
        return Answer(fault=Fault.CRASHED)
    return granted(ordinals_of(found)) if found else REFUSED


def _chooser(answers: Answers) -> Choose:
    return lambda links, free, count: answers[free, count]


def _alike(one: Answer, other: Answer) -> bool:
    return one.fault == other.fault and (one.fault is not None or one.gpus == other.gpus)


def _levels(links: Links) -> list[list[int]]:
    return [[0 if level is None else LEVEL_NUMBERS[level] for level in row] for row in links.levels]


def _nvlinks(links: Links) -> list[list[int]]:
    """NVLinks to switches do not end at the other GPU, where it looks for them."""
    return [[0 if links.switched else count for count in row] for row in links.nvlinks]


def _cells(verdict: Verdict) -> tuple[str, ...]:
    counts = (
        verdict.states,
        verdict.lower_bandwidth,
        verdict.slower_ring,
        verdict.more_damage,
        verdict.larger_sum,
        verdict.faults[Fault.CRASHED],
    )
    return tuple(f"{count:,}" for count in counts)


def main() -> int:
    """Print the section and its floor; return the exit status."""
    try:
        section = rows(lambda text: print(text, file=sys.stderr, flush=True))
    except GoError as error:
        print(f"bench-go: {error}", file=sys.stderr)
        return 2
    print(as_text(section))
    print(floors_as_text(section.floors), end="")
    return 0 if all(floor.holds for floor in section.floors) else 1


if __name__ == "__main__":
    sys.exit(main())
