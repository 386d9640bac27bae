"""Brings one GPU into a vGPU layout, noting each write before it is made.

`changing` is noted first, as with MIG layouts: from then on, until the GPU was read again, no claim gets a vGPU of it
here. A vGPU is noted before it is made and forgotten after it is gone. The UUID of a mediated device is chosen in
advance, so that after a kill its name alone shows that it is ours; a virtual function is noted with the type that it
should get, and one with another type is somebody else's. vGPUs that the note does not have stay, and so does their
GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import structlog

from dracaena.api.errors import TemporaryError
from dracaena.api.names import DeviceName
from dracaena.api.passthrough import passthrough_device_name
from dracaena.api.vgpu import is_mdev_uuid, vgpu_type
from dracaena.kubelet_plugin.discovery.layout_files import listed
from dracaena.kubelet_plugin.discovery.vm.vgpu_layouts import (
    OurVgpu,
    VgpuGpu,
    VgpuLayout,
    VgpuOnGpu,
    VgpuSteps,
    function_with_room,
    made_by_others,
    vgpu_layout_problem,
    vgpu_steps,
)
from dracaena.kubelet_plugin.labels.follower import BlockedError, InUseError
from dracaena.kubelet_plugin.labels.layout_notes import LayoutNotes
from dracaena.kubelet_plugin.ports import NodeLock, OpeningProcess, SysfsWrites
from dracaena.kubelet_plugin.prepare.journals.vgpu_layouts import VgpuRecord

_NO_NUMBER: Final = 255
"""Exit status of a writer whose error had no number (PciDriverFiles)."""

log = structlog.get_logger()


class VgpuRefusedError(TemporaryError):
    """The kernel refuses a write, or has no room for another vGPU: that step did nothing."""


class VgpuLayoutChanges:
    """For one thread. Two instances of the plugin take turns by the lock of the GPU."""

    def __init__(
        self,
        read: Callable[[], Sequence[VgpuGpu]],
        writes: SysfsWrites,
        holders: Callable[[str, int | None], Sequence[OpeningProcess]],
        notes: LayoutNotes[VgpuRecord],
        gpu_lock: Callable[[DeviceName], NodeLock],
        new_uuid: Callable[[], str],
    ) -> None:
        """`read` reads the GPUs from /sys. `holders` returns who has a vGPU open (PciHolders.vgpu_holders); it raises
        BlockedError if processes cannot be seen.
        """
        self._read = read
        self._writes = writes
        self._holders = holders
        self._notes = notes
        self._gpu_lock = gpu_lock
        self._new_uuid = new_uuid

    def change(self, address: str, layout: VgpuLayout, user: Callable[[], str | None]) -> None:
        """Bring a GPU into a layout, from wherever an earlier try left it.

        `user` returns, with the lock of the calls held, which claim has one of its vGPUs. Raises InUseError if a
        claim or a process has, BlockedError, and TemporaryError if a step failed: then the GPU stays `changing`,
        and the next try continues. If the kernel refused a step before anything was written, by this try or by earlier
        ones, the GPU is unchanged and no longer `changing`. On success it stays `changing` until LayoutNotes.rest().
        """
        with self._gpu_lock(passthrough_device_name(address)).hold(0.0):
            self._refuse_while_writing(address)
            gpu, record = self._gpu(address), self._notes.of(address)
            steps = self._checked_steps(gpu, layout, record)
            at_rest = record.changing is None
            begun = self._notes.begin(address, layout, user)
            begun = self._forget_gone(gpu, begun, at_rest=at_rest)
            try:
                self._go(gpu, begun, steps)
            except (VgpuRefusedError, InUseError):
                self._end_untouched(address)
                raise
        log.info("GPU has its vGPU layout", gpu=address, layout=layout.name, types=dict(layout.counts))

    def drop(self, address: str) -> bool:
        """End a change that was begun and is no longer wanted, if nothing was written for it; return whether that is
        so. Raises TemporaryError if the GPU cannot be looked at now.
        """
        with self._gpu_lock(passthrough_device_name(address)).hold(0.0):
            self._refuse_while_writing(address)
            return self._end_untouched(address)

    def _end_untouched(self, address: str) -> bool:
        """End the change of a GPU if nothing was written for it; return whether it was ended. No write is hanging."""
        gpu, record = self._gpu(address), self._notes.of(address)
        if record.changing is None or not record.is_untouched(gpu.vgpus):
            return False
        self._notes.note(address, self._without_gone(gpu, record).changed_to(None))
        return True

    def _checked_steps(self, gpu: VgpuGpu, layout: VgpuLayout, record: VgpuRecord) -> VgpuSteps:
        """Return what to do. Refuses what can be known to fail before anything is begun."""
        others = made_by_others(gpu, record.made)
        if others:
            raise BlockedError(vgpus_of_others(gpu, others))
        problem = vgpu_layout_problem(gpu, layout)
        if problem is not None:
            raise BlockedError(f"layout {layout.name}: {problem}")
        steps = vgpu_steps(gpu, layout, record.made)
        for each in steps.removed:
            self._refuse_while_open(gpu, each)
        return steps

    def _forget_gone(self, gpu: VgpuGpu, record: VgpuRecord, *, at_rest: bool) -> VgpuRecord:
        """Forget vGPUs that are noted and do not exist: the write was never made, or somebody removed it. `at_rest`:
        nothing was under way when the change began, so they did not exist by then.
        """
        found = self._without_gone(gpu, record)
        if found == record:
            return record
        return self._notes.note(gpu.address, replace(found, before=found.made) if at_rest else found)

    def _without_gone(self, gpu: VgpuGpu, record: VgpuRecord) -> VgpuRecord:
        for mine in record.made:
            if not any(mine.may_be(each) for each in gpu.vgpus):
                record = record.without(mine)
        return record

    def _go(self, gpu: VgpuGpu, record: VgpuRecord, steps: VgpuSteps) -> None:
        for mine in steps.removed:
            record = self._remove(gpu, record, mine)
        for type_name in steps.made:
            record = self._make(gpu, record, type_name)

    def _remove(self, gpu: VgpuGpu, record: VgpuRecord, mine: OurVgpu) -> VgpuRecord:
        self._refuse_while_open(gpu, mine)
        if is_mdev_uuid(mine.identity):
            self._write(gpu, f"bus/mdev/devices/{mine.identity}/remove", "1\n")
        else:
            self._write(gpu, f"bus/pci/devices/{mine.identity}/nvidia/current_vgpu_type", "0\n")
        if any(mine.may_be(each) for each in self._gpu(gpu.address).vgpus):
            raise TemporaryError(f"vGPU {mine.identity} was to be removed, but is still there")
        return self._notes.note(gpu.address, record.without(mine))

    def _make(self, gpu: VgpuGpu, record: VgpuRecord, type_name: str) -> VgpuRecord:
        now = self._gpu(gpu.address)
        place = function_with_room(now, type_name)
        if place is None:
            there = ", ".join(sorted(each.type_name for each in record.made)) or "no vGPU"
            read = vgpu_type(type_name)
            mig = " (its GPU has to be in MIG mode, with a GPU instance that is free)" if read and read.slices else ""
            raise VgpuRefusedError(f"there is no room for another {type_name} next to {there}{mig}")
        function, offered = place
        identity = function.address if function.has_type_file else self._new_uuid()
        mine = OurVgpu(identity, type_name, offered.type_id)
        before, record = record, self._notes.note(gpu.address, record.making(mine))
        folder = f"bus/pci/devices/{function.address}"
        try:
            if function.has_type_file:
                self._write(gpu, f"{folder}/nvidia/current_vgpu_type", f"{offered.type_id}\n")
            else:
                self._write(gpu, f"{folder}/mdev_supported_types/{offered.type_id}/create", f"{identity}\n")
        except VgpuRefusedError:
            self._notes.note(gpu.address, before)
            raise
        if not any(mine.may_be(each) for each in self._gpu(gpu.address).vgpus):
            raise TemporaryError(f"vGPU {identity} was to be a {type_name}, but is not")
        return record

    def _gpu(self, address: str) -> VgpuGpu:
        found = next((gpu for gpu in self._read() if gpu.address == address), None)
        if found is None:
            raise TemporaryError(f"there is no GPU at {address} on the PCI bus any more")
        return found

    def _refuse_while_writing(self, address: str) -> None:
        if self._writes.is_writing(address):
            raise TemporaryError(
                f"an earlier write to /sys for the GPU at {address} has not ended: look for its process in state D, "
                "and end the virtual machine that has a vGPU of it"
            )

    def _refuse_while_open(self, gpu: VgpuGpu, mine: OurVgpu) -> None:
        found = next(each for each in gpu.vgpus if mine.may_be(each))
        who = ", ".join(map(str, self._holders(_folder(found), found.iommu_group)))
        if who:
            raise InUseError(f"vGPU {mine.identity} of {gpu} is open in {who}")

    def _write(self, gpu: VgpuGpu, path: str, text: str) -> None:
        try:
            self._writes.write(gpu.address, path, text)
        except OSError as error:
            if error.errno is None or not 0 < error.errno < _NO_NUMBER:
                raise TemporaryError(f"writing {text.strip()} to /sys/{path} ended: {error.strerror}") from error
            raise VgpuRefusedError(
                f"the kernel refuses {text.strip()} in /sys/{path}: {error.strerror}; look at `dmesg` and "
                "`journalctl -u nvidia-vgpu-mgr`"
            ) from error


def vgpus_of_others(gpu: VgpuGpu, others: Sequence[VgpuOnGpu]) -> str:
    """Return a text about vGPUs of a GPU that are not ours."""
    return (
        f"{gpu} has vGPUs that no layout made ({listed([each.identity for each in others])}): they stay, and so does "
        f"the GPU, until you remove them ({_removal(others[0])})"
    )


def _removal(vgpu: VgpuOnGpu) -> str:
    if is_mdev_uuid(vgpu.identity):
        return f"`echo 1 > /sys/{_folder(vgpu)}/remove`"
    return f"`echo 0 > /sys/{_folder(vgpu)}/nvidia/current_vgpu_type`"


def _folder(vgpu: VgpuOnGpu) -> str:
    kind = "mdev" if is_mdev_uuid(vgpu.identity) else "pci"
    return f"bus/{kind}/devices/{vgpu.identity}"
