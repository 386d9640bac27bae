"""Static MIG layouts as something that a label of the Node asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from dracaena.api.errors import DracaenaError
from dracaena.api.machine import Gpu, Machine
from dracaena.api.names import gpu_device_name
from dracaena.kubelet_plugin.changes.kinds.mig_instances import LAYOUT
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
from dracaena.kubelet_plugin.labels.follower import BlockedError, LabelRow, LabelState, StateAndReason
from dracaena.kubelet_plugin.labels.layout_notes import LayoutNotes
from dracaena.kubelet_plugin.labels.mig_changes import MigLayoutChanges, others_made
from dracaena.kubelet_plugin.prepare.journals.layouts import GpuRecord
from dracaena.kubelet_plugin.store.gpu_users import GpuUsers


@dataclass(frozen=True, slots=True)
class _Block:
    """What keeps a GPU from its layout until somebody acts, as MigLayoutChanges found it."""

    layout: GpuLayout
    gpu: Gpu
    """The GPU as read then."""
    instances: AbstractSet[tuple[str, int]]
    error: BlockedError


class MigLayouts(LabelRow[Gpu, GpuLayout]):
    """GPUs are named by UUID."""

    name = LAYOUT

    def __init__(
        self,
        changes: MigLayoutChanges,
        notes: LayoutNotes[GpuRecord],
        users: GpuUsers,
        *,
        read_layouts: Callable[[], Layouts],
        first_indices: Callable[[], Mapping[int, str]],
    ) -> None:
        """`read_layouts` reads the file; it raises BadInputError. `first_indices`: see NodeDevices."""
        self._changes = changes
        self._notes = notes
        self._users = users
        self._read_layouts = read_layouts
        self._first_indices = first_indices
        self._looked_at: Machine | None = None
        self._blocks: dict[str, _Block] = {}
        self._device_ids: dict[str, int] = {}

    def things(self, machine: Machine | None) -> Mapping[str, Gpu] | None:
        """Return the GPUs of the last reading."""
        self._looked_at = machine
        return None if machine is None else {gpu.uuid: gpu for gpu in machine.gpus}

    def _now(self) -> Machine:
        assert self._looked_at is not None  # a look begins with it
        return self._looked_at

    def is_read(self, thing: Gpu, goal: GpuLayout) -> bool:
        """Whether the GPU has its layout."""
        return has_layout(self._now(), thing, goal)

    def rest(self, name: str, goal: GpuLayout) -> None:
        """Release a GPU."""
        self._notes.rest(name, goal)

    def targets(self, value: str) -> Mapping[str, GpuLayout]:
        """Return the layout of each GPU by the one that the node should have, empty for none."""
        if not value:
            return {}
        machine, layouts = self._now(), self._read_layouts()
        if asks_for_device_ids(value, layouts):
            for gpu in machine.gpus:
                if gpu.uuid not in self._device_ids and gpu.mig_enabled is not None:
                    self._device_ids[gpu.uuid] = self._changes.device_id(gpu.uuid)
        return gpu_layouts(value, layouts, machine, self._device_ids, self._first_indices())

    def begun(self) -> Mapping[str, GpuLayout]:
        """Return the layouts that GPUs are being changed to."""
        return {uuid: each.changing for uuid, each in self._notes.read().items() if each.changing is not None}

    def goals(self, begun: Mapping[str, GpuLayout], targets: Mapping[str, GpuLayout] | None) -> Mapping[str, GpuLayout]:
        """Return all targets; forget what blocked GPUs that have another one now."""
        goals = super().goals(begun, targets)
        self._blocks = {uuid: each for uuid, each in self._blocks.items() if goals.get(uuid) == each.layout}
        return goals

    def settled(self, thing: Gpu, goal: GpuLayout) -> StateAndReason | None:
        """Return the state of a GPU that has its layout, or that something blocks."""
        machine = self._now()
        if has_layout(machine, thing, goal):
            return LabelState.APPLIED, ""
        ours = {(each.profile, each.start) for each in self._changes.made(thing).values()}
        strangers = gpu_instances(machine, thing) - ours
        if strangers and self._holding(thing) is not None:
            return None  # made on demand, for claims that still live and take them along when they end
        blocked = mode_obstacle(thing, goal) or (others_made(thing, sorted(strangers)) if strangers else None)
        blocked = blocked or self._still_blocked(machine, thing)
        return None if blocked is None else (LabelState.FAILED, blocked)

    def _still_blocked(self, machine: Machine, gpu: Gpu) -> str | None:
        """Return what blocked a GPU when its change was last tried, until something shows that this is over. Each retry
        would withhold the GPU, and might change its mode back and forth.
        """
        block = self._blocks.get(gpu.uuid)
        if block is None or (block.gpu, block.instances) != (gpu, gpu_instances(machine, gpu)):
            return None
        return str(block.error)

    def user(self, thing: Gpu) -> str | None:
        """Return which claim has something of a GPU, or may come to have."""
        return self._holding(thing) or self._users.allocated(gpu_device_name(thing.uuid))

    def _holding(self, gpu: Gpu) -> str | None:
        return self._users.holding(gpu_device_name(gpu.uuid))

    def change(self, thing: Gpu, goal: GpuLayout) -> GpuLayout:
        """Bring a GPU into its layout."""
        self._changes.change(thing, goal, lambda: self._holding(thing))
        return goal

    def failed(self, thing: Gpu, goal: GpuLayout, error: DracaenaError) -> LabelState:
        """Remember what blocks a GPU; what the driver refuses has failed, too."""
        if isinstance(error, BlockedError):
            self._blocks[thing.uuid] = _Block(goal, thing, gpu_instances(self._now(), thing), error)
        if isinstance(error, MigRefusedError) and error.reason != IN_USE:
            return LabelState.FAILED
        return super().failed(thing, goal, error)

    def words(self, thing: Gpu) -> str:
        """Return the index of a GPU."""
        return f"GPU {thing.index}"
