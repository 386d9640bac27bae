"""Keeps the GPUs of this node in the MIG layout that its label names, each as soon as nobody uses it.

A GPU that is to be divided anew is first withheld: its devices get a taint, or seven small pods could keep it for ever
by taking turns. What was given away before the taint is waited for, and what runs. Then it is changed
(MigLayoutChanges), and published as before once the driver was read again.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

import structlog

from dracaena.api.errors import BadInputError, DracaenaError
from dracaena.api.machine import Gpu, Machine
from dracaena.api.names import gpu_device_name
from dracaena.kubelet_plugin.discovery.mig_instances import IN_USE, MigRefusedError
from dracaena.kubelet_plugin.discovery.mig_layouts import (
    GpuLayout,
    Layouts,
    asks_for_device_ids,
    gpu_layouts,
    has_layout,
    mig_instances,
    mode_obstacle,
)
from dracaena.kubelet_plugin.gpu_users import GpuUsers
from dracaena.kubelet_plugin.layout_journals import GpuInUseError, LayoutJournals
from dracaena.kubelet_plugin.mig_layout_changes import (
    LayoutBlockedError,
    MadeByOthersError,
    MigLayoutChanges,
    others_made,
)
from dracaena.kubelet_plugin.prepare.layout_journal import GpuRecord
from dracaena.kubelet_plugin.worker import Worker
from dracaena.process.clock import Clock

LOOK_S: Final = 10.0
"""Pause between two looks. One reads a small file and compares values; the driver is asked only about GPUs that are
not as they should be."""

SETTLE_S: Final = 30.0
"""How long the taint must have been on a GPU's devices before it is changed: who was given one before has its pod bound
here by then, or kube-scheduler does not want it. The controller takes such an allocation back after the same time."""

_Standing = tuple["LayoutState", str]
"""State of one GPU, and why."""

log = structlog.get_logger()


class LayoutState(enum.Enum):
    """How far a layout is; of a node the last of these that any of its GPUs is in."""

    APPLIED = "Applied"
    PENDING = "Pending"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class LayoutReport:
    """What is to be told."""

    layout: str
    state: LayoutState
    reason: str
    """Empty where it is applied."""


@dataclass(frozen=True, slots=True)
class LayoutPorts:
    """What the layouts are joined to."""

    name: Callable[[], str | None]
    """The layout that this node is to have, empty: none; None while that is not known."""
    read_layouts: Callable[[], Layouts]
    first_indices: Callable[[], Mapping[int, str]]
    """See NodeDevices.first_indices()."""
    withhold: Callable[[Collection[str]], None]
    """See NodeDevices.withhold()."""
    is_withheld: Callable[[str], bool]
    """Whether the API server shows all devices of a GPU with the taint."""
    read_soon: Callable[[], None]
    """See LiveMachine.read_soon()."""
    tell: Callable[[LayoutReport | None], None]
    """Called after each look; None: there is no layout."""


@dataclass(frozen=True, slots=True)
class _Block:
    """What keeps a GPU from its layout until somebody acts, as MigLayoutChanges found it."""

    layout: GpuLayout
    gpu: Gpu
    """As it was read then."""
    instances: AbstractSet[tuple[str, int]]
    error: LayoutBlockedError


class MigLayouts:
    """One thread of its own; take() is for any."""

    def __init__(
        self, changes: MigLayoutChanges, journals: LayoutJournals, users: GpuUsers, ports: LayoutPorts, clock: Clock
    ) -> None:
        self._changes = changes
        self._journals = journals
        self._users = users
        self._ports = ports
        self._clock = clock
        self._machine: Machine | None = None  # replaced whole
        self._readings = 0
        # Only for the thread that looks:
        self._withheld_s: dict[str, float] = {}  # since when each GPU was seen to be withheld
        self._changed: dict[str, tuple[GpuLayout, int]] = {}  # to what, after how many readings; not read since then
        self._blocks: dict[str, _Block] = {}
        self._device_ids: dict[str, int] = {}
        self._worker = Worker("mig-layouts", self._run, clock)

    def start(self) -> None:
        """Begin. Nothing is published before the first look has said what is withheld (NodeDevices)."""
        self._worker.start()

    def stop(self) -> None:
        """End the thread. A GPU that is being changed is finished by the next start."""
        self._worker.stop()

    def take(self, machine: Machine) -> None:
        """Work with another reading from now on. For the thread that reads, as read_again() is."""
        self._machine = machine
        self.read_again()

    def read_again(self) -> None:
        """Take note that another reading found the last machine."""
        self._readings += 1
        self._worker.notice()

    def _run(self) -> None:
        while self._worker.wait(within_s=LOOK_S):
            try:
                self.look()
            except DracaenaError as error:
                log.warning("MIG layouts not looked after", error=str(error))
            except Exception:
                # The thread's outermost loop: a bug must not end it for the life of the process.
                log.exception("MIG layouts not looked after by an error of the plugin")

    def look(self) -> None:
        """Bring each GPU a step on. Raises DracaenaError where the journal cannot be read or written."""
        machine, name = self._machine, self._ports.name()
        if machine is None or name is None:
            return
        self._rest(machine)
        wished, problem = self._wished(name, machine)
        records = self._journals.read()
        unfinished = {uuid: each.changing for uuid, each in records.gpus.items() if each.changing is not None}
        layouts = {**unfinished, **wished}
        self._blocks = {uuid: each for uuid, each in self._blocks.items() if layouts.get(uuid) == each.layout}
        standings: dict[str, _Standing] = {}
        due: list[Gpu] = []
        for gpu in machine.gpus:
            layout = layouts.get(gpu.uuid)
            settled = None if layout is None else self._settled(machine, gpu, layout, records.of(gpu.uuid))
            if settled is not None:
                standings[gpu.uuid] = settled
            elif layout is not None:
                due.append(gpu)
        self._withhold({gpu.uuid for gpu in due})
        for gpu in due:
            standings[gpu.uuid] = self._go_on(machine, gpu, layouts[gpu.uuid], records.of(gpu.uuid))
        self._ports.tell(_report(name, problem, standings))

    def _wished(self, name: str, machine: Machine) -> tuple[Mapping[str, GpuLayout], str | None]:
        """Return what is to be by the label and the file, and what is wrong with them: then nothing is to be."""
        if not name:
            return {}, None
        try:
            layouts = self._ports.read_layouts()
            if asks_for_device_ids(name, layouts):
                self._ask_for_device_ids(machine)
            return gpu_layouts(name, layouts, machine, self._device_ids, self._ports.first_indices()), None
        except BadInputError as error:
            return {}, str(error)
        except DracaenaError as error:
            return {}, f"it is not known what GPUs these are: {error}"

    def _ask_for_device_ids(self, machine: Machine) -> None:
        for gpu in machine.gpus:
            if gpu.uuid not in self._device_ids and gpu.mig_enabled is not None:
                self._device_ids[gpu.uuid] = self._changes.device_id(gpu.uuid)

    def _settled(self, machine: Machine, gpu: Gpu, layout: GpuLayout, record: GpuRecord) -> _Standing | None:
        """Return the state of a GPU of which nothing is to be changed, or cannot be; None for all others."""
        if record.changing is not None or gpu.uuid in self._changed:
            return None
        if has_layout(machine, gpu, layout):
            return LayoutState.APPLIED, ""
        strangers = mig_instances(machine, gpu) - {(each.profile, each.start) for each in record.made}
        if strangers and self._users.holding(gpu_device_name(gpu.uuid)) is not None:
            return None  # made on demand, for claims that live: they go with these
        blocked = mode_obstacle(gpu, layout) or (others_made(gpu, sorted(strangers)) if strangers else None)
        blocked = blocked or self._still_blocked(machine, gpu)
        return None if blocked is None else (LayoutState.FAILED, blocked)

    def _still_blocked(self, machine: Machine, gpu: Gpu) -> str | None:
        """Return what blocked a GPU when its change was last tried, as long as nothing says that this is over. Each
        further try would withhold the GPU, and might change its mode there and back.
        """
        block = self._blocks.get(gpu.uuid)
        if block is None or (block.gpu, block.instances) != (gpu, mig_instances(machine, gpu)):
            return None
        if not isinstance(block.error, MadeByOthersError):
            return str(block.error)
        try:
            self._changes.refuse_beside_others(gpu)
        except DracaenaError as error:
            return str(error if isinstance(error, MadeByOthersError) else block.error)
        return None

    def _rest(self, machine: Machine) -> None:
        """Give the GPUs back that were changed, and that the last reading shows so. One that was begun before a change
        may come after it: it is over with the second, whatever that shows.
        """
        for gpu in machine.gpus:
            changed = self._changed.get(gpu.uuid)
            if changed is None:
                continue
            layout, readings = changed
            if has_layout(machine, gpu, layout) or self._readings >= readings + 2:
                self._changes.rest(gpu.uuid, layout)
                del self._changed[gpu.uuid]

    def _withhold(self, gpus: Collection[str]) -> None:
        self._ports.withhold(gpus)
        self._withheld_s = {uuid: since_s for uuid, since_s in self._withheld_s.items() if uuid in gpus}

    def _go_on(self, machine: Machine, gpu: Gpu, layout: GpuLayout, record: GpuRecord) -> _Standing:
        """Change a GPU if its time has come; return how it stands."""
        if gpu.uuid in self._changed:
            self._ports.read_soon()
            return LayoutState.PENDING, f"GPU {gpu.index} is done, and published when the driver was read again"
        name = gpu_device_name(gpu.uuid)
        try:
            waiting = None if record.changing is not None else self._waits_for(gpu)
            if waiting is not None:
                return LayoutState.PENDING, waiting
            self._changes.change(gpu, layout, lambda: self._users.prepared(name))
        except GpuInUseError as error:
            return LayoutState.PENDING, str(error)
        except LayoutBlockedError as error:
            self._blocks[gpu.uuid] = _Block(layout, gpu, mig_instances(machine, gpu), error)
            return LayoutState.FAILED, str(error)
        except MigRefusedError as error:
            state = LayoutState.PENDING if error.reason == IN_USE else LayoutState.FAILED
            return state, f"GPU {gpu.index}: {error}"
        except DracaenaError as error:
            return LayoutState.PENDING, f"GPU {gpu.index}: {error}"
        self._changed[gpu.uuid] = (layout, self._readings)
        self._ports.read_soon()
        return LayoutState.PENDING, f"GPU {gpu.index} is done, and published when the driver was read again"

    def _waits_for(self, gpu: Gpu) -> str | None:
        """Return what is waited for before a GPU is touched."""
        if not self._ports.is_withheld(gpu.uuid):
            self._withheld_s.pop(gpu.uuid, None)
            return f"the devices of GPU {gpu.index} are being withheld"
        now_s = self._clock.monotonic()
        if now_s - self._withheld_s.setdefault(gpu.uuid, now_s) < SETTLE_S:
            return f"the devices of GPU {gpu.index} are withheld; pods that were given one before are waited for"
        name = gpu_device_name(gpu.uuid)
        return self._users.holding(name) or self._users.allocated(name)


def _report(name: str, problem: str | None, standings: Mapping[str, _Standing]) -> LayoutReport | None:
    if problem is not None:
        return LayoutReport(name, LayoutState.FAILED, problem)
    if not standings:
        return LayoutReport(name, LayoutState.APPLIED, "") if name else None
    found = [state for state, _ in standings.values()]
    worst = next(state for state in (LayoutState.FAILED, LayoutState.PENDING, LayoutState.APPLIED) if state in found)
    texts = dict.fromkeys(text for state, text in standings.values() if state is worst and text)
    return LayoutReport(name, worst, "; ".join(texts))
