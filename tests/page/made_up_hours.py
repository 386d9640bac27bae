"""Three made-up hours of a small cluster, as Prometheus would have scraped them: what the dashboards are drawn from.

The numbers are this script's and of no real GPU. All else is the programs' own: the exporter's series come from its
collector above a stand-in for NVML, those of controller and plugins from their metrics. So there is no series here that
no program serves.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest

from dracaena.api.device_share import DeviceShare
from dracaena.api.podlist import PodlistEntry
from dracaena.controller.metrics import ControllerMetrics
from dracaena.exporter.adapters.nvml_devices import NvmlDevices
from dracaena.exporter.collector import NodeCollector, NvmlErrorCounts, Shown
from dracaena.exporter.ports import PodlistLook
from dracaena.exporter.series.families import render
from dracaena.exporter.series.field_file import default_fields
from dracaena.exporter.series.readings import ProcessPlace
from dracaena.host.adapters.nvml.library import NvmlLibrary
from dracaena.host.facts.troubles import TroubleKind
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.metrics import PluginMetrics
from support.clock import FakeClock
from support.exporting_nvml import ExportingNvml, FakeActivity, FakeProcess
from support.fake_nvml_values import FakeMig

END: Final = datetime(2026, 1, 5, 12, tzinfo=UTC)
SHOWN: Final = timedelta(hours=3)
"""What a dashboard shows when it is opened."""

STEP_S: Final = 30
"""Between two scrapes, as the chart's PodMonitors ask for."""

_MINUTES: Final = 195
"""Of scrapes: those before what is shown fill the rates of its first minutes."""

_DRIVER: Final = "580.65.06"
_MIG: Final = tuple(f"MIG-00000000-0000-4000-8000-{number:012d}" for number in (1, 2))
_SERIES = re.compile(r"(?m)^(?!#)(\w+)(?:\{(.*)\})? (\S+)$")


@dataclass(frozen=True, slots=True)
class Work:
    """One pod with one container, its GPUs and what it does with them."""

    namespace: str
    pod: str
    node: str
    gpus: tuple[int, ...]
    begins: int = 0
    ends: int = _MINUTES + 1
    """Minutes since the first scrape."""
    busy: int = 90
    """Percent of each GPU, in the mean."""
    memory_gib: int = 60
    share_gib: int = 0
    """It has a share of its GPU with so much memory; 0: the whole of it."""
    mig: str = ""
    """Its MIG device."""


WORK: Final = (
    Work("research", "pretrain-0", "h100-a", (0, 1, 2, 3), busy=94, memory_gib=71),
    Work("serving", "chat-0", "h100-a", (4,), busy=45, memory_gib=24, share_gib=40),
    Work("serving", "chat-1", "h100-a", (4,), begins=75, busy=25, memory_gib=18, share_gib=40),
    Work("lab", "notebook-0", "h100-a", (5,), begins=20, ends=180, busy=0, memory_gib=9),
    Work("research", "eval-0", "h100-a", (6,), ends=142, busy=70, memory_gib=33),
    *(
        Work("research", f"sweep-{n}", "a100-a", (n % 2, 2 + n % 2), 4 + 30 * n, 30 + 30 * n, 80 - 7 * n, 22 + 2 * n)
        for n in range(6)
    ),
    Work("research", "finetune-0", "a100-a", (4, 5, 6, 7), begins=62, busy=88, memory_gib=34),
    Work("serving", "embed-0", "h100-b", (0,), busy=55, memory_gib=6, mig=_MIG[0]),
    Work("lab", "notebook-1", "h100-b", (0,), begins=110, ends=170, busy=0, memory_gib=3, mig=_MIG[1]),
)

_MACHINES: Final = {"a100-a": "dgx-a100", "h100-a": "hgx-h100", "h100-b": "h100-x1"}
_LOST: Final = ("h100-a", 6, range(142, 157))
"""A GPU that falls off the bus under its pod, and comes back."""

_XID: Final = ("h100-a", 2, 31, (96, 97, 99))
"""GPU, number and minutes of an error in a program."""


class _Node:
    """One node: its exporter's collector and its plugin's metrics."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.name, self._chance = name, chance
        machine = read_machine(_MACHINES[name])
        migs = tuple(
            FakeMig(0, number, uuid, "NVIDIA MIG 1g.10gb", gpu_instance=7 + number, start=number, memory_mib=9_984)
            for number, uuid in enumerate(_MIG)
        )
        self._nvml = ExportingNvml(machine, migs if name == "h100-b" else ())
        self._uuids = [gpu.uuid for gpu in machine.gpus]
        for does in self._nvml.activity:
            does.gpm = name.startswith("h100")
        self._clock = FakeClock()
        self._minute = 0.0
        errors = NvmlErrorCounts()
        self._source = NvmlDevices(NvmlLibrary(lambda: self._nvml, errors.note), self._clock)
        self._exporter = NodeCollector(
            self._source, self, self, Shown(default_fields(), name, 900.0),
            call=lambda work: work(), clock=self._clock, errors=errors,
        )  # fmt: skip
        self._registry = CollectorRegistry()
        self._plugin = PluginMetrics(self._registry)
        self._plugin.publishing.registered.set(1)

    def look(self) -> PodlistLook:
        """Return the containers of now (PodlistSource)."""
        entries = []
        for number, work in self._running():
            gpus = (work.mig,) if work.mig else tuple(self._uuids[gpu] for gpu in work.gpus)
            share = DeviceShare(gpus[0], f"share-{number}", f"{work.share_gib}Gi", 0)
            entries.append(
                PodlistEntry(
                    work.pod, work.namespace, "main", gpus, uid=f"pod-{number}", claims=(f"claim-{number}",),
                    mig={work.mig: self._uuids[0]} if work.mig else {}, shares=(share,) if work.share_gib else (),
                )
            )  # fmt: skip
        return PodlistLook(tuple(entries), (self._minute * 60) % 60 + self._chance.random())

    def place_of(self, pid: int) -> ProcessPlace:
        """Return the pod whose number its process has (ProcessPlaces)."""
        return ProcessPlace(f"pod-{pid}")

    def scrapes(self, minute: float) -> Iterator[tuple[str, str]]:
        """Let the time be some minutes after the first scrape; yield job and text of both programs."""
        self._clock.advance((minute - self._minute) * 60)
        self._minute = minute
        self._do()
        self._say()
        yield "exporter", render(self._exporter.collect()).decode()
        yield "kubelet-plugin", generate_latest(self._registry).decode()

    def close(self) -> None:
        """Let go of the driver."""
        self._source.close()

    def _running(self) -> list[tuple[int, Work]]:
        found = [(number, work) for number, work in enumerate(WORK) if work.node == self.name]
        return [(number, work) for number, work in found if work.begins <= self._minute < work.ends]

    def _do(self) -> None:
        """Let each GPU do what its containers do."""
        running = self._running()
        for number, does in enumerate(self._nvml.activity):
            works = [each for each in running if number in each[1].gpus]
            _let_do(does, [(pid, work, self._busy(work)) for pid, work in works], self._chance)
        for uuid, does in self._nvml.mig_activity.items():
            works = [each for each in running if each[1].mig == uuid]
            does.processes = [FakeProcess(pid, work.memory_gib * 1024) for pid, work in works]
            does.memory_used_mib = sum(work.memory_gib * 1024 for _, work in works)
        node, gpu, minutes = _LOST
        self._nvml.lost = {gpu} if node == self.name and int(self._minute) in minutes else set()

        for number, does in enumerate(self._nvml.activity):
            does.remapped_uncorrected = 2 if (self.name, number) == _LOST[:2] and self._minute > _LOST[2].stop else 0

    def _busy(self, work: Work) -> int:
        if not work.busy:
            return 0
        if work.namespace == "research" and self._minute % 40 < 2:  # it writes a checkpoint
            return self._chance.randint(3, 12)
        slow = 0.25 * work.busy * math.sin(self._minute / 17) if work.namespace == "serving" else 0.0
        return max(1, min(100, round(work.busy + slow + self._chance.gauss(0, 1.2))))

    def _say(self) -> None:
        """Let the plugin tell of it."""
        metrics, minute, running = self._plugin, self._minute, [work for _, work in self._running()]
        devices = len(_MIG) if self.name == "h100-b" else len(self._uuids)
        is_lost = bool(self._nvml.lost)
        metrics.publishing.devices.set(devices)
        metrics.publishing.podlist_age.set((minute * 60) % 60)
        metrics.claims.devices.set(len({(gpu, work.mig) for work in running for gpu in work.gpus}))
        for health, count in (("healthy", devices - is_lost), ("unhealthy", int(is_lost)), ("unknown", 0)):
            metrics.devices.by_health.labels(health).set(count)
        metrics.devices.reading_stale.set(self.name == "h100-b" and 40 <= minute < 45)
        for kind in TroubleKind:
            metrics.node.troubles.labels(kind.value).set(kind is TroubleKind.GPU_MISSING and is_lost)
        node, gpu, xid, minutes = _XID
        if node == self.name and minute in minutes:
            metrics.devices.xids.labels(str(xid)).inc()
            self._nvml.report_xid(gpu, xid)
        for work in WORK:
            if work.node == self.name and minute in (work.begins, work.ends):
                self._call("prepare" if minute == work.begins else "unprepare", "ok")
        if self._chance.random() < 0.15:  # a pod too short to be drawn
            self._call("prepare", "ok")
            self._call("unprepare", "ok")
        if minute in (97, 98, 143, 144, 145) and self.name != "h100-b":
            self._call("prepare", "failed")

    def _call(self, operation: str, result: str) -> None:
        self._plugin.claims.calls.labels(operation, result).inc()
        self._plugin.claims.seconds.labels(operation, result).observe(self._chance.lognormvariate(-5.3, 0.6))


def _let_do(does: FakeActivity, works: list[tuple[int, Work, int]], chance: random.Random) -> None:
    busy = min(100, sum(percent for _, _, percent in works))
    whole = [(pid, work, percent) for pid, work, percent in works if not work.mig]
    does.processes = [FakeProcess(pid, work.memory_gib * 1024, percent) for pid, work, percent in whole]
    does.sampled_us += STEP_S * 1_000_000
    does.utilization, does.memory_utilization = busy, busy // 2
    does.memory_used_mib = 4 + sum(work.memory_gib * 1024 for _, work, _ in whole)
    does.tensor_percent, does.gpm_means = 0.55 * busy, 0.4 * busy
    does.power_mw = round(1000 * (72 + 5.4 * busy + chance.gauss(0, 3)))
    does.energy_mj = (does.energy_mj or 0) + does.power_mw * STEP_S
    warmth = (does.temperature or 0) + ((31 + 0.34 * busy) - (does.temperature or 0)) * 0.3
    does.temperature, does.memory_temperature = round(warmth), round(warmth + 11 + chance.random())
    if chance.random() < 0.005:
        does.pcie_replays = (does.pcie_replays or 0) + 1


class _Controller:
    """The controller's metrics."""

    def __init__(self, chance: random.Random) -> None:
        self._chance, self._registry = chance, CollectorRegistry()
        self._metrics = ControllerMetrics(self._registry)
        self._waiting = 2

    def scrape(self, minute: float) -> str:
        """Return its text."""
        chance, metrics = self._chance, self._metrics
        metrics.leader.set(not 118 <= minute < 118.5)  # another replica takes over
        rush = 3 if 60 <= minute < 80 or 150 <= minute < 160 else 1
        for _ in range(chance.randint(2, 6) * rush):
            metrics.decisions.results.labels("allocated").inc()
            metrics.decisions.seconds.observe(chance.lognormvariate(-6.3, 0.7))
        for _ in range(chance.randint(0, 2) * rush):
            metrics.decisions.results.labels("unsatisfied").inc()
            metrics.decisions.seconds.observe(chance.lognormvariate(-5.6, 0.9))
        metrics.writes.conflicts.inc(chance.random() < 0.2 * rush)
        metrics.decisions.lost.inc(chance.random() < 0.02 * rush)
        if chance.random() < 0.05 * rush:
            metrics.decisions.take_backs.labels("passed-over", "cleared").inc()
        self._waiting = max(0, min(9 * rush, self._waiting + chance.choice((-1, 0, 0, 1)) * rush))
        metrics.queue.waiting_pods.labels("no-node").set(self._waiting)
        metrics.queue.waiting_pods.labels("quota").set(2 if 90 <= minute < 130 else 0)
        metrics.queue.oldest_waiting_pod_seconds.set(240 + 60 * (minute % 35) if self._waiting else 0)
        self._say_what_is_free(minute)
        metrics.watches.problems_changed(0, int(62 <= minute < 63))
        return generate_latest(self._registry).decode()

    def _say_what_is_free(self, minute: float) -> None:
        """Count the GPUs of WORK; what pods got, and two quotas, go with them."""
        running = [work for work in WORK if work.begins <= minute < work.ends]
        held = {name: {gpu for work in running if work.node == name for gpu in work.gpus} for name in _MACHINES}
        free = [8 - len(held[name]) for name in ("a100-a", "h100-a")]
        self._metrics.queue.gpus.labels("free").set(sum(free))
        self._metrics.queue.most_free_gpus.set(max(free))
        for work in running:
            if work.begins == minute and len(work.gpus) > 1:
                self._metrics.sets.allocated.labels(str(len(work.gpus)), "BestEffort", "NVLink").inc()
        for team, limit in (("research", 12), ("serving", 3)):
            has = sum(len(work.gpus) for work in running if work.namespace == team)
            self._metrics.quotas.limit.labels(team, "gpus", "").set(limit)
            self._metrics.quotas.held.labels(team, "gpus", "").set(has)


def write_scrapes(path: Path) -> None:
    """Write all of it as OpenMetrics, for `promtool tsdb create-blocks-from openmetrics`. The same on each call."""
    chance = random.Random(36)
    with path.open("w", encoding="utf-8") as file:
        controller = _Controller(chance)
        for minute, at_s in _times():
            file.writelines(_samples(controller.scrape(minute), _target("controller", "a100-a"), at_s))
        for name in sorted(_MACHINES):  # one after the other: pynvml knows one driver
            node = _Node(name, chance)
            for minute, at_s in _times():
                for job, text in node.scrapes(minute):
                    file.writelines(_samples(text, _target(job, name), at_s))
            node.close()
        file.write("# EOF\n")


def _times() -> Iterator[tuple[float, int]]:
    """Yield for each scrape the minutes since the first one, and the Unix time."""
    for number in range(_MINUTES * 60 // STEP_S + 1):
        minute = number * STEP_S / 60
        yield minute, int((END - timedelta(minutes=_MINUTES - minute)).timestamp())


def _target(job: str, node: str) -> Mapping[str, str]:
    """Return the labels that a scrape adds; the exporter's own names of pods stay (`honor_labels`)."""
    labels = {"job": job, "node": node, "instance": node}
    pod = {"namespace": "dracaena", "pod": f"dracaena-{job}-{node}", "container": job}
    return labels if job == "exporter" else labels | pod


def _samples(text: str, target: Mapping[str, str], at_s: int) -> Iterator[str]:
    for name, labels, value in _SERIES.findall(text):
        kept = set(re.findall(r'(\w+)="', labels))  # `honor_labels`
        added = ",".join(f'{label}="{each}"' for label, each in target.items() if label not in kept)
        if not name.endswith("_created"):
            yield f"{name}{{{labels + ',' if labels else ''}{added}}} {value} {at_s}\n"
