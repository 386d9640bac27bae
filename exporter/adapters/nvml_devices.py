"""What the GPUs of this node do, through the same NVML adapter as the plugin's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pynvml

from dracaena.exporter.adapters.nvml_gpm import METRICS, GpmSamples, GpmTarget
from dracaena.exporter.adapters.nvml_questions import MEMORY, chosen
from dracaena.exporter.series.readings import (
    DeviceUse,
    DriverReading,
    GpuProcess,
    GpuQuantity,
    GpuReading,
    MigInstance,
)
from dracaena.host.adapters.nvml.events import NvmlEvents
from dracaena.host.adapters.nvml.library import GONE, GPU_DRIVER, NvmlError, NvmlLibrary
from dracaena.host.adapters.nvml.mig import MigReader
from dracaena.host.facts.machine import LeftOut
from dracaena.process.clock import Clock, SystemClock

REOPEN_S = 300.0
"""Pause between two openings of NVML while a GPU does not answer: NVML lists the GPUs from when it was opened, so a GPU
that is back shows only after that."""

_NOTHING = frozenset({pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND})
"""What nvmlDeviceGetProcessUtilization returns if no process ran: drivers differ, and pynvml raises both."""

_PROCESS_CALLS = (
    pynvml.nvmlDeviceGetComputeRunningProcesses,
    pynvml.nvmlDeviceGetGraphicsRunningProcesses,
    pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
)
"""Under MPS the first lists only the server, and the last one its clients."""


Spread = Callable[[Sequence[Callable[[], GpuReading]]], list[GpuReading]]
"""Runs pieces of work, concurrently or sequentially, and returns their results in order."""


def one_by_one(works: Sequence[Callable[[], GpuReading]]) -> list[GpuReading]:
    """Run them sequentially (Spread)."""
    return [work() for work in works]


class _GpuGoneError(Exception):
    """The GPU fell off the bus during this reading."""


@dataclass(frozen=True, slots=True)
class _OpenDevice:
    """What does not change while NVML is open."""

    handle: Any
    uuid: str
    pci_bus_id: str
    minor: int | None
    product_name: str


class NvmlDevices:
    """Implements dracaena.exporter.ports.DeviceSource. Keeps NVML open between readings: opening it costs more than
    reading, and events are only received while it is open.

    One thread calls it; `spread` may divide the work by GPU: NVML may be called from several threads at once, and all
    state between readings is kept per device.
    """

    def __init__(self, library: NvmlLibrary, clock: Clock | None = None, *, spread: Spread = one_by_one) -> None:
        self._library, self._spread = library, spread
        self._clock = clock or SystemClock()
        self._opened_s = self._clock.monotonic()
        self._is_whole = True  # whether all GPUs answered the last time
        self._events = NvmlEvents(library)
        let_go = library.before_close
        self._gpm = GpmSamples()

        def before_close() -> None:
            let_go()
            self._gpm.forget()

        library.before_close = before_close
        self._session = 0
        self._known: dict[int, _OpenDevice] = {}
        self._never: set[tuple[str, str]] = set()
        self._xids: dict[str, int] = {}
        self._utilization_us: dict[str, int] = {}

    def read(self, wanted: Collection[GpuQuantity]) -> DriverReading:
        """See DeviceSource. A GPU that is lost during the reading keeps what it had reported before that."""
        try:
            if not self._is_whole and self._clock.monotonic() - self._opened_s >= REOPEN_S:
                self._library.close()
            self._library.open()
            if GpuQuantity.LAST_XID in wanted:
                self._events.watch()
            self._begin_session()
            return self._read(frozenset(wanted))
        except NvmlError:
            self._library.close()
            raise

    def obey(self) -> None:
        """See DeviceSource."""
        self._library.obey()

    def doing(self) -> str:
        """See DeviceSource."""
        return self._library.doing()

    def close(self) -> None:
        """See DeviceSource."""
        self._library.close()

    def _begin_session(self) -> None:
        if self._session != self._library.session:
            self._session, self._opened_s = self._library.session, self._clock.monotonic()
            self._known, self._never, self._utilization_us = {}, set(), {}

    def _read(self, wanted: frozenset[GpuQuantity]) -> DriverReading:
        count = self._library.needed("how many GPUs there are", pynvml.nvmlDeviceGetCount)
        if GpuQuantity.LAST_XID in wanted:
            self._xids.update({event.uuid: event.xid for event in self._events.events() if event.xid is not None})
        known = [each for each in (self._gpu(index) for index in range(count)) if each is not None]
        if count and not known:
            raise NvmlError("the NVIDIA driver names none of its GPUs")
        gpus = tuple(self._spread([partial(self._reading, index, gpu, wanted) for index, gpu in known]))
        self._is_whole = len(known) == count and not any(gpu.lost for gpu in gpus)
        self._gpm.keep(frozenset(key for gpu in gpus for key in _gpm_keys(gpu)))
        version = self._ask(GPU_DRIVER, pynvml.nvmlSystemGetDriverVersion)
        return DriverReading(self._session, version or "", gpus, unnamed=count - len(known))

    def _gpu(self, index: int) -> tuple[int, _OpenDevice] | None:
        """Return the GPU if it can be named, otherwise None."""
        known = self._known.get(index)
        if known is None:
            try:
                known = self._name(index)
            except _GpuGoneError:
                return None
            if known is None:
                return None
            self._known[index] = known
        return index, known

    def _name(self, index: int) -> _OpenDevice | None:
        device = f"GPU {index}"
        handle = self._ask(device, pynvml.nvmlDeviceGetHandleByIndex, index, remember=False)
        uuid = self._ask(device, pynvml.nvmlDeviceGetUUID, handle, remember=False) if handle is not None else None
        if uuid is None:
            return None
        info = self._ask(device, pynvml.nvmlDeviceGetPciInfo, handle)
        return _OpenDevice(
            handle,
            uuid,
            _text(info.busId) if info is not None else "",
            self._ask(device, pynvml.nvmlDeviceGetMinorNumber, handle),
            self._ask(device, pynvml.nvmlDeviceGetName, handle) or "",
        )

    def _reading(self, index: int, gpu: _OpenDevice, wanted: frozenset[GpuQuantity]) -> GpuReading:
        values: dict[GpuQuantity, float] = {}
        mig: tuple[MigInstance, ...] = ()
        processes: tuple[GpuProcess, ...] | None = None
        sm: Mapping[int, float] | None = None
        lost = ""
        with self._watch_for_loss(gpu.uuid) as losses:
            self._add_numbers(values, gpu, wanted)
            if (self._ask(gpu.uuid, pynvml.nvmlDeviceGetMigMode, gpu.handle) or (0,))[0]:
                mig = self._mig_instances(index, gpu, wanted)
            else:
                processes = self._processes(gpu.uuid, gpu.handle)
                sm = self._sm_percent(gpu)
        if losses:
            lost = losses[0]
        elif GpuQuantity.LAST_XID in wanted:
            values[GpuQuantity.LAST_XID] = self._xids.get(gpu.uuid, 0)
        use = DeviceUse(values, processes, sm)
        return GpuReading(index, gpu.uuid, gpu.pci_bus_id, gpu.minor, gpu.product_name, use, mig, lost)

    @contextmanager
    def _watch_for_loss(self, uuid: str) -> Iterator[list[str]]:
        losses: list[str] = []
        try:
            yield losses
        except _GpuGoneError as error:
            losses.append(f"{uuid}: {error}")

    def _add_numbers(self, values: dict[GpuQuantity, float], gpu: _OpenDevice, wanted: frozenset[GpuQuantity]) -> None:
        for question in chosen(wanted):
            told = self._ask(gpu.uuid, question.ask, gpu.handle, named=question.call)
            values.update({q: float(number) for q, number in (told or {}).items() if q in wanted})
        if wanted & frozenset(METRICS.values()):
            values.update(self._gpm_means(GpmTarget(gpu.uuid, gpu.handle), wanted))

    def _gpm_means(self, target: GpmTarget, wanted: frozenset[GpuQuantity]) -> dict[GpuQuantity, float]:
        if not self._gpm_supported(target):
            return {}
        told = self._ask(target.key, self._gpm.read, target, named="nvmlGpmSampleGet") or {}
        return {quantity: number for quantity, number in told.items() if quantity in wanted}

    def _gpm_supported(self, target: GpmTarget) -> bool:
        if (target.key, "gpm") in self._never:
            return False
        told = self._ask(target.key, pynvml.nvmlGpmQueryDeviceSupport, target.handle)
        if told is None or not told.isSupportedDevice:
            self._never.add((target.key, "gpm"))
            return False
        return True

    def _mig_instances(self, index: int, gpu: _OpenDevice, wanted: frozenset[GpuQuantity]) -> tuple[MigInstance, ...]:
        def ask(device: str, call: Any, *arguments: Any, expected: AbstractSet[int] = frozenset()) -> Any:
            return self._ask(device, call, *arguments, expected=expected, remember=False)

        handles = self._mig_handles(gpu)
        found: list[MigInstance] = []
        for facts in MigReader(ask, f"GPU {index}", gpu.handle, gpu.uuid).read():
            handle = handles.get(facts.uuid)
            values: dict[GpuQuantity, float] = {}
            if handle is not None and MEMORY.tells & wanted:
                told = self._ask(facts.uuid, MEMORY.ask, handle, named=MEMORY.call) or {}
                values.update({q: float(number) for q, number in told.items() if q in wanted})
            if wanted & frozenset(METRICS.values()):
                target = GpmTarget(f"{gpu.uuid}/{facts.gpu_instance_id}", gpu.handle, facts.gpu_instance_id)
                if not any(each.gpu_instance_id == facts.gpu_instance_id for each in found):
                    values.update(self._gpm_means(target, wanted))
            processes = self._processes(facts.uuid, handle) if handle is not None else None
            use = DeviceUse(values, processes)
            found.append(MigInstance(facts.uuid, facts.gpu_instance_id, facts.profile or "", use))
        return tuple(found)

    def _mig_handles(self, gpu: _OpenDevice) -> Mapping[str, Any]:
        count = self._ask(gpu.uuid, pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu.handle) or 0
        hole = {pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT}
        found = {}
        for number in range(count):
            call = pynvml.nvmlDeviceGetMigDeviceHandleByIndex
            handle = self._ask(gpu.uuid, call, gpu.handle, number, expected=hole, remember=False)
            uuid = self._ask(gpu.uuid, pynvml.nvmlDeviceGetUUID, handle) if handle is not None else None
            if uuid is not None:
                found[uuid] = handle
        return found

    def _processes(self, device: str, handle: Any) -> tuple[GpuProcess, ...] | None:
        """Return all processes by pid, each once; None if no call reports them."""
        found: dict[int, int | None] = {}
        answered = False
        for call in _PROCESS_CALLS:
            told = self._ask(device, call, handle)
            answered = answered or told is not None
            for process in told or ():
                before = found.get(process.pid)
                found[process.pid] = (
                    process.usedGpuMemory if before is None else max(before, process.usedGpuMemory or 0)
                )
        return tuple(GpuProcess(pid, found[pid]) for pid in sorted(found)) if answered else None

    def _sm_percent(self, gpu: _OpenDevice) -> Mapping[int, float] | None:
        """Return the mean use of the SMs by each process since the last reading; empty if nothing ran."""
        call = pynvml.nvmlDeviceGetProcessUtilization
        since_us = self._utilization_us.get(gpu.uuid, 0)
        samples = self._ask(gpu.uuid, call, gpu.handle, since_us, expected=_NOTHING) or ()
        if (gpu.uuid, call.__name__) in self._never:
            return None
        fresh = [sample for sample in samples if sample.timeStamp > since_us]
        if fresh:
            self._utilization_us[gpu.uuid] = max(sample.timeStamp for sample in fresh)
        return _means(fresh)

    def _ask(
        self,
        device: str,
        call: Callable[..., Any],
        *arguments: Any,
        expected: AbstractSet[int] = frozenset(),
        named: str = "",
        remember: bool = True,
    ) -> Any:
        """Return the answer of one call, None if there is none. A call that can never be answered is not repeated in
        this session. Raises _GpuGoneError if the GPU is lost.
        """

        def refused(question: LeftOut, code: int | None) -> None:
            if code in GONE:
                raise _GpuGoneError(f"{question.call} says {question.reason}")
            if remember and not question.may_pass:
                self._never.add((device, question.call))

        if (device, named or call.__name__) in self._never:
            return None
        return self._library.ask(device, call, *arguments, expected=expected, refused=refused, named=named)


def _means(samples: Iterable[Any]) -> Mapping[int, float]:
    by_pid: dict[int, list[int]] = {}
    for sample in samples:
        by_pid.setdefault(sample.pid, []).append(sample.smUtil)
    return {pid: sum(uses) / len(uses) for pid, uses in sorted(by_pid.items())}


def _gpm_keys(gpu: GpuReading) -> Iterator[str]:
    yield gpu.uuid
    for mig in gpu.mig:
        yield f"{gpu.uuid}/{mig.gpu_instance_id}"


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
