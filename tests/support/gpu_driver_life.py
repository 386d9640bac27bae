"""The life of a driver, drawn by a seed: GPUs that are lost and come back, XIDs, releases, hangs, reloads, the fabric.

The code under it is the real one from the library's door to the faults and the Events; the driver is the fake, the
time the test's. What must hold is said here in a second way, from what was done to the driver alone.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pynvml
from prometheus_client import CollectorRegistry

from dracaena.api.machine import Gpu, Machine
from dracaena.api.names import DeviceName, gpu_device_name
from dracaena.host.adapters.gpu_driver.use import GpuDriverUse, request_release, wait_until_let_go, withdraw
from dracaena.host.adapters.nvml.library import NvmlLibrary
from dracaena.kubelet_plugin.adapters.nvml.facts import NvmlReader
from dracaena.kubelet_plugin.adapters.nvml.machine import NvmlMachine
from dracaena.kubelet_plugin.adapters.sysfs.devices import Sysfs
from dracaena.kubelet_plugin.discovery.build import Reading
from dracaena.kubelet_plugin.discovery.health.device_health import Status
from dracaena.kubelet_plugin.discovery.health.gpu_health import Fault, Rules
from dracaena.kubelet_plugin.gpu_driver.release import GpuDriverRelease
from dracaena.kubelet_plugin.metrics import PluginMetrics
from dracaena.kubelet_plugin.node.health_monitor import EVENTS_S, POLL_S, HealthListeners, HealthMonitor
from dracaena.kubelet_plugin.node.live_machine import POORER_S, LiveMachine
from dracaena.kubelet_plugin.node.troubles import NodeTroubles
from support.clock import FakeClock
from support.fake_nvml import FakeNvml
from support.fake_nvml_values import FakeFabric
from support.fake_sysfs import write_machine
from support.kube import wait_for
from support.topologies import topology_from_matrix

DRIVER = "gpu.dracaena.dev"
GPUS = 4
UUIDS = [f"GPU-00000000-0000-0000-0000-{at:012}" for at in range(GPUS)]
MACHINE = Machine(
    name="four",
    gpus=tuple(
        Gpu(uuid=uuid, index=at, minor=at, pci_bus_id=f"0000:{0x18 + at:02x}:00.0") for at, uuid in enumerate(UUIDS)
    ),
    topology=topology_from_matrix([["X" if a == b else "SYS" for b in range(GPUS)] for a in range(GPUS)]),
    driver_version="580.1",
)
HANGING = ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetRemappedRows", "nvmlEventSetWait_v2", "nvmlDeviceGetCount_v2")

SEEN_S = 2 * POLL_S
"""After this long each state has been looked at by a whole poll."""
LASTS_S = 60.0
"""Shortest time between two turns of one thing: both the watch and the readings have seen it by then."""
HEAL_S = 1200.0
"""Longest that anything may be held against a GPU that is well: 16 minutes after relapses, and some polls."""


class LifeClock(FakeClock):
    """Time goes on by itself only for who waits for a call that hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.nvml: FakeNvml | None = None

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        told = condition.wait(0.005)
        if not told and timeout_s is not None and self.nvml is not None and self.nvml.hanging:
            self.advance(timeout_s)
        return told


class Life:
    """One node. step() lets something happen and a second pass; check() is called after each."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = LifeClock()
        self.nvml = self.clock.nvml = FakeNvml(MACHINE)
        write_machine(folder / "sys", MACHINE)
        self.lock, self.request = folder / "lock", folder / "request"
        self.release = GpuDriverRelease(DRIVER, lambda: GpuDriverUse(self.lock, self.request))
        library = NvmlLibrary(lambda: self.nvml, permission=self.release)
        self.source = NvmlMachine(
            "four", NvmlReader(library), Sysfs(str(folder / "sys")), clock=self.clock, listens=True
        )
        self.metrics = PluginMetrics(CollectorRegistry())
        self.events: Counter[str] = Counter()
        self.troubles = NodeTroubles(self.metrics, lambda _kind, reason, _text: self.events.update([reason]))
        self.live = LiveMachine(
            self.source,
            self.clock,
            on_change=self._take_machine,
            on_troubles=lambda found: self.troubles.update("reading", found),
        )
        self.faults: Mapping[DeviceName, Sequence[Fault]] = {}
        self.monitor = HealthMonitor(
            self.source,
            self.live.ask,
            self.clock,
            Rules(),
            self.metrics,
            node_faults=self._node_faults,
            listeners=HealthListeners(
                faults=self._take_faults,
                status=lambda _health: None,
                news=lambda: None,
                troubles=lambda found: self.troubles.update("health", found),
            ),
        )
        self.read_due_s = 0.0
        self.readings = 0
        read_all = self.source.read_all

        def counted() -> Reading:
            reading = read_all()
            self.readings += 1
            return reading

        self.source.read_all = counted  # type: ignore[method-assign]
        self.left_out: frozenset[int] | None = None
        """GPUs that the reading lacks that is kept; None before the first."""
        self.missing: frozenset[int] = frozenset()
        self.poorer: tuple[frozenset[int], float] | None = None
        self.poorer_told = self.opened_anew = False
        self.done: list[str] = []
        # What was done to the driver, and since when.
        self.since: dict[str, float] = {}
        self.released_s: float | None = None
        self.hung: threading.Event | None = None
        self.refused: set[int] = set()
        self.xids = 1000
        self.unheard: set[int] = set()
        self.fabric_held: dict[int, bool] = {}
        self.expected: Counter[str] = Counter()
        self.never: int | None = None
        """The GPU that was lost before the start. Once it is back it stays: who could say whether it was ever known?"""
        if self.rng.random() < 0.3:
            self.never = self.rng.randrange(GPUS)
            self.nvml.lost.add(self.never)
        self.live._gpu_driver.start()

    def stop(self) -> None:
        self._unhang()
        self.live._gpu_driver.stop()

    def step(self) -> None:
        """Do one thing, or nothing; let a second pass; look as the threads do."""
        if self.rng.random() < 0.25:
            things = [self._xid, self._xid, self._lose, self._bring_back, self._turn_release, self._turn_hang]
            self.rng.choice([*things, self._turn_fabric, self._turn_refusal, self._reload])()
        self.clock.advance(EVENTS_S)
        self._look()

    def heal(self) -> None:
        """Take back all that was done, and let time pass."""
        if self.released_s is not None:
            self._turn_release(force=True)
        self._unhang()
        self.nvml.lost.clear()
        self.nvml.fabric.clear()
        self.nvml.allow()
        self.refused.clear()
        end_s = self.clock.monotonic() + HEAL_S
        while self.clock.monotonic() < end_s:
            self.clock.advance(POLL_S)
            self._look()

    def check(self) -> None:
        """Compare what is told with what was done. Raises AssertionError."""
        now_s = self.clock.monotonic()
        heard = {int(xid) for (xid,) in self.metrics.devices.xids._metrics}
        if self.hung is None:
            assert not self.unheard - heard, f"XIDs {self.unheard - heard} were reported and never told"
            self.unheard.clear()
        if self.released_s is not None and self.hung is None and now_s - self.released_s >= 2 * EVENTS_S:
            assert self.nvml.opened == 0, "NVML is open although it was to be let go of"
            assert wait_until_let_go(self.lock, self.clock, 0), "the lock is held although NVML is closed"
        assert self.nvml.opened <= 1
        if self._is_settled("node"):
            for gpu, uuid in enumerate(UUIDS):
                self._check_gpu(gpu, self.faults.get(gpu_device_name(uuid), ()))
        if self.released_s is None or now_s - self.released_s >= 2 * EVENTS_S:  # what waited before is told first
            assert self.events == self.expected, (self.events, self.expected)

    def check_healed(self) -> None:
        """After heal(): nothing is held against any GPU any more."""
        assert {name: found for name, found in self.faults.items() if found} == {}
        assert self.troubles.words() is None
        assert [health.status for health in self.monitor.devices()] == [Status.HEALTHY] * GPUS
        assert self.nvml.registered == set(range(GPUS))

    def _check_gpu(self, gpu: int, faults: Sequence[Fault]) -> None:
        if not self._is_settled(f"gpu {gpu}"):
            return
        keys = {fault.key for fault in faults}
        known = gpu_device_name(UUIDS[gpu]) in {health.device for health in self.monitor.devices()}
        if gpu in self.nvml.lost:
            assert not known or any(fault.blocks for fault in faults), f"GPU {gpu} is lost and not tainted"
        elif gpu in self.refused:
            assert "unmonitored" in keys, f"nobody hears of GPU {gpu}, and that is not told"
        else:
            assert gpu in self.nvml.registered, f"GPU {gpu} is well, and nobody hears its XIDs"
            assert "gpu-lost" not in keys or self._since(f"gpu {gpu}") < HEAL_S
        if gpu not in self.nvml.lost:
            assert ("fabric" in keys) == (gpu in self.nvml.fabric), f"GPU {gpu} and its fabric"

    def _is_settled(self, what: str) -> bool:
        quiet = self.released_s is None and self.hung is None
        return quiet and self._since(what) >= SEEN_S

    def _since(self, what: str) -> float:
        return self.clock.monotonic() - self.since.get(what, 0.0)

    def _touch(self, what: str) -> None:
        self.since[what] = self.clock.monotonic()

    def _may_turn(self, what: str) -> bool:
        return self._since(what) >= LASTS_S

    def _look(self) -> None:
        polled = self.nvml.calls.count("nvmlDeviceGetRemappedRows")
        unpublished = self.left_out or frozenset()  # what the watch knows of: it looks first
        self.monitor.look()
        if self.clock.monotonic() >= self.read_due_s:
            began_s, readings = self.clock.monotonic(), self.readings
            pause_s = self.live.look()
            self.read_due_s = self.clock.monotonic() + pause_s
            self._note_reading(began_s, done=self.readings > readings)
        if self.nvml.calls.count("nvmlDeviceGetRemappedRows") > polled and self.hung is None:
            self._note_fabric(unpublished)
        self.nvml.calls.clear()

    def _note_reading(self, began_s: float, *, done: bool) -> None:
        """Count what a reading is to tell: that it knows less than the last one, and GPUs that are not published."""
        if not done:
            self.poorer_told = False
            self.opened_anew = self.opened_anew or self.released_s is not None
            return
        lost = frozenset(self.nvml.lost)
        if self.poorer is None or self.poorer[0] != lost:
            self.poorer = (lost, began_s)
        less = self.left_out is not None and len(lost) > len(self.left_out)
        if less and not self.opened_anew and began_s - self.poorer[1] < POORER_S:
            self.expected["DriverReadingFailed"] += not self.poorer_told
            self.poorer_told = True
        else:
            self.left_out, self.poorer, self.poorer_told, self.opened_anew = lost, None, False, False
        assert self.left_out is not None
        before, self.missing = self.missing, lost & self.left_out
        self.expected["GpuMissing"] += len(self.missing - before)

    def _note_fabric(self, unpublished: frozenset[int]) -> None:
        """Count the times that the fabric of some GPU goes from well to not, as whole polls see it."""
        before = any(self.fabric_held.values())
        for gpu in range(GPUS):
            if gpu in unpublished:
                self.fabric_held[gpu] = False
            elif gpu not in self.nvml.lost and gpu_device_name(UUIDS[gpu]) in self.faults:
                self.fabric_held[gpu] = gpu in self.nvml.fabric
        if any(self.fabric_held.values()) and not before:
            self.expected["FabricNotReady"] += 1

    def _node_faults(self) -> tuple[Fault, ...]:
        fault = self.release.fault()
        return () if fault is None else (fault,)

    def _take_machine(self, machine: Machine) -> None:
        self.monitor.take(machine)

    def _take_faults(self, faults: Mapping[DeviceName, Sequence[Fault]]) -> None:
        self.faults = faults

    def _xid(self) -> None:
        gpu = self.rng.randrange(GPUS)
        self.xids += 1
        told = self.nvml.report_xid(gpu, self.xids)
        self.done.append(f"XID {self.xids} of {gpu}, told: {told}")
        if told:
            self.unheard.add(self.xids)

    def _lose(self) -> None:
        """Lose a GPU that is known, never the last one: a driver that lists none is another trouble."""
        gpu = self.rng.randrange(GPUS)
        known = {health.device for health in self.monitor.devices()}
        if len(known) == GPUS and gpu != self.never and len(self.nvml.lost) < GPUS - 1:
            self.done.append(f"lose {gpu}")
            self.nvml.lost.add(gpu)
            self._touch(f"gpu {gpu}")

    def _bring_back(self) -> None:
        if self.nvml.lost and self.monitor.devices():
            gpu = self.rng.choice(sorted(self.nvml.lost))
            self.done.append(f"bring back {gpu}")
            self.nvml.lost.discard(gpu)
            self._touch(f"gpu {gpu}")

    def _turn_release(self, *, force: bool = False) -> None:
        if not force and (self.hung is not None or not self._may_turn("release") or not self._may_turn("hang")):
            return
        self.done.append("release" if self.released_s is None else "resume")
        if self.released_s is None:
            if self.rng.random() < 0.5:
                self._xid()  # nobody has looked at it yet when NVML is to be closed
            self.released_s = self.clock.monotonic()
            self.expected["DriverReleased"] += 1
            if self.rng.random() < 0.5:
                request_release(self.request, "for a while")
            else:
                self.release.note_labels({"nvidia.com/gpu.deploy.client": "paused-for-driver-upgrade"})
        else:
            self.released_s = None
            withdraw(self.request)
            self.release.note_labels({})
            self._touch("node")
        self._touch("release")

    def _turn_hang(self) -> None:
        if self.hung is not None:
            self._unhang()
        elif self.released_s is None and self._may_turn("hang") and self._may_turn("release"):
            if not self.nvml.registered:
                return  # then not all of these are called
            symbol = self.rng.choice(HANGING)
            self.done.append(f"hang in {symbol}")
            self.hung = self.nvml.wedged[symbol] = threading.Event()
            self.read_due_s = 0.0
            for _ in range(int(POLL_S) + 1):
                self.clock.advance(EVENTS_S)
                self._look()
            self.expected["DriverSilent"] += 1
            self._touch("hang")

    def _unhang(self) -> None:
        if self.hung is None:
            return
        self.done.append("unhang")
        self.nvml.wedged.clear()
        self.hung.set()
        self.hung = None
        wait_for(lambda: self.live._gpu_driver._job is None, "the driver's thread")
        self._touch("hang")
        self._touch("node")

    def _turn_fabric(self) -> None:
        gpu = self.rng.randrange(GPUS)
        self.done.append(f"fabric of {gpu}")
        if gpu in self.nvml.fabric:
            del self.nvml.fabric[gpu]
        else:
            self.nvml.fabric[gpu] = FakeFabric(pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED)
        self._touch(f"gpu {gpu}")

    def _turn_refusal(self) -> None:
        gpu = self.rng.randrange(GPUS)
        self.done.append(f"refusal of the events of {gpu}")
        if gpu in self.refused:
            self.refused.discard(gpu)
            self.nvml.allow()
            for other in self.refused:
                self._refuse(other)
        elif gpu not in self.nvml.registered:
            self.refused.add(gpu)
            self._refuse(gpu)
        self._touch(f"gpu {gpu}")

    def _refuse(self, gpu: int) -> None:
        self.nvml.refuse("nvmlDeviceRegisterEvents", pynvml.NVML_ERROR_UNKNOWN, gpu=gpu)

    def _reload(self) -> None:
        """Replace the driver, which the kernel allows only while nobody has it open."""
        if self.released_s is None or self.nvml.opened:
            return
        self.done.append("reload")
        old = self.nvml
        version = f"580.{int(str(old.machine.driver_version).split('.')[1]) + 1}"
        self.nvml = self.clock.nvml = FakeNvml(replace(MACHINE, driver_version=version))
        self.refused.clear()
        for gpu in range(GPUS):
            self._touch(f"gpu {gpu}")
