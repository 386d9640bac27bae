"""Where the real allocator puts the pods of families while other pods come between (docs/design/choice-of-node.md).

Pods of a family come one after another, and nobody knows of those to come. Half of all GPU time is asked for by pods
that come alone. What does not fit waits; whatever ends, the others are tried in the order in which they came.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final
from unittest.mock import patch

import msgspec

from bench.report import Floor, Progress, Table
from bench.siblings_work import MEAN_DURATION_S, PODS, Racks
from dracaena.api.objects import Pod
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.result import Allocation, commit
from dracaena.controller.allocation.score.order import GROUP_SIZES, PRICE_UNITS
from dracaena.controller.allocation.state.gangs import GROUP_LABEL, GROUP_SIZE_ANNOTATION, JOB_INDEX_LABEL, JOB_LABEL
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.walk.family import FamilyPreference
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, claim, device_class, give_back, node, pod, pool_slice, request

FAMILIES: Final = 300
LOADS: Final = (0.7, 0.85)
SEEDS: Final = range(1)
LONG_SEEDS: Final = range(2)
"""Of the long form."""
MEAN_GAP_S: Final = 20
"""Between two pods of a family: those of a Job come within a second, those of an ordered StatefulSet when the one
before is ready. Some pod that comes alone comes between most of them."""

NONE: Final = "no preference"
FOLLOW: Final = "follows, looks nowhere ahead"
JOB: Final = "built, size unknown"
GROUP: Final = "built, size known"
LONE_JOBS: Final = "built, pods alone are Indexed Jobs too"
TOGETHER: Final = 70.0
"""Percent: measured were 78 to 89, and a few families of 250 are chance."""
BESIDE_FOLLOWING: Final = 2.0
"""Measured were 2.6 to 2.9."""
MORE_WAIT_MIN: Final = 0.1
"""What pods alone may pay for it: measured were 0.02 and less."""

RULES: Final = (NONE, FOLLOW, JOB, GROUP, LONE_JOBS)


@dataclass(slots=True)
class Work:
    """Pods that end together; one pod where it comes alone."""

    number: int
    pods: int
    gpus: int
    """Of each pod."""
    duration_s: float
    """From when the last pod has its GPUs."""
    had_room: bool = False
    came_s: list[float] = field(default_factory=list)
    given: list[tuple[Pod, Allocation]] = field(default_factory=list)


@dataclass(slots=True)
class Found:
    """What came of the work under one rule."""

    families: int = 0
    had_room: int = 0
    together: int = 0
    alone: int = 0
    family_wait_s: float = 0.0
    alone_wait_s: float = 0.0

    @property
    def percent_together(self) -> float:
        """Of the families that had room."""
        return 100 * self.together / self.had_room if self.had_room else 100.0

    @property
    def alone_wait_min(self) -> float:
        """Mean of the pods that come alone."""
        return self.alone_wait_s / max(1, self.alone) / 60

    def add(self, other: Found) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def works(racks: Racks, load: float, seed: int) -> Iterator[tuple[float, Work]]:
    """Yield when each pod comes, and what it belongs to, in that order."""
    chance = random.Random(f"{racks.name} {load} {seed}")
    gpus = racks.nodes * racks.machine.gpu_count
    alone_sizes = [size for size in (1, 1, 2, 2, 4, 8) if size <= racks.machine.gpu_count]
    of_family = sum(PODS) / len(PODS) * sum(racks.sizes) / len(racks.sizes)
    of_pod = sum(alone_sizes) / len(alone_sizes)
    coming: list[tuple[float, int, Work]] = []
    numbers = count()
    now_s = last_s = 0.0
    for _ in range(FAMILIES):
        now_s += chance.expovariate(load / 2 * gpus / (of_family * MEAN_DURATION_S))
        made = Work(
            next(numbers), chance.choice(PODS), chance.choice(racks.sizes), chance.expovariate(1 / MEAN_DURATION_S)
        )
        last_s = now_s
        for _ in range(made.pods):
            coming.append((last_s, next(numbers), made))
            last_s += chance.expovariate(1 / MEAN_GAP_S)
    end_s, now_s = now_s, 0.0
    while now_s < end_s:
        now_s += chance.expovariate(load / 2 * gpus / (of_pod * MEAN_DURATION_S))
        made = Work(next(numbers), 1, chance.choice(alone_sizes), chance.expovariate(1 / MEAN_DURATION_S))
        coming.append((now_s, next(numbers), made))
    heapify(coming)
    while coming:
        at_s, _, made = heappop(coming)
        yield at_s, made


class _Day:
    """One run; owns the inventory and what waits."""

    def __init__(self, racks: Racks, rule: str) -> None:
        self._racks, self._rule = racks, rule
        self.inventory = built(racks)
        self._allocator = Allocator()
        self._waiting: list[tuple[float, Work]] = []
        self._ends: list[tuple[float, int, Work]] = []
        self._number = count()
        self.found = Found()

    def run(self, coming: Sequence[tuple[float, Work]]) -> Found:
        asked = {size: sum(work.gpus for _, work in coming if work.gpus == size) for size in GROUP_SIZES}
        whole = sum(work.gpus for _, work in coming)
        eights, fours, twos = (PRICE_UNITS * asked[size] // whole for size in GROUP_SIZES)
        self._allocator.reprice(self.inventory, (eights, fours, twos))
        for at_s, work in coming:
            self._finish_until(at_s)
            if not work.came_s and work.pods > 1:
                work.had_room = max(rooms(self.inventory, self._racks, work.gpus).values()) >= work.pods
            work.came_s.append(at_s)
            self._waiting.append((at_s, work))
            self._place_all(at_s)
        self._finish_until(float("inf"))
        return self.found

    def _finish_until(self, now_s: float) -> None:
        while self._ends and self._ends[0][0] <= now_s:
            end_s, _, work = heappop(self._ends)
            for placed, allocation in work.given:
                give_back(self.inventory, allocation)
                self.inventory.families.place(placed, None)
            self._place_all(end_s)

    def _place_all(self, now_s: float) -> None:
        still, in_vain = [], set[int]()
        for came_s, work in self._waiting:
            if work.gpus in in_vain or not self._place(work, came_s, now_s):
                in_vain.add(work.gpus)
                still.append((came_s, work))
        self._waiting = still

    def _place(self, work: Work, came_s: float, now_s: float) -> bool:
        asking = self._pod(work)
        asked = claim(asking.metadata.name, request(count=work.gpus))
        decision = self._allocator.allocate(self.inventory, asking, [asked])
        if not isinstance(decision, Allocation):
            return False
        commit(self.inventory, decision)
        self.inventory.families.place(asking, decision.node)
        work.given.append((asking, decision))
        self._count(work, now_s - came_s)
        if len(work.given) == work.pods:
            heappush(self._ends, (now_s + work.duration_s, next(self._number), work))
        return True

    def _pod(self, work: Work) -> Pod:
        name = f"p{next(self._number)}"
        bare = pod(name, name)
        if self._rule == NONE or (work.pods == 1 and self._rule != LONE_JOBS):
            return bare
        number = str(work.number)
        labels = {GROUP_LABEL: number} if self._rule == GROUP else {JOB_LABEL: number, JOB_INDEX_LABEL: "0"}
        sizes = {GROUP_SIZE_ANNOTATION: str(work.pods)} if self._rule == GROUP else {}
        replace_ = msgspec.structs.replace
        return replace_(bare, metadata=replace_(bare.metadata, labels=labels, annotations=sizes))

    def _count(self, work: Work, waited_s: float) -> None:
        found = self.found
        if work.pods == 1:
            found.alone += 1
            found.alone_wait_s += waited_s
        elif len(work.given) == work.pods:
            found.families += 1
            found.family_wait_s += waited_s
            if work.had_room:
                found.had_room += 1
                found.together += len({domain(self._racks, one.node) for _, one in work.given}) == 1


def built(racks: Racks) -> Inventory:
    """Return the nodes of the racks; those of a rack are in one fabric clique, unless each node is a domain."""
    inventory = make_inventory(DRIVER, nodes=(), slices=(), classes=[device_class()])
    machine = racks.machine.machine
    for place in range(racks.nodes):
        name = f"n{place:03}"
        clique = f"fabric.{place // racks.nodes_of_a_domain}" if racks.nodes_of_a_domain > 1 else None
        gpus = tuple(
            replace(gpu, uuid=f"GPU-{place:08x}-0000-4000-8000-{gpu.index:012x}", fabric_clique=clique)
            for gpu in machine.gpus
        )
        inventory.set_node(node(name))
        inventory.change_slice(None, pool_slice(name, replace(machine, gpus=gpus)))
    return inventory


def domain(racks: Racks, name: str) -> int:
    """Return the number of a node's domain."""
    return int(name[1:]) // racks.nodes_of_a_domain


def rooms(inventory: Inventory, racks: Racks, gpus: int) -> dict[int, int]:
    """Return how many pods of so many GPUs each domain can take."""
    found: dict[int, int] = dict.fromkeys(range(racks.domains), 0)
    for by_state in inventory.buckets.values():
        for (free, _), names in by_state.items():
            for name in names:
                found[domain(racks, name)] += free.bit_count() // gpus
    return found


def run(racks: Racks, load: float, seed: int, rule: str) -> Found:
    """Run the work of one seed under a rule and return what came of it."""
    coming = list(works(racks, load, seed))
    if rule != FOLLOW:
        return _Day(racks, rule).run(coming)
    with patch.object(FamilyPreference, "_room", lambda *_: 0):
        return _Day(racks, rule).run(coming)


def seeds(*, long: bool) -> Sequence[int]:
    """Return the seeds of a form of the bench."""
    return LONG_SEEDS if long else SEEDS


def measured(clusters: Sequence[Racks], progress: Progress, *, long: bool = False) -> tuple[Table, tuple[Floor, ...]]:
    """Run all days; the floors are those of racks, where the preference is worth most."""
    lines: list[tuple[str, ...]] = []
    floors: list[Floor] = []
    for racks in clusters:
        for load in LOADS:
            progress(f"siblings: {racks.name}, load {load}, the real allocator")
            by_rule: dict[str, Found] = {}
            for rule in RULES:
                found = Found()
                for seed in seeds(long=long):
                    found.add(run(racks, load, seed, rule))
                by_rule[rule] = found
                lines.append((racks.name, f"{load}", rule, *_cells(found)))
            if racks.nodes_of_a_domain > 1:
                floors.extend(_floors(racks, load, by_rule))
    header = ("cluster", "load", "rule", "had room", "together %", "of all %", "wait min", "pods alone wait min")
    return Table("The real allocator, while others come between", header, tuple(lines)), tuple(floors)


def _cells(found: Found) -> tuple[str, ...]:
    return (
        f"{found.had_room}",
        f"{found.percent_together:.1f}",
        f"{100 * found.together / max(1, found.families):.1f}",
        f"{found.family_wait_s / max(1, found.families) / 60:.2f}",
        f"{found.alone_wait_min:.2f}",
    )


def _floors(racks: Racks, load: float, by_rule: Mapping[str, Found]) -> Iterator[Floor]:
    where = f"{racks.name}, load {load}"
    for rule in (JOB, GROUP):
        found = by_rule[rule]
        yield Floor(
            f"{where}: families together that had room, {rule}", found.percent_together, TOGETHER, "%", at_least=True
        )
        yield Floor(
            f"{where}: the same beside following the first, {rule}",
            found.percent_together / max(1.0, by_rule[FOLLOW].percent_together),
            BESIDE_FOLLOWING,
            "x",
            at_least=True,
        )
        yield Floor(
            f"{where}: minutes that pods alone wait longer than without preference, {rule}",
            found.alone_wait_min - by_rule[NONE].alone_wait_min,
            MORE_WAIT_MIN,
            "min",
        )
