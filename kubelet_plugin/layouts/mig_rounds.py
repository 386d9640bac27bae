"""Keeps the GPUs of this node in the MIG layout that its label names, changing each when it is idle (LayoutRounds)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from dracaena.api.errors import DracaenaError
from dracaena.api.machine import Gpu, Machine
from dracaena.api.names import DeviceName, gpu_device_name
from dracaena.kubelet_plugin.discovery.mig.instances import IN_USE, MigRefusedError
from dracaena.kubelet_plugin.discovery.mig.layouts import (
    GpuLayout,
    Layouts,
    asks_for_device_ids,
    gpu_instances,
    gpu_layouts,
    has_layout,
    mode_obstacle,
)
from dracaena.kubelet_plugin.layouts.journals import LayoutBlockedError, LayoutJournals
from dracaena.kubelet_plugin.layouts.mig_changes import MigLayoutChanges, others_made
from dracaena.kubelet_plugin.layouts.rounds import LayoutPorts, LayoutRounds, LayoutState, StateAndReason
from dracaena.kubelet_plugin.prepare.journals.layouts import GpuRecord
from dracaena.kubelet_plugin.store.gpu_users import GpuUsers
from dracaena.process.clock import Clock


@dataclass(frozen=True, slots=True)
class _Block:
    """What keeps a GPU from its layout until somebody acts, as MigLayoutChanges found it."""

    layout: GpuLayout
    gpu: Gpu
    """The GPU as read then."""
    instances: AbstractSet[tuple[str, int]]
    error: LayoutBlockedError


class MigLayouts(LayoutRounds[Gpu, GpuLayout]):
    """GPUs are named by UUID. take() is for any thread, too."""

    what = "MIG"

    def __init__(
        self,
        changes: MigLayoutChanges,
        journals: LayoutJournals[GpuRecord],
        users: GpuUsers,
        ports: LayoutPorts,
        clock: Clock,
        *,
        read_layouts: Callable[[], Layouts],
        first_indices: Callable[[], Mapping[int, str]],
    ) -> None:
        """`read_layouts` reads the file; it raises BadInputError. `first_indices`: see NodeDevices."""
        super().__init__(users, ports, clock, "mig-layouts")
        self._changes = changes
        self._journals = journals
        self._read_layouts = read_layouts
        self._first_indices = first_indices
        self._machine: Machine | None = None  # replaced whole
        # Only for the thread that looks:
        self._looked_at: Machine | None = None
        self._records: Mapping[str, GpuRecord] = {}
        self._blocks: dict[str, _Block] = {}
        self._device_ids: dict[str, int] = {}

    def take(self, machine: Machine) -> None:
        """Use another reading from now on. For the thread that reads, like read_again()."""
        self._machine = machine
        self.read_again()

    def _gpus(self) -> Mapping[str, Gpu] | None:
        self._looked_at = machine = self._machine
        return None if machine is None else {gpu.uuid: gpu for gpu in machine.gpus}

    def _now(self) -> Machine:
        assert self._looked_at is not None  # a look begins with it
        return self._looked_at

    def _target_layouts(self, name: str) -> Mapping[str, GpuLayout]:
        machine, layouts = self._now(), self._read_layouts()
        if asks_for_device_ids(name, layouts):
            self._ask_for_device_ids(machine)
        return gpu_layouts(name, layouts, machine, self._device_ids, self._first_indices())

    def _ask_for_device_ids(self, machine: Machine) -> None:
        for gpu in machine.gpus:
            if gpu.uuid not in self._device_ids and gpu.mig_enabled is not None:
                self._device_ids[gpu.uuid] = self._changes.device_id(gpu.uuid)

    def _begun(self) -> Mapping[str, GpuLayout]:
        self._records = self._journals.read().gpus
        return {uuid: each.changing for uuid, each in self._records.items() if each.changing is not None}

    def _is_read(self, gpu: Gpu, layout: GpuLayout) -> bool:
        return has_layout(self._now(), gpu, layout)

    def _settled(self, gpu: Gpu, layout: GpuLayout) -> StateAndReason | None:
        machine, record = self._now(), self._records.get(gpu.uuid, GpuRecord())
        if has_layout(machine, gpu, layout):
            return LayoutState.APPLIED, ""
        strangers = gpu_instances(machine, gpu) - {(each.profile, each.start) for each in record.made}
        if strangers and self._users.holding(gpu_device_name(gpu.uuid)) is not None:
            return None  # made on demand, for claims that still live and take them along when they end
        blocked = mode_obstacle(gpu, layout) or (others_made(gpu, sorted(strangers)) if strangers else None)
        blocked = blocked or self._still_blocked(machine, gpu)
        return None if blocked is None else (LayoutState.FAILED, blocked)

    def _still_blocked(self, machine: Machine, gpu: Gpu) -> str | None:
        """Return what blocked a GPU when its change was last tried, until something shows that this is over. Each retry
        would withhold the GPU, and might change its mode back and forth.
        """
        block = self._blocks.get(gpu.uuid)
        if block is None or (block.gpu, block.instances) != (gpu, gpu_instances(machine, gpu)):
            return None
        return str(block.error)

    def _remember(self, gpu: Gpu, layout: GpuLayout, error: LayoutBlockedError) -> None:
        self._blocks[gpu.uuid] = _Block(layout, gpu, gpu_instances(self._now(), gpu), error)

    def _forget(self, layouts: Mapping[str, GpuLayout]) -> None:
        self._blocks = {uuid: each for uuid, each in self._blocks.items() if layouts.get(uuid) == each.layout}

    def _change(self, gpu: Gpu, layout: GpuLayout) -> None:
        self._changes.change(gpu, layout, lambda: self._users.holding(gpu_device_name(gpu.uuid)))

    def _rest(self, name: str, layout: GpuLayout) -> None:
        self._changes.rest(name, layout)

    def _state_after(self, error: DracaenaError) -> LayoutState:
        refused = isinstance(error, MigRefusedError) and error.reason != IN_USE
        return LayoutState.FAILED if refused else LayoutState.PENDING

    def _device(self, gpu: Gpu) -> DeviceName:
        return gpu_device_name(gpu.uuid)

    def _label(self, gpu: Gpu) -> str:
        return f"GPU {gpu.index}"
