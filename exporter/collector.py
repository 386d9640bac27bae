"""One scrape: the driver within its deadline, podlist.json, the cgroups, and the state between scrapes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from dracaena import __version__
from dracaena.api.errors import DracaenaError
from dracaena.exporter.ports import DeviceSource, PodlistLook, PodlistSource, ProcessPlaces
from dracaena.exporter.series.device_series import ServedDevice, dcgm_families, devices_of
from dracaena.exporter.series.display import SHOWN
from dracaena.exporter.series.families import MetricFamily
from dracaena.exporter.series.field_file import ChosenFields
from dracaena.exporter.series.history import CounterKey, CounterState, IdleKey, idle_since, next_count
from dracaena.exporter.series.idleness import SIGNS_OF_USE, busy_owners
from dracaena.exporter.series.own_series import (
    OwnState,
    PodlistState,
    allocation_families,
    state_families,
    use_families,
)
from dracaena.exporter.series.owners import Owners, find_owners
from dracaena.exporter.series.readings import DriverReading, ProcessPlace
from dracaena.process.clock import Clock

CallDriver = Callable[[Callable[[], DriverReading]], DriverReading]
"""Runs a reading in the driver's thread. Raises DracaenaError if that takes too long."""

log = structlog.get_logger()


class NvmlErrorCounts:
    """Counts calls without an answer. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def note(self, call: str, error: str) -> None:
        """Count one more (OnError of nvml_library)."""
        with self._lock:
            self._counts[call, error] += 1

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Return all counts."""
        with self._lock:
            return dict(self._counts)


@dataclass(frozen=True, slots=True)
class NodeView:
    """What one scrape found."""

    reading: DriverReading | None
    """None: the driver did not answer."""
    owners: Owners
    devices: tuple[ServedDevice, ...]
    look: PodlistLook

    @property
    def shown(self) -> tuple[ServedDevice, ...] | None:
        """Return the devices, None if the driver did not answer."""
        return None if self.reading is None else self.devices


@dataclass(frozen=True, slots=True)
class Shown:
    """What the settings say of the metrics."""

    chosen: ChosenFields
    hostname: str
    idle_after_s: float


class NodeCollector:
    """Owns the state between scrapes. collect() is for any thread; one runs at a time."""

    def __init__(
        self,
        source: DeviceSource,
        podlist: PodlistSource,
        places: ProcessPlaces,
        shown: Shown,
        *,
        call: CallDriver,
        clock: Clock,
        errors: NvmlErrorCounts,
        in_vfio: Callable[[str], bool] = lambda _address: False,
    ) -> None:
        """`in_vfio` returns for a PCI address, as NVML writes it, whether a virtual machine has the GPU there now."""
        self._source, self._podlist, self._places = source, podlist, places
        self._chosen, self._hostname, self._idle_after_s = shown.chosen, shown.hostname, shown.idle_after_s
        self._call, self._clock, self._errors, self._in_vfio = call, clock, errors, in_vfio
        self._lock = threading.Lock()
        self._quantities = shown.chosen.quantities | SIGNS_OF_USE | SHOWN
        self._last: DriverReading | None = None  # names devices while the driver does not answer
        self._named: dict[str, tuple[int, str]] = {}
        """Index and PCI address of each GPU that any reading named, by UUID."""
        self._counters: dict[CounterKey, CounterState] = {}
        self._idle: Mapping[IdleKey, float] = {}
        self._ran_back = 0
        self._driver_seconds = 0.0
        self._podlist_errors: Counter[str] = Counter()
        self._said: dict[str, str] = {}
        self.scraped_s = clock.monotonic()
        """When the last scrape came. Read by others."""

    def collect(self) -> tuple[MetricFamily, ...]:
        """Return all families. Takes at most the driver's deadline plus some milliseconds."""
        with self._lock:
            self.scraped_s = self._clock.monotonic()
            view = self._look()
            reading = view.reading
            own = (
                *allocation_families(view.owners, self._last, self._hostname),
                *state_families(self._state(view), reading, view.owners, self._hostname),
            )
            if reading is None:
                return own
            now_s = self._clock.monotonic()
            self._follow_idle(view.devices, now_s)
            counts = self._count(reading, view.devices)
            return (
                *dcgm_families(self._chosen, reading, view.devices, counts),
                *use_families(
                    view.devices, self._idle, now_s, self._idle_after_s, self._hostname
                ),
                *own,
            )  # fmt: skip

    def view(self) -> NodeView:
        """Return the current state, for people."""
        with self._lock:
            self.scraped_s = self._clock.monotonic()
            return self._look()

    def _look(self) -> NodeView:
        look = self._podlist.look()
        if look.error:
            self._podlist_errors[look.error] += 1
        self._say("podlist.json", look.message)
        reading = self._read()
        named = reading or self._last
        gpus = named.gpus if named is not None else ()
        owners = find_owners(look.entries, gpus)
        if reading is None:
            return NodeView(None, owners, (), look)
        places = self._places_of(reading)
        return NodeView(reading, owners, devices_of(reading, owners, places, self._hostname), look)

    def _read(self) -> DriverReading | None:
        began_s = self._clock.monotonic()
        try:
            reading = self._call(lambda: self._source.read(self._quantities))
        except DracaenaError as error:
            self._say("GPU driver", str(error))
            return None
        finally:
            self._driver_seconds = self._clock.monotonic() - began_s
        trouble = "; ".join(gpu.lost for gpu in reading.gpus if gpu.lost)
        trouble = trouble or (f"{reading.unnamed} GPUs cannot be named" if reading.unnamed else "")
        self._say("GPU driver", trouble)
        self._last = reading
        self._named.update({gpu.uuid: (gpu.index, gpu.pci_bus_id) for gpu in reading.gpus})
        return reading

    def _places_of(self, reading: DriverReading) -> Mapping[int, ProcessPlace]:
        uses = [use for gpu in reading.gpus for use in (gpu.use, *(mig.use for mig in gpu.mig))]
        pids = {process.pid for use in uses for process in use.processes or ()}
        found = {pid: self._places.place_of(pid) for pid in sorted(pids)}
        return {pid: place for pid, place in found.items() if place is not None}

    def _count(self, reading: DriverReading, devices: tuple[ServedDevice, ...]) -> Mapping[CounterKey, float]:
        counters: dict[CounterKey, CounterState] = {}
        for device in devices:
            for field in self._chosen.fields:
                value = device.use.values.get(field.quantity)
                if field.type != "counter" or value is None:
                    continue
                key = (device.key, field.name)
                counters[key] = next_count(self._counters.get(key), reading.session, value)
                self._ran_back += counters[key].below is not None
        self._counters = {**self._counters, **counters}
        return {key: state.shown for key, state in counters.items()}

    def _follow_idle(self, devices: tuple[ServedDevice, ...], now_s: float) -> None:
        busy = {(device.name, owner): used for device in devices for owner, used in busy_owners(device).items()}
        self._idle = idle_since(self._idle, busy, now_s)

    def _state(self, view: NodeView) -> OwnState:
        look = view.look
        named = {gpu.uuid for gpu in view.reading.gpus} if view.reading is not None else self._named.keys()
        return OwnState(
            version=__version__,
            driver_up=view.reading is not None,
            driver_seconds=self._driver_seconds,
            nvml_errors=self._errors.counts(),
            ran_back=self._ran_back,
            faults_of_fields=len(self._chosen.faults),
            missing={
                uuid: index
                for uuid, (index, address) in self._named.items()
                if uuid not in named and not self._in_vfio(address)
            },
            podlist=PodlistState(not look.error, look.age_s, dict(self._podlist_errors), len(look.entries)),
        )

    def _say(self, what: str, message: str) -> None:
        """Log a trouble once, and its end."""
        before = self._said.get(what, "")
        if message and message != before:
            log.warning("cannot be read", what=what, error=message)
        elif before and not message:
            log.info("can be read again", what=what)
        self._said[what] = message
