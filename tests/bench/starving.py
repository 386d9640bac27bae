"""How soon a pod is served that fits at once, while many old ones wait that fit nowhere, and devices are freed.

The controller's own reconciler, queue and books over an API server in memory; time is real. Beside it the same code
that asks every line about every node at each change, in the order of turns, as it did before lines knew what can help
them. Run alone with `PYTHONPATH=tests python -P -m bench.starving`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

import msgspec
import structlog

from bench.decision import percentile
from bench.report import Floor, Progress, Row, Section, as_text, floors_as_text
from dracaena.api.objects import ObjectMeta, Pod, Taint
from dracaena.api.resource_objects import ResourceSlice
from dracaena.controller.garbage import collect_between_decisions, freeze_what_stays
from dracaena.controller.queue.waiting_lines import WaitingLines
from dracaena.controller.queue.workqueue import WorkQueue
from dracaena.controller.state.decisions import Decisions
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.process.clock import SystemClock
from support.allocation import claim, holding, node, pod, pool_slice, request
from support.reconciling import Bench

NODES: Final = 5_000
"""Of 8 GPUs: on half of them all are taken, the others are free and tainted: only young pods tolerate that."""

SHAPES: Final = 400
"""Old pods, each of a shape of its own, that wait for 8 GPUs of a node without the taint."""

FREED_PER_S: Final = 2.0
"""Devices that are freed in a second; each is taken again at once."""

STORM_PER_S: Final = 50.0
"""The same on a bad day."""

YOUNG: Final = 60
"""Young pods that come one after another."""

PACE_S: Final = 0.1
"""Between one young pod that is served and the next."""

PATIENCE_S: Final = 10.0
"""A pod that is not served within it counts as served then."""

GOAL_S, FLOOR_S = 0.1, 1.0
DECISION_GOAL_MS, DECISION_FLOOR_MS = 5.0, 25.0

TEAM: Final = "team-b"


@dataclass(slots=True)
class Measured:
    """What one run shows."""

    served_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    """CPU time from the coming of each young pod until it was served, whoever it was spent for."""
    asked_again: int = 0
    """Decisions for old pods."""
    decision_ms: list[float] = field(default_factory=list)
    changes: int = 0


class Cluster:
    """Full nodes, free nodes, and pods that wait for the full ones."""

    def __init__(self) -> None:
        machine = read_machine("hgx-h100")
        self.bench = Bench(**{"full-00000": machine})
        self.bench.queue._clock = SystemClock()
        self.spec = pool_slice("full-00000", machine).spec
        self.devices = [device.name for device in self.spec.devices]
        self.half = NODES // 2
        for number in range(self.half):
            self._add_node(f"full-{number:05}", [])
            self._add_node(f"free-{number:05}", [Taint(key=TEAM, effect="NoSchedule")])
            for place in range(len(self.devices)):
                self._hold(number, place)
        for number in range(SHAPES):
            cpu = [{"name": "main", "resources": {"requests": {"cpu": f"{1000 + number}m"}}}]
            old = pod(f"old-{number}", f"old-{number}", containers=cpu)
            self.bench.add(claim(f"old-{number}", request(count=8)), created(old, "2026-01-01T00:00:00Z"))
        freeze_what_stays()
        self.bench.run()
        self._freed = 0
        self._young = 0

    def _add_node(self, name: str, taints: list[Taint]) -> None:
        replace, pool = msgspec.structs.replace, self.spec.pool
        spec = replace(self.spec, node_name=name, pool=replace(pool, name=name))
        self.bench.cluster.intake.node_changed(None, node(name, taints=taints))
        self.bench.cluster.intake.slice_changed(None, ResourceSlice(ObjectMeta(name, uid=f"slice-{name}"), spec))

    def _hold(self, number: int, place: int) -> None:
        made = holding(claim(f"held-{number}-{place}"), f"full-{number:05}", self.devices[place])
        self.bench.api.put(made)

    def change(self) -> None:
        """Let a device be freed and taken again."""
        self._freed = (self._freed + 1) % self.half
        self.bench.api.remove(f"default/held-{self._freed}-0")
        self._hold(self._freed, 0)

    def come(self) -> str:
        """Let a young pod come."""
        self._young += 1
        name = f"young-{self._young}"
        young = pod(name, name, tolerations=[{"key": TEAM, "operator": "Exists"}])
        self.bench.add(claim(name, request(count=1)), created(young, "2026-01-01T01:00:00Z"))
        return name

    def measure(self, per_s: float, young: int) -> Measured:
        """Let young pods come one by one while devices are freed."""
        found = Measured()
        next_change = time.perf_counter()
        pause_until = next_change + 2.0  # until the stream of changes is what it always is
        name, came, came_cpu = "", 0.0, 0.0
        decide = self.bench.cluster.decide

        def timed(*args: Any, **rest: Any) -> Any:
            began = time.perf_counter()
            found.asked_again += args[0].metadata.name.startswith("old-")
            try:
                return decide(*args, **rest)
            finally:
                found.decision_ms.append(1e3 * (time.perf_counter() - began))

        with mock.patch.object(self.bench.cluster, "decide", timed):
            while len(found.served_s) < young:
                now = time.perf_counter()
                if now >= next_change:
                    self.change()
                    found.changes += 1
                    next_change += 1 / per_s
                if not name and now >= pause_until:
                    name, came, came_cpu = self.come(), time.perf_counter(), time.thread_time()
                if len(self.bench.queue) and self.bench.queue._ready:
                    collect_between_decisions()  # as a worker does before it takes the next pod
                    self.bench.step()
                elif name == "":
                    time.sleep(0.001)
                if name and (self.bench.held(name) is not None or now - came > PATIENCE_S):
                    found.served_s.append(min(time.perf_counter() - came, PATIENCE_S))
                    found.cpu_s.append(time.thread_time() - came_cpu)
                    name, pause_until = "", time.perf_counter() + PACE_S
        return found


def created(made: Pod, at: str) -> Pod:
    """Return the pod, created at that time."""
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, creation_timestamp=at))


@contextmanager
def asking_everybody() -> Iterator[None]:
    """Every change asks the first of every line about every node, in the order of turns."""

    def may_help(self: Decisions, nodes: Any, *, devices_differ: bool = False) -> None:
        self._ask_again(self._lines.change(None, {}))

    with (
        mock.patch.object(WorkQueue, "add_again", WorkQueue.add),
        mock.patch.object(Decisions, "may_help", may_help),
        mock.patch.object(WaitingLines, "changed_for", return_value=None),
        mock.patch.object(Decisions, "_offered_first", return_value={}),
    ):
        yield


def rows(progress: Progress) -> Section:
    """Measure: a minute."""
    progress(f"waiting: {NODES:,} nodes, {SHAPES} shapes wait, {FREED_PER_S:.0f} devices are freed a second")
    cluster = Cluster()
    ours, storm = (cluster.measure(per_s, YOUNG) for per_s in (FREED_PER_S, STORM_PER_S))
    with asking_everybody():
        before = Cluster().measure(FREED_PER_S, 1)
    for name, run in (("ours", ours), ("ours in a storm", storm), ("before", before)):
        progress(f"waiting: {name}, {run.changes} changes, {len(run.decision_ms)} decisions")
    against = "every line asked about every node"
    unserved = f"theirs is cut off at {PATIENCE_S:.0f} s" if max(before.served_s) >= PATIENCE_S else ""
    title = f"a pod that fits, {SHAPES} shapes wait, {NODES:,} nodes"
    p99 = percentile(ours.decision_ms, 99)
    per_change = ours.asked_again / ours.changes, before.asked_again / before.changes
    slowest = max(ours.served_s)
    return Section(
        title="Waiting pods and new ones",
        rows=(
            Row(
                f"{title}, served after, slowest of {YOUNG}",
                1e3 * slowest,
                1e3 * max(before.served_s),
                "ms",
                against=against,
                note=unserved,
            ),
            Row("the same, CPU time", 1e3 * max(ours.cpu_s), 1e3 * max(before.cpu_s), "ms", against=against),
            Row(
                f"the same by the clock, {STORM_PER_S:.0f} devices a second",
                1e3 * max(storm.served_s),
                1e3 * max(before.served_s),
                "ms",
                against=f"{against}, {FREED_PER_S:.0f} a second",
                note=unserved,
            ),
            Row("old pods asked for each freed device", *per_change, against=against),
            Row("one decision meanwhile, p99", p99, percentile(before.decision_ms, 99), "ms", against=against),
        ),
        floors=(
            Floor(f"{title}: served after", slowest, FLOOR_S, "s", GOAL_S),
            Floor(f"{title}: one decision, p99", p99, DECISION_FLOOR_MS, "ms", DECISION_GOAL_MS),
        ),
    )


def main() -> int:
    """Measure and print."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    section = rows(lambda text: print(text, file=sys.stderr, flush=True))
    print(as_text(section))
    print(floors_as_text(section.floors), end="")
    return 0 if all(floor.holds for floor in section.floors) else 1


if __name__ == "__main__":
    sys.exit(main())
