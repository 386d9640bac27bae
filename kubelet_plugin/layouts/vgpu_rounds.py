"""Keeps the GPUs of this node in the vGPU layout that its label names (LayoutRounds)."""

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
from dracaena.kubelet_plugin.layouts.journals import LayoutJournals
from dracaena.kubelet_plugin.layouts.rounds import LayoutPorts, LayoutRounds, LayoutState, StateAndReason
from dracaena.kubelet_plugin.layouts.vgpu_changes import VgpuLayoutChanges, VgpuRefusedError, vgpus_of_others
from dracaena.kubelet_plugin.prepare.journals.vgpu_layouts import NOTHING_KNOWN, VgpuRecord
from dracaena.kubelet_plugin.store.gpu_users import GpuUsers
from dracaena.process.clock import Clock

log = structlog.get_logger()


class VgpuRounds(LayoutRounds[VgpuGpu, VgpuLayout]):
    """GPUs are named by PCI address. take() is for any thread, too. Each look reads /sys, so what blocks a GPU need not
    be remembered.
    """

    what = "vGPUs"

    def __init__(
        self,
        changes: VgpuLayoutChanges,
        journals: LayoutJournals[VgpuRecord],
        users: GpuUsers,
        ports: LayoutPorts,
        clock: Clock,
        *,
        read_layouts: Callable[[], VgpuLayouts],
        read_gpus: Callable[[], Sequence[VgpuGpu]],
    ) -> None:
        """`read_layouts` reads the file; it raises BadInputError. `read_gpus` reads the GPUs from /sys; it raises
        TemporaryError.
        """
        super().__init__(users, ports, clock, "vgpu-layouts")
        self._changes = changes
        self._journals = journals
        self._read_layouts = read_layouts
        self._read_gpus = read_gpus
        self._machine: Machine | None = None  # replaced whole
        # Only for the thread that looks:
        self._there: Mapping[str, VgpuGpu] = {}
        self._records: Mapping[str, VgpuRecord] = {}
        self._first: dict[int, str] = {}  # which address each index had first: the index means that GPU

    def take(self, machine: Machine) -> None:
        """Use another reading from now on. For the thread that reads, like read_again()."""
        self._machine = machine
        self.read_again()

    def _gpus(self) -> Mapping[str, VgpuGpu] | None:
        if self._machine is None:
            return None
        self._there = {gpu.address: gpu for gpu in self._read_gpus()}
        for gpu in self._there.values():
            self._first.setdefault(gpu.index, gpu.address)
        return self._there

    def _target_layouts(self, name: str) -> Mapping[str, VgpuLayout]:
        return vgpu_layouts(name, self._read_layouts(), tuple(self._there.values()), self._first)

    def _begun(self) -> Mapping[str, VgpuLayout]:
        self._records = self._journals.read().gpus
        return {address: each.changing for address, each in self._records.items() if each.changing is not None}

    def _still_wanted(
        self, begun: Mapping[str, VgpuLayout], targets: Mapping[str, VgpuLayout]
    ) -> Mapping[str, VgpuLayout]:
        return {
            address: layout
            for address, layout in begun.items()
            if address in targets or address in self._changed or not self._is_dropped(address)
        }

    def _is_dropped(self, address: str) -> bool:
        try:
            return self._changes.drop(address)
        except DracaenaError as error:
            log.info("a layout that was begun is not dropped yet", gpu=address, reason=str(error))
            return False

    def _is_read(self, gpu: VgpuGpu, layout: VgpuLayout) -> bool:
        vgpus = () if self._machine is None else self._machine.vgpus
        return Counter(each.type.short_name for each in vgpus if each.parent == gpu.address) == Counter(layout.counts)

    def _settled(self, gpu: VgpuGpu, layout: VgpuLayout) -> StateAndReason | None:
        ours = self._records.get(gpu.address, NOTHING_KNOWN).made
        if has_vgpu_layout(gpu, layout, ours):
            return LayoutState.APPLIED, ""
        others = made_by_others(gpu, ours)
        return (LayoutState.FAILED, vgpus_of_others(gpu, others)) if others else None

    def _change(self, gpu: VgpuGpu, layout: VgpuLayout) -> None:
        self._changes.change(gpu.address, layout, lambda: self._users.holding(self._device(gpu)))

    def _rest(self, name: str, layout: VgpuLayout) -> None:
        self._changes.rest(name, layout)

    def _state_after(self, error: DracaenaError) -> LayoutState:
        return LayoutState.FAILED if isinstance(error, VgpuRefusedError) else LayoutState.PENDING

    def _device(self, gpu: VgpuGpu) -> DeviceName:
        return DeviceName(gpu.address)

    def _label(self, gpu: VgpuGpu) -> str:
        return str(gpu)
