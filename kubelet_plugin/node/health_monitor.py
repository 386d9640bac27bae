"""Watches the health of this node's GPUs: asks the driver, remembers the faults of each GPU, and tells its listeners.

Every call into the driver runs in its one thread with a deadline, so a driver that hangs blocks only this loop; the
health of all GPUs is then reported as unknown.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from dracaena.api.errors import DracaenaError
from dracaena.api.machine import Machine
from dracaena.api.names import DeviceName, gpu_device_name
from dracaena.host.facts.health import GpuEvent, GpuState, Poll
from dracaena.host.facts.troubles import (
    GpuDriverReleasedError,
    GpuDriverTroubleError,
    Trouble,
    TroubleKind,
    trouble,
)
from dracaena.host.gpu_driver.thread import StoppedError
from dracaena.kubelet_plugin.discovery.health.device_health import DeviceHealth, Status
from dracaena.kubelet_plugin.discovery.health.gpu_health import (
    BLOCKING,
    CONFIDENTIAL,
    FABRIC,
    LASTS_POLLS,
    NVLINK,
    SRAM,
    Fault,
    GpuHealth,
    HealthClass,
    Rules,
    counted_faults,
    message,
    noted,
    on_device,
    polled,
    with_last_counts,
    xid_fault,
)
from dracaena.kubelet_plugin.discovery.health.links import KnownLinks, links_of
from dracaena.kubelet_plugin.metrics import PluginMetrics
from dracaena.kubelet_plugin.ports import Ask
from dracaena.kubelet_plugin.worker import Worker, WorkerService
from dracaena.process.clock import Clock

EVENTS_S = 1.0
"""Pause between two looks at the driver's events: one call, which takes microseconds."""

POLL_S = 15.0
"""Pause between two polls, a handful of calls per GPU: two of them fit into kubelet's default limit of 30 s."""

DEADLINE_S = 30.0
"""Longest that a look may take, for 16 GPUs: slow calls take some 100 ms each."""

log = structlog.get_logger()


class HealthSource(Protocol):
    """Answers about health. All calls come from the driver's thread; each may hang."""

    def events(self) -> Sequence[GpuEvent]:
        """Return what happened since the last call, without waiting. Raises DracaenaError."""
        ...

    def poll(self) -> Poll:
        """Return how the GPUs are now. Raises DracaenaError."""
        ...


def ask_at_once(_what: str, work: Callable[[], object], _deadline_s: float) -> object:
    """Run a call that cannot hang, such as one about recorded faults, in the caller's thread. An Ask."""
    return work()


@dataclass(frozen=True, slots=True)
class _WatchedDevice:
    name: DeviceName
    gpu: str
    gpu_instance: int | None = None


@dataclass(frozen=True, slots=True)
class HealthListeners:
    """Callbacks for what a HealthMonitor finds, called from its thread."""

    faults: Callable[[Mapping[DeviceName, Sequence[Fault]]], None]
    """Called with the faults of each device, after each look that changed something and always after the first one."""
    status: Callable[[DeviceHealth], None]
    """Called for each device whose own status changed."""
    news: Callable[[], None]
    """Called when HealthMonitor.devices() has changed."""
    troubles: Callable[[Sequence[Trouble]], None]
    """Called with what is wrong with the whole node."""


class HealthMonitor(WorkerService):
    """Keeps the health of all devices. A separate thread asks; take() and devices() never wait, from any thread.

    `node_faults` returns, at each look, the faults that all devices have at once.
    """

    def __init__(
        self,
        source: HealthSource,
        ask: Ask,
        clock: Clock,
        rules: Rules,
        metrics: PluginMetrics,
        *,
        node_faults: Callable[[], tuple[Fault, ...]],
        listeners: HealthListeners,
    ) -> None:
        self._source = source
        self._ask = ask
        self._clock = clock
        self._rules = rules
        self._metrics = metrics
        self._node_faults = node_faults
        self._listeners = listeners
        self._heard: deque[GpuEvent] = deque()  # filled by the driver's thread, emptied by ours
        self._lock = threading.Lock()
        self._given: Machine | None = None
        self._told: tuple[DeviceHealth, ...] = ()
        # Everything below belongs to the monitor's thread.
        self._machine: Machine | None = None
        self._devices: tuple[_WatchedDevice, ...] = ()
        self._present, self._links = frozenset[str](), KnownLinks()
        self._slots: dict[str, str] = {}  # UUID → PCI address of each GPU that the driver ever had
        self._of_node: tuple[Fault, ...] = ()
        self._health: dict[str, GpuHealth] = {}
        self._states: dict[str, GpuState] = {}
        self._heard_s: dict[str, int] = {}
        self._statuses: dict[DeviceName, Status] = {}
        self._faults: Mapping[DeviceName, tuple[Fault, ...]] | None = None
        self._due_s = 0.0
        self._trouble: str | None = None
        self._of_gpu_driver: tuple[Trouble, ...] = ()
        self._silences: set[str] = set()
        """Why whole polls failed, as long as any GPU still has that as a fault."""
        self._worker = Worker("health", self._run, clock)

    def take(self, machine: Machine) -> None:
        """Watch the devices of this machine from now on. A GPU that it no longer has is remembered as gone."""
        with self._lock:
            self._given = machine
        self._worker.notice()

    def devices(self) -> tuple[DeviceHealth, ...]:
        """Return the health of all devices as last seen, in the order in which they are published."""
        with self._lock:
            return self._told

    def _run(self) -> None:
        while self._worker.wait(within_s=EVENTS_S):
            try:
                self.look()
            except StoppedError:
                return
            except Exception:
                # The thread's outermost loop: a bug must not end the watch for the life of the process.
                log.exception("watching health failed")
                self._worker.pause(POLL_S)

    def look(self) -> None:
        """Read new events once and, when it is due, the state of all GPUs. Raises StoppedError."""
        with self._lock:
            machine = self._given
        if machine is None:
            return
        if machine is not self._machine:
            self._follow(machine)
        before, self._of_node = self._of_node, self._node_faults()
        try:
            happened = self._note_events()
        except GpuDriverReleasedError as error:
            self._due_s = 0.0  # the first look after the driver is back is a full one
            told, self._of_gpu_driver = self._of_gpu_driver, (trouble(error.reason, str(error)),)
            if before != self._of_node or told != self._of_gpu_driver or self._faults is None:
                self._tell()
            return
        if happened or before != self._of_node or self._clock.monotonic() >= self._due_s:
            self._due_s = self._clock.monotonic() + POLL_S
            with suppress(GpuDriverReleasedError):  # released just now: the next look handles it
                self._poll()
            self._tell()

    def _follow(self, machine: Machine) -> None:
        present = {gpu.uuid for gpu in machine.gpus}
        # A GPU that left for a virtual machine is not lost: only the driver in the guest knows its health. Remember its
        # address, because a reading during the move finds it neither with the NVIDIA driver nor with VFIO.
        handed = {gpu.pci_bus_id for gpu in machine.passthrough if gpu.is_bound}
        self._slots.update({gpu.uuid: gpu.pci_bus_id for gpu in machine.gpus if gpu.pci_bus_id is not None})
        left = {uuid for uuid, slot in self._slots.items() if slot in handed}
        gone = tuple(d for d in self._devices if d.gpu not in present | left)
        gpus = tuple(_WatchedDevice(gpu_device_name(gpu.uuid), gpu.uuid) for gpu in machine.gpus)
        migs = tuple(_WatchedDevice(m.device_name, m.parent_uuid, m.gpu_instance_id) for m in machine.mig_devices)
        self._machine, self._devices = machine, (*gpus, *migs, *gone)
        self._present = frozenset(present)
        self._links = links_of(machine, self._links)
        self._due_s = 0.0

    def _note_events(self) -> bool:
        """Record new events, including those that an abandoned earlier look has brought in since."""
        happened = self._take_heard()
        try:
            self._ask("a look at events", self._listen, DEADLINE_S)
        except (StoppedError, GpuDriverReleasedError):
            raise
        except DracaenaError as error:
            self._note(str(error))
        return self._take_heard() or happened

    def _listen(self) -> None:
        """Run in the driver's thread. The driver reports an event once: it must not get lost if no caller waits."""
        self._heard.extend(self._source.events())

    def _take_heard(self) -> bool:
        happened = bool(self._heard)
        while self._heard:
            self._note_event(self._heard.popleft())
        return happened

    def _note_event(self, event: GpuEvent) -> None:
        divided = {device.gpu for device in self._devices if device.gpu_instance is not None}
        about = event if event.uuid in divided else replace(event, gpu_instance=None)
        fault = xid_fault(about, self._rules)
        if fault is None:
            return
        log.warning("XID", gpu=event.uuid, xid=event.xid, gpu_instance=event.gpu_instance)
        self._health[event.uuid] = noted(self._health.get(event.uuid, GpuHealth()), fault)
        self._metrics.devices.xids.labels(str(event.xid)).inc()

    def _poll(self) -> None:
        try:
            poll = self._ask("a look at health", self._source.poll, DEADLINE_S)
            assert isinstance(poll, Poll)
            self._note(None)
            self._of_gpu_driver = ()
        except (StoppedError, GpuDriverReleasedError):
            raise
        except DracaenaError as error:
            self._note(str(error))
            reason = error.reason if isinstance(error, GpuDriverTroubleError) else TroubleKind.READING_FAILED
            self._of_gpu_driver = (trouble(reason, str(error)),)
            self._silences.add(str(error))
            poll = Poll(refused=str(error))
        now_s = int(self._clock.now().timestamp())
        for uuid in dict.fromkeys(device.gpu for device in self._devices):
            state, health = poll.of(uuid), self._health.get(uuid, GpuHealth())
            if not self._rules.fabric:
                state = replace(state, fabric_state=None)
            if uuid in self._links.down and state.lost is None and state.silent is None:
                state = replace(state, nvlinks_down=self._links.down[uuid])
            for more_errors in counted_faults(self._states.get(uuid), state):
                health = noted(health, more_errors)
            self._health[uuid] = polled(health, state)
            self._states[uuid] = with_last_counts(self._states.get(uuid), state)
            if state.silent is None:
                self._heard_s[uuid] = now_s
        self._silences &= {held.fault.message for health in self._health.values() for held in health.held}

    def _tell(self) -> None:
        faults = {
            device.name: (
                *self._of_node,
                *on_device(self._health.get(device.gpu, GpuHealth()).faults, device.gpu_instance),
            )
            for device in self._devices
        }
        told = tuple(self._device_health(device, faults[device.name]) for device in self._devices)
        fabric = self._shared_troubles(FABRIC, TroubleKind.FABRIC)
        unready = self._shared_troubles(CONFIDENTIAL, TroubleKind.CONFIDENTIAL_NOT_READY)
        self._listeners.troubles((*self._of_gpu_driver, *fabric, *unready, *self._own_troubles()))
        with self._lock:
            before, self._told = {health.device: health for health in self._told}, told
        if faults != self._faults:
            self._faults = faults
            self._listeners.faults(faults)
        if [_said(health) for health in told] != [_said(health) for health in before.values()]:
            self._listeners.news()
        for health in told:
            earlier = before.get(health.device)
            if health.status is not (earlier.status if earlier is not None else Status.HEALTHY):
                log.warning("health changed", device=health.device, status=health.status.value, reason=health.message)
        self._tell_statuses(faults)
        # Kubelet is told about a removed GPU, because pods had it; the node no longer has the device.
        there = [health for device, health in zip(self._devices, told, strict=True) if device.gpu in self._present]
        for status in Status:
            count = sum(1 for health in there if health.status is status)
            self._metrics.devices.by_health.labels(status.value).set(count)

    def _tell_statuses(self, faults: Mapping[DeviceName, Sequence[Fault]]) -> None:
        """Report each device whose own status changed; a fault of the whole node is reported once, as a trouble."""
        for device in self._devices:
            own = [fault for fault in faults[device.name] if not self._is_of_node(fault)]
            health = self._device_health(device, own)
            if self._of_gpu_driver and health.status is not Status.UNHEALTHY:
                continue  # nothing is known about any device, which is reported as a trouble
            if health.status is not self._statuses.get(device.name, Status.HEALTHY):
                self._listeners.status(health)
            self._statuses[device.name] = health.status

    def _is_of_node(self, fault: Fault) -> bool:
        silent = fault.health_class is HealthClass.SILENT and fault.message in self._silences
        return silent or fault.is_shared or fault in self._of_node

    def _shared_troubles(self, key: str, kind: TroubleKind) -> tuple[Trouble, ...]:
        """Return what keeps the NVSwitch fabric from working, or GPUs from accepting work until they are attested. What
        is still coming up counts after a minute.
        """
        held = {uuid: self._health[uuid].held for uuid in sorted(self._present) if uuid in self._health}
        found = {
            uuid: one.fault.message
            for uuid, all_held in held.items()
            for one in all_held
            if one.fault.key == key and (one.fault.is_fatal or (one.fault.blocks and one.shown_polls >= LASTS_POLLS))
        }
        if not found:
            return ()
        first = next(iter(found))
        text = f"{len(found)} of {len(self._present)} GPUs, {first} for one: {found[first]}"
        return (trouble(kind, text),)

    def _own_troubles(self) -> tuple[Trouble, ...]:
        """Return what is wrong with single GPUs that stay in use: their devices stay healthy, so nothing else tells."""
        kinds = {NVLINK: TroubleKind.NVLINKS_DOWN, SRAM: TroubleKind.SRAM_ERRORS}
        return tuple(
            trouble(kinds[fault.key], f"GPU {uuid}: {fault.message}", uuid)
            for uuid in sorted(self._present)
            for fault in self._health.get(uuid, GpuHealth()).faults
            if fault.key in kinds
        )

    def _device_health(self, device: _WatchedDevice, faults: Sequence[Fault]) -> DeviceHealth:
        heard_s = self._heard_s.get(device.gpu, 0)
        worst = max((fault.health_class for fault in faults), default=HealthClass.DEGRADED)
        if worst > HealthClass.SILENT:
            status = Status.UNHEALTHY
        elif worst >= BLOCKING or not heard_s:
            status = Status.UNKNOWN
        else:
            status = Status.HEALTHY
        return DeviceHealth(device.name, status, heard_s, message(faults))

    def _note(self, trouble: str | None) -> None:
        if trouble is not None:
            self._metrics.devices.health_errors.inc()
            if trouble != self._trouble:
                log.warning("health not read", reason=trouble)
        self._trouble = trouble


def _said(health: DeviceHealth) -> tuple[DeviceName, Status, str]:
    return (health.device, health.status, health.message)
