"""Section: what decisions cost while somebody looks at the controller's page, beside a page at which nobody looks.

Run alone with `PYTHONPATH=tests python -P -m bench.page_open`; `bench.run` calls rows(). The thread of the page shares
the interpreter with decisions, so times are those of the clock: CPU time would leave out what decisions wait for it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import msgspec

from bench.decision import NODES, SliceTemplate, World, as_watched, churn, filled, node_document, percentile
from bench.report import Floor, Progress, Row, Section, as_text, floors_as_text
from dracaena.api.objects import Node
from dracaena.api.resource_objects import ResourceSlice
from dracaena.controller.garbage import freeze_what_stays
from dracaena.controller.page.snapshots import LatestSnapshot, Snapshots
from dracaena.controller.views.snapshot import Watched
from dracaena.process.clock import SystemClock
from support.allocation import DRIVER

ROUNDS: Final = 2
LONG_ROUNDS: Final = 6
"""Turns that open and closed page take, so that what else happens on the machine meets both."""

OF_A_ROUND: Final = 1_000
"""Decisions at least: 20 of both rounds lie above p99."""

SNAPSHOTS_OF_A_ROUND: Final = 2
"""Of the page, at least: it rests four times as long as one took, and between two there is nothing to see."""

LONGEST_S: Final = 300.0
"""Of a round with the page open."""

FLOOR: Final = 1.25
"""Times as long as a decision may take, at the mean, while somebody looks: the page leaves decisions four fifths of the
interpreter (docs/design/exporter-and-page.md)."""

GOAL: Final = 1.05
"""What the spread of two turns of one kind is on a machine that does nothing else."""

_AT_ONCE: Final = 50
"""Decisions between two looks at how many snapshots there are."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured, in ms a decision."""

    closed: Sequence[float]
    opened: Sequence[float]
    snapshots: int
    """That were made meanwhile."""


class Looked:
    """A cluster with a page. The caches are lists here: a page takes references from them, as on a real one."""

    def __init__(self, world: World) -> None:
        self.world = world
        kinds = enumerate(self.world.kind_of.items())
        told = [(number, name, kind) for number, (name, kind) in kinds]
        self._nodes = tuple(as_watched(node_document(name, kind, number), Node) for number, name, kind in told)
        templates = {kind: SliceTemplate(machine) for kind, machine in self.world.machines.items()}
        texts = (templates[kind].text(name, number) for number, name, kind in told)
        self._slices = tuple(msgspec.json.decode(text, type=ResourceSlice) for text in texts)

    @contextmanager
    def looking(self) -> Iterator[Callable[[], int]]:
        """Let somebody follow the page inside the block; yield what counts its snapshots. The first one, which takes
        ten times as long as those after it, is made before."""
        page = Snapshots(LatestSnapshot(DRIVER, self._watched, SystemClock()), SystemClock(), followed=lambda: True)
        page.start()
        page.newest()
        first = page.number
        try:
            yield lambda: page.number - first
        finally:
            page.stop()

    def _watched(self) -> Watched:
        claims = tuple(claim for _, claim in list(self.world.running))
        return Watched(self._nodes, self._slices, claims)


def rows(progress: Progress, *, long: bool = False) -> Section:
    """Measure: a minute."""
    progress(f"page: a cluster of {NODES:,} nodes is filled")
    looked = Looked(filled())
    freeze_what_stays()
    rounds = LONG_ROUNDS if long else ROUNDS
    progress(f"page: {2 * rounds * OF_A_ROUND:,} decisions under churn, half of them while somebody looks")
    return section(measure(looked, rounds))


def measure(looked: Looked, rounds: int) -> Figures:
    """Let jobs come and go with the page closed and open, in turns."""
    world = looked.world
    churn(world, OF_A_ROUND, world.job)
    closed: list[float] = []
    opened: list[float] = []
    snapshots = 0
    for _ in range(rounds):
        closed += churn(world, OF_A_ROUND, world.job).decisions
        with looked.looking() as made:
            decisions = 0
            until_s = time.monotonic() + LONGEST_S
            while decisions < OF_A_ROUND or made() < SNAPSHOTS_OF_A_ROUND:
                assert time.monotonic() < until_s, "the page makes no snapshots, so nothing would be seen"
                opened += churn(world, _AT_ONCE, world.job).decisions
                decisions += _AT_ONCE
            snapshots += made()
    world.cluster.check()
    return Figures(closed, opened, snapshots)


def section(found: Figures) -> Section:
    """Lay out the figures."""
    means = [sum(times) / len(times) for times in (found.opened, found.closed)]
    figures = [("mean", means[0], means[1])]
    figures += [
        (f"p{percent}", percentile(found.opened, percent), percentile(found.closed, percent)) for percent in (50, 99)
    ]
    return Section(
        title=f"The page open, {NODES:,} nodes",
        rows=tuple(
            Row(f"one decision while somebody looks at the page, {name}", opened, closed, "ms", against="nobody looks")
            for name, opened, closed in figures
        ),
        notes=(f"{found.snapshots} snapshots of the changing cluster were made meanwhile.",),
        floors=(
            Floor(
                "a decision while somebody looks ÷ one while nobody does, mean",
                means[0] / means[1],
                FLOOR,
                "x",
                goal=GOAL,
            ),
        ),
    )


if __name__ == "__main__":
    found = rows(lambda text: print(text, file=sys.stderr))
    sys.stdout.write(as_text(found))
    print(floors_as_text(found.floors))
