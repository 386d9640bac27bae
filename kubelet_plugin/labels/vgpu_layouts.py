"""vGPU layouts as something that a label of the Node asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import structlog

from dracaena.api.errors import DracaenaError
from dracaena.api.machine import Machine
from dracaena.api.names import DeviceName
from dracaena.kubelet_plugin.discovery.vm.vgpu_layouts import (
    VgpuGpu,
    VgpuLayout,
    VgpuLayouts,
    has_vgpu_layout,
    made_by_others,
    vgpu_layouts,
)
from dracaena.kubelet_plugin.labels.follower import LabelRow, LabelState, StateAndReason
from dracaena.kubelet_plugin.labels.layout_notes import LayoutNotes
from dracaena.kubelet_plugin.labels.vgpu_changes import VgpuLayoutChanges, VgpuRefusedError, vgpus_of_others
from dracaena.kubelet_plugin.prepare.journals.vgpu_layouts import NOTHING_KNOWN, VgpuRecord
from dracaena.kubelet_plugin.store.gpu_users import GpuUsers

log = structlog.get_logger()


class VgpuLayoutsOfNode(LabelRow[VgpuGpu, VgpuLayout]):
    """GPUs are named by PCI address. Each look reads /sys, so what blocks a GPU need not be remembered."""

    name = "vgpu-layouts"

    def __init__(
        self,
        changes: VgpuLayoutChanges,
        notes: LayoutNotes[VgpuRecord],
        users: GpuUsers,
        *,
        read_layouts: Callable[[], VgpuLayouts],
        read_gpus: Callable[[], Sequence[VgpuGpu]],
    ) -> None:
        """`read_layouts` reads the file; it raises BadInputError. `read_gpus` reads the GPUs from /sys; it raises
        TemporaryError.
        """
        self._changes = changes
        self._notes = notes
        self._users = users
        self._read_layouts = read_layouts
        self._read_gpus = read_gpus
        self._machine: Machine | None = None
        self._there: Mapping[str, VgpuGpu] = {}
        self._records: Mapping[str, VgpuRecord] = {}
        self._first: dict[int, str] = {}  # which address each index had first: the index means that GPU

    def things(self, machine: Machine | None) -> Mapping[str, VgpuGpu] | None:
        """Return the GPUs as /sys shows them, once the node was read."""
        self._machine = machine
        if machine is None:
            return None
        self._there = {gpu.address: gpu for gpu in self._read_gpus()}
        for gpu in self._there.values():
            self._first.setdefault(gpu.index, gpu.address)
        return self._there

    def is_read(self, thing: VgpuGpu, goal: VgpuLayout) -> bool:
        """Whether the last reading shows the vGPUs of a layout."""
        vgpus = () if self._machine is None else self._machine.vgpus
        return Counter(each.type.short_name for each in vgpus if each.parent == thing.address) == Counter(goal.counts)

    def rest(self, name: str, goal: VgpuLayout) -> None:
        """Release a GPU."""
        self._notes.rest(name, goal)

    def targets(self, value: str) -> Mapping[str, VgpuLayout]:
        """Return the layout of each GPU by the one that the node should have, empty for none."""
        return vgpu_layouts(value, self._read_layouts(), tuple(self._there.values()), self._first) if value else {}

    def begun(self) -> Mapping[str, VgpuLayout]:
        """Return the layouts that GPUs are being changed to."""
        self._records = self._notes.read()
        return {address: each.changing for address, each in self._records.items() if each.changing is not None}

    def goals(
        self, begun: Mapping[str, VgpuLayout], targets: Mapping[str, VgpuLayout] | None
    ) -> Mapping[str, VgpuLayout]:
        """Return all targets, and drop changes that nobody wants any more and that have changed nothing."""
        if targets is None:
            return begun
        unwanted = [address for address in begun if address not in targets and self._is_dropped(address)]
        return {address: goal for address, goal in {**begun, **targets}.items() if address not in unwanted}

    def _is_dropped(self, address: str) -> bool:
        try:
            return self._changes.drop(address)
        except DracaenaError as error:
            log.info("a layout that was begun is not dropped yet", gpu=address, reason=str(error))
            return False

    def settled(self, thing: VgpuGpu, goal: VgpuLayout) -> StateAndReason | None:
        """Return the state of a GPU that has its layout, or vGPUs of others."""
        ours = self._records.get(thing.address, NOTHING_KNOWN).made
        if has_vgpu_layout(thing, goal, ours):
            return LabelState.APPLIED, ""
        others = made_by_others(thing, ours)
        return (LabelState.FAILED, vgpus_of_others(thing, others)) if others else None

    def user(self, thing: VgpuGpu) -> str | None:
        """Return which claim has a vGPU of a GPU, or may come to have."""
        gpu = DeviceName(thing.address)
        return self._users.holding(gpu) or self._users.allocated(gpu)

    def change(self, thing: VgpuGpu, goal: VgpuLayout) -> VgpuLayout:
        """Bring a GPU into its layout."""
        self._changes.change(thing.address, goal, lambda: self._users.holding(DeviceName(thing.address)))
        return goal

    def failed(self, thing: VgpuGpu, goal: VgpuLayout, error: DracaenaError) -> LabelState:
        """What the kernel refuses has failed, too."""
        refused = isinstance(error, VgpuRefusedError)
        return LabelState.FAILED if refused else super().failed(thing, goal, error)

    def words(self, thing: VgpuGpu) -> str:
        """Return index and address of a GPU."""
        return str(thing)
